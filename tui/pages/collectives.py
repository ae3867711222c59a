"""Screen 2: how far the members of each process group have come, and who is behind.

While the run goes on, from the arrivals that agents report; where there are none, from the flight
records of the last round of evidence. A group is known by its name and its lowest rank: disjoint
groups share names.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.state import AttemptState
from harness.state.arrivals import GroupArrivals
from harness.topology import ranks_text
from harness.tui.pages.listing import Listing, Row, Scene
from harness.tui.paint import Line, fit, rule
from harness.tui.theme import Ink
from harness.tui.wording import clean

LATE_SECONDS = 1.0
"""Members report at different moments: a lag that is younger than this says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Where a group stands. `seqs` holds each member's newest collective, -1: none is known."""

    pg: str
    role: str
    op: str
    seqs: Mapping[int, int]
    since_ns: int
    """Since when somebody waits in the collective after the last whole one; 0: nobody does."""

    @property
    def low(self) -> int:
        return min(self.seqs.values(), default=0)

    @property
    def high(self) -> int:
        return max(self.seqs.values(), default=0)

    @property
    def laggards(self) -> tuple[int, ...]:
        """Those that are behind others."""
        if self.low == self.high:
            return ()
        return tuple(rank for rank, seq in sorted(self.seqs.items()) if seq < self.high)

    def age(self, now_ns: int) -> float:
        """Seconds that members have waited."""
        return max(0.0, (now_ns - self.since_ns) / 1e9) if self.since_ns else 0.0


def groups_of(attempt: AttemptState) -> list[GroupRow]:
    """All groups of an attempt; those that wait longest first, then large ones."""
    arrived = {id(group): group for group in attempt.arrivals.groups.values()}
    rows = [_of_arrivals(group) for group in arrived.values()]
    if not rows:
        rows = _of_evidence(attempt)
    return sorted(rows, key=lambda row: (row.since_ns or 1 << 63, -len(row.seqs), row.pg))


def _of_arrivals(group: GroupArrivals) -> GroupRow:
    done = group.last.seq if group.last is not None else -1
    seqs = dict.fromkeys(group.members, done)
    since_ns = 0
    for seq, entries in group.waiting.items():
        for rank, entry in entries.items():
            if seq > seqs.get(rank, -1):
                seqs[rank] = seq
            if seq > done and (not since_ns or entry.at_ns < since_ns):
                since_ns = entry.at_ns
    behind = min(seqs.values(), default=0) < max(seqs.values(), default=0)
    return GroupRow(
        pg=group.pg,
        role=clean(group.desc),
        op=clean(group.op),
        seqs=seqs,
        since_ns=since_ns if behind else 0,
    )


def _of_evidence(attempt: AttemptState) -> list[GroupRow]:
    """From the newest entry of each rank in each group."""
    newest: dict[tuple[str, str], dict[int, tuple[int, str, int]]] = {}
    for rank in attempt.ranks.values():
        for entry in rank.evidence.collectives if rank.evidence is not None else ():
            found = newest.setdefault((entry.pg, entry.pg_desc), {})
            if entry.seq_id >= found.get(rank.rank, (-1, "", 0))[0]:
                found[rank.rank] = (entry.seq_id, entry.op, entry.created_ns)
    rows = []
    for (pg, desc), entries in newest.items():
        high = max(seq for seq, _, _ in entries.values())
        first = min(at_ns for seq, _, at_ns in entries.values() if seq == high)
        low = min(seq for seq, _, _ in entries.values())
        rows.append(
            GroupRow(
                pg=pg,
                role=clean(desc),
                op=clean(next(op for seq, op, _ in entries.values() if seq == high)),
                seqs={rank: seq for rank, (seq, _, _) in sorted(entries.items())},
                since_ns=first if low < high else 0,
            )
        )
    return rows


def listing(scene: Scene) -> Listing:
    """One row a group, the ones that are held up first; Enter shows each member."""
    attempt = scene.model.state.attempt
    rows = [] if attempt is None else groups_of(attempt)
    chosen = scene.chosen()
    if chosen is not None:
        rows = [row for row in rows if not chosen.isdisjoint(row.seqs)]
    head: list[Line] = [rule(f"process groups ({len(rows)})", scene.width, scene.ascii_only)]
    if not rows:
        word = "no collective has been seen so far"
        return Listing(head=(*head, ((f" {word}", "dim"),)))
    head.append(((_columns(scene.width, "group", "ranks", "op", "seq", "lag", "age"), "head"),
                 ("laggards", "head")))  # fmt: skip
    most = max(4, 4 * scene.height)
    return Listing(head=tuple(head), rows=tuple(_row(row, scene) for row in rows[:most]))


def _columns(width: int, *texts: str) -> str:
    group, ranks, op, seq, lag, age = texts
    if width < 76:
        return f" {group:<14.14} {op:<12.12} {seq:>8} {lag:>4} {age:>7}  "
    return f" {group:<20.20} {ranks:<14.14} {op:<16.16} {seq:>9} {lag:>4} {age:>7}  "


def _row(row: GroupRow, scene: Scene) -> Row:
    age = row.age(scene.now_ns)
    late = bool(row.laggards) and age >= LATE_SECONDS
    lag = row.high - row.low
    text = _columns(
        scene.width - 1,
        f"{row.role or 'group'} {row.pg}",
        ranks_text(list(row.seqs)),
        row.op,
        f"{row.high}" if row.high >= 0 else "-",
        f"{lag}" if late else "",
        f"{age:.1f} s" if late else "",
    )
    ink: Ink = "bad" if late else "text"
    room = scene.width - len(text) - 2
    who = f"r{ranks_text(row.laggards)}" if late else ""
    return Row(
        key=(row.pg, min(row.seqs, default=-1)),
        lines=(((text, ink), (fit(who, room, scene.ascii_only), "bad")),),
        rank=row.laggards[0] if late else min(row.seqs, default=None),
        detail=lambda: _members(row, scene),
    )


def _members(row: GroupRow, scene: Scene) -> list[Line]:
    """Every member; equal ones on one line."""
    lines: list[Line] = [
        ((f" {row.role or 'group'} {row.pg}: {row.op}", "title"),),
        ((f" {len(row.seqs)} ranks, newest collective #{row.high}", "text"),),
        (),
    ]
    by_seq: dict[int, list[int]] = {}
    for rank, seq in row.seqs.items():
        by_seq.setdefault(seq, []).append(rank)
    states = {cell.rank: cell.state for cell in scene.view.cells}
    for seq, ranks in sorted(by_seq.items()):
        behind = seq < row.high
        words = f"#{seq}" if seq >= 0 else "nothing yet"
        tail = f", {row.high - seq} behind" if behind and seq >= 0 else ""
        seen = sorted({states.get(rank, "") for rank in ranks})
        text = f"  {words:<12} ranks {ranks_text(ranks)} ({', '.join(filter(None, seen))}){tail}"
        lines += _wrap(text, scene.width, "bad" if behind else "text")
    return lines


def _wrap(text: str, width: int, ink: Ink) -> Iterable[Line]:
    parts: Sequence[str] = textwrap.wrap(text, max(20, width - 4), subsequent_indent=" " * 15)
    return [((f"  {part}", ink),) for part in parts]

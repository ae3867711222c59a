"""Screen 2: how far the members of each process group have come, and who is behind.

From the arrivals that agents report and the flight records of the last round of evidence. A group
is known by its name and its lowest rank: disjoint
groups share names.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.state import AttemptState, RunState
from harness.state.arrivals import Reached
from harness.topology import ranks_text
from harness.tui.cells import CULPRITS
from harness.tui.pages.listing import Listing, Row, Scene
from harness.tui.paint import Line, fit, rule
from harness.tui.theme import Ink
from harness.tui.wording import clean

LATE_SECONDS = 1.0
"""A rank that has advanced since is not said to stand still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Where a group stands. `seqs` holds each member's newest collective, -1: none is known."""

    pg: str
    role: str
    op: str
    seqs: Mapping[int, int]
    waiting: frozenset[int] = frozenset()
    """Members that were in their newest collective by the last round of evidence."""

    @property
    def low(self) -> int:
        return min(self.seqs.values(), default=0)

    @property
    def high(self) -> int:
        return max(self.seqs.values(), default=0)

    def behind(self, attempt: AttemptState, until_ns: int) -> tuple[int, ...]:
        """Members that are behind others and have stood still since before `until_ns`.

        Ranks are looked at one after the other, so in a run that goes on each is behind some other
        now and then; one whose pulse advances is only waiting to be looked at.
        """
        ranks = attempt.ranks
        return tuple(
            rank
            for rank, seq in sorted(self.seqs.items())
            if seq < self.high and rank in ranks and ranks[rank].advanced_ns < until_ns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """That a group does not go on. `ranks` are behind by evidence taken since; empty while there is
    none. `seconds` is how long the first of them has stood still."""

    ranks: tuple[int, ...]
    seconds: float


def held_up(row: GroupRow, state: RunState, now_ns: int) -> Held | None:
    """Whether the members of `row` wait for some of them; None when nobody stands still."""
    attempt = state.attempt
    if attempt is None:
        return None
    still = row.behind(attempt, now_ns - int(LATE_SECONDS * 1e9))
    if not still:
        return None
    looks = [c.ordered_ns for c in state.collections if c.attempt == attempt.index and c.took_ns]
    proven = tuple(r for r in still if looks and attempt.ranks[r].advanced_ns < looks[-1])
    if proven == still and not any(row.seqs[rank] == row.high for rank in row.waiting):
        return None  # they are behind, and nobody waits for them here
    since_ns = min(attempt.ranks[rank].advanced_ns for rank in still)
    return Held(ranks=proven, seconds=(now_ns - since_ns) / 1e9)


def groups_of(attempt: AttemptState) -> list[GroupRow]:
    """All groups of an attempt, large ones first."""
    reached = attempt.arrivals.reached.values()
    rows = [_of_arrivals(group, attempt) for group in reached] or _of_evidence(attempt)
    return sorted(rows, key=lambda row: (-len(row.seqs), row.pg))


def _of_arrivals(group: Reached, attempt: AttemptState) -> GroupRow:
    seqs = dict(group.seqs)
    waiting: set[int] = set()
    for rank in group.seqs:
        known = attempt.ranks.get(rank)
        evidence = known.evidence if known is not None else None
        for entry in evidence.collectives if evidence is not None else ():
            if entry.pg == group.pg and entry.seq_id >= seqs[rank]:
                seqs[rank] = entry.seq_id
                (waiting.discard if entry.retired else waiting.add)(rank)
    return GroupRow(
        pg=group.pg,
        role=clean(group.desc),
        op=clean(group.op),
        seqs=seqs,
        waiting=frozenset(waiting),
    )


def _of_evidence(attempt: AttemptState) -> list[GroupRow]:
    """From the newest entry of each rank in each group."""
    newest: dict[tuple[str, str], dict[int, tuple[int, str, bool]]] = {}
    for rank in attempt.ranks.values():
        for entry in rank.evidence.collectives if rank.evidence is not None else ():
            found = newest.setdefault((entry.pg, entry.pg_desc), {})
            if entry.seq_id >= found.get(rank.rank, (-1, "", True))[0]:
                found[rank.rank] = (entry.seq_id, entry.op, entry.retired)
    rows = []
    for (pg, desc), entries in newest.items():
        high = max(seq for seq, _, _ in entries.values())
        rows.append(
            GroupRow(
                pg=pg,
                role=clean(desc),
                op=clean(next(op for seq, op, _ in entries.values() if seq == high)),
                seqs={rank: seq for rank, (seq, _, _) in sorted(entries.items())},
                waiting=frozenset(rank for rank, (_, _, retired) in entries.items() if not retired),
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
    titles = _columns(scene.width - 1, "group", "ranks", "op", "seq", "lag", "still")
    head.append(((" " + titles + "held up by", "head"),))
    held = [(row, held_up(row, scene.model.state, scene.now_ns)) for row in rows]
    held.sort(key=lambda pair: (pair[1] is None, pair[1] is None or not pair[1].ranks))
    culprits = {cell.rank for cell in scene.view.cells if cell.state in CULPRITS}
    most = max(4, 4 * scene.height)
    return Listing(
        head=tuple(head), rows=tuple(_row(row, it, culprits, scene) for row, it in held[:most])
    )


def held_lines(scene: Scene, most: int) -> list[Line]:
    """For the side of the mesh: the groups of which it is known who holds them up."""
    state = scene.model.state
    if state.attempt is None:
        return []
    lines: list[Line] = []
    for row in groups_of(state.attempt):
        held = held_up(row, state, scene.now_ns)
        if held is None or not held.ranks or len(lines) == most:
            continue
        who = fit(f" r{ranks_text(held.ranks)}", scene.width // 3, scene.ascii_only)
        what = f" in {row.role or 'group'} {row.pg}, {row.op} #{row.high}"
        what = fit(what, scene.width - len(who) - 1, scene.ascii_only)
        lines.append(((who, "warn"), (what, "text")))
    return lines


def _columns(width: int, *texts: str) -> str:
    group, ranks, op, seq, lag, age = texts
    if width < 98:
        return f" {group:<14.14} {op:<12.12} {seq:>8} {lag:>4} {age:>7}  "
    return f" {group:<20.20} {ranks:<14.14} {op:<16.16} {seq:>9} {lag:>4} {age:>7}  "


def _row(row: GroupRow, held: Held | None, culprits: set[int], scene: Scene) -> Row:
    text = _columns(
        scene.width - 1,
        f"{row.role or 'group'} {row.pg}",
        ranks_text(list(row.seqs)),
        row.op,
        f"{row.high}" if row.high >= 0 else "-",
        f"{row.high - row.low}" if held else "",
        f"{held.seconds:.1f} s" if held else "",
    )
    late = held.ranks if held is not None else ()
    ink: Ink = "text" if held is None else "warn" if culprits.isdisjoint(late) else "bad"
    room = scene.width - len(text) - 2
    who = f"r{ranks_text(late)}" if late else "not looked at yet" if held else ""
    return Row(
        key=(row.pg, min(row.seqs, default=-1)),
        lines=(((text, ink), (fit(who, room, scene.ascii_only), ink)),),
        rank=late[0] if late else min(row.seqs, default=None),
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

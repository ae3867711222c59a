"""shape_mismatch, collective_mismatch: ranks did different things at the same place of a group.

Compares flight records at equal (group, sequence number). This comes before every other sign: who
dies of a mismatch is a matter of luck, often an innocent neighbour.
"""

import math
from collections import Counter
from dataclasses import dataclass

from harness.collectives import Collective
from harness.diagnosis.scene import Scene, collective_ref, op_name
from harness.diagnosis.signature import Signature, place_text
from harness.diagnosis.texts import is_size_abort, size_ratio
from harness.diagnosis.waits.compare import foretold, new_steps
from harness.incidents import EvidenceRef, Finding, Where
from harness.topology import ranks_name

_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather"})
"""Operations whose input is of one size on all ranks. Gather, scatter and all-to-all are not."""
_NEAR = 1.5
"""Gloo cuts tensors into pieces of whole elements: two ratios this close are the same."""
_WHOLE_WORLD = "0"
"""Name of the default group."""

_What = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """One place of one group, and what each rank recorded there."""

    members: frozenset[int]
    entries: dict[int, Collective]

    @property
    def at_ns(self) -> int:
        return min(entry.created_ns for entry in self.entries.values())


def find(scene: Scene) -> list[Finding]:
    """The earliest place where records differ; else the rank that alone can have differed."""
    meetings = _meetings(scene)
    differing = [
        meeting
        for meeting in meetings
        if len({_what(entry) for entry in meeting.entries.values()}) > 1
    ]
    if differing:
        return [_differ(scene, min(differing, key=lambda meeting: meeting.at_ns))]
    return _aborted_alone(scene, meetings)


def _meetings(scene: Scene) -> list[_Meeting]:
    groups = _groups(scene)
    found: dict[tuple[str, int, int], _Meeting] = {}
    for rank in scene.attempt.ranks.values():
        if rank.evidence is None:
            continue
        for entry in rank.evidence.collectives:
            if op_name(entry).startswith(("send", "recv", "coalesced", "_coalesced")):
                continue
            for at, members in enumerate(groups.get(entry.pg, ())):
                if rank.rank in members:
                    key = entry.pg, entry.seq_id, at
                    if key not in found:
                        found[key] = _Meeting(members=members, entries={})
                    found[key].entries[rank.rank] = entry
                    break
    return list(found.values())


def _groups(scene: Scene) -> dict[str, list[frozenset[int]]]:
    """Members of the groups of each name. Groups of one name can differ from rank to rank, so a
    group that nobody has declared cannot be compared."""
    groups: dict[str, list[frozenset[int]]] = {}
    for group in scene.state.groups.values():
        groups.setdefault(group.pg, []).append(frozenset(group.ranks))
    groups.setdefault(_WHOLE_WORLD, [frozenset(range(scene.attempt.world_size))])
    return groups


def _what(entry: Collective) -> _What:
    op = op_name(entry).lstrip("_").removesuffix("_base").removesuffix("_tensor")
    return (op, entry.sizes, entry.dtypes) if op in _SAME_SIZES else (op, (), ())


def _differ(scene: Scene, meeting: _Meeting) -> Finding:
    counts = Counter(_what(entry) for entry in meeting.entries.values())
    most = max(counts.values())
    usual = [what for what, count in counts.items() if count == most]
    by_number = len(usual) == 1 and most > 1
    odd = sorted(
        rank for rank, entry in meeting.entries.items() if not by_number or _what(entry) != usual[0]
    )
    new = [] if by_number else _new(scene, meeting)
    odd = new or odd
    expected = usual[0] if by_number else None
    verdict, how = _kind(scene, meeting, odd, expected)
    reason = f"{how}; {_numbers(meeting, odd)}"
    if new:
        reason += "; in all rounds before, the operation there was as the others called it now"
    elif not by_number:
        reason += "; their number does not tell which of them is wrong, so all are listed"
    return _finding(
        scene, meeting, verdict, odd, likely=bool(new),
        cause=f"{_at(meeting)}: {_table(meeting)}", reason=reason,
    )  # fmt: skip


def _new(scene: Scene, meeting: _Meeting) -> list[int]:
    """Ranks that called the operation of all with something that was never there before, or made a
    call that nobody had made before."""
    histories = {
        rank: [*_before(scene, rank, entry), _what(entry)]
        for rank, entry in meeting.entries.items()
    }
    new = new_steps(histories)
    known = {what for history in histories.values() for what in history[:-1]}
    if len({history[-1][0] for history in histories.values()}) > 1:
        return new if not any(histories[rank][-1] in known for rank in new) else []
    return new


def _before(scene: Scene, rank: int, here: Collective) -> list[_What]:
    """What `rank` had called on the group of `here` before it, in order."""
    evidence = scene.attempt.ranks[rank].evidence
    if evidence is None:
        return []
    before = [e for e in evidence.collectives if e.pg == here.pg and e.seq_id < here.seq_id]
    return [_what(entry) for entry in sorted(before, key=lambda entry: entry.seq_id)]


def _kind(
    scene: Scene, meeting: _Meeting, odd: list[int], expected: _What | None
) -> tuple[str, str]:
    whats = {_what(entry) for entry in meeting.entries.values()}
    if len({op for op, _, _ in whats}) > 1:
        return "collective_mismatch", "the ranks called different operations at the same place"
    if expected is not None and _skipped(scene, meeting, odd[0], expected):
        return (
            "collective_mismatch",
            f"rank {odd[0]} skipped an operation: what it calls here follows, in all earlier rounds"
            ", the one that the others call",
        )
    if len({dtypes for _, _, dtypes in whats}) > 1 and len({sizes for _, sizes, _ in whats}) == 1:
        return "shape_mismatch", "the same operation was called with different data types"
    return "shape_mismatch", "the same operation was called with tensors of different shape"


def _skipped(scene: Scene, meeting: _Meeting, odd: int, expected: _What) -> bool:
    """Whether the odd rank's call is the one that used to follow the expected call."""
    here = _what(meeting.entries[odd])
    return here != expected and _following(scene, meeting, odd, expected) == here


def _following(scene: Scene, meeting: _Meeting, rank: int, expected: _What) -> _What | None:
    """What followed `expected` in all earlier rounds of `rank`; None where that varies."""
    history = _before(scene, rank, meeting.entries[rank])
    seen = {history[at + 1] for at in range(len(history) - 1) if history[at] == expected}
    return seen.pop() if len(seen) == 1 else None


def _aborted_alone(scene: Scene, meetings: list[_Meeting]) -> list[Finding]:
    """Gloo aborts the receiver of too many bytes before it can leave a record. When all others of
    the group agree, that receiver is the one that differs; with one other, either may be."""
    aborted = [
        ending
        for ending in scene.of_kind("signal", "cried")
        if ending.what == "SIGABRT" and is_size_abort(ending.text)
    ]
    if len(aborted) != 1:
        return []
    rank = aborted[0].rank
    silent = [meeting for meeting in meetings if meeting.members - meeting.entries.keys() == {rank}]
    if not silent:
        return []
    meeting = max(silent, key=lambda meeting: meeting.at_ns)
    others = sorted(meeting.entries)
    if len(others) == 1:
        return [_one_of_two(scene, meeting, others[0], rank, aborted[0].text)]
    skipped = _skipped_by_size(scene, meeting, size_ratio(aborted[0].text))
    reason = f"{_died(rank, others)} agree on the operation, rank {rank}'s record died with it"
    if skipped:
        reason += f"; {_ALWAYS_FOLLOWED}"
    return [_found_alone(scene, meeting, [rank], rank, reason, skipped=skipped)]


_ALWAYS_FOLLOWED = "the size it had room for is that of the operation that always followed"


def _died(rank: int, others: list[int]) -> str:
    return f"more bytes came than rank {rank} had room for, so it aborted; {ranks_name(others)}"


def _one_of_two(scene: Scene, meeting: _Meeting, other: int, rank: int, text: str) -> Finding:
    """Of `rank`, which aborted, and the only `other`: whoever did not do what came there in all
    earlier rounds."""
    here = meeting.entries[other]
    called, usual = _what(here), foretold(_before(scene, other, here))
    skipped = _skipped_by_size(scene, meeting, size_ratio(text))
    reason = f"{_died(rank, [other])} called {_text(here)}"
    if usual is not None and usual != called:
        skipped = _following(scene, meeting, other, usual) == called
        reason += ", where something else came in all earlier rounds"
        if skipped:
            reason += ", and what it called always followed that"
        return _found_alone(scene, meeting, [other], other, reason, skipped=skipped)
    if skipped:
        reason += f"; {_ALWAYS_FOLLOWED}"
    if usual is not None:
        reason += ", as in all earlier rounds"
        return _found_alone(scene, meeting, [rank], rank, reason, skipped=skipped)
    reason += "; two ranks cannot be told apart, so both are listed"
    return _found_alone(scene, meeting, sorted([rank, other]), rank, reason, skipped=skipped)


def _found_alone(
    scene: Scene, meeting: _Meeting, odd: list[int], who: int, reason: str, *, skipped: bool
) -> Finding:
    """`who` is the rank that is said to have done it."""
    here = who in meeting.entries
    if skipped:
        did = "skipped the one before" if here else "skipped it"
    else:
        did = "passed something larger" if here else "passed something smaller"
    return _finding(
        scene,
        meeting,
        "collective_mismatch" if skipped else "shape_mismatch",
        odd,
        cause=f"{_at(meeting)}: {_table(meeting)}; rank {who} {did}",
        reason=reason,
        likely=True,
    )


def _skipped_by_size(scene: Scene, meeting: _Meeting, ratio: float | None) -> bool:
    """Whether the aborted rank was one operation ahead, going by the sizes that Gloo names."""
    rank, entry = next(iter(sorted(meeting.entries.items())))
    expected = _what(entry)
    following = _following(scene, meeting, rank, expected)
    if ratio is None or following is None:
        return False
    here, there = _elements(expected), _elements(following)
    if there <= 0:
        return False
    # A ring over n ranks passes on pieces of a 2n-th, rounded up: small tensors are all rounding.
    cut = 2 * len(meeting.members)
    pieces = math.ceil(here / cut) / math.ceil(there / cut)
    return pieces == ratio or 1 / _NEAR < here / there / ratio < _NEAR


def _elements(what: _What) -> int:
    return sum(math.prod(shape) for shape in what[1])


def _finding(
    scene: Scene,
    meeting: _Meeting,
    verdict: str,
    odd: list[int],
    *,
    cause: str,
    reason: str,
    likely: bool = False,
) -> Finding:
    shown = meeting.entries.get(odd[0]) or next(iter(meeting.entries.values()))
    where = _where(scene, odd[0])
    refs = []
    for rank in sorted(meeting.entries, key=lambda rank: rank not in odd)[:8]:
        source, seq = scene.attempt.ranks[rank].refs["evidence"]
        evidence = scene.attempt.ranks[rank].evidence
        files = [] if evidence is None else [file for file in evidence.files if "flight" in file]
        refs.append(
            EvidenceRef(
                source=source,
                seq=seq,
                shows=f"rank {rank}: {_text(meeting.entries[rank])}",
                file=files[0] if files else None,
            )
        )
    return Finding(
        verdict=verdict,
        ranks=tuple(odd),
        cause=cause,
        reason=reason,
        confidence="likely" if likely else "proven",
        onset_ns=meeting.at_ns or scene.attempt.trouble_ns,
        evidence=tuple(refs),
        where=where,
        collective=collective_ref(shown),
        signature=Signature(
            verdict=verdict, what=op_name(shown), detail=shown.pg_desc, place=place_text(where)
        ).text(),
    )


def _where(scene: Scene, rank: int) -> Where | None:
    state = scene.attempt.ranks[rank]
    if state.raised is not None and state.raised.where is not None:
        return state.raised.where
    return None if state.evidence is None else state.evidence.user_frame


def _at(meeting: _Meeting) -> str:
    entry = next(iter(meeting.entries.values()))
    return f"#{entry.seq_id} on {entry.pg_desc or entry.pg}"


def _numbers(meeting: _Meeting, odd: list[int]) -> str:
    others = sorted(meeting.entries.keys() - set(odd))
    return (
        f"{len(odd)} of {len(meeting.entries)} recorded ranks differ from"
        f" {ranks_name(others) if others else 'each other'}"
    )


def _table(meeting: _Meeting) -> str:
    """`rank 0 all_reduce 100x16 float32, rank 1-3 all_reduce 200x16 float32`."""
    groups: dict[str, list[int]] = {}
    for rank, entry in sorted(meeting.entries.items()):
        groups.setdefault(_text(entry), []).append(rank)
    return ", ".join(f"{ranks_name(ranks)} {text}" for text, ranks in groups.items())


def _text(entry: Collective) -> str:
    sizes = "+".join("x".join(str(size) for size in shape) or "scalar" for shape in entry.sizes)
    dtypes = ",".join(sorted(set(entry.dtypes))).lower()
    return " ".join(part for part in (op_name(entry), sizes, dtypes) if part)

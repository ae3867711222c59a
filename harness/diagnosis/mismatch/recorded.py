"""Ranks whose records of one place differ."""

from collections import Counter
from collections.abc import Sequence

from harness.diagnosis.mismatch import objects
from harness.diagnosis.mismatch.meetings import Elsewhere, Meeting, before
from harness.diagnosis.mismatch.pieces import aborts_of, voters
from harness.diagnosis.mismatch.telling import finding
from harness.diagnosis.scene import Scene
from harness.diagnosis.waits.compare import new_steps
from harness.diagnosis.waits.record import Call
from harness.diagnosis.waits.root import table
from harness.incidents import Finding
from harness.topology import ranks_name


def find(scene: Scene, meetings: Sequence[Meeting]) -> list[Finding]:
    """The earliest place where records differ."""
    differing = [meeting for meeting in meetings if len(set(meeting.calls.values())) > 1]
    if not differing:
        return []
    first = min(differing, key=lambda meeting: meeting.at_ns)
    return [_differ(scene, first, Elsewhere(meetings))]


def _differ(scene: Scene, meeting: Meeting, elsewhere: Elsewhere) -> Finding:
    calls = meeting.calls
    odd, expected, why = _odd(scene, meeting, elsewhere)
    verdict, how = _kind(scene, meeting, elsewhere, odd, expected)
    others = sorted(calls.keys() - set(odd))
    reason = (
        f"{how}; {len(odd)} of {len(calls)} recorded ranks differ from"
        f" {ranks_name(others) if others else 'each other'}{why}"
    )
    return finding(
        scene, meeting, verdict, odd,
        cause=f"{meeting.place}: {table(calls)}", reason=reason, likely=bool(why and others),
    )  # fmt: skip


def _odd(
    scene: Scene, meeting: Meeting, elsewhere: Elsewhere
) -> tuple[list[int], Call | None, str]:
    """The ranks that did something else, what they should have called, and how that is known where
    their number does not tell."""
    calls = meeting.calls
    votes = Counter([*calls.values(), *voters(aborts_of(scene), meeting).values()])
    (call, most), *rest = votes.most_common()
    if most > 1 and rest[0][1] < most:
        return _other_than(calls, call), call, ""
    usual = elsewhere.usual(meeting)
    odd = [] if usual is None else _other_than(calls, usual)
    if 0 < len(odd) < len(calls):
        return odd, usual, "; other groups of this role called there what the others called"
    halves = objects.skippers(scene, meeting)
    if halves:
        why = "; the others are at the other half of the same exchange of objects"
        return halves, None, why
    new = _new(scene, meeting)
    if new:
        why = "; in all rounds before, the operation there was as the others called it now"
        return new, None, why
    why = "; their number does not tell which of them is wrong, so all are listed"
    return sorted(calls), None, why


def _other_than(calls: dict[int, Call], usual: Call) -> list[int]:
    return sorted(rank for rank, call in calls.items() if call != usual)


def _new(scene: Scene, meeting: Meeting) -> list[int]:
    """Ranks that called the operation of all with something that was never there before, or made a
    call that nobody had made before."""
    histories = {
        rank: [*before(scene, rank, meeting), call] for rank, call in meeting.calls.items()
    }
    new = new_steps(histories)
    known = {call for history in histories.values() for call in history[:-1]}
    if len({history[-1].op for history in histories.values()}) > 1:
        return new if not any(histories[rank][-1] in known for rank in new) else []
    return new


def _kind(
    scene: Scene, meeting: Meeting, elsewhere: Elsewhere, odd: list[int], expected: Call | None
) -> tuple[str, str]:
    calls = set(meeting.calls.values())
    if len({call.op for call in calls}) > 1:
        return "collective_mismatch", "the ranks called different operations at the same place"
    if odd == objects.skippers(scene, meeting):
        return (
            "collective_mismatch",
            f"{ranks_name(odd)} skipped an operation: objects are exchanged as their sizes and then"
            " their bytes, and of these one half is missing there",
        )
    history = before(scene, odd[0], meeting)
    follows = expected and elsewhere.next_after(meeting, history, expected)
    if follows == meeting.calls[odd[0]]:
        return (
            "collective_mismatch",
            f"rank {odd[0]} skipped an operation: what it calls here follows, in all earlier rounds"
            ", the one that the others call",
        )
    if len({call.dtypes for call in calls}) > 1 and len({call.sizes for call in calls}) == 1:
        return "shape_mismatch", "the same operation was called with different data types"
    return "shape_mismatch", "the same operation was called with tensors of different shape"

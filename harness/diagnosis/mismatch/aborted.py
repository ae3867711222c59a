"""Ranks that differed and left no record of it, or whose neighbours died of it and left none.

Gloo aborts the receiver of too many bytes before it can leave a record: often the one that differs,
but also one that did what all did, next to the one that sent too much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.diagnosis.mismatch.meetings import UNKNOWN, Elsewhere, Meeting, before
from harness.diagnosis.mismatch.pieces import Abort, aborts_of, voters
from harness.diagnosis.mismatch.telling import finding
from harness.diagnosis.scene import Scene
from harness.diagnosis.waits.compare import foretold
from harness.diagnosis.waits.record import Call
from harness.diagnosis.waits.root import table
from harness.incidents import Finding
from harness.topology import ranks_name

_IN_PARTS = frozenset({"all_to_all", "alltoall", "alltoall_base"})
"""Each sender decides how much comes, so that who aborts is mostly innocent."""


def find(scene: Scene, meetings: Sequence[Meeting]) -> list[Finding]:
    """What aborts on mismatched sizes show where all records of that place agree."""
    aborts = aborts_of(scene)
    if not aborts:
        return []
    elsewhere = Elsewhere(meetings)
    meeting = _place(meetings, aborts)
    if meeting is None:
        meeting = _unrecorded(meetings, aborts)
        return (
            [_absent(scene, meeting, aborts, elsewhere, sorted(meeting.missing))] if meeting else []
        )
    present = set(meeting.entries)
    usual = {rank for rank in voters(aborts, meeting)}
    apart = meeting.missing - usual
    if len(apart) == len(present | usual):
        return [_tied(scene, meeting, aborts, sorted(apart), elsewhere)]
    if len(apart) > len(present | usual):
        return [_present(scene, meeting, aborts, elsewhere, None)]
    return [_absent(scene, meeting, aborts, elsewhere, sorted(apart))]


def _place(meetings: Sequence[Meeting], aborts: Mapping[int, Abort]) -> Meeting | None:
    """Where the ranks aborted: at the last place that all but they have on record and that their
    sizes fit."""
    found: list[tuple[int, int, Meeting]] = []
    for meeting in meetings:
        missing, size = meeting.missing, len(meeting.members)
        if not missing or not missing <= aborts.keys():
            continue
        call = next(iter(meeting.calls.values()))
        here = [aborts[rank] for rank in missing]
        if all(abort.had_room_for(call, size) for abort in here):
            continue
        sent = any(abort.was_sent(call, size) for abort in here)
        fits = 2 if sent else 1 if any(abort.had_room_for(call, size) for abort in here) else 0
        if fits or len(aborts) == 1:
            found.append((fits, meeting.at_ns, meeting))
    return max(found, key=lambda known: known[:2])[2] if found else None


def _unrecorded(meetings: Sequence[Meeting], aborts: Mapping[int, Abort]) -> Meeting | None:
    """Where all members aborted, so that nobody has it on record: the call of earlier rounds that
    some had room for, while pieces of it came to the others, which had room for no call of any."""
    found: list[Meeting] = []
    known: dict[frozenset[int], set[Call]] = {}
    for meeting in meetings:
        known.setdefault(meeting.members, set()).update(meeting.calls.values())
    for meeting in meetings:
        call, size = next(iter(meeting.calls.values())), len(meeting.members)
        if not meeting.members <= aborts.keys():
            continue
        did = {rank for rank in meeting.members if aborts[rank].had_room_for(call, size)}
        others = [aborts[rank] for rank in meeting.members - did]
        strange = all(
            abort.was_sent(call, size)
            and not any(abort.had_room_for(each, size) for each in known[meeting.members])
            for abort in others
        )
        if did and others and strange:
            entry = next(iter(meeting.entries.values()))
            found.append(replace(meeting, seq=UNKNOWN, entries=dict.fromkeys(did, entry)))
    return max(found, key=lambda meeting: meeting.at_ns, default=None)


def _tied(
    scene: Scene,
    meeting: Meeting,
    aborts: Mapping[int, Abort],
    apart: list[int],
    elsewhere: Elsewhere,
) -> Finding:
    """As many of one kind as of the other, one and one mostly: whoever did not do what came there
    in other groups of the role, or in all earlier rounds."""
    present = min(meeting.entries)
    called, history = meeting.calls[present], before(scene, present, meeting)
    usual, known = elsewhere.usual(meeting), "in other groups of this role"
    if usual is None:
        usual, known = foretold(history), "in all earlier rounds"
    if usual is None and _ahead(meeting, aborts, elsewhere, apart, history):
        # Two rounds are few, but then the others' sizes say the same.
        usual, known = foretold(history, examples=2), "in both earlier rounds"
        usual = usual if usual == called else None
    if usual is None:
        why = "; their number does not tell which of them is wrong, so all are listed"
        listed = sorted(meeting.members)
        return _absent(scene, meeting, aborts, elsewhere, apart, listed=listed, why=why)
    if usual == called:
        return _absent(scene, meeting, aborts, elsewhere, apart, why=f", as {known}")
    return _present(scene, meeting, aborts, elsewhere, usual, known)


def _present(
    scene: Scene,
    meeting: Meeting,
    aborts: Mapping[int, Abort],
    elsewhere: Elsewhere,
    usual: Call | None,
    known: str = "",
) -> Finding:
    """Those on record did something else than `usual`."""
    odd = sorted(meeting.entries)
    called = meeting.calls[odd[0]]
    reason = f"{_died(meeting, aborts)} called {called.text}"
    if known:
        reason += f", where something else came {known}"
    follows = usual and elsewhere.next_after(meeting, before(scene, odd[0], meeting), usual)
    skipped = follows == called
    if skipped:
        reason += ", and what it called always followed that"
    did = "skipped the one before" if skipped else "passed something larger"
    return _told(scene, meeting, odd, odd, did, reason, skipped=skipped)


def _absent(
    scene: Scene,
    meeting: Meeting,
    aborts: Mapping[int, Abort],
    elsewhere: Elsewhere,
    odd: list[int],
    *,
    listed: Sequence[int] = (),
    why: str = "",
) -> Finding:
    """The `odd` ones, which aborted, did something else than those on record."""
    present = min(meeting.entries)
    called = meeting.calls[present]
    skipped = _ahead(meeting, aborts, elsewhere, odd, before(scene, present, meeting))
    if called.op in _IN_PARTS and not skipped:
        listed = sorted(meeting.members)
        why = ", whose parts are not on record: who was wrong cannot be told, so all are listed"
    record = "their records" if len(odd) > 1 else f"rank {odd[0]}'s record"
    reason = f"{_died(meeting, aborts)} called {called.text}{why}, {record} died there"
    if skipped:
        reason += "; the size it had room for is that of the operation that always followed"
    did = "skipped it" if skipped else "passed something else"
    return _told(scene, meeting, listed or odd, odd, did, reason, skipped=skipped)


def _ahead(
    meeting: Meeting,
    aborts: Mapping[int, Abort],
    elsewhere: Elsewhere,
    odd: Sequence[int],
    history: Sequence[Call],
) -> bool:
    """Whether the `odd` ones had room for what always followed the call on record there."""
    called, size = next(iter(meeting.calls.values())), len(meeting.members)
    following = elsewhere.next_after(meeting, history, called)
    return following is not None and all(
        aborts[rank].ran_ahead(called, following, size) for rank in odd
    )


def _died(meeting: Meeting, aborts: Mapping[int, Abort]) -> str:
    """`more bytes came than rank 3 had room for (2580, 2576), so it aborted; ranks 0-2`."""
    texts = []
    for rank in sorted(meeting.missing):
        abort = aborts[rank]
        sizes = f" ({abort.came}, {abort.room})" if abort.came else ""
        texts.append(f"more bytes came than rank {rank} had room for{sizes}, so it aborted")
    return f"{'; '.join(texts)}; {ranks_name(sorted(meeting.entries))}"


def _told(
    scene: Scene,
    meeting: Meeting,
    odd: Sequence[int],
    who: Sequence[int],
    did: str,
    reason: str,
    *,
    skipped: bool,
) -> Finding:
    """`who` are those of the `odd` that are said to have done it."""
    return finding(
        scene,
        meeting,
        "collective_mismatch" if skipped else "shape_mismatch",
        odd,
        cause=f"{meeting.place}: {table(meeting.calls)}; {ranks_name(list(who))} {did}",
        reason=reason,
        likely=True,
    )

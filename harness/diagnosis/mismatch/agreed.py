"""Members that called the same operation with another root, or with parts that do not fit."""

from collections.abc import Sequence

from harness.collectives import Terms
from harness.diagnosis.mismatch.meetings import Meeting
from harness.diagnosis.mismatch.telling import finding
from harness.diagnosis.scene import Scene
from harness.diagnosis.waits.terms import History, disagreement
from harness.incidents import Finding


def find(scene: Scene, meetings: Sequence[Meeting]) -> list[Finding]:
    """The earliest such place."""
    for meeting in sorted(meetings, key=lambda meeting: meeting.at_ns):
        told = _told(meeting)
        if len(told) < 2:
            continue
        calls = set(meeting.calls.values())
        if len(calls) != 1:
            continue
        history = _earlier(meetings, meeting)
        found = disagreement(calls.pop().op, sorted(meeting.members), told, history)
        if found is not None:
            why = "; nothing on record tells which of them is wrong" if found.tied else ""
            cause = f"{meeting.place}: {found.words}"
            reason = f"what the ranks noted of that call does not fit together{why}"
            return [
                finding(
                    scene, meeting, found.verdict, found.odd,
                    cause=cause, reason=reason, likely=found.tied,
                )
            ]  # fmt: skip
    return []


def _told(meeting: Meeting) -> dict[int, Terms]:
    return {rank: entry.terms for rank, entry in meeting.entries.items() if entry.terms is not None}


def _earlier(meetings: Sequence[Meeting], here: Meeting) -> History:
    """Of calls of the same operation on the same group."""
    op = {call.op for call in here.calls.values()}
    before = [
        meeting
        for meeting in sorted(meetings, key=lambda meeting: meeting.seq)
        if meeting.members == here.members and meeting.pg == here.pg and meeting.seq < here.seq
        and {call.op for call in meeting.calls.values()} == op
    ]  # fmt: skip

    def earlier(rank: int) -> list[Terms]:
        told = [_told(meeting).get(rank) for meeting in before]
        return [terms for terms in told if terms is not None]

    return earlier

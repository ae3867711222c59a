"""shape_mismatch, collective_mismatch: ranks did different things at the same place of a group.

This comes before every other sign: who dies of a mismatch is a matter of luck, often an innocent
neighbour.
"""

from harness.diagnosis.mismatch import aborted, agreed, messages, recorded, uneven
from harness.diagnosis.mismatch.meetings import meetings_of
from harness.diagnosis.scene import Scene
from harness.incidents import Finding

__all__ = ["find", "uneven"]


def find(scene: Scene) -> list[Finding]:
    """The earliest place where records differ, or where what was called does not fit together; else
    the ranks that, going by what aborted there, differed and left no record of it."""
    meetings = meetings_of(scene)
    return (
        recorded.find(scene, meetings)
        or agreed.find(scene, meetings)
        or messages.find(scene)
        or aborted.find(scene, meetings)
    )

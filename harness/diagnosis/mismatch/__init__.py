"""shape_mismatch, collective_mismatch: ranks did different things at the same place of a group.

This comes before every other sign: who dies of a mismatch is a matter of luck, often an innocent
neighbour.
"""

from harness.diagnosis.mismatch import aborted, recorded
from harness.diagnosis.mismatch.meetings import meetings_of
from harness.diagnosis.scene import Scene
from harness.incidents import Finding


def find(scene: Scene) -> list[Finding]:
    """The earliest place where records differ; else the ranks that, going by what aborted there,
    differed and left no record of it."""
    meetings = meetings_of(scene)
    return recorded.find(scene, meetings) or aborted.find(scene, meetings)

"""The processes of a rank's data loader."""

import re
from collections.abc import Sequence
from itertools import takewhile

from harness.diagnosis.waits.stuck import LOADER
from harness.events import EvidenceTaken
from harness.sightings import ChildTaken, Frame

_DATA_WAITS = re.compile(
    r"io_schedule|folio|wait_on_page|nfs|fuse|ext4|xfs|blk_|sk_wait|tcp_|inet_|wait_woken"
)
"""Functions of the kernel that wait for a disk, a file system or a network."""
_MOST_TOLD = 3


def processes_of(evidence: EvidenceTaken) -> list[ChildTaken]:
    """Those of the rank's children that are, or may be, workers of its data loader."""
    return [
        child
        for child in evidence.children
        if not child.frames or any(LOADER.search(frame.file) for frame in child.frames)
    ]


def own_frames(child: ChildTaken) -> Sequence[Frame]:
    """What the data set does: the frames inside of the loader's."""
    return tuple(takewhile(lambda frame: not LOADER.search(frame.file), child.frames))


def waits_for_data(child: ChildTaken) -> bool:
    """Whether it may: the kernel has it waiting for a disk or a network, or its stack is unseen."""
    asleep_in = "" if child.process is None else child.process.wchan
    return not child.frames or _DATA_WAITS.search(asleep_in) is not None


def stands(evidence: EvidenceTaken) -> list[str]:
    """Where its processes stand in the user's data set, in words."""
    told = []
    for child in processes_of(evidence):
        at = child.user_frame
        if at is None or all(frame.file != at.file for frame in own_frames(child)):
            continue
        slept = child.asleep_seconds or 0
        asleep = f", asleep for another {slept:.0f} s" if slept >= 1 else ""
        place = f"{at.function} ({at.file}:{at.line})"
        told.append(f"its process {child.pid} is in {place}{asleep}")
    return told[:_MOST_TOLD]

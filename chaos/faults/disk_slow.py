"""A disk on which every write of a checkpoint takes its time: nothing is wrong."""

import os
import time
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    synced = os.fsync

    def fsync(descriptor: Any) -> None:
        if inside.due():
            inside.strike()
        if inside.struck:
            time.sleep(inside.values["late"])
        synced(descriptor)

    inside.replace(os, "fsync", lambda original: fsync)


KIND = Kind(
    name="disk_slow",
    area="resource",
    summary="let every sync to the disk take long: nothing may be said",
    place="worker",
    do=do,
    parameters=(Parameter("late", 0.5, "seconds, each time"),),
    needs="checkpoints",
)

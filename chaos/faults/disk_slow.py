"""A disk on which every write of a checkpoint takes its time: nothing is wrong."""

import os
import time
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    import torch

    def late(original: Any) -> Any:
        def slow(*args: Any, **kwargs: Any) -> Any:
            if inside.due():
                inside.strike()
            if inside.struck:
                time.sleep(inside.values["late"])
            return original(*args, **kwargs)

        return slow

    # Many scripts never sync: their torch.save is what waits for the disk.
    inside.replace(os, "fsync", late)
    inside.replace(torch, "save", late)


KIND = Kind(
    name="disk_slow",
    area="resource",
    summary="let every sync and torch.save take long: nothing may be said",
    place="worker",
    do=do,
    parameters=(Parameter("late", 0.5, "seconds, each time"),),
    needs="checkpoints",
)

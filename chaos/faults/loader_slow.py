"""A data loader that one rank waits for at every step."""

import time
from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter


def do(inside: Inside) -> None:
    from torch.utils.data import dataloader

    told: list[bool] = []

    def slow(original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            if not told and inside.due():
                inside.strike()
                told.append(True)
            if told:
                time.sleep(inside.values["milliseconds"] / 1000)
            return original(iterator)

        return __next__

    inside.replace(dataloader._BaseDataLoaderIter, "__next__", slow)


KIND = Kind(
    name="loader_slow",
    area="loader",
    summary="let the rank wait for its data at every step",
    place="worker",
    do=do,
    verdicts=("straggler",),
    actions=("report",),
    parameters=(Parameter("milliseconds", 100.0, "how long, each step"),),
    needs="loader",
    steps=120,
)

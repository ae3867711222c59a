"""A rank that runs out of data before the others do."""

from typing import Any

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    from torch.utils.data import dataloader

    def ending(original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            if inside.due():
                inside.strike()
                raise StopIteration
            return original(iterator)

        return __next__

    inside.replace(dataloader._BaseDataLoaderIter, "__next__", ending)


KIND = Kind(
    name="loader_uneven",
    area="loader",
    summary="end the rank's data before that of the others",
    place="worker",
    do=do,
    verdicts=("collective_mismatch", "rank_exited_early"),
    actions=("stop",),
    needs="loader",
)

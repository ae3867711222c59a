"""A data loader whose worker process is stopped."""

from harness.chaos.kinds import Kind, Undo, Unfit
from harness.chaos.outside import Target, loaders, stop


def do(target: Target) -> Undo:
    undo = [stop(pid) for pid in loaders(target.pid)]
    if not undo:
        raise Unfit("the rank has no data loader's process now")

    def go_on() -> None:
        for each in undo:
            each()

    return go_on


KIND = Kind(
    name="loader_stuck",
    area="loader",
    summary="stop the processes of the rank's data loader",
    place="agent",
    do=do,
    verdicts=("dataloader_stuck",),
    actions=("restart",),
    needs="loader",
)

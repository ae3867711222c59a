"""Two files of the newest checkpoint, each under the name of the other."""

import os

from harness.chaos.kinds import Kind, Unfit
from harness.chaos.outside import Target, checkpoint_files, damage


def do(target: Target) -> None:
    files = checkpoint_files(target)
    if len(files) < 2:
        raise Unfit("the newest checkpoint is a single file")

    def swap() -> None:
        aside = files[0].with_name(f"{files[0].name}.swapped")
        os.rename(files[0], aside)
        os.rename(files[1], files[0])
        os.rename(aside, files[1])

    damage(target, swap)


KIND = Kind(
    name="checkpoint_swap",
    area="checkpoint",
    summary="exchange two files of the newest checkpoint, then kill the rank",
    place="agent",
    do=do,
    verdicts=("checkpoint_corrupt", "checkpoint_incomplete"),
    also=("killed_by_signal", "exception"),
    actions=("report", "restart", "rollback"),
    needs="manifests",
)

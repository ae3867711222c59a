"""A file of the newest checkpoint that ends too early, as after a crash of the machine."""

import os

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, checkpoint_files, damage


def do(target: Target) -> None:
    file = checkpoint_files(target)[0]
    damage(target, lambda: os.truncate(file, file.stat().st_size * 2 // 3))


KIND = Kind(
    name="checkpoint_truncate",
    area="checkpoint",
    summary="cut the end off a file of the newest checkpoint, then kill the rank",
    place="agent",
    do=do,
    verdicts=("checkpoint_corrupt", "checkpoint_incomplete"),
    also=("killed_by_signal", "exception"),
    actions=("report", "restart", "rollback"),
    needs="checkpoints",
)

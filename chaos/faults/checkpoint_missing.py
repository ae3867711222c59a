"""A file of the newest checkpoint that is not there."""

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, checkpoint_files, damage


def do(target: Target) -> None:
    file = checkpoint_files(target)[0]
    damage(target, file.unlink)


KIND = Kind(
    name="checkpoint_missing",
    area="checkpoint",
    summary="remove a file of the newest checkpoint, then kill the rank",
    place="agent",
    do=do,
    verdicts=("checkpoint_incomplete", "checkpoint_corrupt"),
    also=("killed_by_signal", "exception"),
    actions=("report", "restart", "rollback"),
    needs="manifests",
)

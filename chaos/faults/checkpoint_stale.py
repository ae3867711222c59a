"""A file of the newest checkpoint that is still the one of the checkpoint before."""

import shutil

from harness.chaos.kinds import Kind, Unfit
from harness.chaos.outside import Target, checkpoint_files, damage, older_checkpoint


def do(target: Target) -> None:
    file = checkpoint_files(target)[0]
    before = older_checkpoint(target)
    old = before if before.is_file() else before / file.name
    if not old.exists():
        raise Unfit(f"{before.name} has no file {file.name}")

    def put_back() -> None:
        shutil.copyfile(old, file)

    damage(target, put_back)


KIND = Kind(
    name="checkpoint_stale",
    area="checkpoint",
    summary="put the older file into the newest checkpoint, then kill the rank",
    place="agent",
    do=do,
    verdicts=("checkpoint_corrupt", "checkpoint_step_mismatch", "checkpoint_incomplete"),
    also=("killed_by_signal",),
    actions=("report", "restart", "rollback"),
    needs="manifests",
)

"""One flipped bit in a file of the newest checkpoint: neither torch nor DCP notices it."""

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, checkpoint_files, damage


def do(target: Target) -> None:
    file = checkpoint_files(target)[0]

    def flip() -> None:
        data = bytearray(file.read_bytes())
        # In the middle lie tensors, at both ends the archive's own words.
        at = len(data) // 2 + target.random.randrange(max(1, len(data) // 8))
        data[at] ^= 1 << target.random.randrange(8)
        file.write_bytes(data)

    damage(target, flip)


KIND = Kind(
    name="checkpoint_flip",
    area="checkpoint",
    summary="flip a bit in a file of the newest checkpoint, then kill the rank",
    place="agent",
    do=do,
    verdicts=("checkpoint_corrupt",),
    also=("killed_by_signal",),
    actions=("report", "restart", "rollback"),
    needs="manifests",
    note="Needs harness.Checkpointer, whose manifest has the digests.",
)

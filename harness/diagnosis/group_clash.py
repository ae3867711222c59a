"""group_mismatch before anything hangs: two groups of different ranks under one name."""

from harness.diagnosis.signature import Signature
from harness.incidents import Finding
from harness.state import AttemptState
from harness.topology import ranks_briefly


def find(attempt: AttemptState) -> list[Finding]:
    """Members of such groups meet each other's connections: they hang, or exchange with the wrong
    ranks."""
    if attempt.clash is None:
        return []
    first, other = attempt.clash
    ranks = tuple(sorted({*first.ranks, *other.ranks}))
    known = [attempt.ranks[rank].advanced_ns for rank in ranks if rank in attempt.ranks]
    return [
        Finding(
            verdict="group_mismatch",
            ranks=ranks,
            cause=f"new_group number {first.pg} is [{ranks_briefly(first.ranks)}] on some ranks"
            f" and [{ranks_briefly(other.ranks)}] on others; every rank has to make every group,"
            " in the same order",
            reason="both groups use the same name in the store, so their members may be connected"
            " crosswise, and nothing on record tells who left one out",
            confidence="proven",
            onset_ns=min(known, default=0),
            signature=Signature(verdict="group_mismatch", what="new_group").text(),
        )
    ]

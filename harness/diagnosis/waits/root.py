"""A beginning of a hang or desync, and how it is put into words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.diagnosis.waits.graph import Op
from harness.diagnosis.waits.record import Call, Waits
from harness.incidents import Confidence, Where
from harness.topology import ranks_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """`op` is the operation that shows it best. `ranks` are the first-failing ones."""

    verdict: str
    ranks: tuple[int, ...]
    cause: str
    confidence: Confidence
    onset_ns: int
    op: Op
    where: Where | None = None
    tied: bool = False
    doubtful: bool = False
    """The records of its ranks may lack what they stand in, or how far the other end is."""
    calls: tuple[tuple[int, Call], ...] = ()
    """What ranks called at the place of `op`, when that is what went wrong."""


def where_of(waits: Waits, ranks: Iterable[int]) -> Where | None:
    """The user's line of the first of `ranks` that stands in an operation."""
    for rank in ranks:
        wait = waits.ranks.get(rank)
        if wait is not None and wait.head is not None:
            return wait.head.where or wait.doing
    return None


def what(op: Op) -> str:
    """`all_reduce #4 on mesh_dp`."""
    if op.creation and op.group.desc == "init_process_group":
        return "init_process_group"
    if op.creation:
        return f"new_group of {ranks_name(op.members)}"
    return f"{op.call.op} {place(op)}"


def place(op: Op) -> str:
    """`#4 on mesh_dp`."""
    return f"#{op.seq} on {op.group.label}"


def table(calls: Mapping[int, Call]) -> str:
    """`rank 0 all_reduce 100x16 float, ranks 1-3 all_reduce 200x16 float`."""
    groups: dict[Call, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call, []).append(rank)
    return ", ".join(f"{ranks_name(ranks)} {call.text}" for call, ranks in groups.items())

"""Who writes what: torch.distributed.checkpoint's plan, made again only when the tensors of some
rank have changed, never taken from an earlier one on trust."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from harness.sdk.checkpoint.agreement import Agreement
from harness.sdk.checkpoint.digest import digest
from harness.sdk.checkpoint.things import Contents

_SAMPLE = 4096
"""Elements of a replicated tensor that ranks compare when a plan is made."""


class Planner(DefaultSavePlanner):
    """DCP's own planner on names that are flat already."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """This rank's part; on rank 0 also what describes the whole."""

    mine: SavePlan
    metadata: Metadata | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What a rank would write were it alone, and what rank 0 needs to choose among equals."""

    plan: SavePlan
    buffers: set[str]
    samples: Mapping[str, int]


def rest_key(rank: int, thing: str) -> str:
    """The name in the checkpoint of what a rank keeps for itself of a thing."""
    return f"rank.{rank}.{thing}"


def fingerprint(contents: Contents) -> str:
    """Changes with the names, shapes, types and layouts of what a rank holds."""
    found = hashlib.sha256()
    for name, value in contents.tensors.items():
        layout: Any = ""
        if isinstance(value, DTensor):
            layout = (value.placements, value.device_mesh.mesh.tolist())
        found.update(repr((name, value.dtype, tuple(value.shape), layout)).encode())
    found.update(repr((sorted(contents.rest), sorted(contents.buffers))).encode())
    return found.hexdigest()


def state_dict(contents: Contents, rank: int) -> dict[str, Any]:
    """All that a rank holds under the names of the checkpoint."""
    return {**contents.tensors, **{rest_key(rank, t): b for t, b in contents.rest.items()}}


def items(tensors: Mapping[str, torch.Tensor]) -> list[tuple[WriteItem, torch.Tensor]]:
    """The chunks of these tensors that are on this rank, as plain local tensors."""
    planner = Planner()
    planner.set_up_planner(dict(tensors))
    return [(item, planner.lookup_object(item.index)) for item in planner.create_local_plan().items]


def agree(contents: Contents, ranks: Agreement) -> Plan:
    """Make the plan together; called on all ranks. Raises ValueError, on all of them, in words."""
    planner = Planner()
    try:
        wish: _Wish | str = _wish(planner, contents, ranks)
    except Exception as error:  # a border, like the next one: no rank may be left waiting
        wish = f"on rank {ranks.rank}: {error}"
    wishes = ranks.at_first(wish)
    answers: list[Any] = []
    metadata = None
    if ranks.rank == 0:
        try:
            answers, metadata = shared_out(planner, _chosen(wishes))
        except Exception as error:
            answers = [str(error) or "the ranks' tensors do not fit together"] * ranks.size
    mine = ranks.handed_out(answers)
    if isinstance(mine, str):
        raise ValueError(mine)
    return Plan(mine=mine, metadata=metadata)


def shared_out(planner: Planner, plans: list[SavePlan]) -> tuple[list[Any], Metadata]:
    """What each rank writes of what it could, and what describes the whole. Raises ValueError."""
    plans, metadata = planner.create_global_plan(plans)
    return list(FileSystemWriter("").prepare_global_plan(plans)), metadata


def _wish(planner: Planner, contents: Contents, ranks: Agreement) -> _Wish:
    planner.set_up_planner(state_dict(contents, ranks.rank), is_coordinator=ranks.rank == 0)
    samples = _samples(contents) if ranks.size > 1 else {}
    return _Wish(plan=planner.create_local_plan(), buffers=contents.buffers, samples=samples)


def _chosen(wishes: Sequence[_Wish | str]) -> list[SavePlan]:
    """What every rank may write, before duplicates are shared out. Raises ValueError in words."""
    good = [wish for wish in wishes if isinstance(wish, _Wish)]
    if len(good) < len(wishes):
        raise ValueError(next(wish for wish in wishes if isinstance(wish, str)))
    _refuse_namesakes(good)
    return without_later_buffers([(wish.plan, wish.buffers) for wish in good])


def _samples(contents: Contents) -> dict[str, int]:
    return {
        name: digest(value.detach().reshape(-1)[:_SAMPLE].cpu())
        for name, value in contents.tensors.items()
        if not isinstance(value, DTensor) and name not in contents.buffers
    }


def _refuse_namesakes(wishes: Sequence[_Wish]) -> None:
    """Two tensors by one name would be saved as one, and the other lost without a word."""
    first: dict[str, tuple[int, int]] = {}
    for rank, wish in enumerate(wishes):
        for name, sample in wish.samples.items():
            holder, known = first.setdefault(name, (rank, sample))
            if known != sample:
                raise ValueError(
                    f"{name} has other values on rank {rank} than on rank {holder}; "
                    "a name must mean one tensor on all ranks"
                )


def without_later_buffers(wishes: Sequence[tuple[SavePlan, Collection[str]]]) -> list[SavePlan]:
    """The plans of (plan, names of buffers), less what later ranks have of buffers: these may
    differ between replicas; DistributedDataParallel goes on from rank 0's."""
    taken: set[str] = set()
    plans = []
    for plan, buffers in wishes:
        kept = [
            item
            for item in plan.items
            if item.type != WriteItemType.TENSOR
            or item.index.fqn not in buffers
            or item.index.fqn not in taken
        ]
        taken |= {item.index.fqn for item in kept if item.index.fqn in buffers}
        plans.append(replace(plan, items=kept))
    return plans

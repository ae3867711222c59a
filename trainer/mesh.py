"""Ranks, devices and process groups: the one place that knows Gloo from NCCL."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.trainer.config import Config, ConfigError, Layout, Place

AXES = ("pp", "dp_replicate", "dp_shard", "tp")  # tp innermost: it talks most, keep it in a node


def choose_device(config: Config, place: Place) -> torch.device:
    """The device of this rank. Raises ConfigError when there is no such GPU, or not for this."""
    wanted, chosen = config.run.device, config.run.backend
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        if chosen == "nccl":
            raise ConfigError("--backend nccl works on GPUs only; on a CPU leave it out")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not count or (place.local_rank >= count and chosen != "gloo"):
        raise ConfigError(
            f"--device cuda: local rank {place.local_rank} needs a GPU of its own, this node has "
            f"{count}; start fewer ranks, let them share one with --backend gloo, or use "
            "--device cpu"
        )
    why = sends(config) if chosen == "gloo" else ""
    if why:
        raise ConfigError(f"--backend gloo on a GPU: {why}, and Gloo sends no GPU memory")
    return torch.device("cuda", place.local_rank % count)


def sends(config: Config) -> str:
    """What of this layout passes tensors from rank to rank outside of collectives; "" if nothing
    does."""
    parallel = config.parallel
    if parallel.pp > 1:
        return f"--pp {parallel.pp} sends activations"
    if parallel.cp > 1 and parallel.cp_method == "ring":
        return f"--cp {parallel.cp} with a ring sends keys and values"
    return ""


def prepare(device: torch.device, *, threads: int, deterministic: bool | None) -> None:
    """Threads, kernels and current device of this process, before any group exists."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if deterministic if deterministic is not None else device.type == "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # It would fill every torch.empty with NaN, which costs time and changes no result.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def backend(device: torch.device, config: Config) -> str:
    """As init_process_group takes it."""
    nccl = device.type == "cuda" and config.run.backend != "gloo"
    return "cuda:nccl,cpu:gloo" if nccl else "gloo"


def join(device: torch.device, place: Place, config: Config) -> None:
    """Make the default process group; a process started by hand is a world of one."""
    name = backend(device, config)
    if place.launched:
        dist.init_process_group(name)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(name, store=store, rank=0, world_size=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """The same ranks in the same order, cut in up to three ways.

    `dense` (pp, dp_replicate, dp_shard, tp) is for all parameters but experts; context-parallel
    ranks share a copy of them and are counted in its dp_shard. `data` (pp, dp, cp, tp) tells who
    reads what. `sparse` (pp, dp_replicate, efsdp, ep) is for experts, which take their ranks from
    dp_shard, cp and tp. None where dense says it all.
    """

    dense: DeviceMesh
    data: DeviceMesh | None = None
    sparse: DeviceMesh | None = None

    def dp_rank(self) -> int:
        """Which part of the global batch this rank reads, 0 to dp - 1."""
        if self.data is not None:
            return self.data.get_local_rank("dp")
        shard = self.dense["dp_shard"]
        replica = self.dense.get_local_rank("dp_replicate")
        return replica * shard.size() + self.dense.get_local_rank("dp_shard")

    def cp_rank(self) -> int:
        return 0 if self.data is None else self.data.get_local_rank("cp")


def build(device: torch.device, sizes: Layout, *, experts: bool = False) -> Meshes:
    """The meshes over all ranks; more than the dense one only where a layout needs them."""

    def mesh(axes: Mapping[str, int]) -> DeviceMesh:
        return init_device_mesh(
            device.type, tuple(axes.values()), mesh_dim_names=tuple(axes.keys())
        )

    shape = (sizes.pp, sizes.dp_replicate, sizes.fsdp, sizes.tp)
    dense = mesh(dict(zip(AXES, shape, strict=True)))
    data = sparse = None
    if sizes.cp > 1:
        data = mesh({"pp": sizes.pp, "dp": sizes.dp, "cp": sizes.cp, "tp": sizes.tp})
    if experts and sizes.ep * sizes.tp > 1:
        beside = sizes.fsdp * sizes.tp // sizes.ep
        replicas = {"pp": sizes.pp, "dp_replicate": sizes.dp_replicate}
        sparse = mesh({**replicas, "efsdp": beside, "ep": sizes.ep})
    return Meshes(dense=dense, data=data, sparse=sparse)


def peak_bytes(device: torch.device) -> int:
    """Most memory that this rank has held: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

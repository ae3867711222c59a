"""Ranks, devices and process groups: the one place that knows Gloo from NCCL."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.trainer.config import ConfigError, Layout, Place

AXES = ("pp", "dp_replicate", "dp_shard", "tp")  # tp innermost: it talks most, keep it in a node

# Dense bf16 peak of one device in TFLOP/s, from the makers' data sheets (SXM where there are two).
PEAK_TFLOPS = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H800": 989.0,
    "B200": 2250.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "MI300X": 1307.0,
}


def choose_device(wanted: str, place: Place) -> torch.device:
    """The device of this rank; raises ConfigError when there is no such GPU."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local_rank >= count:
        raise ConfigError(
            f"--device cuda: local rank {place.local_rank} needs a GPU of its own, "
            f"this node has {count}; start fewer ranks or use --device cpu"
        )
    return torch.device("cuda", place.local_rank)


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


def join(device: torch.device, place: Place) -> None:
    """Make the default process group; a process started by hand is a world of one."""
    backend = "cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo"
    if place.launched:
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


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


def peak_flops(device: torch.device, tflops: float) -> float | None:
    """Peak FLOP/s of one device: as given, or by the GPU's name, or unknown."""
    if tflops:
        return tflops * 1e12
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, peak in PEAK_TFLOPS.items():
            if known in name:
                return peak * 1e12
    return None


def peak_bytes(device: torch.device) -> int:
    """Most memory that this rank has held: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""The environment of a worker: torchrun's, variable for variable, and whether it may be forked."""

from collections.abc import Mapping

from harness.config import Job
from harness.orders import StartWorkers

PRIVATE = ("HARNESS_TOKEN", "HARNESS_WORKER")
"""Variables of ours that no script needs to see."""

CHECKPOINT_INTERVAL = "HARNESS_CHECKPOINT_INTERVAL"
"""Seconds between saves, as a number; 0: the script decides."""


def node_environ(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """What all processes of the node share, the zygote included: OpenMP reads it when loaded."""
    shared = {name: value for name, value in environ.items() if name not in PRIVATE}
    if job.nproc_per_node > 1:
        shared.setdefault("OMP_NUM_THREADS", "1")
    return shared


def worker_environ(
    job: Job,
    order: StartWorkers,
    local_rank: int,
    error_file: str,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """The variables that differ from the node's, for one worker."""
    rank = str(order.first_rank + local_rank)
    interval = order.checkpoint_interval
    told = {} if interval is None else {CHECKPOINT_INTERVAL: f"{interval:.12g}"}
    return {
        **told,
        "LOCAL_RANK": str(local_rank),
        "RANK": rank,
        "GROUP_RANK": str(order.node_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": job.role,
        "LOCAL_WORLD_SIZE": str(order.local_world_size),
        "WORLD_SIZE": str(order.world_size),
        "GROUP_WORLD_SIZE": str(order.nnodes),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(order.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(order.max_restarts),
        "TORCHELASTIC_RUN_ID": job.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }

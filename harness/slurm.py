"""What Slurm tells a task of where it is: `srun harness run …` needs no word about nodes."""

import re
from collections.abc import Mapping

from harness.errors import PlacementError

_FIRST_PORT, _PORTS = 20000, 12000
"""Below the ports that the kernel gives away; jobs that share a node get different ones."""

MEETING = ("nnodes", "node_rank", "master_addr", "master_port", "rdzv_endpoint", "standalone")
"""Settings of how nodes meet: where one is given, Slurm is not asked for any of these."""


def placed(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Settings of a task of a step, by name: text and the variable that it comes from.

    Empty outside of a step of srun; a batch script alone is none. Raises UsageError where a step
    of several nodes has several tasks on a node.
    """
    found: dict[str, tuple[str, str]] = {}
    nodes = environ.get("SLURM_STEP_NUM_NODES", "")
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if not nodes.isdigit() or not tasks.isdigit():
        return found
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdigit() and int(gpus):
        found["nproc_per_node"] = (gpus, "SLURM_GPUS_ON_NODE")
    if int(nodes) == 1:
        return found
    if tasks != nodes:
        raise PlacementError(
            f"srun starts {tasks} tasks on {nodes} nodes, and each would be a node of the run",
            help="give srun --ntasks-per-node=1, and harness run --nproc-per-node",
        )
    job = environ.get("SLURM_JOB_ID", "0")
    port = _FIRST_PORT + (int(job) if job.isdigit() else 0) % _PORTS
    return {
        **found,
        "nnodes": (nodes, "SLURM_STEP_NUM_NODES"),
        "node_rank": (environ.get("SLURM_PROCID", "0"), "SLURM_PROCID"),
        "master_addr": (first_host(environ.get("SLURM_STEP_NODELIST", "")), "SLURM_STEP_NODELIST"),
        "master_port": (str(port), "SLURM_JOB_ID"),
        "rdzv_id": (job, "SLURM_JOB_ID"),
    }


def first_host(hosts: str) -> str:
    """`gpu07` of `gpu[07-12,15],cpu1`; `rack1-n3` of `rack[1-2]-n[3,5]`. Raises UsageError."""
    name, depth = "", 0
    for letter in hosts:
        if letter == "," and not depth:
            break
        depth += (letter == "[") - (letter == "]")
        name += letter
    first = re.sub(r"\[([^\]\-,]+)[^\]]*\]", r"\1", name).strip()
    if not first or "[" in first or "]" in first:
        raise PlacementError(
            f"SLURM_STEP_NODELIST: {hosts!r} is no list of hosts",
            help="say where the nodes meet with --nnodes, --node-rank and --master-addr",
        )
    return first

"""A component of TorchX, whose schedulers then place the nodes of a run.

    torchx run -s SCHEDULER "$(harness launch torchx)" -j 2x8 --script train.py

It takes the words of TorchX's own `dist.ddp`, and can stand in its place. TorchX loads this file by
its path: a registered component would hide those that TorchX has itself.
"""

import secrets
import shlex

# TorchX reads the signature as text, and knows these words alone.
from typing import Any, Dict, List, Optional  # noqa: UP035

import torchx.specs as specs


def run(
    *script_args: str,
    script: str = "",
    m: str = "",
    image: str = "",
    name: str = "/",
    h: str = "",
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x1",
    env: Optional[Dict[str, str]] = None,  # noqa: UP006, UP045
    max_retries: int = 0,
    rdzv_port: int = 29400,
    mounts: Optional[List[str]] = None,  # noqa: UP006, UP045
    options: str = "",
) -> specs.AppDef:
    """A training run under Harness, one `harness run` on each node.

    Args:
        script_args: arguments of the script
        script: script to run
        m: module to run in place of a script
        image: image, or folder, that holds PyTorch, Harness and the script
        name: as {app}/{role}; the script's own where it is left out
        h: a registered named resource; counts more than cpu, gpu and memMB
        cpu: CPUs of a node
        gpu: GPUs of a node
        memMB: memory of a node, in MB
        j: {nodes}x{ranks of a node}, or {fewest}:{most}x{ranks of a node}
        env: variables of the environment
        max_retries: how often the scheduler starts all nodes again
        rdzv_port: where the nodes meet, on the first of them
        mounts: as TorchX has them
        options: further options of harness run, in one string
    """
    if bool(script) == bool(m):
        raise ValueError("exactly one of --script and -m")
    nodes, ranks = _layout(j)
    variables = dict(env or {})
    command = f"exec harness run --nproc-per-node {ranks}"
    if nodes != "1":
        variables.setdefault("HARNESS_TOKEN", secrets.token_hex(16))  # of this job alone
        where = f'"$${{{specs.macros.rank0_env}:=localhost}}:{rdzv_port}"'
        command += f" --nnodes {nodes} --rdzv-endpoint {where}"
        command += f" --node-rank {specs.macros.replica_id}"
    words = [*shlex.split(options), *(["-m", m] if m else [script]), *script_args]
    # TorchX puts its own names in, and then two dollars are one.
    command += " " + shlex.join(words).replace("$", "$$")
    app, _, role = name.partition("/")
    own = (m or script).rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
    resources: dict[str, Any] = {"h": h} if h else {"cpu": cpu, "gpu": gpu, "memMB": memMB}
    return specs.AppDef(
        name=app or own,
        roles=[
            specs.Role(
                name=role or own,
                image=image,
                entrypoint="bash",
                args=["-c", command],
                env=variables,
                num_replicas=int(nodes.rpartition(":")[2]),
                min_replicas=int(nodes.partition(":")[0]) if ":" in nodes else None,
                resource=specs.resource(**resources),
                max_retries=max_retries,
                port_map={"meeting": rdzv_port},
                mounts=specs.parse_mounts(mounts) if mounts else [],
            )
        ],
    )


def _layout(text: str) -> tuple[str, str]:
    """Nodes, as `--nnodes` takes them, and ranks of each."""
    nodes, times, ranks = text.partition("x")
    if not times:
        nodes, ranks = "1", text
    counts = [*nodes.split(":"), ranks]
    if len(counts) > 3 or not all(count.isdigit() and int(count) for count in counts):
        raise ValueError(f"-j {text}: not of the form NODESxRANKS, as in 2x8 or 1:4x8")
    return nodes, ranks

"""What a rank runs with, as it tells itself, and in what ranks of one run differ there.

Ranks of one training should run the same code with the same packages, arguments and environment.
Where they do not, the run may hang, diverge or be slow much later, and nothing else tells why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.topology import Runs

Part = Literal["python", "arguments", "environment", "packages", "code"]

OWN_NAMES = frozenset((
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCH_WORKER_SERVER_SOCKET",
    "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "LS_COLORS",
    "WINDOWID", "INVOCATION_ID", "JOURNAL_STREAM", "POD_NAME", "POD_IP", "NODE_NAME",
    "JOB_COMPLETION_INDEX", "TMPDIR", "SYSTEMD_EXEC_PID",
))  # fmt: skip
"""Variables that may well differ between ranks or nodes."""
OWN_PREFIXES = (
    "HARNESS_", "SLURM", "SSH_", "XDG_", "DBUS_", "TMUX", "KUBERNETES_", "OMPI_", "PMI", "PMIX_",
    "RAY_", "STY",
)  # fmt: skip
SHOWN_PREFIXES = (
    "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NCCL_", "GLOO_", "UCX_", "FI_", "TORCH", "PYTORCH_",
    "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "PYTHON", "LD_", "TRITON_", "TP_", "XLA_", "HSA_",
    "TOKENIZERS_PARALLELISM", "WORLD_SIZE", "MASTER_ADDR", "LANG", "LC_", "MALLOC_",
)  # fmt: skip
"""Variables that hold no secrets: these are told as they are, of all others a short digest is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What `ranks` run with. `code` maps files of the program to digests of their contents,
    `packages` names to versions as the modules themselves say. `parameters` counts the elements
    that the largest optimizer of a rank updates, `tensors` the parameters; None before it has made
    a step.
    """

    ranks: Runs = ()
    python: str = ""
    arguments: tuple[str, ...] = ()
    """Script and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    parameters: int | None = None
    tensors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupsRead:
    """What the ranks of a node run with, equal ones together."""

    node_rank: int
    setups: tuple[Setup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that ranks do not have alike. `values` are what there is, each with its ranks, the
    most common first; None: these ranks do not have it at all."""

    part: Part
    name: str
    values: tuple[tuple[str | None, tuple[int, ...]], ...]


def is_own(variable: str) -> bool:
    """Whether a variable of the environment is a rank's or a node's own business."""
    return variable in OWN_NAMES or variable.startswith(OWN_PREFIXES)


def differences(setups: Mapping[int, Setup]) -> list[Difference]:
    """In what the ranks differ, part by part; by name within a part.

    A file or a package that a rank does not have loaded is no difference: rank 0 may well log with
    one more than the others.
    """
    found: list[Difference] = []
    for part in ("python", "arguments"):
        told = {rank: _text(setup, part) for rank, setup in setups.items()}
        found += _differs(part, "", told)
    for part, everywhere in (("environment", True), ("packages", False), ("code", False)):
        tables = {rank: getattr(setup, part) for rank, setup in setups.items()}
        for name in sorted({name for table in tables.values() for name in table}):
            has = {rank: table.get(name) for rank, table in tables.items()}
            if not everywhere:
                has = {rank: value for rank, value in has.items() if value is not None}
            found += _differs(part, name, has)  # type: ignore[arg-type]
    return found


def _text(setup: Setup, part: str) -> str:
    return setup.python if part == "python" else " ".join(setup.arguments)


def _differs(part: Part, name: str, told: Mapping[int, str | None]) -> list[Difference]:
    by_value: dict[str | None, list[int]] = {}
    for rank, value in sorted(told.items()):
        by_value.setdefault(value, []).append(rank)
    if len(by_value) < 2:
        return []
    values = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return [
        Difference(
            part=part, name=name, values=tuple((value, tuple(ranks)) for value, ranks in values)
        )
    ]


def replicas(
    ranks: Sequence[int], coordinates: Mapping[int, Mapping[str, int]]
) -> list[tuple[int, ...]]:
    """`ranks` by what they should hold of the model: alike on all axes that do not cut it.

    Axes are known by their usual names. Ranks without coordinates are one group.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in ranks:
        cut = sorted(coordinates.get(rank, {}).items())
        key = tuple((axis, at) for axis, at in cut if not axis.startswith(_COPYING))
        groups.setdefault(key, []).append(rank)
    return [tuple(members) for members in groups.values()]


_COPYING = ("dp", "data", "replicate", "shard", "fsdp", "hsdp", "cp", "context")

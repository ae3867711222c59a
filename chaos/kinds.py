"""What all kinds of fault have in common, and where they are found: one file each in `faults/`.

Each file of `harness.chaos.faults` holds one `KIND` that bears the file's name, does one harm and
knows how to undo it. Nothing here or there imports torch before the harm is done.
"""

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import FaultError
from harness.faults import ANY, Fault

PACKAGE = "harness.chaos.faults"
Area = Literal[
    "process", "thread", "collective", "tensor", "loader", "checkpoint", "network", "resource",
    "clock",
]  # fmt: skip
Place = Literal["agent", "worker"]
"""Who does it: the agent from outside, or code that the rank imports when a fault is armed."""
Blame = Literal["target", "pair", "nobody"]
"""Who may be named: the target; the target or one that it talks to; no rank at all."""
Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that can be chosen. The default's type is the type."""

    name: str
    default: str | int | float
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault: what it does, and what must be said of it."""

    name: str
    area: Area
    summary: str
    place: Place
    do: Callable[[Any], Undo | None]
    """Given harness.chaos.outside.Target or harness.chaos.inside.Inside. Raises Unfit."""
    verdicts: tuple[str, ...] = ()
    """One of these must be said; none: nothing may be."""
    also: tuple[str, ...] = ()
    """What may be said beside it."""
    actions: tuple[str, ...] = ()
    blame: Blame = "target"
    parameters: tuple[Parameter, ...] = ()
    on_node: bool = False
    """Addressed by node instead of rank."""
    needs: str = ""
    """What a script must have for it: loader, checkpoints, manifests (checkpoints that list their
    files), several nodes, mesh, replicas."""
    steps: int = 0
    """Steps that must follow until it can be told; 0: few."""
    before: int = 0
    """Steps that must have been seen without it; 0: few."""
    equal: bool = True
    """Whether the final parameters must be those of a run without it, where the run succeeds."""
    leaves: bool = False
    """Nobody is left on the node to clean up: what lies in its folder for temporary files is
    removed by the next run there."""
    note: str = ""
    """What else one should know, in a sentence."""

    @property
    def expected(self) -> str:
        """The class that must be said before all, or `nothing`."""
        return self.verdicts[0] if self.verdicts else "nothing"

    @property
    def ends(self) -> bool:
        """The run must be stopped for it: it would only fail again."""
        return self.actions == ("stop",)

    @property
    def alone(self) -> bool:
        """Nothing can come after it in the same run: it ends the run, or goes on in it for long
        until it is told."""
        return self.ends or (self.actions == ("report",) and self.steps > 0)


class Unfit(Exception):
    """The fault cannot be done here, in words."""


@functools.cache
def names() -> tuple[str, ...]:
    """Of all kinds, sorted."""
    folder = importlib.import_module(PACKAGE)
    return tuple(sorted(found.name for found in pkgutil.iter_modules(folder.__path__)))


def find(name: str) -> Kind:
    """The kind of that name. Raises UsageError with the nearest one."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        raise FaultError(
            f"no kind of fault is called {name!r}", help=f"{meant}harness chaos list shows all"
        )
    kind: Kind = importlib.import_module(f"{PACKAGE}.{name}").KIND
    return kind


def everything() -> list[Kind]:
    """All kinds, by area and name."""
    return sorted((find(name) for name in names()), key=lambda kind: (kind.area, kind.name))


def values(kind: Kind, given: Mapping[str, str]) -> dict[str, Any]:
    """The kind's parameters with their types. Raises UsageError."""
    known = {parameter.name: parameter for parameter in kind.parameters}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            has = f"it has {', '.join(known)}" if known else "it has none"
            meant = f"did you mean {near[0]}? " if near else ""
            raise FaultError(f"{kind.name} has no parameter {name!r}", help=f"{meant}{has}")
    return {name: _value(kind, each, given) for name, each in known.items()}


def _value(kind: Kind, parameter: Parameter, given: Mapping[str, str]) -> str | int | float:
    text = given.get(parameter.name)
    if text is None:
        return parameter.default
    try:
        return type(parameter.default)(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[type(parameter.default)]
        raise FaultError(f"{kind.name}: {parameter.name} is {wanted}, not {text!r}") from None


def check(fault: Fault) -> Kind:
    """The kind of `fault`, all of it understood. Raises UsageError."""
    kind = find(fault.kind)
    values(kind, fault.parameters)
    if kind.on_node and fault.rank != ANY:
        raise FaultError(f"{kind.name} is done to a node, not to a rank", help="give --node")
    if not kind.on_node and fault.rank == ANY:
        raise FaultError(f"{kind.name} is done to a rank", help="give --rank or --at")
    if kind.on_node and (fault.step, fault.seq_id, fault.phase) != (None, None, ""):
        raise FaultError(
            f"{kind.name} is done to a node, which has no steps of its own",
            help="say when with --seconds, or in a plan with `after`",
        )
    if fault.times < 1:
        raise FaultError(f"{kind.name}: times is at least 1, not {fault.times}")
    return kind


def said(kind: Kind) -> str:
    """What must come of it, in words."""
    if not kind.verdicts:
        return "nothing is said" + (f"; also allowed: {', '.join(kind.also)}" if kind.also else "")
    return f"{' or '.join(kind.verdicts)}; then {' or '.join(kind.actions)}"

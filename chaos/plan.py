"""Plans: what to break, in which run, read from TOML, written to it, or drawn from a seed."""

import dataclasses
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.chaos import kinds
from harness.chaos.workloads import Workload, workload
from harness.errors import FaultError, UsageError
from harness.faults import ANY, Fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AFTER = ("suspicion", "incident", "restart", "before")
"""What of the run a fault may wait for: a look at the ranks, a verdict, a second attempt, or that
all faults asked for until then are done and the run has gone on after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fault of a plan. `at`: coordinates in place of a rank; `after`: one of AFTER."""

    fault: Fault
    at: Mapping[str, int] = field(default_factory=dict)
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The most that a plan may harm."""

    ranks: int = 2
    nodes: int = 1
    faults: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Faults in one run of one workload."""

    workload: Workload
    faults: tuple[Planned, ...]
    guard: Guard = Guard()
    seed: int = 0
    name: str = ""

    def __str__(self) -> str:
        told = ", ".join(f"{p.fault.kind}@{_place(p)}" for p in self.faults)
        return f"{self.workload.name}: {told or 'no fault'}"


def _place(planned: Planned) -> str:
    if planned.at:
        return ",".join(f"{axis}={value}" for axis, value in planned.at.items())
    fault = planned.fault
    return str(fault.rank) if fault.rank != ANY else f"node{max(fault.node, 0)}"


def check(plan: Plan) -> None:
    """Refuse what cannot be, and what harms more than the guard allows. Raises UsageError."""
    ranks: set[object] = set()
    nodes: set[int] = set()
    for number, planned in enumerate(plan.faults, 1):
        fault = planned.fault
        given = dataclasses.replace(fault, rank=0) if planned.at else fault
        try:
            kind = kinds.check(given)
        except UsageError as error:
            raise FaultError(f"fault {number}: {error.message}", help=error.help) from None
        if kind.on_node:
            nodes.add(max(fault.node, 0))
        else:
            ranks.add(tuple(sorted(planned.at.items())) if planned.at else fault.rank)
        world = plan.workload.world_size
        if not planned.at and not kind.on_node and not 0 <= fault.rank < world:
            raise FaultError(
                f"fault {number} ({fault.kind}): there is no rank {fault.rank}; "
                f"the ranks are 0-{world - 1}"
            )
        if planned.after and planned.after not in AFTER:
            raise FaultError(
                f"fault {number} ({fault.kind}): after = {planned.after!r} is not known",
                help=f"it is one of {', '.join(AFTER)}",
            )
    guard = plan.guard
    for what, count, most in (
        ("ranks", len(ranks), guard.ranks),
        ("nodes", len(nodes), guard.nodes),
        ("faults", len(plan.faults), guard.faults),
    ):
        if count > most:
            raise FaultError(
                f"the plan harms {count} {what}, its guard allows {most}"
                if what != "faults"
                else f"the plan has {count} faults, its guard allows {most}",
                help=f"leave some out, or raise `{what}` under [guard]",
            )


# --- TOML --------------------------------------------------------------------------------------

_FAULT_KEYS = {each.name for each in dataclasses.fields(Fault)} | {"at", "after"}
_RUN_KEYS = {
    "workload", "script", "module", "args", "nproc", "nodes", "options", "final", "steps", "every",
}  # fmt: skip


def read(path: Path) -> Plan:
    """The plan of a file. Raises UsageError with the place."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FaultError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FaultError(f"{path}: not text in UTF-8 (byte {error.start + 1})") from None
    except tomllib.TOMLDecodeError as error:
        raise FaultError(f"{path}: not TOML: {error}") from None
    try:
        plan = from_dict(raw, name=path.stem)
        check(plan)
    except UsageError as error:
        raise FaultError(f"{path}: {error.message}", help=error.help) from None
    return plan


def from_dict(raw: Mapping[str, Any], *, name: str = "") -> Plan:
    """A plan as TOML holds it. Raises UsageError."""
    _known(raw, {"name", "seed", "run", "guard", "fault"}, "the plan")
    run = _table(raw, "run")
    _known(run, _RUN_KEYS, "[run]")
    seed = _whole(raw, "seed", 0)
    faults = raw.get("fault", [])
    if not isinstance(faults, list) or not all(isinstance(each, dict) for each in faults):
        raise FaultError("faults are written as [[fault]]")
    guard = _table(raw, "guard")
    _known(guard, {"ranks", "nodes", "faults"}, "[guard]")
    return Plan(
        name=str(raw.get("name", name)),
        seed=seed,
        workload=_workload(run),
        guard=Guard(**{key: _whole(guard, key, 0) for key in guard}),
        faults=tuple(_fault(each, number, seed) for number, each in enumerate(faults, 1)),
    )


def _table(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = raw.get(name, {})
    if not isinstance(found, dict):
        raise FaultError(f"{name} is a table: write [{name}]")
    return found


def _known(raw: Mapping[str, Any], known: set[str], where: str) -> None:
    import difflib

    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise FaultError(f"{where} has no {key!r}", help=meant)


def _whole(raw: Mapping[str, Any], key: str, default: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FaultError(f"{key} is a whole number, not {value!r}")
    return value


def _workload(run: Mapping[str, Any]) -> Workload:
    if "script" in run and "workload" in run:
        raise FaultError("[run] has both a workload and a script", help="leave one out")
    if "script" in run:
        base = Workload(name=Path(str(run["script"])).stem, script=str(run["script"]))
    else:
        base = workload(str(run.get("workload", "ddp")))
    changes: dict[str, Any] = {}
    for key in ("nproc", "nodes", "steps", "every"):
        if key in run:
            changes[key] = _whole(run, key, 0)
    for key in ("args", "options"):
        if key in run:
            if not isinstance(run[key], list):
                raise FaultError(f"{key} is a list of words")
            changes[key] = tuple(map(str, run[key]))
    if "final" in run:
        if run["final"] not in ("files", "checkpoints", "none"):
            raise FaultError(f"final is files, checkpoints or none, not {run['final']!r}")
        changes["final"] = run["final"]
    if "module" in run:
        changes["module"] = bool(run["module"])
    return dataclasses.replace(base, **changes)


def _fault(raw: Mapping[str, Any], number: int, seed: int) -> Planned:
    where = f"fault {number}"
    _known(raw, _FAULT_KEYS, where)
    if "kind" not in raw:
        raise FaultError(f"{where} has no kind", help="harness chaos list shows all")
    values: dict[str, Any] = {"kind": str(raw["kind"]), "seed": seed}
    for key in ("rank", "step", "seq_id", "attempt", "node", "times", "seed"):
        if key in raw:
            values[key] = _whole(raw, key, 0)
    if "seconds" in raw:
        if not isinstance(raw["seconds"], int | float):
            raise FaultError(f"{where}: seconds is a number")
        values["seconds"] = float(raw["seconds"])
    if "phase" in raw:
        values["phase"] = str(raw["phase"])
    given = raw.get("parameters", {})
    if not isinstance(given, dict):
        raise FaultError(f"{where}: parameters is a table")
    values["parameters"] = {key: str(value) for key, value in given.items()}
    at = raw.get("at", {})
    if not isinstance(at, dict) or not all(isinstance(value, int) for value in at.values()):
        raise FaultError(f"{where}: at is a table of coordinates, as {{ tp = 0, pp = 1 }}")
    if at and "rank" in raw:
        raise FaultError(f"{where} has both a rank and coordinates", help="leave one out")
    return Planned(fault=Fault(**values), at=at, after=str(raw.get("after", "")))


def text(plan: Plan) -> str:
    """The plan as TOML, whole: it runs again as it is."""
    one = plan.workload
    lines = [f"name = {json.dumps(plan.name)}", f"seed = {plan.seed}", "", "[run]"]
    from harness.chaos.workloads import BUILT_IN

    if BUILT_IN.get(one.name) is not None and BUILT_IN[one.name].script == one.script:
        lines.append(f"workload = {json.dumps(one.name)}")
    else:
        lines += [f"script = {json.dumps(one.script)}", f"module = {json.dumps(one.module)}"]
    lines += [f"args = {json.dumps(list(one.args))}", f"options = {json.dumps(list(one.options))}"]
    lines += [f"{key} = {getattr(one, key)}" for key in ("nproc", "nodes", "steps", "every")]
    lines += [f'final = "{one.final}"', "", "[guard]"]
    lines += [f"{key} = {getattr(plan.guard, key)}" for key in ("ranks", "nodes", "faults")]
    for planned in plan.faults:
        lines += ["", "[[fault]]", *_fault_lines(planned)]
    return "\n".join(lines) + "\n"


def _fault_lines(planned: Planned) -> Sequence[str]:
    defaults = Fault(kind="")
    lines = [f"kind = {json.dumps(planned.fault.kind)}"]
    for each in dataclasses.fields(Fault):
        value = getattr(planned.fault, each.name)
        if each.name in ("kind", "parameters") or value == getattr(defaults, each.name):
            continue
        if not (planned.at and each.name == "rank"):
            lines.append(f"{each.name} = {json.dumps(value)}")
    for name, table in (("parameters", planned.fault.parameters), ("at", planned.at)):
        if table:
            inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
            lines.append(f"{name} = {{ {inner} }}")
    if planned.after:
        lines.append(f"after = {json.dumps(planned.after)}")
    return lines


# --- drawing -----------------------------------------------------------------------------------


def fitting(kind: kinds.Kind, one: Workload) -> bool:
    """Whether the kind can be done to this workload."""
    if kind.needs == "several nodes":
        return one.nodes > 1
    return not kind.needs or kind.needs in one.has


def able(kind: kinds.Kind, one: Workload) -> Sequence[int]:
    """The ranks that the kind can be done to: what strikes as a checkpoint is written, to those
    that write it."""
    everybody = range(one.world_size)
    saves = kind.place == "worker" and kind.needs == "checkpoints"
    return [r for r in one.savers if r in everybody] or everybody if saves else everybody


def single(kind: kinds.Kind, one: Workload, rank: int, seed: int) -> Plan:
    """One fault of `kind` in the middle of a run that is long enough to tell it."""
    draw = random.Random(f"{kind.name} {one.name} {rank} {seed}")
    step = max(one.every * 2, kind.before) + draw.randrange(1, one.every)
    steps = max(one.steps, step + (kind.steps or one.every * 2))
    fault = Fault(
        kind=kind.name,
        rank=ANY if kind.on_node else rank,
        node=(one.nodes - 1 if kind.needs == "several nodes" else 0) if kind.on_node else ANY,
        step=None if kind.on_node else step,
        seconds=2.0 if kind.on_node else None,
        seed=draw.randrange(2**31),
    )
    return Plan(
        name=f"{kind.name}-{one.name}-r{rank}",
        workload=dataclasses.replace(one, steps=steps),
        faults=(Planned(fault=fault),),
        seed=seed,
    )


def drawn(one: Workload, count: int, seed: int, among: Sequence[kinds.Kind] = ()) -> Plan:
    """`count` faults that the seed chooses, one after the other."""
    draw = random.Random(seed)
    fits = [kind for kind in among or kinds.everything() if fitting(kind, one)]
    faults = []
    for number in range(count):
        kind = draw.choice(fits)
        alone = single(kind, one, draw.choice(able(kind, one)), draw.randrange(2**31))
        planned = alone.faults[0]
        step = planned.fault.step
        later = None if step is None else step + number * one.every
        faults.append(
            dataclasses.replace(planned, fault=dataclasses.replace(planned.fault, step=later))
        )
    # Steps count from the start of a rank's process: each fault may be in an attempt of its own.
    last = sum(planned.fault.step or 0 for planned in faults)
    longest = max((kinds.find(p.fault.kind).steps for p in faults), default=0)
    steps = max(one.steps, last + max(longest, 2 * one.every))
    return Plan(
        name=f"drawn-{one.name}-{seed}",
        workload=dataclasses.replace(one, steps=steps),
        faults=tuple(faults),
        guard=Guard(ranks=max(2, count), faults=max(8, count)),
        seed=seed,
    )

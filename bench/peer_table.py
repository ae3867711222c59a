"""What was seen of the peers, kept launch by launch in a file, and the tables made of it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One launch. Times in seconds; `declared` and `resumed` from the fault on, None: not seen.

    `cold`: launch to first step. `step`: median step of rank 0 before the fault. `after` says what
    became of a training that did not resume. `why`: there is no figure, since it never came to the
    fault. `load`: of the machine, in the minute before the end.
    """

    cold: float | None = None
    step: float | None = None
    declared: float | None = None
    named: str = "nobody"
    right: bool = False
    resumed: float | None = None
    after: str = ""
    why: str = ""
    load: float = 0.0


Pairs = dict[tuple[str, str], list[Seen]]
"""Launches of each fault and system."""


def kept(path: Path | None, pairs: Pairs) -> None:
    """Add the launches of an earlier run to `pairs`; others in the file are left alone.

    Raises ValueError that names a line which is none of ours.
    """
    if path is None or not path.exists():
        return
    known = {field.name for field in fields(Seen)}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fault, system, values = json.loads(line)
            unknown = set(values) - known
        except (ValueError, TypeError):
            raise ValueError(f"{path}:{number} is no launch that this bench has kept") from None
        if unknown or "load" not in values:
            raise ValueError(f"{path}:{number} is of an older bench; begin a new file")
        if (fault, system) in pairs:
            pairs[fault, system].append(Seen(**values))


def keep(path: Path | None, fault: str, system: str, one: Seen) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([fault, system, asdict(one)]) + "\n")


def tables(pairs: Pairs, faults: Mapping[str, str], systems: Mapping[str, str]) -> list[str]:
    """Times and names for each fault, the cost of each system, and why figures are missing."""
    reasons: list[str] = []
    times = {pair: _times(many, reasons, pair, systems) for pair, many in pairs.items()}
    names = {pair: _names(many) for pair, many in pairs.items()}
    head = [f"| rank 2 … | {' | '.join(systems.values())} |", "|---" * (len(systems) + 1) + "|"]

    def rows(cells: Mapping[tuple[str, str], str]) -> list[str]:
        return [
            f"| {words} | {' | '.join(cells[fault, system] for system in systems)} |"
            for fault, words in faults.items()
        ]

    return [
        "Seconds from the fault until the supervisor says so → until the next step:",
        *("", *head, *rows(times), ""),
        *([*(f"{number}. {why}" for number, why in enumerate(reasons, 1)), ""] if reasons else []),
        "Whom it names; **bold** where that is rank 2 and nobody else:",
        *("", *head, *rows(names), ""),
        *_cost(pairs, systems),
    ]


def _times(
    many: Sequence[Seen], reasons: list[str], pair: tuple[str, str], systems: Mapping[str, str]
) -> str:
    if not many:
        return "not run"
    figures = [one for one in many if not one.why]
    if not figures:
        reasons.append(f"{systems[pair[1]]}, {pair[0]}: {many[-1].why}")
        return f"no figure ({len(reasons)})"
    after = _most([one.after for one in figures])
    declared, resumed = (
        _middle([getattr(one, name) for one in figures]) for name in ("declared", "resumed")
    )
    first = "not noticed" if declared is None else f"{declared:.1f}"
    if resumed is not None:
        return f"{first} → {resumed:.1f}"
    return f"{first} → {after}" if declared is not None else f"{first}: {after}"


def _names(many: Sequence[Seen]) -> str:
    figures = [one for one in many if not one.why]
    if not figures:
        return "-"
    right, named = sum(one.right for one in figures), _most([one.named for one in figures])
    if right == len(figures):
        return f"**{named}**"
    return named if len(figures) == 1 else f"{named} ({right} of {len(figures)} right)"


def _cost(pairs: Pairs, systems: Mapping[str, str]) -> list[str]:
    """Of launches as long as nothing was wrong, those of all faults together."""

    def over_all(system: str, name: str) -> float | None:
        many = [one for (_, s), those in pairs.items() if s == system for one in those]
        known = [value for one in many if (value := getattr(one, name)) is not None]
        return statistics.median(known) if known else None

    unit = over_all("torchrun", "step"), over_all("torchrun", "cold")
    lines = [
        "What it costs while nothing is wrong, medians of the launches above:",
        "",
        "| system | launch to first step, s | of torchrun's | step, ms | of torchrun's |",
        "|---|---|---|---|---|",
    ]
    for system, words in systems.items():
        step, cold = over_all(system, "step"), over_all(system, "cold")
        lines.append(
            f"| {words} | {_show(cold)} | {_ratio(cold, unit[1])} "
            f"| {_show(None if step is None else 1000 * step)} | {_ratio(step, unit[0], 3)} |"
        )
    return [*lines, ""]


def _show(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(value: float | None, unit: float | None, digits: int = 2) -> str:
    return _show(None if value is None or unit is None else value / unit, digits)


def _middle(values: Sequence[float | None]) -> float | None:
    """None when most have none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) * 2 > len(values) else None


def _most(values: Sequence[Any]) -> Any:
    return max(values, key=list(values).count)

"""What a check comes back with, and what all of them together say."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "fail", "skip"]
EXIT_CODES: Mapping[Level, int] = {"skip": 0, "ok": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`says` is one line; `help` what to do, for what is not well; `facts` are for programs."""

    name: str
    level: Level
    says: str
    help: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


Checker = Callable[[], Check | Iterable[Check]]


def run(checkers: Iterable[tuple[str, Checker]]) -> Iterator[Check]:
    """Each check by its name, one after the other. One that breaks says so and stops no other."""
    for name, checker in checkers:
        began = time.perf_counter()
        try:
            found = checker()
            checks = [found] if isinstance(found, Check) else list(found)
        except OSError as error:
            says = f"could not be looked at: {error.strerror or error}"
            checks = [Check(name=name, level="skip", says=says)]
        seconds = round(time.perf_counter() - began, 3)
        for check in checks:
            yield Check(
                name=check.name,
                level=check.level,
                says=check.says,
                help=check.help,
                facts=check.facts,
                seconds=seconds,
            )


def worst(checks: Iterable[Check]) -> Level:
    """`skip` only where nothing could be looked at."""
    return max((check.level for check in checks), key=_RANK.__getitem__, default="skip")


_RANK: Mapping[Level, int] = {"skip": 0, "ok": 1, "warn": 2, "fail": 3}

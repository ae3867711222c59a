"""exception: a rank's own code raised; deterministic_failure: every rank's did, at start-up.

An exception that only says that a peer is gone is not one of these, nor is one that a more special
detector explains.
"""

from collections.abc import Iterable

from harness.diagnosis import nobody_answers
from harness.diagnosis.endings import Ending
from harness.diagnosis.scene import Scene
from harness.diagnosis.signature import Signature, place_text
from harness.incidents import Finding
from harness.topology import ranks_name

TRANSIENT = frozenset(
    {
        "BlockingIOError",
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "HTTPError",
        "InterruptedError",
        "OSError",
        "TimeoutError",
        "URLError",
    }
)
"""Exceptions of a world outside that may be better in a moment, even when all ranks raise them."""


def find(scene: Scene, unexplained: Iterable[Ending]) -> list[Finding]:
    """One finding per kind of exception, with all ranks that raised it at the same place."""
    groups: dict[str, list[Ending]] = {}
    for ending in unexplained:
        if ending.kind in ("raised", "code"):
            groups.setdefault(_signature(ending, "exception").text(), []).append(ending)
    return [_finding(scene, group) for group in groups.values()]


def _signature(ending: Ending, verdict: str) -> Signature:
    return Signature(
        verdict=verdict,
        what=ending.what,
        detail=ending.message.partition("\n")[0],
        place=place_text(ending.where),
        start_up=ending.start_up,
    )


def _finding(scene: Scene, group: list[Ending]) -> Finding:
    first = min(group, key=lambda ending: ending.at_ns)
    ranks = tuple(sorted(ending.rank for ending in group))
    everywhere = len(ranks) == scene.attempt.world_size > 1
    all_at_start = everywhere and all(ending.start_up for ending in group)
    deterministic = all_at_start and first.what.rpartition(".")[2] not in TRANSIENT
    verdict = "deterministic_failure" if deterministic else "exception"
    return Finding(
        verdict=verdict,
        ranks=ranks,
        cause=f"{first.says}{_asked(first)}",
        reason=_reason(first, ranks, everywhere),
        confidence="likely" if first.kind == "code" and not first.message else "proven",
        onset_ns=first.at_ns,
        evidence=tuple(ref for ending in group[:8] for ref in ending.evidence),
        where=first.where,
        signature=_signature(first, verdict).text(),
    )


def _asked(first: Ending) -> str:
    words = nobody_answers.asked(first.what, first.message)
    return f"; {words}, and ranks have no stdin: nobody can answer" if words else ""


def _reason(first: Ending, ranks: tuple[int, ...], everywhere: bool) -> str:
    who = ranks_name(ranks)
    if first.kind == "code" and not first.message:
        said = f"{who} left with {first.what} and said nothing"
    elif first.kind == "code":
        said = f"{who} left with {first.what}, saying: {first.message}"
    else:
        said = f"{who} raised {first.what}"
    if len(ranks) > 1:
        said += f" at the same place{', all ranks alike' if everywhere else ''}"
    when = "before any collective and any step" if first.start_up else f"after step {first.step}"
    if not first.start_up and first.step == 0:
        when = "before the first counted step"
    return f"{said}, {when}; rank {first.rank} was first"

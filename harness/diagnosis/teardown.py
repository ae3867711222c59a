"""teardown_abort: a rank was killed on its way out, after it had torn its groups down, and nobody
missed it."""

from collections.abc import Iterable

from harness.diagnosis.endings import Ending
from harness.diagnosis.scene import Scene
from harness.diagnosis.signature import Signature
from harness.incidents import Finding
from harness.topology import ranks_text

_BY_ITSELF = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
"""Signals that a process brings on itself. One that was sent is a kill, whenever it comes."""


def find(scene: Scene, unexplained: Iterable[Ending]) -> tuple[list[Finding], list[Ending]]:
    """Findings, and the endings that they leave unexplained."""
    rest = list(unexplained)
    if scene.of_kind("cried", "timed_out"):
        return [], rest
    aborted = [
        ending
        for ending in rest
        if ending.kind == "signal" and ending.phase == "teardown" and ending.what in _BY_ITSELF
    ]
    if not aborted:
        return [], rest
    first = min(aborted, key=lambda ending: ending.at_ns)
    ranks = tuple(sorted(ending.rank for ending in aborted))
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks_text(ranks)}"
    finding = Finding(
        verdict="teardown_abort",
        ranks=ranks,
        cause=f"{first.what} while the process was being taken down",
        reason=f"{who} had left its process groups when it died, and no other rank missed it",
        confidence="likely",
        onset_ns=first.at_ns,
        evidence=tuple(ref for ending in aborted[:8] for ref in ending.evidence),
        signature=Signature(verdict="teardown_abort", what=first.what).text(),
    )
    return [finding], [ending for ending in rest if ending not in aborted]

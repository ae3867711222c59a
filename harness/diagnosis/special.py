"""Failures that their own words explain further than `exception` or `killed_by_signal` would."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from harness.diagnosis import (
    dataloader_worker,
    device_fault,
    leaks,
    nonfinite,
    out_of_memory,
    port_in_use,
)
from harness.diagnosis.endings import Ending
from harness.diagnosis.signature import Signature, place_text
from harness.incidents import Finding
from harness.state import AttemptState
from harness.topology import ranks_name

EXPLAINERS: Mapping[str, Callable[[Ending], str | None]] = {
    "dataloader_worker_died": dataloader_worker.explains,
    "out_of_memory": out_of_memory.explains,
    "device_fault": device_fault.explains,
    "port_in_use": port_in_use.explains,
    "resource_leak_fd": leaks.explains,
    "nonfinite": nonfinite.explains,
}
"""By verdict; the first that has an answer has it. A data loader's worker may itself have been
killed for memory, and its rank then says both."""


def find(attempt: AttemptState, endings: Iterable[Ending]) -> tuple[list[Finding], list[Ending]]:
    """Findings, and the endings that none of them explains."""
    groups: dict[str, list[tuple[Ending, str]]] = {}
    unexplained: list[Ending] = []
    by_driver: list[Finding] = []
    for ending in endings:
        verdict, cause = _explain(ending)
        report = device_fault.reported(attempt, ending)
        if report is not None and verdict in ("", "device_fault"):
            by_driver.append(_by_driver(ending, report))
        elif verdict:
            groups.setdefault(verdict, []).append((ending, cause))
        else:
            unexplained.append(ending)
    found = [_finding(verdict, group) for verdict, group in groups.items()]
    return [*by_driver, *(_with_growth(attempt, finding) for finding in found)], unexplained


def _by_driver(ending: Ending, report: device_fault.Report) -> Finding:
    """The driver's word stands above what the program made of it."""
    error = report.error
    finding = _finding("device_fault", [(ending, device_fault.words(error))])
    place = "its process computes there" if error.proven else "by its place on the node it is there"
    return replace(
        finding,
        reason=f"the driver of the GPU under {ranks_name(finding.ranks)} says so, and {place}",
        confidence="proven" if error.proven else "likely",
        onset_ns=min(error.seen_ns, ending.at_ns),
        evidence=(report.ref, *ending.evidence),
    )


def _with_growth(attempt: AttemptState, finding: Finding) -> Finding:
    """What is known of how the ranks came to the end of files or memory."""
    ranks, words = finding.ranks, ""
    if finding.verdict == "resource_leak_fd":
        ranks, words = leaks.exhausted(attempt, finding)
    elif finding.verdict == "out_of_memory":
        words = leaks.memory_words(attempt, finding.ranks)
    return replace(finding, ranks=ranks, cause=f"{finding.cause}; {words}") if words else finding


def _explain(ending: Ending) -> tuple[str, str]:
    if ending.kind in ("left", "lost", "cried", "timed_out") and ending.oom is None:
        return "", ""
    for verdict, explains in EXPLAINERS.items():
        cause = explains(ending)
        if cause is not None:
            return verdict, cause
    return "", ""


def _finding(verdict: str, group: list[tuple[Ending, str]]) -> Finding:
    first, cause = min(group, key=lambda item: item[0].at_ns)
    ranks = tuple(sorted(ending.rank for ending, _ in group))
    who = ranks_name(ranks)
    when = f"after step {first.step}" if first.step else "before the first counted step"
    return Finding(
        verdict=verdict,
        ranks=ranks,
        cause=cause,
        reason=f"{who} ended with {first.what} {when}, and these words say why",
        confidence="proven",
        onset_ns=first.at_ns,
        evidence=tuple(ref for ending, _ in group[:8] for ref in ending.evidence),
        where=first.where,
        signature=Signature(
            verdict=verdict,
            what=first.what,
            detail=cause,
            place=place_text(first.where),
            start_up=first.start_up,
        ).text(),
    )

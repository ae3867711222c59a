"""killed_by_signal: a rank was ended by a signal that nobody of ours sent."""

from collections.abc import Iterable

from harness.diagnosis.endings import Ending
from harness.diagnosis.scene import Scene
from harness.diagnosis.signature import Signature, place_text
from harness.incidents import Finding
from harness.sizes import size_text
from harness.topology import ranks_name

_MEANING = {
    "SIGSEGV": "it touched memory that is not its own",
    "SIGBUS": "a mapped file or shared memory was gone or full",
    "SIGABRT": "it aborted itself",
    "SIGILL": "it met an instruction that this processor does not know",
    "SIGFPE": "an arithmetic error",
    "SIGTERM": "somebody asked it to end",
    "SIGINT": "somebody interrupted it",
}


def find(scene: Scene, unexplained: Iterable[Ending]) -> list[Finding]:
    """One finding per signal. Ranks killed by the same one within a second are told together."""
    groups: list[list[Ending]] = []
    killed = [ending for ending in unexplained if ending.kind == "signal"]
    for ending in sorted(killed, key=lambda ending: ending.at_ns):
        for group in groups:
            if group[0].what == ending.what and ending.at_ns - group[0].at_ns < 1_000_000_000:
                group.append(ending)
                break
        else:
            groups.append([ending])
    return [_finding(group) for group in groups]


def _finding(group: list[Ending]) -> Finding:
    first = group[0]
    ranks = tuple(sorted(ending.rank for ending in group))
    who = ranks_name(ranks)
    return Finding(
        verdict="killed_by_signal",
        ranks=ranks,
        cause=f"{first.what}: {_why(first)}",
        reason=f"{who} ended by {first.what} {_when(first)}, without a Python error of its own",
        confidence="proven",
        onset_ns=first.at_ns,
        evidence=tuple(ref for ending in group[:8] for ref in ending.evidence),
        where=first.where,
        signature=Signature(
            verdict="killed_by_signal",
            what=first.what,
            place=place_text(first.where),
            start_up=first.start_up,
        ).text(),
    )


def _why(ending: Ending) -> str:
    if ending.what == "SIGKILL":
        size = f"; it held {size_text(ending.rss_bytes)} at most" if ending.rss_bytes else ""
        return f"sender unknown; nothing proves that memory ran out{size}"
    return _MEANING.get(ending.what, "sender unknown")


def _when(ending: Ending) -> str:
    return f"after step {ending.step}" if ending.step else "before the first counted step"

"""What is wrong with checkpoint files below watched folders, as their looks alone show it."""

import os
from collections.abc import Mapping

from harness import events as e
from harness.diagnosis.signature import Signature
from harness.incidents import EvidenceRef, Finding
from harness.state import AttemptState
from harness.topology import ranks_name

WATCHED = "watched files"
"""What the signature of such a finding says instead of an operation."""
REFUSED = "refused"
"""The kind of flaw that is found when a checkpoint is to be loaded."""

_VERDICTS: Mapping[str, str] = {
    "torn": "checkpoint_corrupt",
    "damaged": "checkpoint_corrupt",
    "rewritten": "checkpoint_corrupt",
    REFUSED: "checkpoint_corrupt",
    "incomplete": "checkpoint_incomplete",
    "early": "checkpoint_incomplete",
    "mixed": "checkpoint_step_mismatch",
}
_MOST_TOLD = 8
"""In one attempt; a program that saves nothing well is known by then."""
_ASIDE = ("torn", "damaged", "incomplete")


def find(attempt: AttemptState) -> list[Finding]:
    """One finding for each flaw, oldest first; nodes that see the same file tell the same."""
    found: dict[tuple[str, str], Finding] = {}
    for (node, path), (flaw, stamp) in attempt.flaws.items():
        verdict = _VERDICTS.get(flaw.kind)
        if verdict is not None and (path, flaw.kind) not in found and len(found) < _MOST_TOLD:
            found[path, flaw.kind] = _finding(attempt, node, flaw, stamp, verdict)
    return list(found.values())


def to_set_aside(attempts: list[AttemptState]) -> dict[str, int]:
    """What nobody must resume from, by the node that found it."""
    return {
        path: node
        for attempt in attempts
        for (node, _), (flaw, _) in attempt.flaws.items()
        if flaw.kind in _ASIDE
        for path in flaw.aside
    }


def _finding(
    attempt: AttemptState, node: int, flaw: e.CheckpointFlaw, stamp: e.Stamp, verdict: str
) -> Finding:
    theirs = flaw.like if flaw.kind == "incomplete" else (flaw.path,)
    writers = tuple(
        rank
        for rank, done in sorted(attempt.files.items())
        if any(file.path in theirs and "load" not in file.what for file in done)
    )
    placed = attempt.nodes.get(node)
    ranks = writers or (() if placed is None else tuple(placed.ranks))
    if not writers:
        who = f"which of {ranks_name(ranks)} writes it is not known"
    elif flaw.kind == "incomplete":
        who = f"{ranks_name(ranks)} wrote that part at other steps"
    else:
        who = f"{ranks_name(ranks)} wrote it"
    seen = "was looked at once it was at rest"
    if flaw.kind == REFUSED:
        seen = "was whole when it was saved, by its manifest, and is not any more"
    aside = "; it is set aside before the run is resumed" if flaw.aside else ""
    return Finding(
        verdict=verdict,
        ranks=ranks,
        cause=flaw.why,
        reason=f"{flaw.path} {seen}; {who}{aside}",
        confidence="likely" if flaw.kind == "mixed" else "proven",
        onset_ns=stamp.wall_ns,
        evidence=(EvidenceRef(source=stamp.source, seq=stamp.seq, shows=f"a look at {flaw.path}"),),
        signature=Signature(
            verdict=verdict, what=WATCHED, detail=f"{flaw.kind} {os.path.basename(flaw.path)}"
        ).text(),
    )

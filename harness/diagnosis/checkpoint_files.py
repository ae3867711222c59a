"""Checkpoints that a script saves and loads by itself: saves that fail unheard, files that cannot
be read, ranks that go on from different steps."""

import os
import re
from collections.abc import Iterable

from harness import events as e
from harness.diagnosis.endings import Ending
from harness.diagnosis.signature import Signature, place_text
from harness.incidents import EvidenceRef, Finding
from harness.state import AttemptState
from harness.topology import ranks_name

_CORRUPT = re.compile(
    r"PytorchStreamReader|central directory|archive|truncated|unexpected EOF|unexpected pos"
    r"|Ran out of input|invalid (?:header|load key)|corrupt|CRC|checksum|not a ZIP|bad magic"
    r"|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|EOFError|BadZipFile",
    re.IGNORECASE,
)
_SEEK = re.compile(r"^OSError: \[Errno 22\]")
"""What torch's reader of archives says of some files that end too early: their directory, found by
chance in what is left, points to before their beginning."""

FATAL = "fatal"
"""In a signature: the rank died of it."""


def save_failed(attempt: AttemptState) -> list[Finding]:
    """A save that raised, whether the script hears of it or not."""
    failed: dict[int, e.CheckpointFile] = {}
    for rank, done in attempt.files.items():
        last = next((file for file in done if file.what == "save_failed"), None)
        if last is not None:
            failed[rank] = last
    if not failed:
        return []
    ranks = tuple(sorted(failed))
    first = failed[ranks[0]]
    saved = [file for file in attempt.files[ranks[0]] if file.what == "saved"]
    durable = f"its newest whole one is {_name(saved[-1])}" if saved else "it has saved none yet"
    return [
        Finding(
            verdict="checkpoint_save_failed",
            ranks=ranks,
            cause=f"the save of {_name(first)} failed on {ranks_name(ranks)}: {first.error}",
            reason=f"the program goes on without that checkpoint; {durable}",
            confidence="proven",
            onset_ns=attempt.ranks[ranks[0]].advanced_ns,
            evidence=_refs(attempt, ranks, "save_failed", "could not save a checkpoint"),
            signature=Signature(
                verdict="checkpoint_save_failed", what=first.error.partition(":")[0]
            ).text(),
        )
    ]


def step_mismatch(attempt: AttemptState) -> list[Finding]:
    """Ranks that loaded checkpoints of different steps."""
    steps = {
        rank: (file, file.step)
        for rank, (file, _) in attempt.loaded.items()
        if file.step is not None
    }
    if len(steps) < attempt.world_size or len({step for _, step in steps.values()}) < 2:
        return []  # one rank may load for all, and others something else
    by_step: dict[int, list[int]] = {}
    for rank, (_, step) in sorted(steps.items()):
        by_step.setdefault(step, []).append(rank)
    told = "; ".join(
        f"{ranks_name(ranks)} from step {step} ({_name(steps[ranks[0]][0])})"
        for step, ranks in sorted(by_step.items(), reverse=True)
    )
    most = max(len(ranks) for ranks in by_step.values())
    usual = [step for step, ranks in by_step.items() if len(ranks) == most]
    odd = [
        r for step, ranks in by_step.items() if len(usual) > 1 or step != usual[0] for r in ranks
    ]
    ranks = tuple(sorted(odd))
    return [
        Finding(
            verdict="checkpoint_step_mismatch",
            ranks=ranks,
            cause=f"the ranks went on from different steps: {told}",
            reason=f"what they train together belongs to no step; all of them may have step"
            f" {min(by_step)}, unless their files of it are gone",
            confidence="proven",
            onset_ns=min(attempt.ranks[rank].advanced_ns for rank in ranks),
            evidence=_refs(attempt, ranks, "loaded", "loaded a checkpoint"),
            signature=Signature(verdict="checkpoint_step_mismatch", what="torch.load").text(),
        )
    ]


def find_fatal(
    attempt: AttemptState, unexplained: Iterable[Ending]
) -> tuple[list[Finding], list[Ending]]:
    """Ranks that died of a checkpoint, one that cannot be read or one that could not be written,
    and the endings that are left."""
    groups: dict[tuple[str, str], list[tuple[Ending, e.CheckpointFile]]] = {}
    left: list[Ending] = []
    for ending in unexplained:
        file = _unreadable(attempt, ending) or _unwritten(attempt, ending)
        if file is None:
            left.append(ending)
        else:
            groups.setdefault((file.what, file.path), []).append((ending, file))
    of = {"load_failed": _corrupt, "save_failed": _unsaved}
    return [of[what](group) for (what, _), group in groups.items()], left


def _unreadable(attempt: AttemptState, ending: Ending) -> e.CheckpointFile | None:
    """The file whose loading ended the rank."""
    done = attempt.files.get(ending.rank, [])
    last = next((file for file in reversed(done) if "load" in file.what), None)
    if ending.kind not in ("raised", "code") or last is None or last.what != "load_failed":
        return None
    same = ending.message[:60] in last.error or last.error.partition(":")[0] == ending.what
    if last.flaw and (same or _name(last) in ending.message):
        return last
    damaged = _CORRUPT.search(last.error) or (last.bytes and _SEEK.search(last.error))
    return last if same and damaged else None


def _unwritten(attempt: AttemptState, ending: Ending) -> e.CheckpointFile | None:
    """The file whose writing ended the rank."""
    done = attempt.files.get(ending.rank, [])
    last = next((file for file in reversed(done) if file.what.startswith("save")), None)
    if ending.kind not in ("raised", "code") or last is None or last.what != "save_failed":
        return None
    return last if ending.message and ending.message[:60] in last.error else None


def _unsaved(group: list[tuple[Ending, e.CheckpointFile]]) -> Finding:
    first, file = min(group, key=lambda item: item[0].at_ns)
    ranks = tuple(sorted(ending.rank for ending, _ in group))
    return Finding(
        verdict="checkpoint_save_failed",
        ranks=ranks,
        cause=f"the save of {_name(file)} failed: {file.error[:200]}",
        reason=f"nothing catches that on {ranks_name(ranks)}, so it ended the rank",
        confidence="proven",
        onset_ns=first.at_ns,
        evidence=tuple(ref for ending, _ in group[:8] for ref in ending.evidence),
        where=first.where,
        signature=Signature(
            verdict="checkpoint_save_failed",
            what=FATAL,
            detail=file.error,
            place=place_text(first.where),
        ).text(),
    )


def _corrupt(group: list[tuple[Ending, e.CheckpointFile]]) -> Finding:
    first, file = min(group, key=lambda item: item[0].at_ns)
    ranks = tuple(sorted(ending.rank for ending, _ in group))
    older = f"; {os.path.basename(file.older)} is the one before it" if file.older else ""
    return Finding(
        verdict="checkpoint_corrupt",
        ranks=ranks,
        cause=f"{_name(file)} ({file.bytes:,} bytes) cannot be read: {_why(file)}",
        reason=f"{ranks_name(ranks)} failed in torch.load of that file and of nothing else{older}",
        confidence="proven",
        onset_ns=first.at_ns,
        evidence=tuple(ref for ending, _ in group[:8] for ref in ending.evidence),
        where=first.where,
        signature=Signature(
            verdict="checkpoint_corrupt",
            what=os.path.basename(file.path),
            detail=file.error,
            place=place_text(first.where),
        ).text(),
    )


def _why(file: e.CheckpointFile) -> str:
    return "; ".join(filter(None, (file.flaw, file.error[:200])))


def _name(file: e.CheckpointFile) -> str:
    return os.path.basename(file.path)


def _refs(
    attempt: AttemptState, ranks: tuple[int, ...], of: str, shows: str
) -> tuple[EvidenceRef, ...]:
    return tuple(
        EvidenceRef(source=source, seq=seq, shows=f"rank {rank} {shows}")
        for rank in ranks[:8]
        if of in attempt.ranks[rank].refs
        for source, seq in (attempt.ranks[rank].refs[of],)
    )

"""resource_leak_fd, resource_leak_memory: ranks that use up, step by step, what they will run out
of; and a rank that has run out of open files.

`harness.state.growth` keeps the readings.
"""

from harness.diagnosis.endings import Ending
from harness.diagnosis.signature import Signature
from harness.incidents import EvidenceRef, Finding
from harness.state import AttemptState
from harness.state.growth import Growth, Kind, RankGrowth
from harness.topology import ranks_name

GROWING = "growing"
"""In a signature: nothing has failed yet."""
VERDICTS: dict[Kind, str] = {"fds": "resource_leak_fd", "memory": "resource_leak_memory"}
_EXHAUSTED = "too many open files"
_ALIKE = 0.5
_LEAST_ALIKE = 40


def find(attempt: AttemptState) -> list[Finding]:
    """Leaks while there is time left."""
    return [_growing(attempt, kind, ranks) for kind, ranks in attempt.growth.leaks.items()]


def _growing(attempt: AttemptState, kind: Kind, ranks: tuple[int, ...]) -> Finding:
    seen = attempt.growth
    most = max(ranks, key=lambda rank: seen.ranks[rank].trends[kind].grown)
    grown = seen.ranks[most]
    trend = grown.trends[kind]
    what = "open files" if kind == "fds" else "memory"
    limit = f"the limit of {grown.fd_limit}" if kind == "fds" else "the end of the node's memory"
    which = "" if len(ranks) == 1 else f" (rank {most})"
    rest = len(ranks) < attempt.world_size
    return Finding(
        verdict=VERDICTS[kind],
        ranks=ranks,
        cause=(
            f"{what} of {ranks_name(ranks)} grow{'s' if kind == 'memory' else ''} by"
            f" {_rate(grown, kind)}, to {_amount(kind, trend.now)}{which}; {limit} is"
            f" {_duration(seen.seconds_left(kind, most))} away"
        ),
        reason=(
            f"even growth over {_duration(trend.seconds)} and {trend.progress}"
            f" {_unit(grown)}s, from {_amount(kind, trend.first)}"
            f"{'; the other ranks do not grow like that' if rest else ', on all ranks'}"
        ),
        confidence="likely",
        onset_ns=trend.since_ns,
        evidence=_evidence(seen),
        signature=Signature(verdict=VERDICTS[kind], what=GROWING).text(),
    )


def explains(ending: Ending) -> str | None:
    """No more open files were allowed, and the rank had been at work before."""
    if ending.kind not in ("raised", "code") or ending.start_up:
        return None
    # What a rank without a word of its own has in its log may be an old story.
    said = f"{ending.message}\n{ending.text if ending.kind == 'raised' else ''}".lower()
    return ending.says if _EXHAUSTED in said or "[errno 24]" in said else None


def exhausted(attempt: AttemptState, finding: Finding) -> tuple[tuple[int, ...], str]:
    """Of a finding of `explains`: all ranks that have grown alike, and the growth in words."""
    seen = attempt.growth
    grown = {rank: _gain(seen, rank) for rank in finding.ranks}
    first = max(grown, key=lambda rank: grown[rank], default=-1)
    gain = grown.get(first, 0)
    if gain <= 0:
        return finding.ranks, ""
    least = max(_ALIKE * gain, _LEAST_ALIKE)
    alike = {rank for rank in seen.ranks if _gain(seen, rank) >= least}
    ranks = tuple(sorted({*finding.ranks, *alike}))
    points, rank = seen.ranks[first].points, seen.ranks[first]
    words = (
        f"open files of {ranks_name(ranks)} grew from {points[0].fds} to {points[-1].fds}"
        f" of {rank.fd_limit} allowed"
    )
    progress = points[-1].progress - points[0].progress
    return ranks, f"{words}, {gain / progress:.3g} per {_unit(rank)}" if progress > 0 else words


def memory_words(attempt: AttemptState, ranks: tuple[int, ...]) -> str:
    """How the memory of ranks that ran out of it had grown; empty when it had not, evenly."""
    known = [attempt.growth.ranks[rank] for rank in ranks if rank in attempt.growth.ranks]
    grown = next((seen for seen in known if "memory" in seen.trends), None)
    if grown is None:
        return ""
    trend = grown.trends["memory"]
    return (
        f"its memory had grown by {_rate(grown, 'memory')}, from"
        f" {_amount('memory', trend.first)} to {_amount('memory', trend.now)}"
    )


def _gain(seen: Growth, rank: int) -> int:
    points = seen.ranks[rank].points if rank in seen.ranks else []
    return points[-1].fds - points[0].fds if points else 0


def _unit(grown: RankGrowth) -> str:
    return "step" if grown.steps else "collective"


def _rate(grown: RankGrowth, kind: Kind) -> str:
    trend = grown.trends[kind]
    each = trend.grown / max(1, trend.progress)
    return f"{_amount(kind, each)} per {_unit(grown)}"


def _amount(kind: Kind, value: float) -> str:
    if kind == "fds":
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    mebibytes = value / (1 << 20)
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.3g} MiB"


def _duration(seconds: float) -> str:
    for size, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _evidence(seen: Growth) -> tuple[EvidenceRef, ...]:
    source, seq = seen.ref
    return (EvidenceRef(source=source, seq=seq, shows="open files and memory of the ranks"),)

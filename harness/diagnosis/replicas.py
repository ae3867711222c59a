"""Numbers that ranks should have in common and have not: silent_data_corruption,
replica_divergence, tp_replicated_param_divergence, buffers_differ, unexpected_replication.

The order of evidence: a rank whose parameters or optimizer's state have changed between two of its
own steps accuses itself; inputs that were equal point to what was done with them; a majority of
three names a candidate only; two that differ are both named.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.diagnosis import places
from harness.diagnosis.crossing import Crossing, unfinished
from harness.diagnosis.crossing import alone as crossing_of
from harness.diagnosis.signature import Signature
from harness.incidents import Confidence, EvidenceRef, Finding
from harness.state import AttemptState
from harness.state.averaging import each_for_itself
from harness.state.doubts import Told
from harness.state.replicas import COLUMNS, LEARNT, Suspicion, changed_at_rest
from harness.topology import ranks_name

ASK_SECONDS = 2.0
"""Longest wait for the digests of single tensors."""
_LASTS_SECONDS = 1.0
"""How long ranks that were never equal must go on so before the run is stopped for it."""
_AVERAGED_SECONDS = 60.0
"""How long ranks that went apart, each for itself, may still prove to be averaged now and then."""
_MODEL_AXIS = ("tp", "tensor", "model", "cp", "sp")
HARDWARE, SOFTWARE, LEARNT_ONLY, DECLARED = "hardware", "software", "learnt", "declared"
"""What a finding's signature says of it: settles what is done."""
_MOST_NAMES = 3


def unnamed(attempt: AttemptState) -> list[Suspicion]:
    """Those of which it is not known yet which tensors differ."""
    return [
        known
        for known in attempt.replicas.suspicions
        if not known.track.single and known.kind in ("split", "apart", "left", "buffers")
    ]


def find(attempt: AttemptState) -> list[Finding]:
    """The earliest change that explains the others, and what is worth a report."""
    suspicions = [known for known in attempt.replicas.suspicions if not _in_hope(attempt, known)]
    ready = [known for known in suspicions if _ready(attempt, known)]
    if len(ready) < len(suspicions) and any(k.kind == "split" for k in ready):
        return []  # what is still being asked for may have been first
    changes = [known for known in ready if known.kind not in ("buffers", "alike")]
    others = [known for known in ready if known.kind in ("buffers", "alike")]
    # What one optimizer counts is put in order by its counts, what several count by the step.
    clocks = {known.track.part.clock for known in changes if known.track.part.clock >= 0}
    firsts = [known for known in changes if known.track.part.clock < 0]
    for clock in clocks:
        firsts.append(min((k for k in changes if k.track.part.clock == clock), key=_position))
    first = min(firsts, key=_order, default=None)
    found = []
    if first is not None:
        resting = attempt.doubts.of("at rest")
        found = [change(first, attempt.replicas.suspicions, resting)]
    return [*found, *_once([_other(known) for known in others])]


def _once(findings: list[Finding]) -> list[Finding]:
    """One of each class and ranks."""
    return list(
        {(finding.verdict, finding.ranks): finding for finding in reversed(findings)}.values()
    )


def _position(known: Suspicion) -> tuple[int, int, int]:
    """When in the life of its optimizer: parameters before step n, its gradients, parameters after
    it, its state."""
    count = known.at.count
    match known.track.part.site:
        case "parameters":
            return count, 0, known.at.at_ns
        case "gradients":
            return 2 * count, 1, known.at.at_ns
        case _:
            return 2 * count + 1, 1, known.at.at_ns


def _order(known: Suspicion) -> tuple[int, int, int]:
    """Gradients come before the parameters that they change, and after those that had changed by
    themselves when they were computed."""
    if changed_at_rest(known.track, known.before, known.at, known.group):
        return known.at.step, -1, known.at.at_ns
    sites = ("gradients", "parameters", "optimizer state", "variables")
    site = sites.index(known.track.part.site) if known.track.part.site in sites else len(sites)
    return known.at.step, site, known.at.at_ns


def _ready(attempt: AttemptState, known: Suspicion) -> bool:
    if known.kind == "apart" and len(attempt.gone) < attempt.world_size:
        last = known.track.last
        if last is None or last.at_ns - known.at.at_ns < _LASTS_SECONDS * 1e9:
            return False  # a run that fails otherwise meanwhile fails of that
    if len(attempt.gone) == attempt.world_size:
        return True
    if attempt.surveyed_ns < places.until_ns(known) and not _over(attempt):
        return False  # where in the tensor it is may still be told
    heard_ns = attempt.surveyed_ns - known.at.at_ns
    if heard_ns < ASK_SECONDS * 1e9 and _strayed(known) and not _over(attempt):
        return False  # the marks may tell which of the ways was wrong
    if heard_ns < ASK_SECONDS * 1e9 and unfinished(known, attempt.replicas.tracks.values()):
        return False  # another group that one of these is in may tell which it is
    if known.track.single or known.kind in ("axis", "alike"):
        return True
    if not known.asked_ns:
        return False
    waited = attempt.surveyed_ns - known.asked_ns
    return known.asked <= known.answered or waited > ASK_SECONDS * 1e9


def _in_hope(attempt: AttemptState, known: Suspicion) -> bool:
    """Whether all may have gone apart on purpose, and will yet be one again."""
    waited = attempt.surveyed_ns - known.at.at_ns
    if _over(attempt) or waited > _AVERAGED_SECONDS * 1e9 or not each_for_itself(known):
        return False
    return _ready(attempt, known) and change(known).verdict == "replica_divergence"


def _strayed(known: Suspicion) -> bool:
    """Whether those that differ had gone another way right before: no device does that."""
    split = known.track.split
    if known.kind != "split" or split is None:
        return False
    return bool(split.strayed) and (_difference(known).odd or known.group) == split.strayed


def _over(attempt: AttemptState) -> bool:
    """Whether a rank has come to the end of its script: then the run must not end unjudged."""
    return bool(attempt.gone) or any(rank.phase == "teardown" for rank in attempt.ranks.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Who differs from whom. `odd` is empty where no one is in the minority; `tensors` differ of
    `total`; None: not known."""

    group: frozenset[int]
    odd: frozenset[int]
    classes: int
    names: tuple[str, ...]
    total: int

    @property
    def few(self) -> bool:
        return not self.names or places.few(self.names, self.total)


def _difference(known: Suspicion) -> _Difference:
    classes = [ranks & known.group for ranks in known.at.classes if ranks & known.group]
    most = max(classes, key=lambda ranks: (len(ranks), -min(ranks)))
    tied = 2 * len(most) <= len(known.group)
    odd = frozenset() if tied else known.group - most
    return _Difference(
        group=known.group, odd=odd, classes=len(classes), names=places.differing(known),
        total=known.track.part.tensors,
    )  # fmt: skip


def change(
    known: Suspicion, others: Sequence[Suspicion] = (), resting: Sequence[Told] = ()
) -> Finding:
    """What is claimed of ranks that are not alike, or not alike any more; `others` are suspicions
    of the same attempt, `resting` what ranks have told that changed between two of their steps."""
    if known.kind == "axis":
        return _along_axis(known)
    difference = _difference(known)
    if known.kind == "left":
        return _left_out(known, difference)
    if known.kind == "stepped":
        return _stepped_otherwise(known, difference)
    if known.kind == "apart" and known.track.part.site != "optimizer state":
        return _never(known, difference)
    broken = changed_at_rest(known.track, known.before, known.at, known.group)
    if broken:
        return _corrupted(
            known, difference, broken, others, "proven",
            "its own digest before the step is not the one after the step before, the others'"
            " are: memory changed by itself",
        )  # fmt: skip
    alone = _self_accused(known, resting) if difference.few else None
    if alone is not None:
        return _corrupted(
            known, difference, frozenset({alone.rank}), others, "proven",
            f"before that it found other bits in its own {alone.doubt.subject}"
            f" ({', '.join(alone.doubt.tensors)}) than it had left at the end of step"
            f" {alone.doubt.step}, and no other rank did: memory changed by itself",
        )  # fmt: skip
    if _strayed(known):
        return _diverged(known, difference)
    if difference.odd and len(difference.odd) == 1 and difference.few:
        reason = _outvoted(known, difference)
        return _corrupted(known, difference, difference.odd, others, "likely", reason)
    crossing = None if difference.odd or not difference.few else crossing_of(known, others)
    if crossing is not None:
        reason = _crossed(crossing)
        return _corrupted(known, difference, frozenset({crossing.rank}), others, "likely", reason)
    if len(known.group) == 2 and difference.few:
        return _one_of_two(known, difference, others)
    return _diverged(known, difference)


def _self_accused(known: Suspicion, resting: Sequence[Told]) -> Told | None:
    """The one replica whose memory changed after all were alike and before they were not."""
    if known.before is None:
        return None
    since, until = known.before.step, known.at.step  # clocks of hosts are not alike
    told = [each for each in resting if since <= each.doubt.step <= until]
    ranks = {each.rank for each in told}
    return told[0] if len(ranks) == 1 and ranks <= known.group else None


def _one_of_two(known: Suspicion, difference: _Difference, others: Sequence[Suspicion]) -> Finding:
    """Nobody is outvoted: a third place has to say which, or it is said that nobody knows."""
    judged = known.close.judged
    wrong = frozenset(rank for rank, word in judged.items() if word == "wrong") & known.group
    words = sorted(judged.values())
    if words == ["right", "wrong"] and wrong:
        return _corrupted(
            known, difference, wrong, others, "likely",
            "a third place decides between two replicas: the optimizer's update of the words that"
            " differ, computed by the agent on the CPU from what went into it a little later, comes"
            " out otherwise than on this rank, and as on the other one",
        )  # fmt: skip
    reason = "two replicas: nothing tells which of them is wrong, so both are listed"
    if words == ["right", "right"]:
        reason += (
            "; the agent has computed a later update of the words that differ, and both ranks come"
            " to the same as it does: the fault was of the moment"
        )
    return _corrupted(known, difference, known.group, others, "possible", reason)


def _crossed(crossing: Crossing) -> str:
    sides = [
        f"{ranks_name(sorted(ranks))}{f' over axis {axis}' if axis else ''}"
        for ranks, axis in zip(crossing.others, crossing.axes, strict=True)
    ]
    return (
        f"at the same look it differs from {' and from '.join(sides)}; these groups of replicas"
        " have it alone in common"
    )


def _outvoted(known: Suspicion, difference: _Difference) -> str:
    rest = len(known.group) - len(difference.odd)
    reason = f"{rest} replicas agree and it alone differs"
    if known.track.part.how in LEARNT:
        reason += (
            f"; that they are replicas is learnt: they were equal at {known.held} looks in a row,"
            f" {known.moved} of them with new values"
        )
    return reason + "; no other copy tells a device from a program that treats this rank otherwise"


def _corrupted(
    known: Suspicion,
    difference: _Difference,
    ranks: frozenset[int],
    others: Sequence[Suspicion],
    confidence: Confidence,
    reason: str,
) -> Finding:
    named = ranks_name(sorted(ranks))
    who = f"{named} has" if len(ranks) == 1 else f"one of {named} has"
    where, how = places.told(known, others)
    place = f"; {where}" if where else ""
    finding = _finding(
        "silent_data_corruption", known, ranks, confidence,
        f"{who} other bits in {_what(known, difference)} than its replicas since"
        f" {_when(known)}{'; equal until then' if known.before else ' at the latest'}{place}",
        f"{reason}; {known.close.name} {where} ({how})" if where else reason,
        HARDWARE,
    )  # fmt: skip
    if not where:
        return finding
    (source, seq) = known.close.ref or known.at.ref
    shows = f"{known.close.name} {where}; {how}"
    more = EvidenceRef(source=source, seq=seq, shows=shows)
    return replace(finding, evidence=(*finding.evidence, more))


def _diverged(known: Suspicion, difference: _Difference) -> Finding:
    ranks = difference.odd or known.group
    many = f"{len(difference.names)} of {difference.total} tensors differ"
    why = (
        f"{many}, with {difference.classes} different values on {len(known.group)} ranks: that is"
        " what a program does, not what a device does"
    )
    if _strayed(known):
        why = (
            "right before, the ranks had come there with different numbers of calls behind them: a"
            " step that one of them left out or made twice does this, and no device"
        )
    how = LEARNT_ONLY if known.track.part.how in LEARNT and not _exact(known) else SOFTWARE
    return _finding(
        "replica_divergence", known, ranks, "likely",
        f"{ranks_name(sorted(ranks))} went apart in {_what(known, difference)} since"
        f" {_when(known)}{'; equal until then' if known.before else ' at the latest'}",
        why, how,
    )  # fmt: skip


def _never(known: Suspicion, difference: _Difference) -> Finding:
    axis = known.track.part.axis
    model = known.track.part.how == "dtensor" and any(word in axis.lower() for word in _MODEL_AXIS)
    verdict = "tp_replicated_param_divergence" if model else "replica_divergence"
    over = f" over axis {axis}" if axis else ""
    if known.track.part.site == "gradients" and len(difference.odd) == 1:
        return _used_otherwise(known, difference)
    odd = ranks_name(sorted(difference.odd))
    rest = ranks_name(sorted(known.group - difference.odd))
    agree = (
        f": {odd} from {rest}, which agree" if difference.odd and difference.classes == 2 else ""
    )
    return _finding(
        verdict, known, known.group, "proven",
        f"{_what(known, difference)} differs{over} on {ranks_name(sorted(known.group))} from the"
        f" first comparison on ({_when(known)}){agree}",
        f"{_declared(known)}, and they were never equal: other seeds, or no broadcast at the start",
        SOFTWARE,
    )  # fmt: skip


def _used_otherwise(known: Suspicion, difference: _Difference) -> Finding:
    rest = sorted(known.group - difference.odd)
    return _finding(
        "replica_divergence", known, difference.odd, "likely",
        f"{ranks_name(sorted(difference.odd))} steps with other numbers in"
        f" {_what(known, difference)} than {ranks_name(rest)}, which agree, from the first"
        f" comparison on ({_when(known)})",
        f"{_declared(known)}, so the sum is the same on all: what this rank makes of it is not",
        SOFTWARE,
    )  # fmt: skip


def _stepped_otherwise(known: Suspicion, difference: _Difference) -> Finding:
    return _finding(
        "replica_divergence", known, difference.odd or known.group, "likely",
        f"{_what(known, difference)} was equal on {ranks_name(sorted(known.group))} before the"
        f" first step and is not since {_when(known)}, though its gradient is the same on all",
        "the program sums that gradient over these ranks: another learning rate, weight decay or"
        " state of the optimizer makes something else of it", SOFTWARE,
    )  # fmt: skip


def _left_out(known: Suspicion, difference: _Difference) -> Finding:
    return _finding(
        "replica_divergence", known, known.group, "likely",
        f"{_what(known, difference)} was equal on {ranks_name(sorted(known.group))} before the"
        f" first step, and differs on every one of them since {_when(known)}",
        "the program sums the gradients of the other parameters of that optimizer over these ranks,"
        " and not this one's: that it is meant to be the same on all is learnt", LEARNT_ONLY,
    )  # fmt: skip


def _along_axis(known: Suspicion) -> Finding:
    classes = sorted(sorted(ranks) for ranks in known.at.classes)
    within = " and ".join(ranks_name(ranks) for ranks in classes)
    return _finding(
        "tp_replicated_param_divergence", known, known.group, "likely",
        f"{known.track.part.name} was equal on {ranks_name(sorted(known.group))} at first and is"
        f" equal only within {within} since {_when(known)}",
        "its gradient is summed within those groups and not across them, while other tensors are"
        " cut into shards across them: that this one is meant to be whole is learnt", SOFTWARE,
    )  # fmt: skip


def _other(known: Suspicion) -> Finding:
    named = ranks_name(sorted(known.group))
    if known.kind == "buffers":
        return _finding(
            "buffers_differ", known, known.group, "proven",
            f"not the same on {named}: {_what(known, _difference(known))}; parameters are",
            "nothing keeps these buffers equal (broadcast_buffers=False, or no wrapper): running"
            " statistics are of each rank's own data, and a checkpoint holds those of one rank",
            LEARNT_ONLY,
        )  # fmt: skip
    declared = known.track.part.how == "sharded"
    return _finding(
        "unexpected_replication", known, known.group, "proven" if declared else "likely",
        f"{known.track.part.name} has become byte for byte the same on {named}; it was different"
        " on each of them",
        f"it is declared to be sharded over axis {known.track.part.axis}" if declared else
        "by its name each rank has a part of its own, and nothing of its shape is ever summed over"
        " them; a broadcast from one rank overwrites the others' parts",
        DECLARED if declared else LEARNT_ONLY,
    )  # fmt: skip


def _exact(known: Suspicion) -> bool:
    return known.track.part.site != "variables" or "gradient" in known.track.marks


def _declared(known: Suspicion) -> str:
    match known.track.part.how:
        case "ddp":
            return "DistributedDataParallel keeps them equal"
        case "fsdp":
            return "FSDP keeps them equal"
        case "zero":
            return "ZeroRedundancyOptimizer keeps them equal"
        case "dtensor":
            return "their DTensor placement is Replicate"
        case _ if _exact(known):
            return "the program sums their gradients over these ranks"
        case _:
            return "the program sums something of their shape over these ranks at every step"


def _what(known: Suspicion, difference: _Difference) -> str:
    part = known.track.part
    names = difference.names
    if COLUMNS in part.marks:
        return f"{part.site} ({part.name}; the sums of rows are equal)"
    if not names:
        return f"{part.site} ({part.tensors} tensors, {part.name})"
    shown = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    kind = {"gradients": "the reduced gradient of ", "parameters": "parameter "}.get(part.site, "")
    return f"{kind}{shown}{more}"


def _when(known: Suspicion) -> str:
    part, count = known.track.part, known.at.count
    if part.site == "parameters":
        return f"the {'begin' if count % 2 == 0 else 'end'} of step {count // 2}"
    if part.site == "variables":
        return f"call {count} at {part.place}"
    return f"step {count}"


def _finding(
    verdict: str,
    known: Suspicion,
    ranks: frozenset[int],
    confidence: Confidence,
    cause: str,
    reason: str,
    kind: str,
) -> Finding:
    part, at = known.track.part, known.at
    source, seq = at.ref
    table = Counter({value: len(who) for value, who in at.values.items()})
    shows = f"digests of {part.site}, look {at.count}: " + ", ".join(
        f"{value:016x} on {ranks_name(sorted(at.values[value]))}"
        for value, _ in table.most_common(4)
    )
    return Finding(
        verdict=verdict,
        ranks=tuple(sorted(ranks)),
        cause=cause,
        reason=reason,
        confidence=confidence,
        onset_ns=at.at_ns,
        evidence=(EvidenceRef(source=source, seq=seq, shows=shows),),
        signature=Signature(
            verdict=verdict, what=kind, detail=f"{part.site} {_when(known)}", place=part.name
        ).text(),
    )

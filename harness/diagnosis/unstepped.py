"""replica_divergence whose cause the marks tell: one side has made fewer optimizer steps, while all
have called the same collectives.

Marks alone prove no harm, for a step may be left out that changes nothing, and different digests
alone none either, as ranks that count their steps otherwise look at different moments. Replicas
that were equal, take their steps apart, and are equal nowhere since then do not come together.
"""

from harness.diagnosis.marks import where_of
from harness.diagnosis.replicas import SOFTWARE
from harness.diagnosis.signature import Signature, place_text
from harness.events import MarksDiffer
from harness.incidents import EvidenceRef, Finding
from harness.state import AttemptState
from harness.state.replicas import COLUMNS, LEARNT, LEFT, Split, Track, shifted
from harness.topology import ranks_name

_LEAST_LOOKS = 3
_LEAST_LEARNT = 3
"""Looks in a row at which what nobody declares was equal, with other values each."""


def find(attempt: AttemptState) -> list[Finding]:
    """One finding for each group, the earliest first."""
    differing = sorted(
        (known for known in attempt.marks_differ if known[0].steps),
        key=lambda known: known[0].seen_ns,
    )
    found = []
    for event, ref in differing:
        shown = _shown(attempt, event)
        if shown is not None:
            found.append(_finding(event, ref, *shown))
    return found


def _shown(attempt: AttemptState, event: MarksDiffer) -> tuple[Track, Split] | None:
    """The parameters that are apart."""
    ranks = frozenset(place.rank for place in event.places)
    for track in attempt.replicas.tracks.values():
        part, split = track.part, track.split
        if part.site != "parameters" or part.how in ("sharded", LEFT) or COLUMNS in part.marks:
            continue
        if split is None or track.reunited or not split.strayed & set(event.odd):
            continue
        if part.how in LEARNT and not (split.moved >= _LEAST_LEARNT and _summed(track, ranks)):
            continue
        if split.looks >= _LEAST_LOOKS and _apart(track, split, event, ranks):
            return track, split
    return None


def _summed(track: Track, ranks: frozenset[int]) -> bool:
    """Whether the program sums the gradients of these parameters over all of `ranks`."""
    return any(ranks <= group for group in track.groups.values())


def _apart(track: Track, split: Split, event: MarksDiffer, ranks: frozenset[int]) -> bool:
    """Whether `ranks` were alike, and those that are odd, at least, are so with no other now."""
    if track.last is None or not any(ranks <= alike for alike in split.before.classes):
        return False
    ways = [alike & ranks for alike in track.last.classes if alike & ranks]
    odd = ranks if event.tied else frozenset(event.odd)
    mixed = not event.tied and any(way & odd and way - odd for way in ways)
    same = shifted(track, ranks)
    # A step more may be one that changes nothing; a step less is one that changed the others.
    return len(ways) > 1 and not mixed and (same is False or (same is None and event.steps > 0))


def _finding(event: MarksDiffer, ref: tuple[str, int], track: Track, split: Split) -> Finding:
    where, odd = where_of(event.site), ranks_name(event.odd)
    many = "one optimizer step" if abs(event.steps) == 1 else f"{abs(event.steps)} optimizer steps"
    who = f"one of {odd}" if event.tied else odd
    rest = len(event.places) - (1 if event.tied else len(event.odd))
    fewer = f"{'fewer' if event.steps > 0 else 'more'} than the other{'s' if rest > 1 else ''}"
    part, at = track.part, split.at
    step = f"the {'begin' if at.count % 2 == 0 else 'end'} of step {at.count // 2}"
    name = part.name if part.tensors == 1 else f"{part.tensors} parameters ({part.name})"
    source, seq = ref
    evidence = (
        EvidenceRef(
            source=source, seq=seq,
            shows=f"{len(event.places)} ranks at optimizer step {event.count} of {event.site}",
        ),
        EvidenceRef(
            source=at.ref[0], seq=at.ref[1],
            shows=f"digests of parameters, look {at.count}: {len(at.values)} different ones",
        ),
    )  # fmt: skip
    return Finding(
        verdict="replica_divergence",
        ranks=event.odd,
        cause=f"{who} made {many} {fewer} between step {event.count_before} and {event.count}, with"
        f" every backward pass in common; {name} went apart by {step}",
        reason="equal until then, and nothing makes them equal again: a check for overflow, or of"
        " the loss, that each rank makes on its own (a GradScaler whose found_inf is not reduced)"
        f" does this{_tie(event)}",
        confidence="likely" if event.tied or 2 * len(event.odd) >= len(event.places) else "proven",
        onset_ns=event.seen_ns,
        evidence=evidence,
        where=where,
        signature=Signature(
            verdict="replica_divergence", what=SOFTWARE, detail="optimizer steps",
            place=place_text(where),
        ).text(),
    )  # fmt: skip


def _tie(event: MarksDiffer) -> str:
    return "; nothing tells which of them is wrong, so both are listed" if event.tied else ""

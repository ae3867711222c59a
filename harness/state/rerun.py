"""Whose numbers were wrong, told by the rollback: what replicas had come to otherwise is computed
again, from where they were still equal.

Two attempts are laid side by side by their digests, not by their counts: a look with the bits of
one before the difference is the same place of the program, and shows that the program comes to the
same bits again. Of a program that does not, nothing is concluded.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from harness.incidents import Incident, IncidentSettled
from harness.sightings import DigestPart
from harness.state.replicas import Look, Suspicion, Track

_MOST_SEEN = 256
_ONE_OPTIMIZER = ("parameters", "gradients")
"""Sites whose looks of one optimizer count its steps."""


@dataclass(slots=True, kw_only=True)
class Rerun:
    """Waits, in a later attempt, for the look that corresponds to `known.at`."""

    known: Suspicion
    attempt: int
    """That of the suspicion."""
    seen: dict[int, int] = field(default_factory=dict)
    """Digests on which the group agrees again, by count."""
    shift: int | None = None
    """How many steps later, by count, this attempt comes to the same place."""
    right: frozenset[int] | None = None
    """Those of the group that had the same bits then; empty: nobody. None: not computed yet."""

    def take(self, part: DigestPart, look: Look) -> None:
        """A look of this attempt is complete."""
        value = next((v for v, ranks in look.values.items() if self.known.group <= ranks), None)
        if value is None or self.right is not None:
            return
        suspect = self.known.track.part
        if self.shift is None:
            place = self.known.anchors.get((part.part, value))
            if place is not None:
                self.shift = step_of(part, look.count) - place
        if part.part == suspect.part:
            self.seen[look.count] = value
            if len(self.seen) > _MOST_SEEN:
                del self.seen[min(self.seen)]
        if self.shift is not None:
            per_step = 2 if suspect.site == "parameters" else 1
            again = self.seen.get(self.known.at.count + per_step * self.shift)
            if again is not None:
                self.right = self.known.at.values.get(again, frozenset()) & self.known.group


def step_of(part: DigestPart, count: int) -> int:
    """The step that begins with what look `count` of `part` shows, or, of gradients, uses it."""
    return (count + 1) // 2 if part.site == "parameters" else count


def anchors(
    tracks: Iterable[Track], track: Track, before: Look | None
) -> dict[tuple[int, int], int]:
    """Steps by what was known to be equal at their begin: (part, digest) -> step. `before` is the
    last look of `track` at which all was well."""
    found: dict[tuple[int, int], int] = {}
    if before is None:
        return found
    for other in tracks:
        look = before if other is track else other.split.before if other.split else other.last
        if look is None or not look.equal:
            continue
        mine, theirs = track.part, other.part
        alike = (mine.name, mine.members) == (theirs.name, theirs.members)
        if other is track or (alike and {mine.site, theirs.site} <= set(_ONE_OPTIMIZER)):
            (value,) = look.values
            found[theirs.part, value] = step_of(theirs, look.count)
    return found


def pending(known: Iterable[Suspicion], earlier: Iterable[Rerun], attempt: int) -> list[Rerun]:
    """What the attempt after `attempt` may compute again: the suspicions of that one, and those it
    had from attempts before it and has not come to."""
    left = [Rerun(known=one.known, attempt=one.attempt) for one in earlier if one.right is None]
    new = [
        Rerun(known=one, attempt=attempt) for one in known if one.kind == "split" and one.anchors
    ]
    return [*left, *new]


def applied(incident: Incident, event: IncidentSettled) -> Incident:
    """`incident` as it reads since."""
    verdict = incident.verdict
    cleared = {*verdict.first_failing, *verdict.innocent} - set(event.ranks)
    return replace(
        incident,
        verdict=replace(
            verdict,
            first_failing=event.ranks,
            innocent=tuple(sorted(cleared - set(verdict.victims))),
            cause=event.cause,
            reason=event.reason,
            confidence="proven",
        ),
    )

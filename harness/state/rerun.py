"""Whose numbers were wrong, told by the rollback: what replicas had come to otherwise is computed
again, from where they were still equal.

Two attempts are laid side by side by their digests, not by their counts: a look with the bits of
one before the difference is the same place of the program, and shows that the program comes to the
same bits again. Of a program that does not, nothing is concluded. All that the same optimizer's
looks have shown counts, not the suspicion alone: a slice of its state that was first looked at when
it was wrong already is placed by the parameters, and what differed first is often elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from harness.incidents import Incident, IncidentSettled
from harness.observations import LookedClosely
from harness.sightings import DigestPart
from harness.state.closely import unpacked
from harness.state.replicas import Look, Suspicion, Track, alike, look_all

_MOST_SEEN = 512
_MOST_REREAD = 4096
_STEPPED = ("parameters", "gradients", "optimizer state")
"""Sites whose looks count the steps of an optimizer."""
Place = tuple[int, int]
"""A part, and the count of a look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What an attempt has shown of the ranks of a suspicion."""

    anchors: dict[tuple[int, int], int]
    """Part and digest that all had in common then -> the step."""
    differences: dict[Place, Look]


@dataclass(slots=True, kw_only=True)
class Rerun:
    """Waits, in a later attempt, for a look that corresponds to one of the differences."""

    known: Suspicion
    attempt: int
    """That of the suspicion."""
    earlier: Earlier
    seen: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Digests on which the group agrees again, and counts in a step."""
    shift: int | None = None
    """How many steps later, by count, this attempt comes to the same place."""
    reread: dict[int, Sequence[int]] = field(default_factory=dict)
    """By count of this attempt: words of the tensor that differed, where it did."""
    void: bool = False
    """Two digests have put it at two places: nothing is concluded."""
    right: frozenset[int] | None = None
    """Those of the group that had the same bits then. None: not known yet."""

    def take(self, part: DigestPart, look: Look) -> None:
        """A look of this attempt is complete."""
        if self.right is not None or self.void or not self.concerns(part):
            return
        value = next((v for v, ranks in look.values.items() if self.known.group <= ranks), None)
        if value is None:
            return
        self.seen[part.part, look.count] = value, _counts_of_a_step(part)
        if len(self.seen) > _MOST_SEEN:
            del self.seen[next(iter(self.seen))]
        place = self.earlier.anchors.get((part.part, value))
        if place is None:
            self._compare([(part.part, look.count)])
            return
        shift = step_of(part, look.count) - place
        if self.shift is None:
            self.shift = shift
            self._compare(list(self.seen))
        elif shift != self.shift:
            self.void = True

    def heard(self, event: LookedClosely) -> None:
        """What a rank of this attempt has of the words that differed."""
        known = self.known
        if (event.part, event.suspect) != (known.track.part.part, known.at.count):
            return
        for told in event.sums:
            if told.words and len(self.reread) < _MOST_REREAD:
                self.reread[event.count] = unpacked(told.words)

    def count_of(self, count: int) -> int:
        """The look of this attempt that corresponds to one of the suspicion's part."""
        return count + _counts_of_a_step(self.known.track.part) * (self.shift or 0)

    def concerns(self, part: DigestPart) -> bool:
        suspect = self.known.track.part
        return part.part == suspect.part or _same_clock(part, suspect)

    def _compare(self, places: Iterable[Place]) -> None:
        for part, count in places if self.shift is not None else ():
            value, per_step = self.seen[part, count]
            look = self.earlier.differences.get((part, count - per_step * (self.shift or 0)))
            right = frozenset() if look is None else look.values.get(value, frozenset())
            if right & self.known.group:
                self.right = right & self.known.group
                return


def step_of(part: DigestPart, count: int) -> int:
    """The step that begins with what look `count` of `part` shows, or, of gradients, uses it."""
    match part.site:
        case "parameters":
            return (count + 1) // 2
        case "optimizer state":
            return count + 1
        case _:
            return count


def _counts_of_a_step(part: DigestPart) -> int:
    return 2 if part.site == "parameters" else 1


def _same_clock(one: DigestPart, other: DigestPart) -> bool:
    """Whether the looks at both are counted by the steps of one optimizer."""
    return one.clock == other.clock >= 0 and {one.site, other.site} <= set(_STEPPED)


def earlier(tracks: Iterable[Track], known: Suspicion) -> Earlier:
    """What `tracks` show of the ranks of `known`, one of theirs."""
    steps: dict[tuple[int, int], set[int]] = {}
    differences: dict[Place, Look] = {}
    for track in tracks:
        if track is not known.track and not _same_clock(track.part, known.track.part):
            continue
        part, groups = track.part, track.groups_of(known.group)
        if known.group <= frozenset().union(*groups):
            leaders = [min(group) for group in groups]
            for count, values in track.equal.items():
                value, *others = {values.get(leader) for leader in leaders}
                if value is not None and not others:
                    steps.setdefault((part.part, value), set()).add(step_of(part, count))
        for look in track.unequal:
            if known.group <= look_all(look) and not alike(look, known.group):
                differences[part.part, look.count] = look
    # What stands still has the same digest at many steps, and shows none of them.
    anchors = {key: step for key, (step, *more) in steps.items() if not more}
    return Earlier(anchors=anchors, differences=differences)


def pending(tracks: Iterable[Track], known: Iterable[Suspicion], attempt: int) -> list[Rerun]:
    """What the attempt after `attempt` may compute again of its suspicions."""
    every = list(tracks)
    found = [
        Rerun(known=one, attempt=attempt, earlier=earlier(every, one))
        for one in known
        if one.kind == "split" or (one.kind == "apart" and one.track.part.site == _STEPPED[2])
    ]
    return [one for one in found if one.earlier.anchors and one.earlier.differences]


def left(reruns: Iterable[Rerun]) -> list[Rerun]:
    """Those that an attempt has not settled, for the next one."""
    return [
        Rerun(known=one.known, attempt=one.attempt, earlier=one.earlier)
        for one in reruns
        if one.right is None
    ]


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
            confidence=event.confidence,
        ),
    )

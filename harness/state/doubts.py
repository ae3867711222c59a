"""What ranks have found wrong with their own numbers, as far as it was told."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.sightings import Doubt

Ref = tuple[str, int]
"""Source and number of the record that shows something."""
MASKED = "masked"
"""What the signature of a finding says that comes from a rank's doubt and not from replicas."""
_MOST_OF_RANK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    rank: int
    doubt: Doubt
    ref: Ref


@dataclass(slots=True)
class Doubts:
    """Of one attempt."""

    by_rank: dict[int, dict[tuple[str, str, int, str], Told]] = field(default_factory=dict)
    """A later word on the same check of the same look takes the place of the earlier one."""

    def add(self, rank: int, doubt: Doubt, ref: Ref) -> None:
        known = self.by_rank.setdefault(rank, {})
        # Optimizers that count alike have state of the same kind; each of them is told of once.
        what = ", ".join(doubt.tensors) if doubt.check == "at rest" else ""
        key = (doubt.check, doubt.subject, doubt.count, what)
        if key in known or len(known) < _MOST_OF_RANK:
            known[key] = Told(rank=rank, doubt=doubt, ref=ref)

    def of(self, *checks: str) -> list[Told]:
        """Those of these checks, in the order of steps."""
        found = [told for told in self._all() if told.doubt.check in checks]
        return sorted(found, key=lambda told: (told.doubt.step, told.doubt.at_ns))

    def clean_ns(self) -> int | None:
        """Wall clock of the last check before the first doubt that was good, or of that doubt where
        there was none; None: nothing is in doubt."""
        grave = [t.doubt for t in self._all() if t.doubt.settled and t.doubt.check != "norm"]
        return min((doubt.clean_ns or doubt.at_ns for doubt in grave), default=None)

    def _all(self) -> Iterator[Told]:
        for known in self.by_rank.values():
            yield from known.values()

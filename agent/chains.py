"""What a rank left at the end of a step it should find at the begin of the next: shards that nobody
has a copy of, and the optimizer's state of all. (What replicas hold of the parameters is compared
where that of all ranks is known, harness/diagnosis/replicas.py.)
"""

import time
from dataclasses import dataclass
from typing import Any

from harness.sightings import Doubt
from harness.worker.digestlog import Values
from harness.worker.digests.books import AT_REST, COLUMNS, LEFT, PARAMETERS, STATE

_MOST_TOLD = 8
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """`own` are positions of tensors that are compared; `columns`: it is of sums of columns,
    which tell nothing where the sums of rows have told already. Several may be of one site and
    number: tensors of other groups or devices."""

    site: str
    number: int
    names: tuple[str, ...]
    own: tuple[int, ...]
    columns: bool


class Chain:
    """Of one rank."""

    def __init__(self) -> None:
        self._plans: dict[int, _Plan] = {}
        self._left: dict[tuple[str, int, tuple[str, ...]], Values] = {}
        """By site, number and names: as it was at the end of a step."""
        self._changed: tuple[str, int, int] | None = None
        """Site, number and count of the last look that was not as it had been left."""
        self._looks = 0
        self._told = 0
        self._clean_ns = 0

    def plan(self, content: dict[str, Any]) -> None:
        """As the rank wrote it."""
        hows = [how for how, _, _ in content["groups"]]
        site = content["site"]
        own = [
            at
            for at, (_, _, _, mine, marks) in enumerate(content["tensors"])
            if site != PARAMETERS
            or "cut" in marks
            or (mine and all(hows[group] == "sharded" for group in mine))
        ]
        self._plans[int(content["plan"])] = _Plan(
            site=site,
            number=int(content["number"]),
            names=tuple(tensor[0] for tensor in content["tensors"]),
            own=tuple(own),
            columns=any(COLUMNS in tensor[4] for tensor in content["tensors"]),
        )

    def look(self, values: Values) -> Doubt | None:
        """What is not as the rank had left it, at this look."""
        plan = self._plans.get(values.plan)
        if plan is None or not plan.own:
            return None
        if plan.site in (STATE, LEFT) or (plan.site == PARAMETERS and values.count % 2):
            site = PARAMETERS if plan.site == PARAMETERS else STATE
            self._left[site, plan.number, plan.names] = values
            return None
        if plan.site not in (AT_REST, PARAMETERS):
            return None
        site = STATE if plan.site == AT_REST else PARAMETERS
        left = self._left.get((site, plan.number, plan.names))
        follows = values.count - (plan.site == PARAMETERS)
        if left is None or left.count != follows or len(left.digests) != len(values.digests):
            return None
        self._looks += 1
        changed = [at for at in plan.own if left.digests[at] != values.digests[at]]
        if not changed:
            self._clean_ns = values.at_ns
            return None
        if plan.columns and self._changed == (site, plan.number, values.count):
            return None
        self._changed = (site, plan.number, values.count)
        self._told += 1
        if self._told > _MOST_TOLD:
            return None
        return Doubt(
            check="at rest",
            subject=site,
            step=values.step,
            at_ns=values.at_ns or time.time_ns(),
            clean_ns=self._clean_ns,
            count=values.count,
            looks=self._looks,
            tensors=tuple(plan.names[at] for at in changed[:_MOST_NAMED]),
            differ=len(changed),
            total=len(plan.own),
        )

"""The digests of one set of tensors, time after time, written for the agent.

On a GPU nothing waits: the values are copied to the host and written once they are there.
"""

import fnmatch
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.worker.digestlog import MOST_TENSORS, DigestWriter, Values
from harness.worker.digests.closeups import CloseUps
from harness.worker.digests.layouts import Group
from harness.worker.unseen import Unseen

PARAMETERS, GRADIENTS, STATE, BUFFERS, VARIABLES = (
    "parameters", "gradients", "optimizer state", "buffers", "variables",
)  # fmt: skip
AT_REST = "optimizer state at rest"
"""Once more before the next step."""
LEFT = "optimizer state as left"
"""After a step, of slices whose turn it is not: for the rank's comparison with itself alone."""
FLAT = "flat"
"""Mark of a gradient that was summed as a part of a larger tensor, as far as sizes tell."""
COLUMNS = "columns"
"""Mark of what stands for the sums of columns of a whole plan."""
_MOST_PENDING = 16
_DRIFTS, _DRIFT = 1 << 20, 1 << 40
"""Room for a counter's drift, above what a rank counts of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor and what is known of it. `marks` are words for the agent, see docs/replicas.md."""

    name: str
    groups: tuple[Group, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def flat(self) -> bool:
        return FLAT in self.marks


class Teller:
    """Numbers the plans, and writes values once they are known."""

    def __init__(
        self,
        log: DigestWriter,
        step: Callable[[], int],
        progress: Callable[[], int],
        exclude: Sequence[str] = (),
    ) -> None:
        """`exclude`: patterns of names, as in a shell, that are left alone."""
        self._log = log
        self._step = step
        self._progress = progress
        self._exclude = tuple(exclude)
        self.close = CloseUps(log.answer)
        self._plans = 0
        self._pending: list[tuple[Any, Any, Values]] = []

    def excluded(self, name: str) -> bool:
        """Whether the user wants nothing compared of the tensor, or of the parameter it is of."""
        names = (name, name.rpartition(" of ")[2])
        return any(fnmatch.fnmatchcase(n, each) for each in self._exclude for n in names)

    def plan(self, content: dict[str, Any]) -> int:
        """The number of a plan; 0 when it cannot be told."""
        self._plans += 1
        told = self._log.plan({"plan": self._plans, **content})
        return self._plans if told else 0

    def values(self, plan: int, count: int, drift: int, digests: Sequence[int]) -> None:
        """`drift` is how far the program's own counters are from their rhythm."""
        self._log.values(
            Values(
                plan=plan,
                count=count,
                step=self._step(),
                progress=self._progress() + (drift % _DRIFTS) * _DRIFT,
                at_ns=time.time_ns(),
                digests=tuple(digests),
            )
        )

    def later(self, plan: int, count: int, numbers: Any) -> None:
        """`numbers`, int64 on a GPU, are written when they have arrived."""
        torch = sys.modules["torch"]
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        values = Values(
            plan=plan, count=count, step=self._step(), progress=self._progress(),
            at_ns=time.time_ns(), digests=(),
        )  # fmt: skip
        self._pending.append((arrived, host, values))
        del self._pending[:-_MOST_PENDING]

    def flush(self) -> None:
        while self._pending and self._pending[0][0].query():
            _, host, values = self._pending.pop(0)
            self._log.values(replace(values, digests=tuple(unsigned(host.tolist()))))


class Book:
    """One set of tensors in a fixed order. `site` is what they are to their program.

    Between two looks it keeps no tensor alive.
    """

    def __init__(
        self, teller: Teller, site: str, number: int, place: str = "", clock: int = -1
    ) -> None:
        """`clock` is the optimizer whose steps are counted."""
        self._teller = teller
        self._clock = clock
        self._place = place
        self._site = site
        self._number = number
        self._plans: list[_Planned] = []
        """One for each device and each set of ranks that have the tensors in common."""
        self._left_out = 0
        self._owners: tuple[int, ...] = ()

    def look(
        self,
        tensors: Sequence[Any],
        owners: Sequence[Any],
        describe: Callable[[], Sequence[Entry]],
        count: int,
        drift: int = 0,
    ) -> None:
        """Digest `tensors`; `describe` is asked for what they are when `owners` are others."""
        with Unseen():
            ids = tuple([id(owner) for owner in owners])
            if ids != self._owners:
                self.renew()
                self._owners = ids
            self._bind(tensors, describe)
            for planned in self._plans:
                if planned.number:
                    self._take(planned, count, drift)
                planned.plan.release()

    def close_up(self, tensors: Sequence[Any], count: int, turn: int) -> None:
        """Tell of `tensors`, the same as at the last look, what is asked for at this turn."""
        with Unseen():
            for planned in self._plans:
                for request in self._teller.close.wanted(planned.number, turn):
                    tensor = tensors[planned.places[int(request["place"])]]
                    self._teller.close.words(request, tensor, count)

    def position(self, request: dict[str, Any]) -> int | None:
        """Which tensor of the last look a request is about; None: it is of other ones."""
        for planned in self._plans:
            if planned.number == request["plan"]:
                return planned.places[int(request["place"])]
        return None

    def renew(self) -> None:
        """What is known of the tensors has changed: describe them anew at the next look."""
        self._plans = []
        self._left_out = 0

    def _bind(self, tensors: Sequence[Any], describe: Callable[[], Sequence[Entry]]) -> None:
        if self._rebound(tensors):
            return
        from harness.digest.plan import Plan

        entries = describe()
        self.renew()
        together: dict[tuple[Any, tuple[Group, ...]], list[int]] = {}
        for at, tensor in enumerate(tensors):
            if self._teller.excluded(entries[at].name):
                self._left_out += 1
            else:
                # Sums of columns are of a whole plan: only what the same ranks have can share one.
                key = (tensor.device, _declared(entries[at]))
                together.setdefault(key, []).append(at)
        for each in together.values():
            places = each[:MOST_TENSORS]
            try:
                plan = Plan([(entries[at].name, tensors[at]) for at in places])
            except ValueError:  # a tensor without bytes to read: nothing of it can be compared
                continue
            described = [(entries[at], tensors[at]) for at in places]
            number = self._teller.plan(self._content(described))
            columns = self._columns([entries[at] for at in places])
            self._plans.append(_Planned(number=number, plan=plan, places=places, columns=columns))

    def _columns(self, entries: Sequence[Entry]) -> int:
        """The number of a plan for the sums of columns over `entries`; 0 where nobody declares
        that ranks have all of these in common."""
        first = entries[0]
        marks = {mark for entry in entries for mark in entry.marks}
        if not _declared(first) or marks & {"cut", "buffer"}:
            return 0
        content = self._content([])
        names = f"{first.name} … {entries[-1].name}" if len(entries) > 1 else first.name
        content["groups"] = [[group.how, group.axis, group.members] for group in first.groups]
        mine = list(range(len(first.groups)))
        shape = [len(entries)]
        content["tensors"] = [[f"columns of {names}", shape, "int64", mine, [COLUMNS]]]
        return self._teller.plan(content)

    def _rebound(self, tensors: Sequence[Any]) -> bool:
        """Whether the plans there are do for these tensors too."""
        planned = self._left_out + sum(len(each.places) for each in self._plans)
        return planned == len(tensors) > 0 and all(
            each.plan.rebind([tensors[at] for at in each.places]) for each in self._plans
        )

    def _content(self, described: Sequence[tuple[Entry, Any]]) -> dict[str, Any]:
        groups: dict[Group, int] = {}
        tensors = []
        for entry, tensor in described:
            mine = [groups.setdefault(group, len(groups)) for group in entry.groups]
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors.append([entry.name, list(local(tensor).shape), dtype, mine, entry.marks])
        return {
            "site": self._site,
            "number": self._number,
            "place": self._place,
            "clock": self._clock,
            "groups": [[group.how, group.axis, group.members] for group in groups],
            "tensors": tensors,
        }

    def _take(self, planned: "_Planned", count: int, drift: int) -> None:
        plan = planned.plan
        # Always both: what flips each 32nd bit of a row leaves its sum as it was one time in ten,
        # and what is seen only after a step that has spread it accuses nobody any more.
        vector, columns = plan.rows_and_columns()
        self._teller.close.keep(planned.number, plan.layout, count, vector, columns)
        if plan.device.type == "cuda":
            self._teller.later(planned.number, count, plan.folding(vector).digests(vector))
            if planned.columns:
                digest = plan.column_folding(columns).digests(columns)
                self._teller.later(planned.columns, count, digest)
            return
        self._teller.values(planned.number, count, drift, plan.digests(vector))
        if planned.columns:
            self._teller.values(planned.columns, count, drift, [plan.fold_columns(columns)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What is read in one go. `columns` is the number under which sums of columns are told."""

    number: int
    plan: Any
    places: list[int]
    """Positions of its tensors."""
    columns: int


def _declared(entry: Entry) -> tuple[Group, ...]:
    """Its groups; none where who has it in common is found out tensor by tensor."""
    found = entry.groups
    return () if any(group.how == "hand" for group in found) else found


def address(tensor: Any) -> int:
    return int(local(tensor).data_ptr())


def local(tensor: Any) -> Any:
    """This rank's part of a DTensor, any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def unsigned(numbers: Sequence[int]) -> list[int]:
    return [number & 0xFFFFFFFFFFFFFFFF for number in numbers]

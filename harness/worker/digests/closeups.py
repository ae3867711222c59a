"""What a rank keeps of its newest looks, and tells of one tensor when it is asked: the sums of its
rows at a look that is over, or some of its words as they are.

Sums of rows are 1/2039 of what they are of; nothing of the tensors themselves is kept.
"""

import base64
import json
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_KEPT_BYTES = 2 << 20
"""Of one plan's sums."""
_LEAST_LOOKS = 6
"""That are kept whatever their size."""
_MOST_LOOKS = 1024
_MOST_PLANS = 256
_MOST_ROWS = 1 << 16
"""Of a tensor, to be told in one go: half a GiB of it is in no more."""
MOST_BUCKETS = 8
"""Of which words are told in one go, 16 KiB each."""
_READINGS = 3
"""Times that words are told: ranks on other nodes may hear of it a little later."""
_OPEN_SECONDS = 120.0
"""How long a question stays open whose tensor does not come up again."""
_MOST_ASKED = 16


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of all tensors of a plan at one look, on its device."""

    count: int
    rows: Any
    columns: Any


class _Kept:
    """The newest looks of one plan."""

    def __init__(self, layout: Any) -> None:
        self.layout = layout
        self.looks: deque[_Sums] = deque(maxlen=_MOST_LOOKS)
        self._size = 0

    def add(self, sums: _Sums) -> None:
        self.looks.append(sums)
        self._size += _bytes(sums)
        while self._size > _KEPT_BYTES and len(self.looks) > _LEAST_LOOKS:
            self._size -= _bytes(self.looks.popleft())


def _bytes(sums: _Sums) -> int:
    return 8 * (len(sums.rows) + len(sums.columns))


class CloseUps:
    """Of all plans of this process. `tell` takes an answer for the agent."""

    def __init__(self, tell: Callable[[dict[str, Any]], object]) -> None:
        self._tell = tell
        self._asked: deque[bytes] = deque(maxlen=_MOST_ASKED)
        self._kept: dict[int, _Kept] = {}
        self._open: list[dict[str, Any]] = []
        self._update: tuple[Any, Any, Any] | None = None
        """Optimizer, parameter, and what goes into its update."""

    def ask(self, request: bytes) -> None:
        """What the agent wants to know, as JSON; from any thread, answered at the next look."""
        self._asked.append(request)

    @property
    def any(self) -> bool:
        """Whether something is asked for: then every step is looked at."""
        return bool(self._open)

    def keep(self, number: int, layout: Any, count: int, rows: Any, columns: Any) -> None:
        """The sums of plan `number`, in tensors that will be written again."""
        kept = self._kept.get(number)
        if kept is None:
            if len(self._kept) >= _MOST_PLANS:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[number] = _Kept(layout)
        kept.add(_Sums(count, rows.clone(), columns.clone()))

    def turn(self) -> None:
        """Take in what was asked for, and tell the sums that are kept of it."""
        self._update = None
        if self._open:
            now = time.monotonic()
            self._open = [ask for ask in self._open if ask["until"] > now]
        while self._asked:
            request = json.loads(self._asked.popleft())
            kept = self._kept.get(int(request["plan"]))
            if kept is None:
                self._tell({**request, "why": "nothing is kept of it"})
            elif request["buckets"]:
                until = time.monotonic() + _OPEN_SECONDS
                self._open.append({**request, "left": _READINGS, "until": until})
            else:
                self._tell({**request, **_told(kept, request)})

    def wanted(self, number: int, turn: int) -> list[dict[str, Any]]:
        """Requests for words of plan `number` that are answered at this turn."""
        due = [ask for ask in self._open if ask["plan"] == number and turn % ask["stride"] == 0]
        for ask in due:
            ask["left"] -= 1
        self._open = [ask for ask in self._open if ask["left"] > 0]
        return due

    def referees(self, turn: int) -> list[dict[str, Any]]:
        """Requests answered at `turn` that want to know what the step before it takes in."""
        return [ask for ask in self._open if ask.get("referee") and turn % ask["stride"] == 0]

    def before(self, request: dict[str, Any], optimizer: Any, parameter: Any) -> None:
        """Keep what goes into the update of the first bucket that is asked for."""
        from harness.digest.layout import WIDTH, WORD
        from harness.digest.updating import capture
        from harness.digest.words import local

        item, size = parameter.element_size(), local(parameter).numel()
        begin = int(request["buckets"][0]) * WIDTH * WORD // item
        end = min(size, begin + WIDTH * WORD // item)
        update = capture(optimizer, parameter, begin, end)
        self._update = None if update is None else (optimizer, parameter, update)

    def _came_of_it(self, tensor: Any) -> dict[str, Any]:
        from harness.digest import referee, updating

        kept, self._update = self._update, None
        if kept is None or kept[1] is not tensor:
            return {}
        optimizer, parameter, update = kept
        after = updating.now(update, optimizer, parameter)
        if (
            after is None
            or updating.different(after.pop("gradient"), update.tensors["gradient"]).any()
        ):
            return {}
        return {"update": referee.told(update, after)}

    def words(self, request: dict[str, Any], tensor: Any, count: int) -> None:
        """Tell the words of some buckets of `tensor` as they are now."""
        from harness.digest.layout import WIDTH
        from harness.digest.words import words

        kept = self._kept.get(int(request["plan"]))
        if kept is None:
            return
        row = words(tensor)
        buckets = [int(bucket) for bucket in request["buckets"][:MOST_BUCKETS]]
        found = [row[bucket * WIDTH : (bucket + 1) * WIDTH] for bucket in buckets]
        asked = {key: value for key, value in request.items() if key not in ("left", "until")}
        shape = _shape(kept, int(request["place"]))
        self._tell(
            {
                **asked,
                **shape,
                **(self._came_of_it(tensor) if request.get("referee") else {}),
                "count": count,
                "words": packed(sys.modules["torch"].cat(found)),
            }
        )

    def again(self, asked: dict[str, Any], tensor: Any, count: int) -> None:
        """Tell single words of `tensor` as they are at look `count`."""
        from harness.digest.words import words

        row = words(tensor)
        found = row[sys.modules["torch"].tensor(asked["words"], device=row.device)]
        which = {key: asked[key] for key in ("attempt", "part", "suspect", "name")}
        self._tell({**which, "count": count, "buckets": asked["words"], "words": packed(found)})


def _told(kept: _Kept, request: dict[str, Any]) -> dict[str, Any]:
    """The sums of one tensor at the look that is asked for."""
    place = int(request["place"])
    first, behind = kept.layout.firsts[place : place + 2]
    look = next((sums for sums in kept.looks if sums.count == request["count"]), None)
    if look is None:
        return {"why": "its sums are not kept any more"}
    if behind - first > _MOST_ROWS:
        return {"why": "it is too large"}
    rows = packed(look.rows[first:behind])
    return {**_shape(kept, place), "rows": rows, "columns": packed(look.columns)}


def _shape(kept: _Kept, place: int) -> dict[str, Any]:
    shape = kept.layout.shapes[place]
    return {
        "dtype": shape.dtype,
        "item": shape.item,
        "lengths": shape.lengths,
        "strides": shape.strides,
    }


def packed(numbers: Any) -> str:
    """A tensor of int64 as text: its bytes as this machine has them, in base64."""
    return base64.b64encode(array("q", numbers.tolist()).tobytes()).decode()

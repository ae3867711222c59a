"""Whether the loss that the script tells has gone up, far and to stay.

A healthy loss is noisy, rises with a learning rate that is raised, and begins anew with harder
data; a false alarm costs more than a late one. So it counts only where it is far from what the last
steps were like *and* half of what training has gained is gone, for many steps in a row, without
coming down again. Each rank judges what it tells itself.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

_WINDOW = 64
_LEAST_HISTORY = 48
_REFRESHED = 8
"""Losses after which the bound is found anew."""
_BEGIN = 8
"""Losses that show where training began."""
_SPREADS = 12.0
_GAUSSIAN = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""
_LEAST_SPREAD = 0.01
"""Of the median: a loss that hardly moves has next to no deviation."""
_RISE = 1.2
"""A learning rate so many times the lowest of the window begins another window."""
_LASTING = 32
_PART = 8
"""Losses of which one median is taken."""
_RECOVERED = 0.75
"""Of the excess: what has come down to that is on its way back."""
_LONGEST = 128
"""Losses above the bound, on their way back whenever they were judged: that is how it is now."""
_UNDONE = 0.5
"""Of what the loss has come down since training began."""
_AROUND = 32
"""Steps from an earlier spike on at which another one is the same."""


@dataclass(frozen=True, slots=True)
class _Seen:
    step: int
    at_ns: int
    loss: float
    tokens: int | None


class Losses:
    """`known` is the step of a spike that an earlier attempt has seen, and the loss above which it
    was one."""

    def __init__(
        self,
        tell: Callable[..., None],
        known: tuple[int, float] | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tell = tell
        self._known = known
        self._clock = clock
        self._calm: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        """Losses and learning rates."""
        self._calm_since = 1
        self._lowest_rate = math.inf
        self._begin: list[float] = []
        self._resumed = False
        self._above: list[_Seen] = []
        self._bound = math.inf
        self._middle = 0.0
        self._patience = self._judged_at = _LASTING
        self._rate = 0.0
        self._step = -1
        self._clean_ns = 0

    def rates(self, optimizer: Any) -> None:
        """An optimizer has stepped: with which learning rates."""
        total = 0.0
        for group in optimizer.param_groups:
            rate = group.get("lr", 0.0)
            if isinstance(rate, float | int) or rate.device.type == "cpu":
                total += float(rate)
        self._rate = total

    def saw(self, step: int, loss: float, tokens: int | None) -> None:
        """`loss` is that of `step`; told again, or not finite, it says nothing here."""
        if step <= self._step or not math.isfinite(loss):
            return
        if self._step < 0:
            self._resumed = step > _BEGIN
        self._step = step
        if self._rate > _RISE * self._lowest_rate:
            self._anew()
        if loss <= self._limit(step):
            self._came_down(loss)
            return
        self._above.append(_Seen(step, self._clock(), loss, tokens))
        if len(self._above) == self._judged_at:
            if self._stays():
                self._say()
                self._anew()
            elif self._judged_at >= _LONGEST:
                self._anew()
            else:
                self._judged_at *= 2

    def _limit(self, step: int) -> float:
        """What a loss has to exceed to count."""
        if len(self._calm) >= _LEAST_HISTORY:
            return self._bound
        if self._known is not None:
            onset = self._above[0].step if self._above else step
            if 0 <= onset - self._known[0] <= _AROUND:
                return self._known[1]
        return math.inf

    def _came_down(self, loss: float) -> None:
        """What has healed once took so long: the next one gets twice the time."""
        while self._patience < min(_LONGEST, 2 * len(self._above)):
            self._patience *= 2
        self._judged_at = self._patience
        for value in [*[seen.loss for seen in self._above], loss]:
            self._calm.append((value, self._rate))
            if len(self._begin) < _BEGIN:
                self._begin.append(value)
        self._above.clear()
        self._clean_ns = self._clock()
        self._lowest_rate = min(self._lowest_rate, self._rate)
        if self._calm_since % _REFRESHED == 0:
            self._lowest_rate = min(rate for _, rate in self._calm)
            if len(self._calm) >= _LEAST_HISTORY:
                self._bound = self._bound_of([value for value, _ in self._calm])
        self._calm_since += 1

    def _bound_of(self, losses: list[float]) -> float:
        middle = self._middle = median(losses)
        spread = _GAUSSIAN * median(abs(loss - middle) for loss in losses)
        spread = max(spread, _LEAST_SPREAD * abs(middle))
        strict = 2.0 if self._resumed else 1.0  # where training began is not known then
        far = max(_SPREADS * spread, abs(middle)) * strict
        return middle + max(far, _UNDONE * (median(self._begin) - middle))

    def _stays(self) -> bool:
        losses = [seen.loss for seen in self._above]
        parts = [losses[at : at + _PART] for at in range(0, len(losses), _PART)]
        excess = [median(part) - self._middle for part in parts]
        return excess[-1] > _RECOVERED * max(excess) and not _falls(losses)

    def _anew(self) -> None:
        """What comes now is compared with what comes after it."""
        self._calm.clear()
        self._calm_since, self._lowest_rate, self._bound = 1, math.inf, math.inf
        self._above.clear()
        self._judged_at = self._patience

    def _say(self) -> None:
        first, count = self._above[0], len(self._above)
        bound = self._limit(first.step)
        tokens = f", after {first.tokens:,} tokens" if first.tokens else ""
        lowest = min(seen.loss for seen in self._above)
        before = f", {self._middle:.4g} before" if self._bound < math.inf else ""
        self._tell(
            check="loss", subject="loss", step=first.step - 1, at_ns=first.at_ns,
            clean_ns=self._clean_ns, count=first.step, looks=count, failed=count, bound=bound,
            shows=f"{first.loss:.4g} in step {first.step}{tokens}{before}; not below {lowest:.4g}"
            f" in the {count} told since",
        )  # fmt: skip


def _falls(losses: list[float]) -> bool:
    """Whether there is a trend downwards: Kendall's S, two standard deviations from none."""
    count = len(losses)
    pairs = sum(
        (later < earlier) - (later > earlier)
        for at, earlier in enumerate(losses)
        for later in losses[at + 1 :]
    )
    return pairs > 2 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


def watch_rates(module: Any, find: Callable[[], Losses | None]) -> None:
    """Hook for torch.optim.optimizer."""

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        losses = find()
        if losses is not None:
            losses.rates(optimizer)

    module.register_optimizer_step_post_hook(stepped)

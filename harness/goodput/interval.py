"""How often a run should save, by its own numbers.

Saving often costs time, saving rarely costs the steps that a failure throws away. With a save that
stops training for d seconds and failures that come every M seconds of work on average, an interval
of t seconds of work loses about d / (t + d) + (t + d) / (2 M) of the time.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from statistics import median

from harness.goodput.ledger import Ledger, ledger
from harness.goodput.times import incident_times
from harness.state import RunState

FIRST_SECONDS = 300.0
"""Between saves as long as none has been measured: a failure then costs 150 s on average."""

PRIOR_RANK_HOURS = 50_676.0
"""Hours of one rank between failures that are believed before any was seen: 419 unexpected
interruptions in 54 days of 16,384 GPUs ("The Llama 3 Herd of Models", 2024, section 3.3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The interval between saves that would lose least, and what it follows from. Seconds.

    `young` is the first order, `seconds` the higher one; both count work between two saves.
    None where no save was measured. `steps` also needs a measured step. `loss_now` and
    `loss_then` are shares of the time lost to saving and failures at the present interval
    (`every_steps`) and the recommended one. `cost` is the share of training time that saving took.
    """

    save: float | None
    step: float | None
    failures: int
    mtbf: float
    downtime: float
    young: float | None
    seconds: float | None
    steps: int | None
    every_steps: int | None
    cost: float | None
    loss_now: float | None
    loss_then: float | None
    basis: str


def young(save: float, mtbf: float) -> float:
    """First order: sqrt(2 d M). J. W. Young, "A first order approximation to the optimum
    checkpoint interval", Communications of the ACM 17(9), 1974."""
    return sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Higher order, good also where M is not much longer than d: J. T. Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
    Systems 22(3), 2006: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d if d < 2 M, else M.
    """
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return sqrt(2 * save * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - save


def loss(interval: float, save: float, mtbf: float) -> float:
    """Share of the time lost to saves and to work done again, 0 to 1."""
    whole = interval + save
    return min(1.0, save / whole + whole / (2 * mtbf)) if whole > 0 else 1.0


def advise(state: RunState, books: Ledger | None = None) -> Advice:
    """What `state` says of saving; `books` when its ledger is at hand."""
    books = ledger(state) if books is None else books
    save, step = _save_seconds(state), books.step_seconds
    failures, mtbf, basis = _mtbf(state, books)
    downtime = _downtime(state)
    # Failures are counted over all the time, also that in which nothing was there to fail.
    # T. Herault, Y. Robert, "Fault-Tolerance Techniques for High-Performance Computing", 2015,
    # section 1.3: M - (D + R).
    working = max(mtbf - downtime, 0.01 * mtbf)
    every = _every_steps(state)
    seconds = None if save is None else max(daly(save, working), 0.0)
    parts = books.parts_ns
    training = parts["useful"] + parts["recompute"] + parts["straggler"] + parts["checkpoint"]
    steps = None if seconds is None or not step else max(1, round(seconds / step))
    return Advice(
        save=save,
        step=step,
        failures=failures,
        mtbf=mtbf,
        downtime=downtime,
        young=None if save is None else young(save, working),
        seconds=seconds,
        steps=steps,
        every_steps=every,
        cost=parts["checkpoint"] / training if training and save is not None else None,
        loss_now=None
        if save is None or not every or not step
        else loss(every * step, save, working),
        loss_then=None if save is None or seconds is None else loss(seconds, save, working),
        basis=basis,
    )


def interval_of_attempt(state: RunState) -> float:
    """Seconds between saves that the workers of the next attempt are told: what the user set, or
    what the ledger recommends by now."""
    if state.run is None:
        return FIRST_SECONDS
    setting = state.run.policy.checkpoint_interval
    if setting is not None:
        return setting
    seconds = advise(state).seconds
    return FIRST_SECONDS if seconds is None else round(seconds, 3)


def _save_seconds(state: RunState) -> float | None:
    """The median save, each as long as its slowest rank."""
    told = [mark.seconds for mark in state.checkpoints.values() if mark.seconds > 0]
    return median(told) if told else None


def _every_steps(state: RunState) -> int | None:
    """Steps between two checkpoints, in the middle."""
    steps = sorted(state.checkpoints)
    gaps = [after - before for before, after in pairwise(steps)]
    return round(median(gaps)) if gaps else None


def _mtbf(state: RunState, books: Ledger) -> tuple[int, float, str]:
    """Failures, mean seconds between them, and in words what that rests on.

    The prior counts as one failure, on a scale of logarithms: the rate of failures is unknown by
    orders of magnitude, and each failure that is seen says as much as the prior.
    """
    failures = sum(
        1
        for incident in state.incidents
        if incident.action in ("restart", "rollback", "stop")
        and (incident.action != "stop" or incident.exit_code != 0)
    )
    prior = PRIOR_RANK_HOURS * 3600 / max(1, books.ranks)
    told = f"prior: one failure in {PRIOR_RANK_HOURS:,.0f} rank-hours"
    if not failures:
        return 0, prior, f"no failure was seen ({told})"
    seen = max(books.wall_ns / 1e9, 1.0) / failures
    mtbf = exp((failures * log(seen) + log(prior)) / (failures + 1))
    if failures == 1:
        return 1, mtbf, f"1 failure was seen, the prior counts as another ({told})"
    return failures, mtbf, f"{failures} failures were seen, the prior counts as one ({told})"


def _downtime(state: RunState) -> float:
    """Mean seconds from the onset of a failure to the first step after it."""
    told = [times.downtime for times in incident_times(state)]
    known = [seconds for seconds in told if seconds is not None]
    return sum(known) / len(known) if known else 0.0

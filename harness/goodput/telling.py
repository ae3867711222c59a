"""The ledger for people and for programs: a table of at most 100 columns, and JSON by
harness/schemas/ledger.schema.json."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from harness.goodput.interval import FIRST_SECONDS, Advice, advise
from harness.goodput.ledger import PARTS, Ledger, ledger
from harness.goodput.times import SPLIT, IncidentTimes, incident_times
from harness.state import RunState


def ledger_json(state: RunState) -> dict[str, Any]:
    """All of it. Seconds of ranks are added up over the ranks, all others are of the clock."""
    books, times = ledger(state), incident_times(state)
    return {
        "wall_seconds": books.wall_ns / 1e9,
        "ranks": books.ranks,
        "rank_seconds": books.total_ns / 1e9,
        "seconds": {part: books.parts_ns[part] / 1e9 for part in PARTS},
        "ettr": books.ettr,
        "goodput_percent": None if books.ettr is None else 100 * books.ettr,
        "restarts": max(0, len(state.attempts) - 1),
        "lost_steps": _lost(times),
        "mttd_seconds": _spread(each.mttd for each in times),
        "mttr_seconds": _spread(each.mttr for each in times),
        "incidents": [
            {
                "id": each.incident,
                "mttd_seconds": each.mttd,
                "mttr_seconds": each.mttr,
                "split_seconds": dict(each.split),
                "lost_steps": each.lost_steps,
                "resumed_from": each.resumed_from,
            }
            for each in times
        ],
        "checkpoint_interval": _advice_json(state, advise(state, books)),
    }


def _advice_json(state: RunState, advice: Advice) -> dict[str, Any]:
    setting = None if state.run is None else state.run.policy.checkpoint_interval
    return {
        "setting": "auto" if setting is None else setting,
        "told_seconds": None if state.attempt is None else state.attempt.checkpoint_interval,
        "recommended_seconds": advice.seconds,
        "recommended_steps": advice.steps,
        "young_seconds": advice.young,
        "save_seconds": advice.save,
        "step_seconds": advice.step,
        "failures": advice.failures,
        "mtbf_seconds": advice.mtbf,
        "downtime_seconds": advice.downtime,
        "every_steps": advice.every_steps,
        "cost": advice.cost,
        "loss_now": advice.loss_now,
        "loss_recommended": advice.loss_then,
        "basis": advice.basis,
    }


def ledger_lines(state: RunState) -> list[str]:
    """Where the time went, what incidents cost, how often to save."""
    books, times = ledger(state), incident_times(state)
    lines = [_headline(state, books, times), *_table(books)]
    if any(each.mttr is not None for each in times):
        lines += ["", *_recoveries(times)]
    return [*lines, "", *saving_lines(advise(state, books))]


def _headline(state: RunState, books: Ledger, times: Sequence[IncidentTimes]) -> str:
    share = "unknown" if books.ettr is None else f"{100 * books.ettr:.1f} %"
    restarts = max(0, len(state.attempts) - 1)
    parts = [f"goodput {share} of {books.wall_ns / 1e9:.1f} s x {_plural(books.ranks, 'rank')}"]
    if restarts:
        lost = _lost(times)
        parts.append(_plural(restarts, "restart"))
        steps = "an unknown number of steps" if lost is None else _plural(lost, "step")
        parts.append(f"{steps} done again")
    return ", ".join(parts)


def _table(books: Ledger) -> list[str]:
    """Seconds of the mean rank, so that they sum to the wall time; two parts a line."""
    total = books.total_ns
    cells = [
        f"{part:<11}{ns * books.wall_ns / total / 1e9:>10.2f} s{100 * ns / total:>6.1f} %"
        for part, ns in books.parts_ns.items()
        if ns
    ]
    half = (len(cells) + 1) // 2
    right = [*cells[half:], ""]
    return [f"  {left}    {right[at]}".rstrip() for at, left in enumerate(cells[:half])]


def _recoveries(times: Sequence[IncidentTimes]) -> list[str]:
    """What came between a verdict and the first new step, incident by incident."""
    heads = ("incident", "detected", "new step", "=", *SPLIT)
    widths = (8, 9, 9, 2, *(max(6, len(part) + 1) for part in SPLIT))
    lines = ["  " + _row(heads, widths)]
    for each in times:
        if each.mttr is None:
            continue
        split = [each.split[part] for part in SPLIT]
        cells = [f"#{each.incident}", f"{each.mttd:.2f} s", f"{each.mttr:.2f} s", "="]
        lines.append("  " + _row([*cells, *(_seconds(value) for value in split)], widths))
    known = [each.mttr for each in times if each.mttr is not None]
    if len(known) > 1:
        found = [each.mttd for each in times]
        for name, of in (("p50", median), ("worst", max)):
            cells = [name, f"{of(found):.2f} s", f"{of(known):.2f} s"]
            lines.append("  " + _row(cells, widths[:3]))
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return "".join([f"{first.strip():<{widths[0]}}", *rest])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def saving_lines(advice: Advice) -> list[str]:
    """What saving cost, and the interval that would have lost least."""
    if advice.save is None or advice.seconds is None:
        return [f"saving: no save was told; `auto` means every {FIRST_SECONDS:g} s until one is"]
    if advice.steps is None:
        best = f"every {duration(advice.seconds)} would have lost least"
    else:
        steps = "1 step" if advice.steps == 1 else f"{_three(advice.steps)} steps"
        best = f"{steps} ({duration(advice.seconds)}) would have lost least"
    if advice.every_steps is not None and advice.cost is not None:
        every = _plural(advice.every_steps, "step")
        first = f"saving every {every} cost {100 * advice.cost:.1f} % of the training; {best}"
    elif advice.cost is not None:
        first = f"saving cost {100 * advice.cost:.1f} % of the training; {best}"
    else:
        first = f"saving: {best}"
    return [
        first,
        f"  a save stops training for {advice.save:.2f} s, a failure for {advice.downtime:.1f} s;"
        f" one comes every {duration(advice.mtbf)}",
        f"  {advice.basis}",
    ]


def duration(seconds: float) -> str:
    """Three digits of a time, in the unit that suits it."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds)} s"


def _three(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{float(f'{number:.3g}'):,.0f}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lost(times: Sequence[IncidentTimes]) -> int | None:
    """Steps done again in all; None when one restart does not tell."""
    lost = [each.lost_steps for each in times if each.mttr is not None]
    return None if None in lost else sum(steps for steps in lost if steps is not None)


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"p50": median(known), "worst": max(known)} if known else None

"""The best of all layouts, and why each part of it is as it is."""

import math
from dataclasses import dataclass

from harness.errors import LayoutError
from harness.plan import layout, pipeline, traffic
from harness.plan.layout import ROOM, WIRE, Job, Layout
from harness.plan.memory import Recompute

ALIKE = 1.03
"""Layouts this close in time are not told apart by the estimate; the simplest is taken."""
_FELT = 0.001
"""Share of a step below which waiting is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The simplest of the fastest layouts that fit, why, and the fastest with other axes."""

    best: Layout
    reasons: tuple[str, ...]
    others: tuple[Layout, ...]


def advise(
    job: Job,
    *,
    tp: int | None = None,
    pp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
) -> Advice:
    """Raises UsageError when nothing divides or nothing fits, with what is nearest."""
    all_of_them = layout.candidates(job, tp=tp, pp=pp, cp=cp, ep=ep)
    if not all_of_them:
        raise LayoutError(
            f"{job.model.name} cannot be divided over {job.gpus} GPUs with {job.batch} sequences "
            "in a step",
            help="give a batch that is a multiple of the data-parallel ranks, or other axes",
        )
    room = ROOM * job.gpu.memory
    fits = [one for one in all_of_them if one.bytes <= room]
    if not fits:
        least = min(all_of_them, key=lambda one: one.bytes)
        raise LayoutError(
            f"{job.model.name} does not fit: the leanest layout ({least.name}, {least.recompute} "
            f"recomputation) needs {least.bytes / 1e9:.0f} GB on a GPU, {room / 1e9:.0f} are there",
            help="more GPUs, larger ones, or shorter sequences",
        )
    as_fast = [one for one in fits if one.seconds <= ALIKE * fits[0].seconds]
    best = min(as_fast, key=layout.cuts)
    seen, others = {_axes(best)}, []
    for one in fits:
        if _axes(one) not in seen:
            seen.add(_axes(one))
            others.append(one)
    return Advice(
        best=best, reasons=_reasons(job, best, all_of_them, given=cp), others=tuple(others[:4])
    )


def _axes(one: Layout) -> tuple[int, ...]:
    return one.tp, one.pp, one.cp, one.ep


def _reasons(job: Job, best: Layout, every: list[Layout], given: int | None) -> tuple[str, ...]:
    """Why each part of the best layout is as it is, in numbers of the layouts beside it; `given`:
    cp was not to be chosen."""
    weighed = {one.cp for one in every}
    return (
        _why_tp(job, best, every),
        _why_pp(job, best, every),
        *([_why_cp(job, best, every, given)] if weighed != {1} else []),
        *([_why_ep(job, best, every)] if job.model.experts else []),
        _why_dp(job, best),
        _why_recompute(best, every, ROOM * job.gpu.memory),
    )


def _gb(size: float) -> str:
    whole = size / 1e9
    return f"{whole:,.0f} GB" if whole >= 1000 else f"{whole:.3g} GB"


def _beside(best: Layout, other: Layout, room: float) -> str:
    """What speaks against `other`, in a few words."""
    if other.bytes > room:
        return f"would need {_gb(other.bytes)} of the {_gb(room)} that may be planned"
    return f"would take {other.seconds:.3g} s a step instead of {best.seconds:.3g} s"


def _fastest(every: list[Layout], room: float, **axes: int) -> Layout | None:
    """The fastest that fits with these axes, or else the leanest."""
    same = [one for one in every if all(getattr(one, k) == v for k, v in axes.items())]
    fits = [one for one in same if one.bytes <= room]
    return fits[0] if fits else min(same, key=lambda one: one.bytes, default=None)


def _why_tp(job: Job, best: Layout, every: list[Layout]) -> str:
    room = ROOM * job.gpu.memory
    if best.tp == 1:
        said = "tp 1: no layer needs to be cut"
        other = _fastest(every, room, tp=2)
        return f"{said}; tp 2 {_beside(best, other, room)}" if other else said
    inside = traffic.tensor_parallel_traffic(
        seq=job.seq,
        batch=best.micro_batch,
        hidden=job.model.hidden,
        layers=job.model.layers,
        tp=best.tp,
        cp=best.cp,
    )
    said = (
        f"tp {best.tp} inside the node (of {job.per_node}): {_gb(inside)} a micro-batch cannot "
        f"hide, {inside / (job.gpu.inside * WIRE):.2g} s at {_gb(job.gpu.inside)}/s there, "
        f"{inside / (job.gpu.between * WIRE):.2g} s between nodes"
    )
    other = _fastest(every, room, tp=best.tp // 2)
    return f"{said}; tp {best.tp // 2} {_beside(best, other, room)}" if other else said


def _why_pp(job: Job, best: Layout, every: list[Layout]) -> str:
    room = ROOM * job.gpu.memory
    if best.pp == 1:
        other = _fastest(every, room, pp=2)
        said = "pp 1: no bubble"
        return f"{said}; pp 2 {_beside(best, other, room)}" if other else said
    idle = pipeline.bubble(best.pp, best.micro_batches)
    other = _fastest(every, room, pp=1)
    said = (
        f"pp {best.pp}: {math.ceil(job.model.layers / best.pp)} layers a stage, {idle:.1%} bubble "
        f"with {best.micro_batches} micro-batches"
    )
    return f"{said}; pp 1 ({other.name}) {_beside(best, other, room)}" if other else said


def _why_cp(job: Job, best: Layout, every: list[Layout], given: int | None) -> str:
    """Asked only where sequences could be split."""
    room = ROOM * job.gpu.memory
    if best.cp == 1:
        said = f"cp 1: a sequence of {job.seq:,} tokens fits whole"
        other = _fastest(every, room, cp=2)
        return f"{said}; cp 2 {_beside(best, other, room)}" if other else said
    said = f"cp {best.cp}: {job.seq // best.cp:,} of a sequence's {job.seq:,} tokens on each"
    whole = [one for one in every if one.cp == 1]
    if given:
        said += ", as asked"
    elif not whole:
        said += f"; whole, the {job.batch:,} of a step cannot be divided over {job.gpus} GPUs"
    elif all(one.bytes > room for one in whole):
        least = min(whole, key=lambda one: one.bytes)
        said += (
            f"; whole, it does not fit: with tp {least.tp}, sequence parallel and "
            f"{least.recompute} recomputation its activations take {_gb(least.activations)} beside "
            f"states of {_gb(least.states)}, of the {_gb(room)} that may be planned"
        )
    else:
        other = _fastest(every, room, cp=1)
        assert other is not None
        said += f"; cp 1 ({other.name}) {_beside(best, other, room)}"
    hidden = "the ring's keys travel while attention is computed"
    if best.cp_exposed > _FELT * best.seconds:
        hidden = f"{best.cp_exposed:.2g} s a step the ring's keys are waited for"
    return f"{said}; {hidden}"


def _why_ep(job: Job, best: Layout, every: list[Layout]) -> str:
    room, model = ROOM * job.gpu.memory, job.model
    if best.ep == 1:
        said = f"ep 1: all {model.experts} experts work on every GPU, no token travels"
        other = _fastest(every, room, ep=2)
        return f"{said}; ep 2 {_beside(best, other, room)}" if other else said
    sent = layout.ep_sent(job, tp=best.tp, cp=best.cp, ep=best.ep, size=best.micro_batch)
    there, away = (
        layout.ep_seconds(job, sent, best.ep, wire=wire)
        for wire in (job.gpu.inside, job.gpu.between)
    )
    own = model.experts // best.ep
    said = f"ep {best.ep}: {own} of {model.experts} experts on each GPU; "
    said += f"{_gb(sent)} a micro-batch go to {model.top_k} experts a token and back"
    if best.ep <= job.per_node:
        said += f", inside the node (of {job.per_node}): {there:.2g} s there, {away:.2g} s between"
    else:
        said += f", over {math.ceil(best.ep / job.per_node)} nodes: {best.ep_exposed:.2g} s a step"
        near = [one for one in every if 1 < one.ep <= job.per_node]
        other = next((one for one in near if one.bytes <= room), None)
        other = other or min(near, key=lambda one: one.bytes, default=None)
        if other:
            said += f"; inside a node ({other.name}) it {_beside(best, other, room)}"
    other = _fastest(every, room, ep=1)
    return f"{said}; ep 1 ({other.name}) {_beside(best, other, room)}" if other else said


def _why_dp(job: Job, best: Layout) -> str:
    others = "tp and pp" if best.cp == 1 else "tp, pp and cp"
    said = (
        f"dp {best.dp}: what {others} leave, {best.micro_batches} x {best.micro_batch} sequences "
        "on each in a step"
    )
    if best.dp * best.cp == 1:
        return said
    axes = {"tp": best.tp, "pp": best.pp, "cp": best.cp, "dp": best.dp, "ep": best.ep}
    plain, split = (layout.states(job.model, **axes, zero=zero).total for zero in (0, best.zero))
    if not best.zero:
        return f"{said}; states of {_gb(plain)} on each GPU need no ZeRO"
    more = traffic.zero_traffic(
        1.0, dp=best.dp * best.cp, zero=best.zero, passes=best.micro_batches
    ) / traffic.zero_traffic(1.0, dp=best.dp * best.cp, zero=0)
    cost = "no more traffic" if more == 1 else f"{more:.3g} x the traffic of one all-reduce"
    return f"{said}; ZeRO-{best.zero}: states of {_gb(split)} instead of {_gb(plain)} for {cost}"


def _why_recompute(best: Layout, every: list[Layout], room: float) -> str:
    if best.recompute == "none":
        return f"no recomputation: {_gb(best.bytes)} of the {_gb(room)} that may be planned"
    less: Recompute = "none"
    for one in every:
        same = (*_axes(one), one.zero, one.micro_batch, one.recompute)
        if same == (*_axes(best), best.zero, best.micro_batch, less):
            return (
                f"{best.recompute} recomputation: without it {_gb(one.bytes)}, "
                f"with it {_gb(best.bytes)} of the {_gb(room)} that may be planned"
            )
    return f"{best.recompute} recomputation: {_gb(best.bytes)} with it"

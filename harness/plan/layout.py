"""Which mesh for this model on these GPUs: every layout that could be, judged by the same
estimate, and the best one with its reasons.

The estimate is coarse on purpose: it orders layouts, it does not predict a step to the percent.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.errors import LayoutError
from harness.plan import memory, pipeline, speed, traffic
from harness.plan.memory import RECOMPUTE, Recompute
from harness.plan.models import Gpu, Model

KERNELS = 0.6
"""Share of the peak that the matrix kernels of a large model reach."""
WIRE = 0.75
"""Share of a link's nominal bandwidth that collectives of this size reach."""
ROOM = 0.9
"""Share of a GPU's memory that may be planned: the rest is CUDA, NCCL and fragments."""
HIDDEN = 0.8
"""Share of the computation beside it under which data-parallel traffic disappears."""
ALIKE = 1.03
"""Layouts this close in time are not told apart by the estimate; the simplest is taken."""
_MOST_IN_A_MICRO_BATCH = 8
_MOST_STAGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained on what. `batch` counts sequences in a step, over all GPUs."""

    model: Model
    gpu: Gpu
    gpus: int
    per_node: int
    seq: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A mesh and how it is used; sequence parallel and flash attention are taken for granted.

    Bytes on the fullest GPU, seconds of one step: `compute` on the kernels, `bubble` waiting in the
    pipeline, `tp` and `dp` traffic that nothing hides.
    """

    tp: int
    pp: int
    dp: int
    zero: int
    recompute: Recompute
    micro_batch: int
    micro_batches: int
    states: float
    activations: float
    compute: float
    bubble: float
    tp_exposed: float
    dp_exposed: float

    @property
    def bytes(self) -> float:
        return self.states + self.activations

    @property
    def seconds(self) -> float:
        return self.compute + self.bubble + self.tp_exposed + self.dp_exposed

    @property
    def name(self) -> str:
        axes = (("tp", self.tp), ("pp", self.pp), ("dp", self.dp))
        said = " x ".join(f"{axis} {size}" for axis, size in axes if size > 1) or "one GPU"
        return f"{said}, ZeRO-{self.zero}" if self.zero else said


def work_per_token(job: Job) -> float:
    """FLOPs that the model needs for a token, attention included: half of all pairs are masked."""
    model = job.model
    return speed.flops_per_token(
        model.parameters, layers=model.layers, hidden=model.hidden, seq=job.seq / 2
    )


def _logits(job: Job, tp: int, micro_batch: int) -> float:
    """Logits and their gradient in single precision on the last stage, split by vocabulary."""
    return 2 * 4 * job.seq * micro_batch * job.model.vocab / tp


def _uneven(model: Model, pp: int) -> float:
    """How much longer the fullest stage takes than the mean one; the head counts as the layers
    that it costs."""
    head = model.vocab * model.hidden / (model.parameters / model.layers)
    mean = (model.layers + head) / pp
    return math.ceil(mean) / mean if pp > 1 else 1.0


def _held(job: Job, tp: int, pp: int, recompute: Recompute, size: int, each: int) -> float:
    """Bytes of activations on the first stage, with what 1F1B has in flight."""
    layer = memory.layer_activations(
        seq=job.seq,
        batch=size,
        hidden=job.model.hidden,
        heads=job.model.heads,
        tp=tp,
        sequence_parallel=True,
        flash=True,
        recompute=recompute,
    )
    layers = math.ceil(job.model.layers / pp)
    kept = layer * layers * memory.in_flight(pp=pp, micro_batches=each)
    # Of what is computed again, the layer in hand is whole.
    again = 34 * job.seq * size * job.model.hidden / tp if recompute == "full" else 0.0
    return kept + again + _logits(job, tp, size)


def _dp_seconds(job: Job, tp: int, here: float, dp: int, zero: int, passes: int) -> float:
    """Seconds of one step's data-parallel traffic; ranks beside each other on a node cross to the
    others once for all of them."""
    sent = traffic.zero_traffic(here, dp=dp, zero=zero, passes=passes)
    beside = min(dp, max(1, job.per_node // tp))
    across = sent / beside / job.gpu.between if dp > beside else 0.0
    return max(sent / job.gpu.inside, across) / WIRE


def judge(
    job: Job,
    *,
    tp: int,
    pp: int,
    zero: int,
    recompute: Recompute = "none",
    micro_batch: int = 1,
) -> Layout:
    """The estimate for one layout. ValueError: what does not divide."""
    model, gpu = job.model, job.gpu
    dp, left = divmod(job.gpus, tp * pp)
    each, rest = divmod(job.batch, dp * micro_batch) if dp else (0, 1)
    if left or rest or model.heads % tp or model.hidden % tp or pp > model.layers:
        raise ValueError(f"tp {tp} x pp {pp} with micro-batches of {micro_batch} does not divide")
    here = model.parameters / (tp * pp)
    states = memory.model_states(here, dp=dp, zero=zero).total
    if zero >= 2 and dp > 1:  # the block in hand and the next, whole, with gradients
        states += 2 * 4 * model.parameters / (tp * model.layers)
    again = 8 / 6 if recompute == "full" else 1.0
    tokens = job.seq * job.batch
    even = again * work_per_token(job) * tokens / (job.gpus * gpu.flops * KERNELS)
    compute = even * _uneven(model, pp)
    shared = traffic.tensor_parallel_traffic(
        seq=job.seq, batch=micro_batch, hidden=model.hidden, layers=model.layers, tp=tp
    )
    wire = gpu.inside if tp <= job.per_node else gpu.between
    exposed = each * shared / pp / (wire * WIRE)
    # Stage 3 gathers beside every micro-batch, up to 2 gradients are reduced beside the last.
    seconds = _dp_seconds(job, tp, here, dp, zero, each if zero >= 2 else 1)
    beside = compute if zero >= 2 else compute / each
    idle = pipeline.bubble(pp, each)
    return Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        zero=zero if dp > 1 else 0,
        recompute=recompute,
        micro_batch=micro_batch,
        micro_batches=each,
        states=states,
        activations=_held(job, tp, pp, recompute, micro_batch, each),
        compute=even,
        bubble=(compute + exposed) * idle / (1 - idle) + compute - even,
        tp_exposed=exposed,
        dp_exposed=max(0.0, seconds - HIDDEN * beside),
    )


def _divisors(number: int, most: int) -> Iterator[int]:
    return (size for size in range(1, min(number, most) + 1) if number % size == 0)


def candidates(job: Job, *, tp: int | None = None, pp: int | None = None) -> list[Layout]:
    """All layouts that divide, whether they fit into the memory or not, fastest first.

    tp stays inside a node. ZeRO-2 and 3 are left out under pipelining, where every micro-batch
    would reduce or gather again. `tp` and `pp` fix an axis.
    """
    found = []
    for t in [tp] if tp else _divisors(min(job.per_node, job.gpus), job.per_node):
        for p in [pp] if pp else _divisors(job.gpus // t, min(job.model.layers, _MOST_STAGES)):
            for zero in (0, 1) if p > 1 else memory.STAGES:
                for again in RECOMPUTE:
                    for size in (1, 2, 4, _MOST_IN_A_MICRO_BATCH):
                        try:
                            layout = judge(
                                job, tp=t, pp=p, zero=zero, recompute=again, micro_batch=size
                            )
                        except ValueError:
                            continue
                        found.append(layout)
    return sorted(found, key=_order)


def _order(one: Layout) -> tuple[float, int, int, int, int]:
    """Time to three figures, then what is simplest."""
    return float(f"{one.seconds:.3g}"), *_cuts(one)


def _cuts(one: Layout) -> tuple[int, int, int, int]:
    """The less of it, the simpler."""
    return one.pp, one.zero, one.tp, RECOMPUTE.index(one.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The simplest of the fastest layouts that fit, why, and the fastest with other axes."""

    best: Layout
    reasons: tuple[str, ...]
    others: tuple[Layout, ...]


def advise(job: Job, *, tp: int | None = None, pp: int | None = None) -> Advice:
    """Raises UsageError when nothing divides or nothing fits, with what is nearest."""
    all_of_them = candidates(job, tp=tp, pp=pp)
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
            help="more GPUs, larger ones, or shorter sequences; context parallel is not planned",
        )
    as_fast = [one for one in fits if one.seconds <= ALIKE * fits[0].seconds]
    best = min(as_fast, key=_cuts)
    seen, others = {(best.tp, best.pp)}, []
    for one in fits:
        if (one.tp, one.pp) not in seen:
            seen.add((one.tp, one.pp))
            others.append(one)
    return Advice(best=best, reasons=_reasons(job, best, all_of_them), others=tuple(others[:4]))


def _reasons(job: Job, best: Layout, every: list[Layout]) -> tuple[str, ...]:
    """Why each part of the best layout is as it is, in numbers of the layouts beside it."""
    return (
        _why_tp(job, best, every),
        _why_pp(job, best, every),
        _why_dp(job, best),
        _why_recompute(best, every, ROOM * job.gpu.memory),
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


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


def _why_dp(job: Job, best: Layout) -> str:
    here = job.model.parameters / (best.tp * best.pp)
    said = (
        f"dp {best.dp}: what tp and pp leave, {best.micro_batches} x {best.micro_batch} sequences "
        "on each in a step"
    )
    if best.dp == 1:
        return said
    plain, split = (
        memory.model_states(here, dp=best.dp, zero=zero).total for zero in (0, best.zero)
    )
    if not best.zero:
        return f"{said}; states of {_gb(plain)} on each GPU need no ZeRO"
    more = traffic.zero_traffic(
        1.0, dp=best.dp, zero=best.zero, passes=best.micro_batches
    ) / traffic.zero_traffic(1.0, dp=best.dp, zero=0)
    cost = "no more traffic" if more == 1 else f"{more:.3g} x the traffic of one all-reduce"
    return f"{said}; ZeRO-{best.zero}: states of {_gb(split)} instead of {_gb(plain)} for {cost}"


def _why_recompute(best: Layout, every: list[Layout], room: float) -> str:
    if best.recompute == "none":
        return f"no recomputation: {_gb(best.bytes)} of the {_gb(room)} that may be planned"
    less: Recompute = "none"
    for one in every:
        same = (one.tp, one.pp, one.zero, one.micro_batch, one.recompute)
        if same == (best.tp, best.pp, best.zero, best.micro_batch, less):
            return (
                f"{best.recompute} recomputation: without it {_gb(one.bytes)}, "
                f"with it {_gb(best.bytes)} of the {_gb(room)} that may be planned"
            )
    return f"{best.recompute} recomputation: {_gb(best.bytes)} with it"

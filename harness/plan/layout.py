"""Which meshes there are for this model on these GPUs: every layout that could be, judged by the
same estimate. `advice.py` takes the best one.

The estimate is coarse on purpose: it orders layouts, it does not predict a step to the percent.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

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
LONG = 32768
"""Tokens of a sequence from which context parallel is weighed even where it is not needed: with
usual shapes (405B to 8B), attention then costs a sixth to a half of all else."""
_MOST_IN_A_MICRO_BATCH = 8
_MOST_STAGES = 64
_MOST_PARTS = 64


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

    `ep` takes its ranks from those of tp, cp and dp, so that the GPUs are tp x pp x cp x dp. Bytes
    on the fullest GPU, seconds of one step: `compute` on the kernels, `bubble` waiting in the
    pipeline, `tp`, `cp`, `ep` and `dp` traffic that nothing hides.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    zero: int
    recompute: Recompute
    micro_batch: int
    micro_batches: int
    states: float
    activations: float
    compute: float
    bubble: float
    tp_exposed: float
    cp_exposed: float
    ep_exposed: float
    dp_exposed: float

    @property
    def bytes(self) -> float:
        return self.states + self.activations

    @property
    def seconds(self) -> float:
        inside = self.tp_exposed + self.cp_exposed + self.ep_exposed
        return self.compute + self.bubble + inside + self.dp_exposed

    @property
    def name(self) -> str:
        axes = (("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("dp", self.dp))
        said = " x ".join(f"{axis} {size}" for axis, size in axes if size > 1) or "one GPU"
        said += f", ep {self.ep}" if self.ep > 1 else ""
        return f"{said}, ZeRO-{self.zero}" if self.zero else said


def work_per_token(job: Job) -> float:
    """FLOPs that the model needs for a token, attention included: half of all pairs are masked, and
    of the experts only those count that it goes to."""
    model = job.model
    return speed.flops_per_token(
        model.active, layers=model.layers, hidden=model.hidden, seq=job.seq / 2
    )


def _logits(job: Job, cut: int, micro_batch: int) -> float:
    """Logits and their gradient in single precision on the last stage, split by vocabulary (tp) and
    by sequence (cp)."""
    return 2 * 4 * job.seq * micro_batch * job.model.vocab / cut


def _uneven(model: Model, pp: int) -> float:
    """How much longer the fullest stage takes than the mean one; the head counts as the layers
    that it costs."""
    head = model.vocab * model.hidden / (model.active / model.layers)
    mean = (model.layers + head) / pp
    return math.ceil(mean) / mean if pp > 1 else 1.0


def _more_of_experts(job: Job, size: int, tp: int, cp: int) -> float:
    """Bytes of a layer's activations that a dense one would not have."""
    model = job.model
    if not model.experts:
        return 0.0
    return memory.expert_activations(
        seq=job.seq,
        batch=size,
        hidden=model.hidden,
        met=(model.top_k + model.shared) * model.expert / (8 * model.hidden**2),
        top_k=model.top_k,
        tp=tp,
        cp=cp,
    )


def held(
    job: Job, *, tp: int, pp: int, cp: int, recompute: Recompute, size: int, each: int
) -> float:
    """Bytes of activations on the first stage, with what 1F1B has in flight of `each` micro-batches
    of `size` sequences."""
    layer = memory.layer_activations(
        seq=job.seq,
        batch=size,
        hidden=job.model.hidden,
        heads=job.model.heads,
        tp=tp,
        cp=cp,
        sequence_parallel=True,
        flash=True,
        recompute=recompute,
    )
    more = _more_of_experts(job, size, tp, cp)
    layers = math.ceil(job.model.layers / pp)
    kept = (layer + more * (recompute != "full")) * layers
    kept *= memory.in_flight(pp=pp, micro_batches=each)
    # Of what is computed again, the layer in hand is whole.
    whole = 34 * job.seq * size * job.model.hidden / (tp * cp) + more
    again = whole if recompute == "full" else 0.0
    return kept + again + _logits(job, tp * cp, size)


def states(
    model: Model, *, tp: int = 1, pp: int = 1, cp: int = 1, dp: int = 1, ep: int = 1, zero: int = 0
) -> memory.States:
    """Bytes of parameters, gradients and optimizer on a GPU. Experts are spread over ep and then
    over what it leaves of tp x cp x dp, all else over tp and then over cp x dp."""
    dense = (model.parameters - model.in_experts) / (tp * pp)
    one = memory.model_states(dense, dp=cp * dp, zero=zero)
    beside = max(1, tp * cp * dp // ep)
    two = memory.model_states(model.in_experts / (ep * pp), dp=beside, zero=zero)
    return memory.States(
        parameters=one.parameters + two.parameters,
        gradients=one.gradients + two.gradients,
        optimizer=one.optimizer + two.optimizer,
    )


def _gathered(model: Model, *, tp: int, ep: int, split: int) -> float:
    """Bytes of the block in hand and the next, whole, with gradients, where ZeRO keeps `split`
    ranks of them."""
    dense = model.parameters - model.in_experts
    whole = 2 * 4 * dense / (tp * model.layers) if split > 1 else 0.0
    return whole + (2 * 4 * model.experts * model.expert / ep if tp * split > ep else 0.0)


def _reduced(job: Job, cut: int, parameters: float, ranks: int, zero: int, passes: int) -> float:
    """Seconds of one step's data-parallel traffic of `parameters` over so many ranks; those beside
    each other on a node, of which each `cut` hold one copy, cross to the others once for all."""
    sent = traffic.zero_traffic(parameters, dp=ranks, zero=zero, passes=passes)
    beside = min(ranks, max(1, job.per_node // cut))
    across = sent / beside / job.gpu.between if ranks > beside else 0.0
    return max(sent / job.gpu.inside, across) / WIRE


def _dp_seconds(job: Job, one: dict[str, int], zero: int, passes: int) -> float:
    """Seconds of one step's data-parallel traffic, experts included."""
    model, tp, pp, ep = job.model, one["tp"], one["pp"], one["ep"]
    ranks = one["cp"] * one["dp"]
    dense = (model.parameters - model.in_experts) / (tp * pp)
    seconds = _reduced(job, tp, dense, ranks, zero, passes)
    if model.experts:
        spread = model.in_experts / (ep * pp)
        seconds += _reduced(job, ep, spread, tp * ranks // ep, zero, passes)
    return seconds


def ep_seconds(job: Job, sent: float, ep: int, *, wire: float = 0.0) -> float:
    """Seconds of `sent` bytes to all ranks of ep, which lie beside each other; what goes to other
    nodes takes the slower link. `wire`: all of it at that bandwidth."""
    if wire:
        return sent / (wire * WIRE)
    away = max(0, ep - job.per_node) / max(1, ep - 1)
    return max(sent * (1 - away) / job.gpu.inside, sent * away / job.gpu.between) / WIRE


def _cp_exposed(job: Job, *, tp: int, pp: int, cp: int, size: int) -> float:
    """Seconds of a micro-batch in which the ring waits for keys: they travel while the attention
    to those before is computed."""
    model, gpu = job.model, job.gpu
    sent = traffic.ring_attention_traffic(
        seq=job.seq,
        batch=size,
        hidden=model.hidden,
        layers=model.layers,
        kv=model.kv_heads / model.heads,
        cp=cp,
        tp=tp,
    )
    wire = gpu.inside if tp * cp <= job.per_node else gpu.between
    pairs = speed.flops_per_token(0, layers=model.layers, hidden=model.hidden, seq=job.seq / 2)
    beside = pairs * job.seq * size / (tp * cp) / (gpu.flops * KERNELS)
    return max(0.0, sent / (wire * WIRE) - HIDDEN * beside) / pp


def ep_sent(job: Job, *, tp: int, cp: int, ep: int, size: int) -> float:
    """Bytes that a GPU sends to experts and back in one micro-batch of `size` sequences."""
    return traffic.expert_parallel_traffic(
        seq=job.seq,
        batch=size,
        hidden=job.model.hidden,
        layers=job.model.layers,
        top_k=job.model.top_k,
        ep=ep,
        tp=tp,
        cp=cp,
    )


def judge(
    job: Job,
    *,
    tp: int,
    pp: int,
    zero: int,
    cp: int = 1,
    ep: int = 1,
    recompute: Recompute = "none",
    micro_batch: int = 1,
) -> Layout:
    """The estimate for one layout. ValueError: what does not divide."""
    model, gpu = job.model, job.gpu
    dp, left = divmod(job.gpus, tp * pp * cp)
    each, rest = divmod(job.batch, dp * micro_batch) if dp else (0, 1)
    uncut = model.heads % tp or model.hidden % tp or pp > model.layers
    uncut = uncut or (cp > 1 and job.seq % (2 * cp * tp))
    if model.experts:
        uncut = uncut or model.experts % ep or tp * cp * dp % ep
    if left or rest or uncut or (ep > 1 and not model.experts):
        axes = f"tp {tp} x pp {pp} x cp {cp}, ep {ep}"
        raise ValueError(f"{axes} with micro-batches of {micro_batch} does not divide")
    again = 8 / 6 if recompute == "full" else 1.0
    tokens = job.seq * job.batch
    even = again * work_per_token(job) * tokens / (job.gpus * gpu.flops * KERNELS)
    compute = even * _uneven(model, pp)
    shared = traffic.tensor_parallel_traffic(
        seq=job.seq, batch=micro_batch, hidden=model.hidden, layers=model.layers, tp=tp, cp=cp
    )
    wire = gpu.inside if tp <= job.per_node else gpu.between
    exposed = each * shared / pp / (wire * WIRE)
    ring = each * _cp_exposed(job, tp=tp, pp=pp, cp=cp, size=micro_batch)
    sent = ep_sent(job, tp=tp, cp=cp, ep=ep, size=micro_batch)
    routed = each * ep_seconds(job, sent / pp, ep)
    # Stage 3 gathers beside every micro-batch, up to 2 gradients are reduced beside the last.
    axes_here = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep}
    seconds = _dp_seconds(job, axes_here, zero, each if zero >= 2 else 1)
    beside = compute if zero >= 2 else compute / each
    idle = pipeline.bubble(pp, each)
    waited = (compute + exposed + ring + routed) * idle / (1 - idle)
    return Layout(
        **axes_here,
        zero=zero if dp * cp > 1 else 0,
        recompute=recompute,
        micro_batch=micro_batch,
        micro_batches=each,
        states=states(model, **axes_here, zero=zero).total
        + (_gathered(model, tp=tp, ep=ep, split=cp * dp) if zero >= 2 else 0.0),
        activations=held(
            job, tp=tp, pp=pp, cp=cp, recompute=recompute, size=micro_batch, each=each
        ),
        compute=even,
        bubble=waited + compute - even,
        tp_exposed=exposed,
        cp_exposed=ring,
        ep_exposed=routed,
        dp_exposed=max(0.0, seconds - HIDDEN * beside),
    )


def _divisors(number: int, most: int) -> Iterator[int]:
    return (size for size in range(1, min(number, most) + 1) if number % size == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """Sizes of axes that are given; None: to be chosen."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None


def candidates(
    job: Job,
    *,
    tp: int | None = None,
    pp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
) -> list[Layout]:
    """All layouts that divide, whether they fit into the memory or not, fastest first.

    tp stays inside a node. ZeRO-2 and 3 are left out under pipelining, where every micro-batch
    would reduce or gather again. Sequences are split (cp) where they are LONG, where there are
    fewer of them in a step than nodes, or where nothing fits or divides as long as they are whole.
    `tp` and so on fix an axis.
    """
    fixed = _Fixed(tp=tp, pp=pp, cp=cp, ep=ep)
    found = list(_with_cp(job, fixed, [fixed.cp or 1]))
    room = ROOM * job.gpu.memory
    wanted = job.seq >= LONG or job.batch * job.per_node < job.gpus
    if fixed.cp is None and (wanted or not any(one.bytes <= room for one in found)):
        parts = [size for size in _divisors(job.gpus, _MOST_PARTS) if size > 1]
        found += _with_cp(job, fixed, parts)
    return sorted(found, key=_order)


def _with_cp(job: Job, fixed: _Fixed, parts: list[int]) -> Iterator[Layout]:
    """All layouts with these sizes of cp."""
    for c in parts:
        left = job.gpus // c
        for t in [fixed.tp] if fixed.tp else _divisors(min(job.per_node, left), job.per_node):
            most = min(job.model.layers, _MOST_STAGES)
            for p in [fixed.pp] if fixed.pp else _divisors(left // t, most):
                for e in [fixed.ep] if fixed.ep else _divisors(max(1, job.model.experts), job.gpus):
                    yield from _used(job, t, p, c, e)


def _used(job: Job, tp: int, pp: int, cp: int, ep: int) -> Iterator[Layout]:
    """The ways to use one mesh."""
    for zero in (0, 1) if pp > 1 else memory.STAGES:
        for again in RECOMPUTE:
            for size in (1, 2, 4, _MOST_IN_A_MICRO_BATCH):
                try:
                    yield judge(
                        job,
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        ep=ep,
                        zero=zero,
                        recompute=again,
                        micro_batch=size,
                    )
                except ValueError:
                    continue


def _order(one: Layout) -> tuple[float, int, int, int, int, int, int]:
    """Time to three figures, then what is simplest."""
    return float(f"{one.seconds:.3g}"), *cuts(one)


def cuts(one: Layout) -> tuple[int, int, int, int, int, int]:
    """The less of it, the simpler."""
    return one.cp, one.pp, one.zero, one.tp, one.ep, RECOMPUTE.index(one.recompute)

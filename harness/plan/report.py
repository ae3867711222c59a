"""Everything that is planned for one question, as values and as text."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import UsageError
from harness.plan import advice, layout, memory, pipeline, speed, traffic
from harness.plan.advice import Advice
from harness.plan.layout import Job
from harness.plan.memory import RECOMPUTE, States

_DEFAULT_BATCH, _LARGEST_BATCH = 4 * 2**20, 16 * 2**20  # tokens; Llama 3 ended with the second
_BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. `tp`, `pp`, `cp` and `ep` None: to be chosen; `batch` 0: about 4 million
    tokens.

    `critical` is a critical batch in tokens; 0: from `loss`, nats per token, if that is given.
    """

    job: Job
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    micro_batches: int = 8
    chunks: int = 1
    tokens_per_s: float = 0.0
    critical: float = 0.0
    loss: float = 0.0


def default_batch(gpus: int, seq: int) -> int:
    """Sequences in a step when nobody says: about 4 million tokens, at least one on each GPU; where
    that would be more than 16 million, on every second or further GPU."""
    most = max(1, _LARGEST_BATCH // seq)
    if gpus > most:
        return max(size for size in range(1, most + 1) if gpus % size == 0)
    return gpus * max(1, round(_DEFAULT_BATCH / seq / gpus))


def _states(q: Question) -> dict[str, States]:
    model, dp = q.job.model, max(1, q.job.gpus // _cut(q))
    axes = {"tp": q.tp or 1, "pp": q.pp or 1, "cp": q.cp or 1, "dp": dp, "ep": q.ep or 1}
    found = {f"zero{z}": layout.states(model, **axes, zero=z) for z in memory.STAGES}
    return found | {"fsdp2": memory.fsdp2_states(model.parameters / _cut(q), dp=dp)}


def _cut(q: Question) -> int:
    return (q.tp or 1) * (q.pp or 1) * (q.cp or 1)


def _activations(q: Question) -> dict[str, dict[str, float]]:
    """Bytes of a dense layer for one sequence, or what of it cp leaves to a rank, by recomputation
    and by how it is split."""
    model, tp = q.job.model, q.tp or min(q.job.per_node, q.job.gpus)

    def layer(recompute: memory.Recompute, flash: bool, tp: int, split: bool) -> float:
        return memory.layer_activations(
            seq=q.job.seq,
            batch=1,
            hidden=model.hidden,
            heads=model.heads,
            tp=tp,
            cp=q.cp or 1,
            sequence_parallel=split,
            flash=flash,
            recompute=recompute,
        )

    kinds: list[tuple[str, memory.Recompute, bool]] = [("none", "none", False)]
    kinds += [("flash", "none", True), *((r, r, False) for r in RECOMPUTE[1:])]
    return {
        name: {
            "tp1": layer(recompute, flash, 1, False),
            f"tp{tp}": layer(recompute, flash, tp, False),
            f"tp{tp}_sequence_parallel": layer(recompute, flash, tp, True),
        }
        for name, recompute, flash in kinds
    }


def _all_reduce(q: Question) -> dict[str, traffic.Cost]:
    """The gradients of the whole model over all GPUs, three ways."""
    job = q.job
    size = _BF16 * job.model.parameters
    inside, between = (
        traffic.Link(bandwidth=job.gpu.inside),
        traffic.Link(bandwidth=job.gpu.between),
    )
    slowest = inside if job.gpus <= job.per_node else between
    found = {
        "ring": traffic.ring_all_reduce(size, job.gpus, slowest),
        "tree": traffic.tree_all_reduce(size, job.gpus, slowest),
    }
    if job.gpus > job.per_node and job.gpus % job.per_node == 0:
        found["hierarchical"] = traffic.hierarchical_all_reduce(
            size, job.gpus, job.per_node, inside, between
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answers; None: not asked for. Without `advice`, `no_layout` says why there is none."""

    question: Question
    advice: Advice | None
    no_layout: str
    states: dict[str, States]
    activations: dict[str, dict[str, float]]
    all_reduce: dict[str, traffic.Cost]
    bubble: float | None
    mfu: float | None
    batch: speed.Batch | None


def answer(q: Question) -> Plan:
    """All that can be said; that nothing fits is an answer too."""
    per_token = speed.flops_per_token(q.job.model.active)
    critical = q.critical or (speed.critical_batch(q.loss) if q.loss else 0.0)
    tokens = q.job.batch * q.job.seq
    advised, no_layout = None, ""
    try:
        advised = advice.advise(q.job, tp=q.tp, pp=q.pp, cp=q.cp, ep=q.ep)
    except UsageError as error:
        no_layout = f"{error.message}; {error.help}"
    return Plan(
        question=q,
        advice=advised,
        no_layout=no_layout,
        states=_states(q),
        activations=_activations(q),
        all_reduce=_all_reduce(q),
        bubble=pipeline.bubble(q.pp, q.micro_batches, chunks=q.chunks) if q.pp else None,
        mfu=speed.mfu(per_token, q.tokens_per_s, q.job.gpus, q.job.gpu.flops)
        if q.tokens_per_s
        else None,
        batch=speed.against_critical(tokens, critical) if critical else None,
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """Plain values: bytes, seconds, tokens and shares."""
    q = plan.question
    per_token = layout.work_per_token(q.job)

    def told(one: layout.Layout) -> dict[str, Any]:
        used = per_token * q.job.batch * q.job.seq / one.seconds / (q.job.gpus * q.job.gpu.flops)
        return asdict(one) | {
            "name": one.name,
            "bytes": one.bytes,
            "seconds": one.seconds,
            "mfu": used,
        }

    return {
        "model": asdict(q.job.model) | {"active": q.job.model.active},
        "gpu": asdict(q.job.gpu),
        "gpus": q.job.gpus,
        "gpus_per_node": q.job.per_node,
        "seq_len": q.job.seq,
        "batch": q.job.batch,
        "layout": told(plan.advice.best) if plan.advice else None,
        "reasons": list(plan.advice.reasons) if plan.advice else [plan.no_layout],
        "others": [told(one) for one in plan.advice.others] if plan.advice else [],
        "states": {name: asdict(s) | {"total": s.total} for name, s in plan.states.items()},
        "activations": plan.activations,
        "all_reduce": {name: asdict(cost) for name, cost in plan.all_reduce.items()},
        "bubble": plan.bubble,
        "mfu": plan.mfu,
        "critical_batch": plan.batch and asdict(plan.batch) | {"verdict": plan.batch.verdict},
    }


def _gb(size: float) -> str:
    return f"{size / 1e9:,.2f}"


def _table(rows: list[list[str]]) -> list[str]:
    """Columns as wide as they must be, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def as_text(plan: Plan) -> list[str]:
    """Lines for a person."""
    parts = (_head, _layout, _states_text, _activations_text, _all_reduce_text, _rest)
    return [line for part in parts for line in part(plan)]


def _head(plan: Plan) -> list[str]:
    job = plan.question.job
    m, g = job.model, job.gpu
    shape = f"{m.layers} layers, hidden {m.hidden}, {m.heads} heads, vocabulary {m.vocab:,}"
    if m.experts:
        shared = f" and {m.shared} shared" if m.shared else ""
        shape += (
            f"; {m.experts} experts, {m.top_k} a token{shared}: {m.active / 1e9:.3g} of "
            f"{m.parameters / 1e9:.3g} billion parameters at work"
        )
    return [
        f"{m.name}: {shape}",
        f"{job.gpus} x {g.name}: {g.flops / 1e12:,.0f} TFLOP/s, {g.memory / 1e9:.0f} GB; "
        f"{job.per_node} a node, {g.inside / 1e9:.0f} GB/s inside, {g.between / 1e9:.0f} between",
        f"a step: {job.batch:,} sequences of {job.seq:,} tokens",
    ]


def _layout(plan: Plan) -> list[str]:
    if plan.advice is None:
        return ["", f"layout: none: {plan.no_layout}"]
    best = plan.advice.best
    shown = as_json(plan)
    listed = (shown["layout"], *shown["others"])
    axes = ["tp", *(axis for axis in ("cp", "ep") if any(one[axis] > 1 for one in listed)), "dp"]
    rows = [["", "s a step", "compute", "pipeline", *axes, "GB a GPU", "MFU"]]
    for one in listed:
        seconds = (one["seconds"], one["compute"], one["bubble"])
        exposed = (one[f"{axis}_exposed"] for axis in axes)
        rows.append(
            [
                one["name"] + (f", {one['recompute']} recompute" * (one["recompute"] != "none")),
                *(f"{value:.2f}" for value in (*seconds, *exposed)),
                f"{one['bytes'] / 1e9:.1f}",
                f"{one['mfu']:.2f}",
            ]
        )
    return [
        "",
        f"layout: {best.name}",
        *(f"  - {reason}" for reason in plan.advice.reasons),
        *_table(rows),
    ]


def _states_text(plan: Plan) -> list[str]:
    q = plan.question
    rows = [["", "parameters", "gradients", "optimizer", "in all"]]
    names = {"zero0": "replicated", "fsdp2": "fully_shard, all in fp32"}
    for name, s in plan.states.items():
        words = names.get(name, f"ZeRO-{name[-1]}")
        rows.append([words, *map(_gb, (s.parameters, s.gradients, s.optimizer, s.total))])
    cut = _cut(q)
    where = f"dp {q.job.gpus // cut}" + (f", tp {q.tp or 1}, pp {q.pp or 1}" if cut > 1 else "")
    where += "".join(f", {axis} {n}" for axis, n in (("cp", q.cp), ("ep", q.ep)) if n and n > 1)
    return ["", f"model states, GB on each GPU ({where})", *_table(rows)]


def _activations_text(plan: Plan) -> list[str]:
    names = {
        "none": "nothing recomputed",
        "flash": "flash attention",
        "selective": "selective recomputation",
        "full": "full recomputation",
    }
    ways = list(next(iter(plan.activations.values())))
    rows = [["", *(way.replace("_", " + ").replace(" + parallel", " parallel") for way in ways)]]
    for name, sizes in plan.activations.items():
        rows.append([names[name], *(f"{sizes[way] / 2**20:,.0f}" for way in ways)])
    q = plan.question
    part = f"a cp-{q.cp} part of a sequence" if q.cp and q.cp > 1 else "one sequence"
    dense = ", with a dense feed-forward" if q.job.model.experts else ""
    title = f"activations of a layer{dense}, MiB for {part} of {q.job.seq:,} (estimate)"
    return ["", title, *_table(rows)]


def _all_reduce_text(plan: Plan) -> list[str]:
    rows = [["", "GB sent by each", "of it between nodes", "seconds"]]
    many = plan.question.job.gpus > plan.question.job.per_node
    for name, cost in plan.all_reduce.items():
        rows.append(
            [name, _gb(cost.sent), _gb(cost.between if many else 0.0), f"{cost.seconds:.3f}"]
        )
    size = _gb(_BF16 * plan.question.job.model.parameters)
    title = f"all-reduce of all gradients in bf16, {size} GB over {plan.question.job.gpus}"
    return ["", title, *_table(rows)]


def _rest(plan: Plan) -> list[str]:
    q, lines = plan.question, [""]
    if plan.bubble is not None and q.pp:
        chunked = f", {q.chunks} stages a rank" if q.chunks > 1 else ""
        lines.append(
            f"bubble: {plan.bubble:.3f} with pp {q.pp} and {q.micro_batches} micro-batches{chunked}"
        )
    if plan.mfu is not None:
        warning = ""
        if plan.mfu > speed.SUSPICIOUS:
            warning = f"; above {speed.SUSPICIOUS}: check the tokens and the peak"
        lines.append(f"MFU: {plan.mfu:.2f} at {q.tokens_per_s:,.0f} tokens/s{warning}")
    if plan.batch is not None:
        lines.append(
            f"batch: {plan.batch.size:,.0f} tokens, critical {plan.batch.critical:,.0f}: "
            + plan.batch.verdict
        )
    return lines if len(lines) > 1 else []

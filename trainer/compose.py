"""What goes with what: every combination that cannot be, as data, and the sizes that must fit.

A rule is a condition and the one line that says why. No torch here: refusals cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.trainer.config import (
    HALVED,
    SINGLE,
    V_SHAPED,
    Config,
    ConfigError,
    Layout,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """`broken` tells whether a configuration breaks it; `why` is formatted with its sections."""

    broken: Callable[[Config], bool]
    why: str


def stages(config: Config) -> int:
    """Pipeline stages over all ranks."""
    p = config.parallel
    if p.pp == 1 or p.schedule in SINGLE:
        return p.pp
    return p.pp * (p.chunks or 2)


def stage_sizes(config: Config) -> list[int]:
    """Blocks of every stage. Raises ConfigError where they cannot be had."""
    count, layers = stages(config), config.model.layers
    given = config.parallel.stage_layers
    if not given:
        if layers % count:
            raise ConfigError(
                f"--pp {config.parallel.pp}: {layers} layers cannot be split into {count} equal "
                "stages"
            )
        return [layers // count] * count
    if config.parallel.pp == 1:
        raise ConfigError(f"--stage-layers {given} needs --pp 2 or more")
    parts = given.split(",")
    sizes = [int(part) for part in parts if part.strip().isdecimal()]
    if len(sizes) != len(parts) or len(sizes) != count or sum(sizes) != layers:
        raise ConfigError(
            f"--stage-layers {given}: give {count} numbers that sum to {layers} layers"
        )
    if 0 in sizes[1:-1]:
        raise ConfigError(
            f"--stage-layers {given}: only the first and the last stage have more than blocks"
        )
    return sizes


RULES: tuple[Rule, ...] = (
    Rule(
        lambda c: bool(c.model.d_model % c.model.heads),
        "--heads {m.heads}: d_model {m.d_model} is not a multiple of it",
    ),
    Rule(
        lambda c: bool(c.model.head_dim % 2),
        "--heads {m.heads}: d_model {m.d_model} makes heads of {m.head_dim}, rotary positions need "
        "an even size",
    ),
    Rule(
        lambda c: c.model.tied and c.parallel.pp > 1,
        "--tied with --pp {p.pp}: embedding and head lie in different stages; use --no-tied",
    ),
    Rule(
        lambda c: c.parallel.schedule != "gpipe" and c.parallel.micro_batches < c.parallel.pp,
        "--micro-batches {p.micro_batches}: {p.schedule} over --pp {p.pp} needs at least {p.pp}",
    ),
    Rule(
        lambda c: c.parallel.pp == 1 and c.parallel.schedule != "1f1b",
        "--schedule {p.schedule} needs --pp 2 or more",
    ),
    Rule(
        lambda c: c.parallel.schedule in SINGLE and c.parallel.chunks > 1,
        "--chunks {p.chunks}: {p.schedule} has one stage on a rank; interleaved has several",
    ),
    Rule(
        lambda c: c.parallel.schedule in V_SHAPED and c.parallel.chunks not in (0, 2),
        "--chunks {p.chunks}: {p.schedule} has two stages on a rank",
    ),
    Rule(
        lambda c: (
            c.parallel.schedule == "dualpipe-v" and c.parallel.micro_batches < 2 * c.parallel.pp
        ),
        "--micro-batches {p.micro_batches}: dualpipe-v needs as many as stages, twice --pp {p.pp}",
    ),
    Rule(
        lambda c: (
            c.parallel.schedule in ("interleaved", "zero-bubble")
            and bool(c.parallel.micro_batches % c.parallel.pp)
        ),
        "--micro-batches {p.micro_batches}: {p.schedule} needs a multiple of --pp {p.pp}",
    ),
    Rule(
        lambda c: c.parallel.pp > 1 and c.parallel.zero in ("2", "3"),
        "--zero {p.zero} with --pp {p.pp}: every micro-batch would be reduced or gathered again; "
        "use --zero 1",
    ),
    Rule(
        lambda c: c.parallel.zero != "auto" and c.parallel.dp_shard * c.parallel.cp == 1,
        "--zero {p.zero} splits over --dp-shard, which is 1; give it the data-parallel ranks",
    ),
    Rule(
        lambda c: bool(c.parallel.dp and c.parallel.dp % c.parallel.dp_shard),
        "--dp-shard {p.dp_shard}: dp {p.dp} is not a multiple of it",
    ),
    Rule(
        lambda c: bool(
            c.parallel.cp > 1
            and c.parallel.cp_method == "ulysses"
            and (c.model.heads // c.parallel.tp) % c.parallel.cp
        ),
        "--cp {p.cp} with ulysses: {m.heads} heads over tp {p.tp} cannot be split into {p.cp} "
        "equal parts; use --cp-method ring",
    ),
    Rule(
        lambda c: bool(c.model.seq_len % (2 * c.parallel.cp * c.parallel.tp)) and c.parallel.cp > 1,
        "--cp {p.cp}: seq_len {m.seq_len} cannot be split into two equal parts for each of cp "
        "{p.cp} x tp {p.tp} ranks",
    ),
    Rule(
        lambda c: (
            c.parallel.ddp
            and c.parallel.dp_shard * c.parallel.tp * c.parallel.pp * c.parallel.cp * c.parallel.ep
            > 1
        ),
        "--ddp is plain data parallel: it goes with no --dp-shard, --tp, --pp, --cp or --ep",
    ),
    Rule(
        lambda c: (
            c.parallel.ddp
            and (c.parallel.zero != "auto" or c.parallel.offload or c.memory.meta_init)
        ),
        "--ddp keeps everything on every rank: it goes with no --zero, --offload or --meta-init",
    ),
    Rule(
        lambda c: c.parallel.ddp and c.memory.precision not in ("fp32", "fp64"),
        "--ddp with --precision {mem.precision}: 16 bit comes with fully_shard's policy; leave "
        "--ddp out",
    ),
    Rule(
        lambda c: not c.experts.experts and c.parallel.ep > 1,
        "--ep {p.ep} needs --experts",
    ),
    Rule(
        lambda c: 0 < c.experts.experts < c.experts.top_k,
        "--top-k {e.top_k}: there are only {e.experts} experts",
    ),
    Rule(
        lambda c: bool(c.experts.experts % c.parallel.ep),
        "--ep {p.ep}: {e.experts} experts cannot be split into {p.ep} equal parts",
    ),
    Rule(
        lambda c: (
            bool(c.experts.experts and c.experts.capacity) and c.parallel.tp * c.parallel.cp > 1
        ),
        "--capacity {e.capacity} with tp {p.tp} x cp {p.cp}: places are counted in whole "
        "sequences; use --capacity 0",
    ),
    Rule(
        lambda c: bool(c.experts.experts) and c.memory.precision == "fp8",
        "--precision fp8 with --experts: experts have no scales of their own yet; use bf16",
    ),
    Rule(
        lambda c: bool(c.experts.experts) and c.memory.recompute == "selective",
        "--recompute selective with --experts: the tokens' way would be taken twice; use full",
    ),
    Rule(
        lambda c: c.memory.recompute == "selective" and c.parallel.schedule in HALVED,
        "--recompute selective with --schedule {p.schedule}: its backward pass comes in two "
        "halves, and what was kept may be used once; use full",
    ),
    Rule(
        lambda c: not c.experts.experts and c.experts.shared,
        "--shared-expert needs --experts",
    ),
    Rule(
        lambda c: not c.experts.experts and c.experts.capacity > 0,
        "--capacity {e.capacity} needs --experts",
    ),
    Rule(
        lambda c: c.optim.warmup > c.optim.steps,
        "--warmup {o.warmup}: there are only {o.steps} steps",
    ),
    Rule(
        lambda c: c.optim.decay_steps > 0 and c.optim.decay != "wsd",
        "--decay-steps {o.decay_steps} is for --decay wsd; {o.decay} takes all steps that are left",
    ),
    Rule(
        lambda c: c.optim.decay_steps > c.optim.steps - c.optim.warmup,
        "--decay-steps {o.decay_steps}: only {o.steps} steps less {o.warmup} of warm-up are left",
    ),
    Rule(
        lambda c: bool(c.optim.noise_every) and (c.parallel.micro_batches < 2 or c.parallel.pp > 1),
        "--noise-every {o.noise_every} compares one micro-batch with all: it needs --micro-batches "
        "2 or more, and no --pp",
    ),
)


def check(config: Config) -> None:
    """Refuse what cannot work at any world size (ConfigError)."""
    m, p = config.model, config.parallel
    for rule in RULES:
        if rule.broken(config):
            why = rule.why.format(m=m, p=p, o=config.optim, e=config.experts, mem=config.memory)
            raise ConfigError(why)
    for name, size in (
        ("heads", m.heads),
        ("ffn width", m.hidden),
        ("seq_len", m.seq_len),
        ("vocabulary", m.vocab),
    ):
        if size % p.tp:
            raise ConfigError(f"--tp {p.tp}: {name} {size} cannot be split into {p.tp} equal parts")
    stage_sizes(config)
    for name in ("every", "memory_every"):
        steps = getattr(config.checkpoint, name)
        if steps and not config.checkpoint.dir:
            flag = f"--checkpoint-{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {steps} needs --checkpoint-dir")


def _check_experts(config: Config, ranks: int) -> None:
    """Where experts have a mesh of their own, so many ranks hold the same ones, a part of each."""
    m, p = config.model, config.parallel
    own = bool(config.experts.experts) and p.ep * p.tp > 1
    if own and m.hidden % ranks and m.d_model % ranks:
        raise ConfigError(
            f"--ep {p.ep}: {ranks} ranks hold the same experts, and neither ffn width {m.hidden} "
            f"nor d_model {m.d_model} can be split into {ranks} equal parts; give more --ep"
        )


def layout(config: Config, world_size: int) -> Layout:
    """Sizes of the axes for this many ranks; raises ConfigError when they do not fit."""
    p = config.parallel
    model = p.tp * p.pp * p.cp
    rest, left_over = divmod(world_size, model)
    dp = p.dp or rest
    if left_over or dp != rest:
        wanted = f"dp {p.dp} x " if p.dp else ""
        need = (p.dp or 1) * model
        many = "" if p.dp else "a multiple of "
        cp = f" x cp {p.cp}" if p.cp > 1 else ""
        raise ConfigError(
            f"{wanted}tp {p.tp} x pp {p.pp}{cp} needs {many}{need} ranks, there are {world_size}"
        )
    if dp % p.dp_shard:
        raise ConfigError(f"--dp-shard {p.dp_shard}: dp {dp} is not a multiple of it")
    batch = config.data.global_batch
    if batch % (dp * p.micro_batches):
        raise ConfigError(
            f"--global-batch {batch}: not a multiple of dp {dp} x {p.micro_batches} micro-batches"
        )
    beside = p.dp_shard * p.cp * p.tp
    if beside % p.ep:
        raise ConfigError(
            f"--ep {p.ep}: its ranks come from dp_shard {p.dp_shard} x cp {p.cp} x tp {p.tp}, "
            "which is not a multiple of it; give more --dp-shard"
        )
    _check_experts(config, beside // p.ep)
    return Layout(
        pp=p.pp,
        dp_replicate=dp // p.dp_shard,
        dp_shard=p.dp_shard,
        tp=p.tp,
        cp=p.cp,
        ep=p.ep,
    )

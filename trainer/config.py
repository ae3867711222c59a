"""What can be set, and what fits together; `flags.py` reads it from TOML and the command line.

Nothing here imports torch, so that wrong values are refused before anything heavy starts.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB = 256  # one token per byte


class ConfigError(Exception):
    """A wrong value; the text is the one line the user reads."""


def _opt(default: Any, text: str, **limits: Any) -> Any:
    """A field with its help text; limits: flag, least, above, most, choices."""
    return field(default=default, metadata={"help": text, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    d_model: int = _opt(128, "width of the residual stream", least=2)
    layers: int = _opt(4, "transformer blocks", least=1)
    heads: int = _opt(4, "attention heads", least=1)
    ffn: int = _opt(0, "hidden width of SwiGLU; 0: 8/3 of d_model, to a multiple of 32", least=0)
    seq_len: int = _opt(128, "tokens per sequence", least=2)
    tied: bool = _opt(False, "use the embedding as output head too")
    rope_base: float = _opt(10000.0, "base of the rotary position angles", above=1.0)

    @property
    def hidden(self) -> int:
        """Hidden width of SwiGLU; 8/3 keeps the parameter count of a 4x GELU MLP."""
        return self.ffn or 32 * math.ceil(self.d_model * 8 / 3 / 32)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    path: str = _opt("", "text file to train on; empty: Python's own help topics", flag="data")
    global_batch: int = _opt(8, "sequences per optimizer step, over all ranks", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    dp: int = _opt(0, "data-parallel ranks; 0: all that tp and pp leave", least=0)
    dp_shard: int = _opt(
        1, "ranks that share one copy of the parameters; 1: DDP, dp: ZeRO-3, else HSDP", least=1
    )
    tp: int = _opt(1, "tensor-parallel ranks (with sequence parallel)", least=1)
    pp: int = _opt(1, "pipeline stages (1F1B)", least=1)
    micro_batches: int = _opt(1, "parts a rank's batch is cut into (accumulation, 1F1B)", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    steps: int = _opt(100, "optimizer steps in all", least=1)
    lr: float = _opt(2e-3, "peak learning rate", above=0.0)
    warmup: int = _opt(10, "steps of linear warm-up", least=0)
    min_lr: float = _opt(0.1, "end of the cosine, as a share of lr", least=0.0, most=1.0)
    beta1: float = _opt(0.9, "AdamW: decay of the mean", least=0.0, most=1.0)
    beta2: float = _opt(0.95, "AdamW: decay of the mean square", least=0.0, most=1.0)
    eps: float = _opt(1e-8, "AdamW: added to the denominator", above=0.0)
    weight_decay: float = _opt(0.1, "AdamW: decay of matrices (never of norms)", least=0.0)
    clip: float = _opt(1.0, "largest gradient norm over the whole mesh; 0: no limit", least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    dir: str = _opt("", "folder of the checkpoints; empty: none are written", flag="checkpoint-dir")
    every: int = _opt(
        0, "steps between checkpoints; 0: only at the end", flag="checkpoint-every", least=0
    )
    memory_every: int = _opt(
        0,
        "steps between copies in the nodes' memory, under Harness; 0: none",
        flag="checkpoint-memory-every",
        least=0,
    )
    keep: int = _opt(3, "complete checkpoints kept", flag="checkpoint-keep", least=1)
    sync: bool = _opt(False, "training waits until each is on disk", flag="checkpoint-sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    seed: int = _opt(0, "seed of the parameters and of the order of the data", least=0)
    device: str = _opt("auto", "where to compute", choices=("auto", "cpu", "cuda"))
    threads: int = _opt(1, "CPU threads per rank", least=1)
    deterministic: bool | None = _opt(None, "only deterministic kernels; default: on the CPU")
    peak_tflops: float = _opt(
        0.0, "peak TFLOP/s of one device, for MFU; 0: known GPUs by name", least=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: Model = Model()
    data: Data = Data()
    parallel: Parallel = Parallel()
    optim: Optim = Optim()
    checkpoint: Checkpoint = Checkpoint()
    run: Run = Run()


SECTIONS: dict[str, type] = {f.name: type(f.default) for f in dataclasses.fields(Config)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands: the part of torchrun's worker environment we need."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    launched: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Place:
        """Raises ConfigError when RANK and the like are not numbers or do not fit together."""
        env = os.environ if env is None else env
        if "RANK" not in env and "WORLD_SIZE" not in env:
            return cls()
        values = {}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            text = env.get(name, env.get("RANK", "") if name == "LOCAL_RANK" else "")
            if not text.isdecimal():
                raise ConfigError(f"{name}={text!r} in the environment is not a number")
            values[name] = int(text)
        if values["RANK"] >= values["WORLD_SIZE"]:
            raise ConfigError("RANK={RANK} with WORLD_SIZE={WORLD_SIZE}".format(**values))
        return cls(
            rank=values["RANK"],
            local_rank=values["LOCAL_RANK"],
            world_size=values["WORLD_SIZE"],
            launched=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the mesh axes, outermost first; their product is the world size."""

    pp: int
    dp_replicate: int
    dp_shard: int
    tp: int

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard


def check(config: Config) -> None:
    """Refuse what cannot work at any world size (ConfigError)."""
    m, p, o = config.model, config.parallel, config.optim
    if m.d_model % m.heads:
        raise ConfigError(f"--heads {m.heads}: d_model {m.d_model} is not a multiple of it")
    if m.head_dim % 2:
        raise ConfigError(
            f"--heads {m.heads}: d_model {m.d_model} makes heads of {m.head_dim}, "
            "rotary positions need an even size"
        )
    for name, size in (
        ("heads", m.heads),
        ("ffn width", m.hidden),
        ("seq_len", m.seq_len),
        ("vocabulary", VOCAB),
    ):
        if size % p.tp:
            raise ConfigError(f"--tp {p.tp}: {name} {size} cannot be split into {p.tp} equal parts")
    if m.layers % p.pp:
        raise ConfigError(
            f"--pp {p.pp}: {m.layers} layers cannot be split into {p.pp} equal stages"
        )
    if m.tied and p.pp > 1:
        raise ConfigError(
            f"--tied with --pp {p.pp}: embedding and head lie in different stages; use --no-tied"
        )
    if p.micro_batches < p.pp:
        raise ConfigError(
            f"--micro-batches {p.micro_batches}: 1F1B over {p.pp} stages needs at least {p.pp}"
        )
    if p.dp and p.dp % p.dp_shard:
        raise ConfigError(f"--dp-shard {p.dp_shard}: dp {p.dp} is not a multiple of it")
    if o.warmup > o.steps:
        raise ConfigError(f"--warmup {o.warmup}: there are only {o.steps} steps")
    for name in ("every", "memory_every"):
        steps = getattr(config.checkpoint, name)
        if steps and not config.checkpoint.dir:
            flag = f"--checkpoint-{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {steps} needs --checkpoint-dir")


def layout(config: Config, world_size: int) -> Layout:
    """Sizes of the axes for this many ranks; raises ConfigError when they do not fit."""
    p = config.parallel
    rest, left_over = divmod(world_size, p.tp * p.pp)
    dp = p.dp or rest
    if left_over or dp != rest:
        wanted = f"dp {p.dp} x " if p.dp else ""
        need = (p.dp or 1) * p.tp * p.pp
        many = "" if p.dp else "a multiple of "
        raise ConfigError(
            f"{wanted}tp {p.tp} x pp {p.pp} needs {many}{need} ranks, there are {world_size}"
        )
    if dp % p.dp_shard:
        raise ConfigError(f"--dp-shard {p.dp_shard}: dp {dp} is not a multiple of it")
    batch = config.data.global_batch
    if batch % (dp * p.micro_batches):
        raise ConfigError(
            f"--global-batch {batch}: not a multiple of dp {dp} x {p.micro_batches} micro-batches"
        )
    return Layout(pp=p.pp, dp_replicate=dp // p.dp_shard, dp_shard=p.dp_shard, tp=p.tp)

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
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "fp64")
SCHEDULES = (*("1f1b", "gpipe", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipe-v"),)
SINGLE = ("1f1b", "gpipe")
"""Schedules with one stage on a rank."""
V_SHAPED = ("zbv", "dualpipe-v")
"""Those that go down the ranks and back up: the first rank has the first and the last stage."""
HALVED = ("zero-bubble", "zbv", "dualpipe-v")
"""Those that take the gradient of the weights later than that of the input."""


class ConfigError(Exception):
    """A wrong value; the text is the one line the user reads."""


def _opt(default: Any, text: str, **limits: Any) -> Any:
    """A field with its help text; limits: flag, least, above, below, most, choices."""
    return field(default=default, metadata={"help": text, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    d_model: int = _opt(128, "width of the residual stream", least=2)
    layers: int = _opt(4, "transformer blocks", least=1)
    heads: int = _opt(4, "attention heads", least=1)
    ffn: int = _opt(0, "hidden width of SwiGLU; 0: 8/3 of d_model, to a multiple of 32", least=0)
    seq_len: int = _opt(128, "tokens per sequence", least=2)
    vocab: int = _opt(VOCAB, "kinds of tokens; 256: one a byte", least=2)
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
class Experts:
    """Mixture of experts in place of every feed-forward layer; docs/trainer.md."""

    experts: int = _opt(0, "experts of a layer; 0: a dense model", least=0)
    top_k: int = _opt(2, "experts that each token goes to", least=1)
    shared: bool = _opt(False, "one more expert that every token goes to", flag="shared-expert")
    capacity: float = _opt(
        0.0,
        "places of an expert over its even share of a sequence; 0: no token is dropped",
        least=0,
    )
    balance: str = _opt(
        "loss", "what evens the experts' loads", flag="balance", choices=("loss", "bias", "none")
    )
    balance_weight: float = _opt(0.01, "weight of the balance loss, or step of the bias", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    path: str = _opt(
        "", "text, or file of tokens, to train on; empty: Python's own help topics", flag="data"
    )
    global_batch: int = _opt(8, "sequences per optimizer step, over all ranks", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    dp: int = _opt(0, "data-parallel ranks; 0: all that tp and pp leave", least=0)
    dp_shard: int = _opt(
        1, "ranks that share one copy of the parameters; 1: DDP, dp: ZeRO-3, else HSDP", least=1
    )
    tp: int = _opt(1, "tensor-parallel ranks (with sequence parallel)", least=1)
    pp: int = _opt(1, "pipeline ranks", least=1)
    micro_batches: int = _opt(
        1, "parts a rank's batch is cut into (accumulation, pipeline)", least=1
    )
    zero: str = _opt(
        "auto",
        "ZeRO stage on the dp_shard ranks; auto: 3, gradients reduced once a step",
        choices=("auto", "1", "2", "3"),
    )
    ddp: bool = _opt(False, "PyTorch's DistributedDataParallel in place of fully_shard")
    bucket_mb: float = _opt(25.0, "ddp: gradients reduced at once", above=0.0)
    offload: bool = _opt(False, "parameters, gradients and optimizer state rest in CPU memory")
    schedule: str = _opt("1f1b", "order of the pipeline's work", choices=SCHEDULES)
    chunks: int = _opt(
        0, "stages on a pipeline rank, where the schedule has several; 0: 2", least=0
    )
    stage_layers: str = _opt(
        "",
        "blocks of each stage with commas between, to even out embedding and head; ends may have 0",
    )
    cp: int = _opt(1, "context-parallel ranks, which share every sequence", least=1)
    cp_method: str = _opt(
        "ring", "how they see each other's keys", choices=("ring", "ulysses", "gather")
    )
    ep: int = _opt(1, "expert-parallel ranks, taken from dp_shard, cp and tp", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    precision: str = _opt("fp32", "of the computation; fp64 is for proofs", choices=PRECISIONS)
    loss_scale: float = _opt(65536.0, "fp16: first loss scale; it then follows overflows", above=0)
    recompute: str = _opt(
        "none",
        "activations computed again in the backward pass; selective keeps matrix products",
        choices=("none", "selective", "full"),
    )
    meta_init: bool = _opt(False, "build without memory, then fill what lies on this rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    optimizer: str = _opt("adamw", "the rule of a step", choices=("adamw", "lamb", "lars", "sgd"))
    steps: int = _opt(100, "optimizer steps in all", least=1)
    lr: float = _opt(2e-3, "peak learning rate", above=0.0)
    warmup: int = _opt(10, "steps of linear warm-up", least=0)
    decay: str = _opt(
        "cosine",
        "course of the rate after the warm-up; wsd: constant, then linear",
        choices=("cosine", "linear", "wsd", "constant"),
    )
    decay_steps: int = _opt(0, "wsd: steps of its decay; 0: a fifth of all", least=0)
    min_lr: float = _opt(0.1, "end of the decay, as a share of lr", least=0.0, most=1.0)
    lr_batch: int = _opt(0, "global batch that lr was found for; 0: lr is not scaled", least=0)
    lr_scaling: str = _opt(
        "sqrt", "how lr grows with the batch over lr_batch", choices=("sqrt", "linear")
    )
    momentum: float = _opt(0.9, "sgd, lars: momentum", least=0.0, most=1.0)
    noise_every: int = _opt(
        0, "steps between estimates of the gradient noise scale; 0: none", least=0
    )
    beta1: float = _opt(0.9, "AdamW: decay of the mean", least=0.0, below=1.0)
    beta2: float = _opt(0.95, "AdamW: decay of the mean square", least=0.0, below=1.0)
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
    backend: str = _opt(
        "auto",
        "of the process group; auto: nccl on GPUs; with gloo ranks may share a GPU",
        choices=("auto", "nccl", "gloo"),
    )
    threads: int = _opt(1, "CPU threads per rank", least=1)
    deterministic: bool | None = _opt(None, "only deterministic kernels; default: on the CPU")
    breakdown: bool = _opt(False, "say in each line where the step's time and memory went")
    peak_tflops: float = _opt(
        0.0,
        "peak TFLOP/s of one device, for MFU; 0: known GPUs by name, measured on a CPU with "
        "--breakdown",
        least=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: Model = Model()
    experts: Experts = Experts()
    data: Data = Data()
    parallel: Parallel = Parallel()
    memory: Memory = Memory()
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
    local_world_size: int = 1
    launched: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Place:
        """Raises ConfigError when RANK and the like are not numbers or do not fit together."""
        env = os.environ if env is None else env
        if "RANK" not in env and "WORLD_SIZE" not in env:
            return cls()
        values = {}
        usual = {"LOCAL_RANK": "RANK", "LOCAL_WORLD_SIZE": "WORLD_SIZE"}  # one node's launchers
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            text = env.get(name, env.get(usual.get(name, ""), ""))
            if not text.isdecimal():
                raise ConfigError(f"{name}={text!r} in the environment is not a number")
            values[name] = int(text)
        if values["RANK"] >= values["WORLD_SIZE"]:
            raise ConfigError("RANK={RANK} with WORLD_SIZE={WORLD_SIZE}".format(**values))
        return cls(
            rank=values["RANK"],
            local_rank=values["LOCAL_RANK"],
            world_size=values["WORLD_SIZE"],
            local_world_size=values["LOCAL_WORLD_SIZE"],
            launched=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the mesh axes, outermost first; their product is the world size."""

    pp: int
    dp_replicate: int
    dp_shard: int
    tp: int
    cp: int = 1
    ep: int = 1

    @property
    def fsdp(self) -> int:
        """Ranks that share one copy of the parameters: context parallel ranks are among them."""
        return self.dp_shard * self.cp

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def ranks(self) -> int:
        return self.pp * self.dp * self.cp * self.tp

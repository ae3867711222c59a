"""One configuration: dataclasses, a TOML file, flags made from the same fields.

Nothing here imports torch, so that wrong values are refused before anything heavy starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

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
    keep: int = _opt(3, "complete checkpoints kept", flag="checkpoint-keep", least=1)


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


def flag_of(f: dataclasses.Field[Any]) -> str:
    return "--" + str(f.metadata.get("flag", f.name.replace("_", "-")))


def _similar(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _coerce(f: dataclasses.Field[Any], kind: Any, value: object, where: str) -> object:
    """The value in the field's type, or a ConfigError that names `where` it was given."""
    wanted = {int: "an integer", float: "a number", str: "a text"}.get(kind, "true or false")
    if kind is float and type(value) is int:
        value = float(value)
    if kind not in (int, float, str):
        kind = bool
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{where} must be {wanted}, not {value!r}")
    limits = f.metadata
    if isinstance(value, int | float):
        if "least" in limits and value < limits["least"]:
            raise ConfigError(f"{where} must be at least {limits['least']:g}, not {value:g}")
        if "above" in limits and value <= limits["above"]:
            raise ConfigError(f"{where} must be above {limits['above']:g}, not {value:g}")
        if "most" in limits and value > limits["most"]:
            raise ConfigError(f"{where} must be at most {limits['most']:g}, not {value:g}")
    if "choices" in limits and value not in limits["choices"]:
        raise ConfigError(f"{where} must be one of {', '.join(limits['choices'])}, not {value!r}")
    return value


def read_toml(path: str) -> dict[str, dict[str, object]]:
    """Checked values of a TOML file by section and key.

    Raises ConfigError: unreadable, not TOML, unknown section or key, wrong type or range.
    """
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None
    values: dict[str, dict[str, object]] = {}
    for section, content in raw.items():
        if section not in SECTIONS:
            raise ConfigError(
                f"{path}: unknown section [{section}]{_similar(section, [*SECTIONS])}"
            )
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {section} must be a section, [{section}]")
        known = {f.name: f for f in dataclasses.fields(SECTIONS[section])}
        kinds = typing.get_type_hints(SECTIONS[section])
        for key, value in content.items():
            where = f"{path}: [{section}] {key}"
            if key not in known:
                raise ConfigError(
                    f"{path}: unknown key {key} in [{section}]{_similar(key, [*known])}"
                )
            values.setdefault(section, {})[key] = _coerce(known[key], kinds[key], value, where)
    return values


class _Parser(argparse.ArgumentParser):
    """argparse that reports an error as one line and prints help only where asked."""

    quiet = False

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def print_help(self, file: Any = None) -> None:
        if not self.quiet:
            super().print_help(file)


def _parser() -> _Parser:
    parser = _Parser(
        prog="train.py",
        usage="train.py [--config FILE] [flags]",
        description="Train a byte-level transformer; a flag wins over the TOML file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file of the settings")
    for section, cls in SECTIONS.items():
        group = parser.add_argument_group(f"[{section}]")
        kinds = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            shown = f"{f.metadata['help']} (default: {f.default!r})"
            more: dict[str, Any] = {"dest": f"{section}.{f.name}", "default": argparse.SUPPRESS}
            if kinds[f.name] in (int, float, str):
                more |= {"type": kinds[f.name], "metavar": kinds[f.name].__name__.upper()}
            else:
                more |= {"action": argparse.BooleanOptionalAction}
            group.add_argument(flag_of(f), help=shown.replace("%", "%%"), **more)
    return parser


def parse(argv: Sequence[str], *, quiet: bool = False) -> Config:
    """The configuration of a command line: defaults, then --config FILE, then flags.

    Raises ConfigError for anything wrong in itself; `layout` checks what depends on the world.
    """
    parser = _parser()
    parser.quiet = quiet
    given, unknown = parser.parse_known_args(list(argv))
    if unknown:
        word = unknown[0].split("=")[0]
        flags = [flag for action in parser._actions for flag in action.option_strings]
        raise ConfigError(f"unknown argument {word}{_similar(word, flags)}")
    options = vars(given)
    file = options.pop("config")
    values = read_toml(file) if file is not None else {}
    for dest, value in options.items():
        section, _, name = dest.partition(".")
        cls = SECTIONS[section]
        f = next(f for f in dataclasses.fields(cls) if f.name == name)
        kind = typing.get_type_hints(cls)[name]
        values.setdefault(section, {})[name] = _coerce(f, kind, value, flag_of(f))
    config = Config(**{name: cls(**values.get(name, {})) for name, cls in SECTIONS.items()})
    check(config)
    return config


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
    if config.checkpoint.every and not config.checkpoint.dir:
        raise ConfigError(f"--checkpoint-every {config.checkpoint.every} needs --checkpoint-dir")


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

"""The shapes of language models and the figures of GPUs that a plan begins with."""

import math
import re
from dataclasses import dataclass, replace

from harness.errors import LayoutError

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer. `parameters` is the nominal count that figures are made from."""

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Makers' figures: dense bf16 FLOP/s, bytes of memory, bytes/s one way inside and between
    nodes for each GPU."""

    name: str
    flops: float
    memory: float
    inside: float
    between: float


def _model(name: str, parameters: float, layers: int, hidden: int, heads: int, kv: int) -> Model:
    return Model(
        name=name,
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv,
        vocab=32000 if name in ("7B", "13B") else 128256,
    )


MODELS = {
    each.name: each
    for each in (
        _model("1B", 1e9, 16, 2048, 32, 8),
        _model("7B", 7e9, 32, 4096, 32, 32),
        _model("8B", 8e9, 32, 4096, 32, 8),
        _model("13B", 13e9, 40, 5120, 40, 40),
        _model("70B", 70e9, 80, 8192, 64, 8),
        _model("405B", 405e9, 126, 16384, 128, 8),
    )
}
"""Llama 2 (7B, 13B) and Llama 3 shapes, arXiv:2307.09288 and 2407.21783."""

GPUS = {
    each.name: each
    for each in (
        Gpu(name="A100", flops=312e12, memory=80e9, inside=300e9, between=25e9),
        Gpu(name="H100", flops=989e12, memory=80e9, inside=450e9, between=50e9),
        Gpu(name="H200", flops=989e12, memory=141e9, inside=450e9, between=50e9),
        Gpu(name="B200", flops=2250e12, memory=180e9, inside=900e9, between=50e9),
    )
}
"""SXM boards; between nodes one 200 (A100) or 400 Gbit/s port for each GPU."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MBT])", re.IGNORECASE)
_ASPECT = 128
"""Hidden width over layers of the models between 7B and 405B."""


def known(name: str) -> Model:
    """The model of that name, or one of that many parameters with a shape of usual proportions.

    Raises UsageError for what is neither a name nor a size.
    """
    given = name.upper()
    if given in MODELS:
        return MODELS[given]
    size = _SIZE.fullmatch(name)
    if not size or not float(size[1]):
        raise LayoutError(
            f"no model is called {name!r}",
            help=f"there are {', '.join(MODELS)}; or give a size such as 3B or 350M",
        )
    parameters = float(size[1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[size[2].upper()]
    # 12 h^2 parameters a layer (Kaplan et al. 2020, arXiv:2001.08361) and h = 128 layers.
    layers = max(1, round((parameters / (12 * _ASPECT**2)) ** (1 / 3)))
    width = math.sqrt(parameters / (12 * layers))
    step = 1024 if width > 4096 else 128  # heads of 128, a multiple of 8 of them in large models
    hidden = max(step, step * round(width / step))
    heads = hidden // 128
    return replace(
        MODELS["8B"],
        name=given,
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
    )


def gpu(name: str) -> Gpu:
    """The GPU of that name. Raises UsageError."""
    if name.upper() not in GPUS:
        raise LayoutError(f"no GPU is called {name!r}", help=f"there are {', '.join(GPUS)}")
    return GPUS[name.upper()]

"""The shapes of language models and the figures of GPUs that a plan begins with."""

import math
import re
from dataclasses import dataclass, replace

from harness.errors import LayoutError

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer. `parameters` is the nominal count that figures are made from.

    `experts` 0: dense. Else each token goes to `top_k` of them in every layer, and to `shared` more
    that all tokens meet; `expert` counts the parameters of one in one layer (of models whose first
    layers are dense: the mean over all layers).
    """

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    shared: int = 0
    expert: float = 0.0

    @property
    def in_experts(self) -> float:
        """Parameters that expert parallel can spread; shared experts are not among them."""
        return self.layers * self.experts * self.expert

    @property
    def active(self) -> float:
        """Parameters that one token meets."""
        return self.parameters - self.layers * (self.experts - self.top_k) * self.expert


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


def _mixture(
    name: str,
    parameters: float,
    shape: tuple[int, int, int, int, int],
    experts: tuple[int, int, int],
    expert: float,
) -> Model:
    """`shape`: layers, hidden, heads, kv_heads, vocab; `experts`: of a layer, top-k, shared."""
    layers, hidden, heads, kv_heads, vocab = shape
    count, top_k, shared = experts
    return Model(
        name=name,
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        experts=count,
        top_k=top_k,
        shared=shared,
        expert=expert,
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
        _mixture("8x7B", 46.7e9, (32, 4096, 32, 8, 32000), (8, 2, 0), 3 * 4096 * 14336),
        _mixture("8x22B", 141e9, (56, 6144, 48, 8, 32768), (8, 2, 0), 3 * 6144 * 16384),
        _mixture("30B-A3B", 30.5e9, (48, 2048, 32, 4, 151936), (128, 8, 0), 3 * 2048 * 768),
        _mixture("235B-A22B", 235e9, (94, 4096, 64, 4, 151936), (128, 8, 0), 3 * 4096 * 1536),
        _mixture(
            "671B-A37B",
            671e9,
            (61, 7168, 128, 128, 129280),
            (256, 8, 1),
            3 * 7168 * 2048 * 58 / 61,  # the first three of 61 layers are dense
        ),
    )
}
"""Llama 2 (7B, 13B) and Llama 3 shapes, arXiv:2307.09288 and 2407.21783; with experts: Mixtral
(8x7B, 8x22B, arXiv:2401.04088), Qwen3 (30B-A3B, 235B-A22B, arXiv:2505.09388) and DeepSeek-V3
(671B-A37B, arXiv:2412.19437)."""

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
    named = {each.upper(): model for each, model in MODELS.items()}
    if given in named:
        return named[given]
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


def with_experts(model: Model, *, experts: int, top_k: int, shared: int = 0) -> Model:
    """The model with `experts` feed-forward layers of its own size in place of each, as in Mixtral.

    What a layer has beside attention is its feed-forward; where the nominal count leaves none, it
    is the usual 8 h^2. Raises UsageError where the model has experts, or less than `top_k`.
    """
    if model.experts:
        raise LayoutError(
            f"{model.name} has {model.experts} experts of its own", help="leave --experts out"
        )
    if top_k > experts:
        raise LayoutError(
            f"--top-k {top_k}: there are only {experts} experts", help="give fewer, or more experts"
        )
    h = model.hidden
    attention = h * h * (2 + 2 * model.kv_heads / model.heads)
    one = (model.parameters - 2 * model.vocab * h) / model.layers - attention
    one = one if one > 4 * h * h else 8 * h * h
    return replace(
        model,
        name=f"{model.name} x {experts} experts",
        parameters=model.parameters + model.layers * one * (experts + shared - 1),
        experts=experts,
        top_k=top_k,
        shared=shared,
        expert=one,
    )


def gpu(name: str) -> Gpu:
    """The GPU of that name. Raises UsageError."""
    if name.upper() not in GPUS:
        raise LayoutError(f"no GPU is called {name!r}", help=f"there are {', '.join(GPUS)}")
    return GPUS[name.upper()]

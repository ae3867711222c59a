"""Bytes on one GPU: the model's states by ZeRO stage, and the activations of a layer."""

from dataclasses import dataclass
from typing import Literal, get_args

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes on one GPU."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def model_states(parameters: float, *, dp: int = 1, zero: int = 0) -> States:
    """Mixed precision with Adam: 2 + 2 + 12 bytes a parameter, of which ZeRO splits over `dp`.

    Stage 1 splits the optimizer's 12 (single-precision parameters, mean and variance), 2 the
    gradients too, 3 all. `parameters` are those on this GPU when nothing is split, so already
    divided by tp and pp. Rajbhandari et al. 2020, arXiv:1910.02054. ValueError: no such stage.
    """
    if zero not in STAGES or dp < 1:
        raise ValueError(f"ZeRO stage {zero} over {dp} ranks")
    return States(
        parameters=2 * parameters / (dp if zero >= 3 else 1),
        gradients=2 * parameters / (dp if zero >= 2 else 1),
        optimizer=12 * parameters / (dp if zero >= 1 else 1),
    )


def fsdp2_states(parameters: float, *, dp: int = 1) -> States:
    """The same as PyTorch's fully_shard keeps it: everything in single precision and split over
    `dp`; the bf16 copy lives only while a block is gathered."""
    return States(
        parameters=4 * parameters / dp, gradients=4 * parameters / dp, optimizer=8 * parameters / dp
    )


def layer_activations(
    *,
    seq: int,
    batch: int,
    hidden: int,
    heads: int,
    tp: int = 1,
    cp: int = 1,
    sequence_parallel: bool = False,
    flash: bool = False,
    recompute: Recompute = "none",
) -> float:
    """Bytes that one layer keeps for its backward pass, in 16 bit: s b h (34 + 5 a s / h).

    The second term is the attention matrix: flash attention and selective recomputation do
    without it. Tensor parallel divides 24 of the 34 and the attention by t, sequence parallel the
    other 10 too; full recomputation keeps the layer's input alone, 2 s b h. An estimate: it
    counts a GELU MLP of width 4 h and dropout masks. Korthikanti et al. 2022, arXiv:2205.05198.
    """
    sbh = seq / cp * batch * hidden
    whole = tp if sequence_parallel else 1
    if recompute == "full":
        return 2 * sbh / whole
    attention = 0.0 if flash or recompute == "selective" else 5 * heads * seq / hidden
    return sbh * (10 / whole + 24 / tp + attention / tp)


def expert_activations(
    *, seq: int, batch: int, hidden: int, met: float, top_k: int, tp: int = 1, cp: int = 1
) -> float:
    """Bytes that a layer with experts keeps beyond `layer_activations` with sequence parallel and
    flash attention: s b h (19 (w - 1) + 4 k) / t.

    19 of the 34 are the feed-forward's (Korthikanti et al. 2022, arXiv:2205.05198); a token meets
    `met` = w times the usual one of 8 h^2 parameters, and is kept once more for each of its `top_k`
    experts on the way to them and on the way back. An estimate: as if loads were even.
    """
    return seq / cp * batch * hidden * (19 * (met - 1) + 4 * top_k) / tp


def in_flight(*, pp: int, micro_batches: int, schedule: str = "1f1b", chunks: int = 1) -> float:
    """Micro-batches whose activations the first stage holds at once, in shares of its layers.

    GPipe all; 1F1B as many as there are stages; interleaved a share of the pipeline more
    (Narayanan et al. 2021, arXiv:2104.04473).
    """
    if schedule == "gpipe":
        return micro_batches
    most = pp * (1 + (pp - 1) / (pp * chunks)) if chunks > 1 else pp
    return min(micro_batches, most)

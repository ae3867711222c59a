"""How well the hardware is used, and how large a batch is worth its tokens."""

import math
from dataclasses import dataclass

from harness.plan.memory import Recompute

SUSPICIOUS = 0.6
"""No published training of a dense model reached an MFU above this."""


def flops_per_token(
    parameters: float, *, layers: int = 0, hidden: int = 0, seq: float = 0
) -> float:
    """6 FLOPs a parameter, forward and backward, and 12 layers x hidden x seq for attention when
    a shape is given. Chowdhery et al. 2022, arXiv:2204.02311, appendix B."""
    return 6 * parameters + 12 * layers * hidden * seq


def mfu(per_token: float, tokens_per_s: float, gpus: int, peak: float) -> float:
    """Model FLOPs utilisation: the FLOPs that the model needs over those the GPUs could do."""
    return per_token * tokens_per_s / (gpus * peak)


def hfu(utilisation: float, recompute: Recompute) -> float:
    """Hardware FLOPs utilisation: the MFU with what is computed again counted too.

    Full recomputation is one more forward pass, 8 FLOPs for 6. The attention core that selective
    recomputation repeats is not among the 6.
    """
    return utilisation * (8 / 6 if recompute == "full" else 1)


def ideal_tokens_per_s(per_token: float, gpus: int, peak: float, utilisation: float) -> float:
    """Tokens/s at that MFU."""
    return utilisation * gpus * peak / per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch beside the critical one, both in tokens.

    `steps` is how many times the fewest possible steps are needed, `tokens` how many times the
    fewest possible tokens.
    """

    size: float
    critical: float
    steps: float
    tokens: float

    @property
    def verdict(self) -> str:
        share = self.size / self.critical
        if share > 1:
            return (
                f"above the critical batch: {self.tokens:.2f} x the fewest tokens, "
                f"for {self.steps:.2f} x the fewest steps"
            )
        return (
            f"{share:.2f} of the critical batch: more GPUs still save time almost in "
            f"proportion, for {self.tokens:.2f} x the fewest tokens"
        )


def against_critical(size: float, critical: float) -> Batch:
    """Steps grow by 1 + critical / size, tokens by 1 + size / critical over their minimum.

    McCandlish et al. 2018, arXiv:1812.06162; `critical` is the gradient noise scale.
    """
    return Batch(
        size=size, critical=critical, steps=1 + critical / size, tokens=1 + size / critical
    )


def critical_batch(loss: float) -> float:
    """Critical batch in tokens at a loss in nats per token: 2.1e8 / loss^4.76 for language models.

    Kaplan et al. 2020, arXiv:2001.08361, section 5.1. Their text and tokens: a first guess, the
    trainer measures its own noise scale.
    """
    return 2.1e8 / math.pow(loss, 4.76)


def scaled_rate(rate: float, batch: float, reference: float, *, square_root: bool) -> float:
    """Learning rate for another batch: in proportion (SGD, Goyal et al. 2017, arXiv:1706.02677)
    or by the square root (Adam, Malladi et al. 2022, arXiv:2205.10287)."""
    times = batch / reference
    return rate * (math.sqrt(times) if square_root else times)

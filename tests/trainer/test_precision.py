"""Linear layers in 8 bit, in one process; whole trainings: test_proof.py and test_lines.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.trainer import precision
from harness.trainer.precision import Float8Linear, Scales

EIGHT = torch.cuda.is_available() and precision.hardware(torch.device("cuda"))
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not EIGHT, reason="no GPU with 8 bit")),
]


def pair(scales: Scales) -> tuple[nn.Linear, Float8Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(32, 48, bias=False, dtype=torch.bfloat16)
    eight = nn.Linear(32, 48, bias=False, dtype=torch.bfloat16)
    eight.load_state_dict(plain.state_dict())
    eight.__class__ = Float8Linear
    assert isinstance(eight, Float8Linear)
    eight.name, eight.scales = "one", scales
    return plain, eight


def passed(layer: nn.Linear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x)
    grads = torch.autograd.grad(out, (x, layer.weight), torch.sin(out.detach()))
    return out.detach(), *grads


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


def test_eight_bits_are_near_sixteen() -> None:
    plain, eight = pair(Scales())
    x = torch.randn(4, 16, 32, dtype=torch.bfloat16)
    bounds = (0.05, 0.1, 0.1)  # E4M3 has 3 bits behind the point, E5M2 2
    for ours, theirs, bound in zip(passed(eight, x), passed(plain, x), bounds, strict=True):
        assert ours.shape == theirs.shape
        assert 0 < off(ours, theirs) < bound


@pytest.mark.parametrize("device", DEVICES)
def test_the_hardware_product_is_the_emulated_one(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch._scaled_mm, which a GPU runs in 8 bit, exists on the CPU too."""
    _, eight = pair(Scales())
    eight.to(device)
    x = torch.randn(4, 16, 32, dtype=torch.bfloat16).to(device)
    assert precision.native(x.flatten(0, 1), eight.weight) == (device == "cuda")
    with monkeypatch.context() as patch:
        patch.setattr(precision, "native", lambda a, b: False)
        emulated = passed(eight, x)
        patch.setattr(precision, "native", lambda a, b: True)
        for ours, theirs in zip(passed(eight, x), emulated, strict=True):
            assert off(ours, theirs) < 2**-8  # one rounding to bf16


def test_scales_come_from_the_steps_before() -> None:
    scales = Scales(names=["one"])
    _, eight = pair(scales)
    eight.rounded(0, torch.full((2, 2), 3.0))
    assert float(scales.current["one"][0]) == 3.0
    scales.history.append({"one": [7.0, 1.0, 1.0]})
    values, scale = eight.rounded(0, torch.tensor([[7.0, 14.0]]))
    assert scale == 64.0  # 7 x 64 = 448, the largest of E4M3
    assert (values.float() / scale).tolist() == [[7.0, 7.0]], "what is larger now saturates"


def test_zeros_stay_zeros() -> None:
    _, eight = pair(Scales())
    assert not eight(torch.zeros(2, 2, 32, dtype=torch.bfloat16)).any()

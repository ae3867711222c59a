"""What an optimizer does, step by step, against the papers' formulas and plain PyTorch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from harness.trainer import optim
from harness.trainer.config import Optim
from harness.trainer.layerwise import Lamb, Lars
from harness.trainer.precision import LossScale

BASE = Optim(steps=100, warmup=10, lr=1.0, min_lr=0.1)


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (BASE, {1: 0.1, 10: 1.0, 55: 0.55, 100: 0.1}),
        (replace(BASE, decay="linear"), {10: 1.0, 55: 0.55, 100: 0.1}),
        (replace(BASE, decay="constant"), {5: 0.5, 10: 1.0, 100: 1.0}),
        (replace(BASE, decay="wsd"), {10: 1.0, 80: 1.0, 90: 0.55, 100: 0.1}),
        (replace(BASE, decay="wsd", decay_steps=50), {50: 1.0, 75: 0.55, 100: 0.1}),
        (replace(BASE, warmup=0, decay="linear", min_lr=0.0), {50: 0.5, 100: 0.0}),
    ],
)
def test_the_course_of_the_rate(config: Optim, rates: dict[int, float]) -> None:
    for step, rate in rates.items():
        assert optim.learning_rate(config, step) == pytest.approx(rate)


def test_the_rate_grows_with_the_batch() -> None:
    scaled = replace(BASE, lr_batch=8)
    assert optim.learning_rate(scaled, 10, batch=32) == 2.0
    assert optim.learning_rate(replace(scaled, lr_scaling="linear"), 10, batch=32) == 4.0
    assert optim.learning_rate(BASE, 10, batch=32) == 1.0


def weights() -> tuple[nn.Parameter, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    vector = torch.randn(4, generator=generator, dtype=torch.float64)
    return nn.Parameter(matrix), nn.Parameter(vector)


def gradient(step: int, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def groups(matrix: nn.Parameter, vector: nn.Parameter) -> list[dict[str, object]]:
    return [
        {"params": [matrix], "weight_decay": 0.1},
        {"params": [vector], "weight_decay": 0.0},
    ]


def test_lamb_is_the_papers() -> None:
    matrix, vector = weights()
    w, v = matrix.detach().clone(), vector.detach().clone()
    chosen = Lamb(groups(matrix, vector), lr=0.01, betas=(0.9, 0.99), eps=1e-6)
    mean, square = torch.zeros_like(w), torch.zeros_like(w)
    adam = torch.optim.Adam([plain := nn.Parameter(v)], lr=0.01, betas=(0.9, 0.99), eps=1e-6)
    for step in range(1, 6):
        matrix.grad, vector.grad = gradient(step, w), gradient(step, v)
        plain.grad = gradient(step, v)
        mean = 0.9 * mean + 0.1 * matrix.grad
        square = 0.99 * square + 0.01 * matrix.grad**2
        way = mean / (1 - 0.9**step) / ((square / (1 - 0.99**step)).sqrt() + 1e-6) + 0.1 * w
        w = w - 0.01 * w.norm() / way.norm() * way
        chosen.step()
        adam.step()
        torch.testing.assert_close(matrix.detach(), w)
        torch.testing.assert_close(vector.detach(), plain.detach())


def test_lars_is_the_papers() -> None:
    matrix, vector = weights()
    w = matrix.detach().clone()
    chosen = Lars(groups(matrix, vector), lr=2.0, momentum=0.9)
    momentum = torch.zeros_like(w)
    for step in range(1, 6):
        matrix.grad, vector.grad = gradient(step, w), gradient(step, vector)
        way = matrix.grad + 0.1 * w
        momentum = 0.9 * momentum + 0.001 * w.norm() / way.norm() * way
        w = w - 2.0 * momentum
        chosen.step()
        torch.testing.assert_close(matrix.detach(), w)


def test_a_tensor_of_zeros_can_be_left() -> None:
    matrix = nn.Parameter(torch.zeros(3, 3))
    chosen = Lamb([{"params": [matrix], "weight_decay": 0.1}], lr=0.1, betas=(0.9, 0.9), eps=1e-8)
    matrix.grad = torch.ones(3, 3)
    chosen.step()
    torch.testing.assert_close(matrix.detach(), torch.full((3, 3), -0.1))


def test_the_noise_scale_of_gradients_that_are_known() -> None:
    """Gradients of single tokens are N(mean, 1) in 50 dimensions: trace 50, |mean|^2 2."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((50,), 0.2, dtype=torch.float64)
    noise, scale = optim.Noise(decay=0.995), 0.0
    for _ in range(2000):
        tokens = mean + torch.randn(64, 50, generator=generator, dtype=torch.float64)
        small, large = tokens[:16].mean(0), tokens.mean(0)
        scale = noise.note(16, float(small @ small), 64, float(large @ large))
    assert scale == pytest.approx(50 / 2, rel=0.1)


def test_the_loss_scale_follows_overflows() -> None:
    scale = LossScale(value=1024.0, dynamic=True, patience=3)
    scale.after(False)
    assert scale.value == 512.0
    for _ in range(3):
        scale.after(True)
    assert (scale.value, scale.good) == (1024.0, 0)
    fixed = LossScale()
    fixed.after(False)
    assert (fixed.value, fixed.dynamic) == (1.0, False)
    assert math.isfinite(scale.value)

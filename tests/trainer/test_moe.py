"""Routing, places and balance of a mixture in one process; across ranks: test_proof.py."""

from __future__ import annotations

import torch

from harness.trainer.config import Experts, Model
from harness.trainer.moe import Mixture

MODEL = Model(d_model=8, heads=2, ffn=16, seq_len=16)


def mixture(**settings: object) -> Mixture:
    made = Mixture(MODEL, Experts(experts=4, **settings))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(generator=generator)
    return made


def tokens() -> torch.Tensor:
    return torch.randn(3, 16, 8, generator=torch.Generator().manual_seed(1))


def test_every_token_is_the_weighted_sum_of_its_experts() -> None:
    made, x = mixture(shared=True), tokens()
    weights, chosen = made._route(x)
    expected = torch.zeros_like(x)
    for row in range(3):
        for place in range(16):
            experts = chosen[row, place].tolist()
            total = weights[row, place, experts].sum()
            for expert in experts:
                counts = [int(i == expert) for i in range(4)]
                out = made.experts(x[row, place][None], counts)[0]
                expected[row, place] += weights[row, place, expert] / total * out
    assert made.shared is not None
    torch.testing.assert_close(made(x), expected + made.shared(x))
    assert made.loads.tolist()[-1] == 0
    assert made.loads[:-1].sum() == 3 * 16 * 2


def test_the_router_learns_with_one_expert_a_token() -> None:
    made, x = mixture(top_k=1, balance="none"), tokens()
    made(x).square().sum().backward()
    assert made.router.weight.grad is not None
    assert float(made.router.weight.grad.norm()) > 1e-3


def test_tokens_beyond_the_places_are_dropped_and_counted() -> None:
    made, x = mixture(capacity=0.5), tokens()
    places = 4  # half of 16 x 2 / 4
    _, chosen = made._route(x)
    kept = made._kept(chosen)
    for row in range(3):
        for expert in range(4):
            here = chosen[row] == expert
            assert int((kept[row] & here).sum()) == min(places, int(here.sum()))
            taken = kept[row][here]
            assert taken[: int(taken.sum())].all(), "the first to come"
    made(x)
    assert made.loads[-1] == (~kept).sum() > 0


def test_the_balance_loss_has_its_gradient_without_being_in_the_loss() -> None:
    made, x = mixture(balance="loss", balance_weight=1.0), tokens()
    made.loss_scale = 0.25
    (grad,) = torch.autograd.grad(made(x).sum() * 0, made.router.weight)
    weights, chosen = made._route(x)
    share = torch.nn.functional.one_hot(chosen, 4).sum((1, 2)).float() / 32
    loss = 0.25 * (4 * share * weights.mean(1)).sum()
    (expected,) = torch.autograd.grad(loss, made.router.weight)
    torch.testing.assert_close(grad, expected)
    made.loss_scale = 0.0
    (none,) = torch.autograd.grad(made(x).sum() * 0, made.router.weight)
    assert not none.any()


def test_the_bias_chooses_and_does_not_weigh() -> None:
    made, x = mixture(balance="bias"), tokens()
    before, _ = made._route(x)
    made.bias[2] = 10.0
    after, chosen = made._route(x)
    assert torch.equal(before, after)
    assert (chosen == 2).any(-1).all()

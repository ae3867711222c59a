"""Blocks that are computed again: what their ranks had passed to each other is given back to them,
nothing is sent, and the parameters are those of then."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

from harness.worker.audits.passing import Passed, Passing, Talks, silent
from harness.worker.audits.units import Unit


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pass_on(passing: Passing, given: torch.Tensor, how: str = "sum") -> torch.Tensor:
    got: torch.Tensor = passing.pass_on("all_reduce", lambda: given * 2, given, [how])
    return got


def taken_down(*given: torch.Tensor) -> list[Passed]:
    kept: list[Passed] = []
    passing = Passing(kept.append)
    passing.taking = True
    for each in given:
        assert torch.equal(pass_on(passing, each), each * 2)
    assert passing.count == len(given)
    return kept


ONE, TWO, WIDE = torch.ones(4), torch.full((4,), 2.0), torch.ones(8)


def test_what_was_got_is_given_back_and_what_is_given_is_compared() -> None:
    passing = Passing(lambda passed: None)
    assert passing.off
    passing.giving(taken_down(ONE, WIDE, TWO))
    assert torch.equal(pass_on(passing, ONE), ONE * 2)
    assert torch.equal(pass_on(passing, ONE), TWO * 2), "another block's is passed over"
    assert passing.wrong == ["what it gives to all_reduce 3"]
    passing.done()
    assert passing.off


@pytest.mark.parametrize(("given", "how"), [(torch.ones(5), "sum"), (ONE, "max")])
def test_what_nobody_has_taken_down_is_not_made_up(given: torch.Tensor, how: str) -> None:
    passing = Passing(lambda passed: None)
    passing.giving(taken_down(ONE))
    with pytest.raises(Talks, match="nobody has taken down its all_reduce"):
        pass_on(passing, given, how)


def test_nothing_is_sent_by_what_is_computed_again() -> None:
    world = dist.group.WORLD
    assert world is not None
    before = world._get_sequence_number_for_group()
    with silent():
        assert torch.equal(ONE + ONE, TWO)
        with pytest.raises(Talks, match="c10d"):
            dist.all_reduce(torch.ones(2))
        with pytest.raises(Talks):
            funcol.all_reduce(torch.ones(2), "sum", world)
    assert world._get_sequence_number_for_group() == before


class Talking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradients[0])
        return gradients[0]


def test_the_compiler_is_not_imported_for_it() -> None:
    code = (
        "import sys, torch\n"
        "from harness.worker.audits.passing import silent\n"
        "with silent():\n    torch.ones(2) + 1\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_nor_by_its_backward_pass() -> None:
    x = torch.ones(2, requires_grad=True)
    with silent():
        out = Talking.apply(x)
        with pytest.raises(Talks):
            torch.autograd.grad(out, x, torch.ones(2))


def test_a_block_has_the_parameters_of_its_own_step_and_loses_nothing() -> None:
    block = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    block[1].weight = block[0].weight  # shared by two places
    x = torch.ones(1, 3)
    then = block(x)
    unit = Unit(block, (0,), gathered=True)
    parameters = dict(block.named_parameters())
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
    with unit.as_it_was():
        assert torch.equal(block(x), then)
        torch.autograd.grad(block(x).sum(), unit.leaves)
    assert torch.equal(block(x), torch.zeros(1, 3))
    assert all(parameters[name] is each for name, each in block.named_parameters())
    assert all(parameter.grad is None for parameter in block.parameters())

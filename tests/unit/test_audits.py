"""The checks of a rank's own numbers, one at a time and without ranks."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.agent.chains import Chain
from harness.worker.audits import exchange, purity, recompute
from harness.worker.audits.budget import Budget, Busy
from harness.worker.audits.gradients import LocalGradients
from harness.worker.audits.names import name_of, named_parameters
from harness.worker.digestlog import Values
from harness.worker.digests.books import AT_REST, LEFT, PARAMETERS, STATE

Told = list[dict[str, Any]]


def call(check: Any, *arguments: Any) -> None:
    check(*arguments)


@pytest.fixture
def told() -> Told:
    return []


def test_a_budget_is_earned_by_time_and_not_saved_up_for_ever() -> None:
    now = [0.0]
    budget = Budget(0.01, lambda: now[0])
    assert budget.left()
    budget.spent(0.02)
    assert not budget.left()
    now[0] = 1.5
    assert budget.left()
    now[0] = 1e6
    budget.left()
    budget.spent(0.06)
    assert not budget.left()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


class Trained:
    """Two layers whose local gradients are watched."""

    def __init__(self, told: Told) -> None:
        self.net = net()
        self.step = 0
        self.watching = LocalGradients(
            lambda **doubt: told.append(doubt), call, lambda: self.step, share=1e9
        )
        self.watching.attach(named_parameters(list(self.net.parameters())))

    def train(self, *, spoil: float = 1.0, use: bool = True) -> None:
        self.net.zero_grad()
        out = self.net(torch.ones(4, 8))
        out.register_hook(lambda gradient: gradient * spoil)
        out.square().mean().backward()
        if use:
            self.watching.stepping()
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter.sub_(parameter.grad, alpha=0.01)  # type: ignore[arg-type]
            self.step += 1
            self.watching.stepped()


def test_a_gradient_that_is_not_finite_is_told_at_once_and_again_when_it_was_used(
    told: Told,
) -> None:
    trained = Trained(told)
    trained.train()
    trained.train(spoil=float("nan"))
    assert [(d["check"], d["settled"], d["step"]) for d in told] == [
        ("gradient", False, 1),
        ("gradient", True, 1),
    ]
    assert told[1]["subject"].startswith("2.")
    assert told[1]["differ"] == 4
    assert told[1]["clean_ns"] > 0


def test_a_step_that_a_scaler_leaves_out_is_no_fault(told: Told) -> None:
    trained = Trained(told)
    trained.train(spoil=float("inf"), use=False)
    trained.train()
    assert [doubt["settled"] for doubt in told] == [False]


def test_a_norm_far_above_its_history_is_told(told: Told) -> None:
    trained = Trained(told)
    for _ in range(25):
        trained.train()
    trained.train(spoil=1e4)
    assert {doubt["check"] for doubt in told} == {"norm"}


class Block(nn.Module):
    """`wrong` counts the calls from now on of which the last one flips a bit."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.wrong = nn.Linear(8, 8), nn.Dropout(0.5), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(self.inner(x)) + x
        self.wrong -= 1
        if self.wrong == 0:
            with torch.no_grad():
                out.view(torch.int32).view(-1)[3] ^= 1 << 5
        return out


class Checkpointed:
    def __init__(self, told: Told, reentrant: bool) -> None:
        import torch.utils.checkpoint as real

        self.reentrant = reentrant
        self.block = Block()
        self.watching = recompute.Recomputes(
            lambda **doubt: told.append(doubt), call, lambda: 0, lambda: 0, share=1e9
        )

        class Module:
            checkpoint = staticmethod(real.checkpoint)

        recompute.watch_checkpoints(Module, lambda: self.watching)
        self.checkpoint = Module.checkpoint

    def train(self, times: int) -> list[torch.Tensor]:
        for _ in range(times):
            x = torch.ones(4, 8, requires_grad=True)
            self.checkpoint(self.block, x, use_reentrant=self.reentrant).square().sum().backward()
        return [parameter.grad.clone() for parameter in self.block.parameters()]  # type: ignore[union-attr]


@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_that_are_right_are_looked_at_and_nothing_is_told(
    told: Told, reentrant: bool
) -> None:
    checked = Checkpointed(told, reentrant)
    torch.manual_seed(3)
    gradients = checked.train(20)
    assert checked.watching.looks >= 19
    assert not told
    plain = Checkpointed(told, reentrant)
    plain.watching.begin = lambda function: None  # type: ignore[method-assign]
    plain.block.load_state_dict(checked.block.state_dict())
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(gradients, plain.train(20), strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("call_number", "again"), [(3, "second"), (4, "first")])
def test_a_flip_is_told_with_the_computation_that_was_wrong(
    told: Told, reentrant: bool, call_number: int, again: str
) -> None:
    checked = Checkpointed(told, reentrant)
    checked.train(2)
    checked.block.wrong = call_number
    checked.train(6)
    assert {doubt["again"] for doubt in told} == {again}
    assert told[0]["subject"] == "Block"
    assert told[0]["failed"] == 1
    assert not told[0]["settled"]
    assert told[-1]["settled"]
    assert told[-1]["looks"] == told[0]["looks"] + 2


def test_blocks_have_their_turns_though_the_budget_grows_before_the_first_one() -> None:
    now = [0.0]
    watching = recompute.Recomputes(
        lambda **doubt: None, call, lambda: 0, lambda: 0, 0.01, lambda: now[0]
    )
    blocks = [Block() for _ in range(5)]
    for block in blocks:
        assert watching.begin(block) is not None  # the first pass of each
    watching.charge(1.0)
    taken = []
    for step in range(200):
        here = blocks if step < 100 else blocks[:2]  # the others do not come any more
        for at, block in enumerate(here):
            if watching.begin(block) is not None:
                taken.append(at)
                watching.charge(0.1)
        now[0] += 10.0
    assert all(16 <= taken.count(at) <= 20 for at in range(2, 5))
    assert set(taken[-10:]) == {0, 1}


def test_the_clock_of_checks_stands_still_while_the_process_sleeps() -> None:
    clock = Busy()
    before = clock()
    time.sleep(0.05)
    assert clock() - before < 0.04


def test_a_module_is_found_in_what_is_checkpointed() -> None:
    block = Block()
    for function in (block, block.forward, block):
        assert recompute._module_of(function) is block
    assert recompute._module_of(print) is None
    assert name_of(nn.Sequential(block)[0]) in ("0", "Block")


def test_a_batch_is_read_as_it_was_written_and_not_for_another_step(tmp_path: Path) -> None:
    path = exchange.path_of(str(tmp_path), 0, 2, 64)
    writer = exchange.BatchWriter(path, 64, 3)
    assert exchange.read(path, 64, 3) is None
    writer.piece({"leaves": [torch.arange(4), 5, None]})
    writer.piece({"gradients": {1: torch.ones(2)}})
    writer.digest(2, (1 << 64) - 1)
    content, digests = exchange.read(path, 64, 3) or ({}, [])
    assert torch.equal(content["leaves"][0], torch.arange(4))
    assert torch.equal(content["gradients"][1], torch.ones(2))
    assert digests == [None, None, (1 << 64) - 1]
    assert exchange.read(path, 66, 3) is None
    assert exchange.read(path, 64, 4) is None
    writer.close(valid=False)
    assert exchange.read(path, 64, 3) is None
    assert exchange.read(str(tmp_path / "none"), 64, 3) is None


def test_a_batch_that_is_too_large_is_not_copied(tmp_path: Path) -> None:
    writer = exchange.BatchWriter(str(tmp_path / "batch"), 2, 1)
    with pytest.raises(exchange.TooLarge):
        writer.piece({"leaves": [torch.zeros(exchange.MOST_BYTES // 4 + 1)]})
    writer.close(valid=False)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.seen, self.names = nn.BatchNorm1d(8), 0, ["a"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.names.append("b")
        out: torch.Tensor = self.norm(x + torch.rand(8))
        return out


def test_nothing_is_left_of_a_second_computation() -> None:
    model = Counting()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with purity.nothing_left(model):
        model(torch.randn(4, 8))
    assert (model.seen, model.names) == (0, ["a"])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


class Talking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("at it")
        return x


def test_models_that_do_more_than_compute_are_left_alone() -> None:
    assert purity.why_not(net()) == ""
    assert purity.why_not(Talking())
    hooked = net()
    hooked[0].register_forward_hook(lambda *_: None)
    assert purity.why_not(hooked)
    hooked = net()
    hooked[0].weight.register_hook(lambda gradient: gradient)
    assert purity.why_not(hooked)


def plan(site: str, number: int, tensors: list[list[Any]]) -> dict[str, Any]:
    groups = [["sharded", "", [0, 1]], ["ddp", "", [0, 1]]]
    named = [[name, [8], "float32", mine, marks] for name, mine, marks in tensors]
    return {"plan": number, "site": site, "number": 0, "groups": groups, "tensors": named}


def values(number: int, count: int, digests: tuple[int, ...]) -> Values:
    return Values(plan=number, count=count, step=4, progress=0, at_ns=count, digests=digests)


def test_a_shard_is_compared_with_itself_and_a_replica_is_not() -> None:
    chain = Chain()
    chain.plan(plan(PARAMETERS, 1, [["mine", [0], []], ["shared", [1], []]]))
    assert chain.look(values(1, 9, (1, 2))) is None
    assert chain.look(values(1, 10, (1, 3))) is None
    assert chain.look(values(1, 11, (5, 3))) is None, "an update lies between"
    doubt = chain.look(values(1, 12, (6, 3)))
    assert doubt is not None
    assert doubt.tensors == ("mine",)
    assert doubt.clean_ns == 10
    assert chain.look(values(1, 14, (7, 3))) is None, "the look before is missing"


def test_state_is_compared_with_what_the_step_left() -> None:
    chain = Chain()
    chain.plan(plan(STATE, 1, [["moment", [], ["cut"]]]))
    chain.plan(plan(AT_REST, 2, [["moment", [], ["cut"]]]))
    chain.look(values(1, 5, (1,)))
    assert chain.look(values(2, 5, (1,))) is None
    assert chain.look(values(2, 5, (2,))) is not None


def test_state_is_a_rank_s_own_matter_even_where_others_have_copies() -> None:
    """Also of the slices that are not told to others."""
    chain = Chain()
    for number, site in enumerate((LEFT, AT_REST), 1):
        chain.plan({**plan(site, number, [["moment", [0], []]]), "groups": [["ddp", "", [0, 1]]]})
    chain.look(values(1, 5, (1,)))
    assert chain.look(values(2, 5, (1,))) is None
    doubt = chain.look(values(2, 5, (2,)))
    assert doubt is not None
    assert (doubt.check, doubt.subject, doubt.tensors) == ("at rest", STATE, ("moment",))

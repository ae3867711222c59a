"""Updates of real optimizers, computed again: equal in each implementation, and found where not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.digest import referee, updating
from harness.worker.audits.updates import Updates, has_closure
from harness.worker.digests.pace import Pace

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
WAYS: list[dict[str, Any]] = [{}, {"foreach": True}, {"fused": True}]
KINDS: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1, amsgrad=True, maximize=True),
    "sgd": lambda p: torch.optim.SGD(p, 1e-2),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
}


class Case:
    def __init__(self, make: Make, dtype: torch.dtype = torch.float32, **way: Any) -> None:
        torch.manual_seed(0)
        shapes = ((70, 131), (33,), (5, 3, 2))
        self.parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
        self.optimizer = make(self.parameters)
        for group in self.optimizer.param_groups:
            group.update(way)
        self.told: list[dict[str, Any]] = []
        self.updates = Updates(
            lambda **doubt: self.told.append(doubt), lambda: self.step, lambda: Pace(1, 1.0, 2)
        )
        self.step = 0

    def run(
        self, steps: int, spoil: Callable[[], None] = lambda: None, closure: bool = False
    ) -> None:
        for _ in range(steps):
            for parameter in self.parameters:
                parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
            self.updates.stepping(self.optimizer, closure)
            self.optimizer.step()
            with torch.no_grad():
                spoil()
            self.step += 1
            self.updates.stepped(self.optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_raises_nothing(kind: str, way: dict[str, Any], dtype: torch.dtype) -> None:
    case = Case(KINDS[kind], dtype, **way)
    case.run(8)
    (watched,) = case.updates._watched.values()
    assert case.told == []
    if (kind, dtype) == ("momentum", torch.bfloat16) and way.get("fused"):
        return  # PyTorch rounds a slice otherwise there: it is found out, and left alone
    assert watched.looks >= 6
    assert watched.looks == watched.good


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_element_is_found_when_its_turn_comes(kind: str) -> None:
    case = Case(KINDS[kind])
    case.run(4)

    def spoil() -> None:
        case.parameters[0].view(torch.int32)[12, 5] ^= 1 << 13  # every update is wrong there

    case.run(8, spoil)
    assert {doubt["check"] for doubt in case.told} == {"update"}
    first = case.told[0]
    assert first["shows"].startswith("[12, 5] is ")
    assert (first["differ"], first["again"]) == (1, "second")
    assert first["step"] >= 4


def test_wrong_state_is_found() -> None:
    case = Case(KINDS["adamw"])
    case.run(4)

    def spoil() -> None:
        case.optimizer.state[case.parameters[0]]["exp_avg"][0, 3] += 1

    case.run(8, spoil)
    assert case.told[0]["shows"].startswith("exp_avg of [0, 3] is ")


def test_a_program_that_has_its_own_way_is_left_alone() -> None:
    """Clamped by a hook of the optimizer, or by a subclass, or from the first step on."""
    case = Case(KINDS["adamw"])
    case.optimizer.register_step_post_hook(lambda *_: None)
    case.run(6)
    assert not next(iter(case.updates._watched.values())).looks

    class Own(torch.optim.AdamW):
        pass

    case = Case(lambda p: Own(p, 1e-2))
    case.run(6)
    assert not next(iter(case.updates._watched.values())).looks

    case = Case(KINDS["sgd"])
    case.run(20, lambda: [p.mul_(0.5) for p in case.parameters] and None)
    assert case.told == []
    assert next(iter(case.updates._watched.values())).off


def test_gradients_that_change_within_the_step() -> None:
    case = Case(KINDS["sgd"])
    case.run(4)
    case.run(4, lambda: [p.grad.add_(1) for p in case.parameters if p.grad is not None] and None)
    assert case.told == []
    case.run(4, closure=True)
    assert has_closure((None, lambda: None), {})
    assert has_closure((None,), {"closure": lambda: None})
    assert not has_closure((None,), {})
    assert not has_closure((None, None), {"closure": None})


def test_what_cannot_be_computed_again() -> None:
    parameter = torch.nn.Parameter(torch.randn(8))
    optimizer = torch.optim.AdamW([parameter], 1e-2)
    assert updating.capture(optimizer, parameter, 0, 8) is None  # no gradient
    parameter.grad = torch.randn(8)
    assert updating.capture(optimizer, parameter, 0, 8) is None  # no state yet
    optimizer.step()
    assert updating.capture(optimizer, parameter, 0, 8) is not None
    assert updating.capture(optimizer, parameter, 0, 9) is None
    optimizer.param_groups[0]["lr"] = torch.tensor(1e-2)
    assert updating.capture(optimizer, parameter, 0, 8) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_referee_tells_right_from_wrong(kind: str) -> None:
    case = Case(KINDS[kind], torch.bfloat16 if kind == "adamw" else torch.float32)
    case.run(2)
    parameter = case.parameters[0]
    parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
    update = updating.capture(case.optimizer, parameter, 100, 300)
    assert update is not None
    case.optimizer.step()
    after = updating.now(update, case.optimizer, parameter)
    assert after is not None
    del after["gradient"]
    told = json.loads(json.dumps(referee.told(update, after)))
    assert referee.judge(told) == "right"
    after["parameter"] = after["parameter"].detach().clone()
    after["parameter"][7] *= 1.25
    told = json.loads(json.dumps(referee.told(update, after)))
    assert referee.judge(told) == "wrong"
    assert referee.judge({**told, "device": "cuda"}) == "wrong"

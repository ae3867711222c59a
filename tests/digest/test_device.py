"""Digests beside the training: on a GPU where there is one, and always on the CPU."""

from __future__ import annotations

import pytest
import torch

from harness.digest.device import Beside
from tests.digest.replicas import plan, replica

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_what_arrives_is_what_the_tensors_held(device: str) -> None:
    here = replica(torch.bfloat16, seed=1)
    there = {name: tensor.to(device) for name, tensor in here.items()}
    of, beside = plan(here), Beside(plan(there))
    assert beside.plan.plan_hash == of.plan_hash
    assert beside.take() is None
    for step in range(5):
        assert beside.start(step, columns=step % 2 == 1)
        beside.guard()
        rows, columns = (part.clone() for part in of.rows_and_columns())
        for tensors in (here, there):
            for tensor in tensors.values():
                tensor.add_(1)
        if device == "cuda":
            torch.cuda.synchronize()
        taken = beside.take()
        assert taken is not None
        assert taken.step == step
        assert torch.equal(taken.vector, rows)
        assert taken.digests == of.digests(rows)
        assert taken.fold == of.fold(rows)
        if step % 2:
            assert taken.columns is not None
            assert torch.equal(taken.columns, columns)
        else:
            assert taken.columns is None


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_the_device_are_those_of_the_cpu(device: str) -> None:
    for dtype in (torch.float32, torch.float8_e4m3fn, torch.bool, torch.complex128):
        here = replica(dtype, seed=2)
        there = {name: tensor.to(device) for name, tensor in here.items()}
        left, right = plan(here), plan(there)
        for a, b in zip(left.rows_and_columns(), right.rows_and_columns(), strict=True):
            assert torch.equal(a, b.cpu())
        assert left.fold(left.rows()) == right.fold(right.rows()) == right.fold(left.rows())


def test_a_step_goes_unwatched_rather_than_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[torch.cpu.Event] = []

    class Late(torch.cpu.Event):
        def query(self) -> bool:
            return self in arrived

    monkeypatch.setattr(torch.cpu, "Event", Late)
    tensor = torch.zeros(5000)
    beside = Beside(plan({"a": tensor}))
    events = [slot.arrived for slot in beside._free]
    for step in range(3):
        tensor += 1
        assert beside.start(step)
    assert not beside.start(3)
    assert beside.take() is None
    arrived.extend(reversed(events))
    folds = []
    for step in range(3):
        taken = beside.take()
        assert taken is not None
        assert taken.step == step
        folds.append(taken.fold)
    assert len(set(folds)) == 3
    assert beside.take() is None
    assert beside.start(4)

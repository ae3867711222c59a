"""Wrappers, several models and optimizers, odd types: what a script may hand over comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

import harness


def save(root: Path, **things: Any) -> harness.Checkpointer:
    ck = harness.Checkpointer(root, sync=True)
    assert ck.save(1, **things).outcome == "saved"
    return harness.Checkpointer(root)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(4, 4, dtype=next(model.parameters()).dtype)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_wrappers_do_not_change_names(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.Adam(plain.parameters())
    train(plain, optimizer)
    ck = save(tmp_path, model=plain, optimizer=optimizer)
    wrapped = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 4)), nn.Linear(4, 4))
    other = torch.optim.Adam(wrapped.parameters(), lr=7.0)
    assert ck.load(model=wrapped, optimizer=other) == 1
    for ours, theirs in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(optimizer.state[ours]["exp_avg"], other.state[theirs]["exp_avg"])
    assert other.param_groups[0]["lr"] == 0.001


def test_state_keeps_its_precision(tmp_path: Path) -> None:
    """torch's own load_state_dict would round it to that of the parameters."""
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    master = torch.randn(4, 4)
    optimizer.state[model.weight]["master"] = master.clone()
    ck = save(tmp_path, model=model, optimizer=optimizer)
    again = nn.Linear(4, 4, dtype=torch.bfloat16)
    other = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    ck.load(model=again, optimizer=other)
    assert torch.equal(other.state[again.weight]["master"], master)


def test_two_models_and_their_optimizers(tmp_path: Path) -> None:
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1 * (1 + i)) for i, m in enumerate(models)]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer)
    things = dict(zip(("gen", "disc", "gen_opt", "disc_opt"), [*models, *optimizers], strict=True))
    ck = save(tmp_path, **things)
    kept = {name: value.clone() for name, value in ck.tensors(1).items()}
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer)
        optimizer.param_groups[0]["lr"] = 9.0
    assert ck.load(**things) == 1
    assert torch.equal(models[0].weight, kept["gen.weight"])
    assert torch.equal(models[1].weight, kept["disc.weight"])
    average = optimizers[1].state[models[1].weight]["exp_avg"]
    assert torch.equal(average, kept["disc_opt.state.disc.weight.exp_avg"])
    assert [o.param_groups[0]["lr"] for o in optimizers] == [0.1, 0.2]


class Tied(nn.Module):
    """Shares a parameter and keeps something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return torch.as_tensor(self.second(self.first(x)))

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def test_tied_weights_extra_state_and_a_scaler(tmp_path: Path) -> None:
    model = Tied()
    optimizer = torch.optim.Adagrad(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    train(model, optimizer)
    ck = save(tmp_path, model=model, optimizer=optimizer, scaler=scaler, names=("a", {"b": 1}))
    again = Tied()
    other = torch.optim.Adagrad(again.parameters())
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    assert ck.load(model=again, optimizer=other, scaler=fresh) == 1
    assert again.second.weight is again.first.weight
    assert torch.equal(again.first.weight, model.first.weight)
    assert again.seen == 1
    total = other.state[again.first.weight]["sum"]
    assert torch.equal(total, optimizer.state[model.first.weight]["sum"])
    assert fresh.get_scale() == 64.0
    assert ck.values == {"names": ("a", {"b": 1})}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_it_by_itself(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    save(tmp_path, model=model)
    content = {"model.weight": torch.zeros(4, 4)}
    load(content, storage_reader=FileSystemReader(tmp_path / "step-000001"), no_dist=True)
    assert torch.equal(content["model.weight"], model.weight)


def test_only_a_part_may_be_asked_for(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ck = save(tmp_path, model=model, optimizer=optimizer, position=5)
    again = nn.Linear(4, 4)
    assert ck.load(model=again) == 1
    assert torch.equal(again.weight, model.weight)
    assert ck.loaded == tmp_path / "step-000001"

"""Which device a rank gets, and over which backend it meets the others."""

from __future__ import annotations

import pytest
import torch

from harness.trainer import mesh
from harness.trainer.config import ConfigError, Place
from harness.trainer.flags import parse


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch answers on a machine with one; nothing is computed there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def chosen(flags: str, rank: int) -> tuple[torch.device, str]:
    config = parse(flags.split())
    place = Place(rank=rank, local_rank=rank, world_size=2, local_world_size=2)
    device = mesh.choose_device(config, place)
    return device, mesh.backend(device, config)


def test_on_a_cpu_it_is_gloo() -> None:
    assert chosen("--device cpu", 1) == (torch.device("cpu"), "gloo")
    with pytest.raises(ConfigError, match="--backend nccl works on GPUs only"):
        chosen("--device cpu --backend nccl", 0)


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_each_over_nccl_and_one_for_all_over_gloo() -> None:
    assert chosen("", 0) == (torch.device("cuda", 0), "cuda:nccl,cpu:gloo")
    with pytest.raises(ConfigError, match="local rank 1 needs a GPU of its own, this node has 1"):
        chosen("", 1)
    assert chosen("--backend gloo", 1) == (torch.device("cuda", 0), "gloo")


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--pp 2 --micro-batches 2", "--pp 2 sends activations"),
        ("--cp 2", "--cp 2 with a ring sends keys"),
    ],
)
def test_what_gloo_cannot_send_is_refused(flags: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        chosen(f"--backend gloo {flags}", 0)
    assert chosen("--backend gloo --cp 2 --cp-method ulysses", 0)[0].type == "cuda"

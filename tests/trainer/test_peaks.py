"""What MFU is a share of."""

from __future__ import annotations

import os

import pytest
import torch

from harness.plan.models import GPUS
from harness.trainer import peaks
from harness.trainer.config import Place
from harness.trainer.flags import parse

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165),
        ("AMD Instinct MI300X", 1307),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_the_peak_of_a_gpu_is_known_by_its_name(name: str, tflops: float | None) -> None:
    assert peaks.known_tflops(name) == tflops


def test_the_plan_knows_the_same_peaks() -> None:
    for gpu in GPUS.values():
        assert peaks.known_tflops(f"NVIDIA {gpu.name}") == pytest.approx(gpu.flops / 1e12)


def test_what_is_given_counts() -> None:
    given = peaks.peak(CPU, Place(world_size=4), parse(["--peak-tflops", "2"]))
    assert given == peaks.Peak(8e12)


def test_a_cpu_is_measured_where_a_breakdown_is_asked_for() -> None:
    assert peaks.peak(CPU, Place(), parse([])) == peaks.Peak(None)
    found = peaks.peak(CPU, Place(), parse(["--breakdown"]))
    assert found.flops is not None
    assert found.flops > 1e8
    assert "measured here" in found.says


def test_ranks_share_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "measured", lambda: 1e9)
    cores = len(os.sched_getaffinity(0))
    crowded = Place(world_size=4 * cores, local_world_size=2 * cores)
    assert peaks.peak(CPU, crowded, parse(["--breakdown"])).flops == 2 * cores * 1e9
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-40GB")
    shared = peaks.peak(torch.device("cuda"), Place(world_size=4, local_world_size=4), parse([]))
    assert shared.flops == 312e12
    assert "312 TFLOP/s" in shared.says
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Other")
    unknown = peaks.peak(torch.device("cuda"), Place(), parse([]))
    assert unknown.flops is None
    assert unknown.says == "no mfu: the peak of Other is not known; give it as --peak-tflops"

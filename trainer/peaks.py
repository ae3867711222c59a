"""What the devices could do at most: the peak that MFU is a share of."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass

import torch

from harness.trainer.config import Config, Place

TFLOPS = {
    "B200": 2250.0,
    "GB200": 2500.0,
    "GH200": 989.0,
    "H200": 989.0,
    "H100": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 150.0,
    "A30": 165.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "RTX 4090": 165.0,
    "MI325X": 1307.0,
    "MI300X": 1307.0,
}
"""Dense bf16 peak of one device in TFLOP/s, from the makers' data sheets (SXM where there are
several), by words of its name."""


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s that all ranks' devices could do at most, None where nobody knows; what to say of
    it."""

    flops: float | None
    says: str = ""


def peak(device: torch.device, place: Place, config: Config) -> Peak:
    """As given, by the GPU's name, or, where a breakdown is asked for on a CPU, as measured."""
    run, ranks = config.run, place.world_size
    if run.peak_tflops:
        return Peak(run.peak_tflops * 1e12 * ranks)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        tflops = known_tflops(name)
        if tflops is None:
            return Peak(None, f"no mfu: the peak of {name} is not known; give it as --peak-tflops")
        devices = ranks * min(1, torch.cuda.device_count() / place.local_world_size)
        return Peak(tflops * 1e12 * devices, f"mfu of {tflops:g} TFLOP/s, the bf16 peak of {name}")
    if not run.breakdown:
        return Peak(None)
    one = measured()
    cores = len(os.sched_getaffinity(0)) / run.threads
    says = f"mfu of {one / 1e9:.1f} GFLOP/s, measured here with a large matrix product"
    return Peak(one * ranks * min(1, cores / place.local_world_size), says)


def known_tflops(name: str) -> float | None:
    """Dense bf16 peak of a device by the name that the driver gives it."""
    for known in sorted(TFLOPS, key=len, reverse=True):
        if re.search(rf"\b{known}\b", name):
            return TFLOPS[known]
    return None


def measured(size: int = 512, times: int = 5) -> float:
    """FLOP/s of a matrix product in single precision on this rank's CPU threads, the best of some:
    a CPU's data sheet does not say what its cores reach together."""
    a, best = torch.ones(size, size), math.inf
    for _ in range(times):
        began = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best

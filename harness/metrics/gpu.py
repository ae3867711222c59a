"""GPUs in numbers."""

from collections.abc import Iterable, Mapping

from harness.devices import Gpu
from harness.metrics import catalogue as c
from harness.metrics.catalogue import Metric, Sample

_REASONS = ("hardware", "heat", "hardware_heat", "power_brake")


def of_gpus(node: str, gpus: Iterable[Gpu], xids: Mapping[tuple[int, int], int]) -> list[Sample]:
    """What an agent tells of its GPUs; what a GPU does not tell is left out. `xids` counts errors
    by the index of their GPU and their number."""
    found: list[Sample] = []
    uuids = {-1: ""}
    for gpu in gpus:
        labels = (node, str(gpu.index), gpu.uuid)
        uuids[gpu.index] = gpu.uuid
        found.append(Sample(c.GPU_UP, float(not gpu.lost), labels))
        for metric, value, more in _values(gpu):
            if value is not None:
                found.append(Sample(metric, value, (*labels, *more)))
    for (index, number), count in sorted(xids.items()):
        place = (node, str(index) if index >= 0 else "", uuids.get(index, ""))
        found.append(Sample(c.GPU_XIDS, count, (*place, str(number))))
    return found


def _values(gpu: Gpu) -> list[tuple[Metric, float | None, tuple[str, ...]]]:
    if gpu.lost:
        return []
    return [
        (c.GPU_BUSY, gpu.busy, ()),
        (c.GPU_MEMORY_USED, gpu.memory_used_bytes, ()),
        (c.GPU_MEMORY, gpu.memory_total_bytes, ()),
        (c.GPU_TEMPERATURE, gpu.temperature_celsius, ()),
        (c.GPU_POWER, gpu.power_watts, ()),
        (c.GPU_ECC, gpu.ecc_corrected, ("corrected",)),
        (c.GPU_ECC, gpu.ecc_uncorrected, ("uncorrected",)),
        (c.GPU_ROWS, gpu.remapped_corrected, ("corrected",)),
        (c.GPU_ROWS, gpu.remapped_uncorrected, ("uncorrected",)),
        (c.GPU_REMAP_PENDING, float(gpu.remap_pending), ()),
        (c.GPU_REMAP_FAILED, float(gpu.remap_failed), ()),
        *((c.GPU_THROTTLED, float(why in gpu.throttled), (why,)) for why in _REASONS),
        (c.GPU_NVLINK, gpu.nvlink_errors, ()),
        (c.GPU_PCIE, gpu.pcie_replays, ()),
    ]

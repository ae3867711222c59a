"""GPUs as NVIDIA's management library tells of them (nvidia-ml-py, of train-harness[gpu]).

Every question may be refused: what an old card or a container does not tell is None.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.devices import Gpu

_CORRECTED, _UNCORRECTED = 0, 1  # NVML_MEMORY_ERROR_TYPE_*
_SINCE_LOADED = 0  # NVML_VOLATILE_ECC
_LINK_ERRORS = (0, 1, 2)  # NVML_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC_FLIT
_MOST_LINKS = 36
_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU
_THROTTLED: Mapping[int, str] = {
    0x8: "hardware",
    0x20: "heat",
    0x40: "hardware_heat",
    0x80: "power_brake",
}
"""nvmlClocksEventReason*. A power cap is how a GPU works under load, and no fault."""
_GONE = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")


class NoGpus(Exception):
    """There are none to be asked."""


def load() -> Any:
    """The library. Raises NoGpus; touches nothing where there is no device file."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        raise NoGpus("no device file")
    try:
        import pynvml
    except ImportError:
        raise NoGpus("nvidia-ml-py is not installed") from None
    return pynvml


class Nvml:
    """All GPUs of this machine, through `library`: pynvml, or a recording of it."""

    def __init__(self, library: Any) -> None:
        """Raises NoGpus."""
        self._library = library
        try:
            library.nvmlInit()
            count = library.nvmlDeviceGetCount()
            self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except library.NVMLError as error:
            raise NoGpus(str(error)) from None
        self._known: dict[int, tuple[str, str, str]] = {}

    def close(self) -> None:
        # Refused, the driver is gone: so is what it held for us.
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlShutdown()

    def read(self) -> list[Gpu]:
        """All of them now. May block for seconds when one is failing: call it in a thread."""
        return [self._gpu(index, handle) for index, handle in enumerate(self._handles)]

    def _gpu(self, index: int, handle: Any) -> Gpu:
        if index not in self._known:
            self._known[index] = self._names(handle)
        uuid, name, bus_id = self._known[index]
        try:
            return self._alive(index, handle, uuid, name, bus_id)
        except _Gone:
            return Gpu(index=index, uuid=uuid, name=name, bus_id=bus_id, lost=True)

    def _names(self, handle: Any) -> tuple[str, str, str]:
        try:
            bus = self._ask("nvmlDeviceGetPciInfo", handle)
            uuid, name = (
                self._ask("nvmlDeviceGetUUID", handle),
                self._ask("nvmlDeviceGetName", handle),
            )
        except _Gone:
            return "", "", ""
        place = "" if bus is None else f"{bus.domain:04x}:{bus.bus:02x}:{bus.device:02x}"
        return uuid or "", name or "", place

    def _alive(self, index: int, handle: Any, uuid: str, name: str, bus_id: str) -> Gpu:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        busy = self._ask("nvmlDeviceGetUtilizationRates", handle)
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        return Gpu(
            index=index,
            uuid=uuid,
            name=name,
            bus_id=bus_id,
            pids=tuple(sorted(process.pid for process in running)),
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", handle, _TEMPERATURE),
            power_watts=None if power is None else power / 1000,
            busy=None if busy is None else busy.gpu / 100,
            ecc_corrected=self._ecc(handle, _CORRECTED),
            ecc_uncorrected=self._ecc(handle, _UNCORRECTED),
            remapped_corrected=None if rows is None else rows[0],
            remapped_uncorrected=None if rows is None else rows[1],
            remap_pending=rows is not None and bool(rows[2]),
            remap_failed=rows is not None and bool(rows[3]),
            throttled=tuple(word for bit, word in _THROTTLED.items() if reasons & bit),
            nvlink_errors=self._links(handle),
            pcie_replays=self._ask("nvmlDeviceGetPcieReplayCounter", handle),
        )

    def _ecc(self, handle: Any, kind: int) -> int | None:
        found: int | None = self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, _SINCE_LOADED)
        return found

    def _links(self, handle: Any) -> int | None:
        """All errors of all links that are up; None where there is none."""
        found: int | None = None
        for link in range(_MOST_LINKS):
            if not self._ask("nvmlDeviceGetNvLinkState", handle, link):
                break
            for kind in _LINK_ERRORS:
                errors = self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, kind)
                found = (found or 0) + (errors or 0)
        return found

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer; None where it is refused. Raises _Gone."""
        question = getattr(self._library, name, None)
        if question is None:
            return None  # an older library
        try:
            return question(*arguments)
        except self._library.NVMLError as error:
            if type(error).__name__ in _GONE:
                raise _Gone from None
            return None


class _Gone(Exception):
    """The driver has lost the GPU."""

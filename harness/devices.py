"""Accelerators: what their driver says of their health, and the errors that condemn one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What NVML says of one GPU. Counts are since the driver was loaded; None: it does not tell.

    `throttled` holds the reasons for which its clocks are held down by heat or power.
    """

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    """As in the kernel log: `0000:3b:00`, without the function."""
    pids: tuple[int, ...] = ()
    """Processes that compute on it."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    busy: float | None = None
    """Share of the last sample in which it computed, 0 to 1."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_corrected: int | None = None
    """Rows of memory replaced because of corrected errors, and of uncorrected ones."""
    remapped_uncorrected: int | None = None
    remap_pending: bool = False
    """A row waits for a reset of the GPU to be replaced."""
    remap_failed: bool = False
    """There was none left to replace one with."""
    throttled: tuple[str, ...] = ()
    nvlink_errors: int | None = None
    """Replays, recoveries and checksum errors of all of its links."""
    pcie_replays: int | None = None
    lost: bool = False
    """The driver does not reach it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusRead:
    """The GPUs of a node, when something of their health has changed."""

    node_rank: int
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFailed:
    """The driver reports an error of a GPU. `xid` is NVIDIA's number of it, 0 where it has none.

    `ranks` are those that compute on it: their processes were seen there (`proven`), or they would
    be there by the order of local ranks.
    """

    node_rank: int
    xid: int
    text: str
    seen_ns: int
    gpu: int = -1
    """Its index; -1: not known."""
    uuid: str = ""
    ranks: tuple[int, ...] = ()
    proven: bool = False


XIDS = {
    48: "an uncorrectable memory error (double-bit ECC)",
    61: "the GPU's microcontroller has stopped",
    62: "the GPU's microcontroller has halted",
    63: "a row of memory was remapped",
    64: "a row of memory could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "an uncorrectable memory error, contained",
    95: "an uncorrectable memory error, not contained",
    110: "a security fault of the GPU",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor has failed",
    136: "a link could not be trained",
    140: "an uncorrectable memory error",
    143: "the GPU could not be initialised",
    149: "an NVLink error",
    154: "the GPU needs a reset",
}
"""Errors of the device, https://docs.nvidia.com/deploy/xid-errors/. Others, such as 13 and 31 (an
illegal access), 43 and 45 (the end of a program), are as a rule the program's own."""

WARNINGS = frozenset({63, 92})
"""Signs of age: the program goes on."""


def condemns(xid: int) -> bool:
    """Whether the error means that the device has failed, and not the program on it; 0 does."""
    return xid == 0 or (xid in XIDS and xid not in WARNINGS)

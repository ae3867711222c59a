"""device_fault: the driver says that an accelerator failed, not the program on it."""

import re
from dataclasses import dataclass

from harness.devices import XIDS, GpuFailed, condemns
from harness.diagnosis.endings import Ending
from harness.incidents import EvidenceRef
from harness.state import AttemptState

_TEXT = re.compile(
    r"uncorrectable (?:NVLink|ECC) error|\bXid\b|fallen off the bus|GPU is lost|NVRM:"
    r"|hardware stack error|cudaErrorECCUncorrectable|device (?:is )?unavailable",
    re.IGNORECASE,
)
_OF_DEVICE = re.compile(r"CUDA|NCCL|cuBLAS|cuDNN|AcceleratorError|NVLink", re.IGNORECASE)
_BEFORE_NS = 120_000_000_000
"""Longest time from the driver's report to the end of a rank because of it: collectives on a lost
device may time out first."""
_AFTER_NS = 6_000_000_000
"""The report may come later than the end: NVML is asked every five seconds."""


def explains(ending: Ending) -> str | None:
    if ending.kind == "left" or not _TEXT.search(ending.text):
        return None
    line = next(line for line in ending.text.splitlines() if _TEXT.search(line))
    return line.strip()[:300]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A driver's word of the GPU under a rank."""

    error: GpuFailed
    ref: EvidenceRef


def reported(attempt: AttemptState, ending: Ending) -> Report | None:
    """The first error of the GPU under a rank that failed, as its driver has told, if one has.

    An error of the rank's own that has nothing to do with a GPU stays what it is.
    """
    if ending.kind in ("left", "lost"):
        return None
    if ending.kind == "raised" and not _OF_DEVICE.search(ending.text):
        return None
    for error, (source, seq) in attempt.gpu_errors:
        near = -_BEFORE_NS <= error.seen_ns - ending.at_ns <= _AFTER_NS
        if ending.rank in error.ranks and condemns(error.xid) and near:
            shows = f"GPU {error.gpu} of node {error.node_rank}: {error.text}"[:300]
            return Report(error=error, ref=EvidenceRef(source=source, seq=seq, shows=shows))
    return None


def words(error: GpuFailed) -> str:
    """The cause."""
    if not error.xid:
        return error.text
    place = f"GPU {error.gpu} of node {error.node_rank}" if error.gpu >= 0 else "a GPU"
    return f"{place}: Xid {error.xid}, {XIDS[error.xid]}"

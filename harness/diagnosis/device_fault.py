"""device_fault: the driver says that an accelerator failed, not the program on it."""

import re

from harness.diagnosis.endings import Ending

_TEXT = re.compile(
    r"uncorrectable (?:NVLink|ECC) error|\bXid\b|fallen off the bus|GPU is lost|NVRM:"
    r"|hardware stack error|cudaErrorECCUncorrectable|device (?:is )?unavailable",
    re.IGNORECASE,
)


def explains(ending: Ending) -> str | None:
    if ending.kind == "left" or not _TEXT.search(ending.text):
        return None
    line = next(line for line in ending.text.splitlines() if _TEXT.search(line))
    return line.strip()[:300]

"""Who waits for whom, over all process groups and point-to-point operations, and where it began.

`judge` reads the waits of all ranks and names the first-failing ones; it never reads a clock or a
file. Dumps of any job and live evidence feed the same types (`record`).
"""

from harness.diagnosis.waits.verdict import finding_of, judge

__all__ = ["finding_of", "judge"]

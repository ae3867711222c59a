"""Who failed first, and why: one detector a file, each a pure function of the state.

`diagnose` asks all of them, `conclude` weighs what they say. Hangs and desyncs of living ranks get
detectors of their own beside these; they return findings and are weighed in `conclude` alike.
"""

from harness.diagnosis.judgment import conclude, diagnose, patience_ends_ns
from harness.diagnosis.port_in_use import port_in_use_verdict
from harness.diagnosis.standing import standing, standing_verdict

__all__ = [
    "conclude",
    "diagnose",
    "patience_ends_ns",
    "port_in_use_verdict",
    "standing",
    "standing_verdict",
]

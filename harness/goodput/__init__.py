"""Where the time of a run's ranks went, what its incidents cost, and how often it should save."""

from harness.goodput.interval import Advice, advise, interval_of_attempt
from harness.goodput.ledger import PARTS, Ledger, ettr, ledger
from harness.goodput.telling import ledger_json, ledger_lines, saving_lines
from harness.goodput.times import IncidentTimes, incident_times, lost_steps
from harness.state.booking import tells_progress

__all__ = [
    "PARTS",
    "Advice",
    "IncidentTimes",
    "Ledger",
    "advise",
    "ettr",
    "incident_times",
    "interval_of_attempt",
    "ledger",
    "ledger_json",
    "ledger_lines",
    "lost_steps",
    "saving_lines",
    "tells_progress",
]

"""Saying which rank an earlier verdict should have named alone, once that is known."""

from harness.diagnosis.rerun import settled
from harness.recovery.ending import STORE_NODE, Decision, notify
from harness.state import RunState
from harness.topology import ranks_name


def settle(state: RunState) -> list[Decision]:
    """Change the verdicts of which more is known now; who was named before and is not any more is
    named aloud, once."""
    told: list[Decision] = []
    for event in settled(state):
        incident = next(i for i in state.incidents if i.id == event.incident_id)
        cleared = sorted(set(incident.verdict.first_failing) - set(event.ranks))
        but = f", not {ranks_name(cleared)}" if cleared else ""
        mark = f"harness: incident {event.incident_id} is settled"
        text = f"{mark}: it was {ranks_name(event.ranks)}{but}; {event.reason}"
        told += [event, *notify(state, [STORE_NODE], mark, lambda text=text: text)]  # type: ignore[misc]
    return told

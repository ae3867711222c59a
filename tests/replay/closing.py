"""Whether the ledger of a state closes; for tests."""

import pytest

from harness import goodput
from harness.state import RunState


def closes(state: RunState) -> None:
    """Every nanosecond lies in one part, and the parts of each MTTR sum to it."""
    books = goodput.ledger(state)
    assert min(books.parts_ns.values()) >= 0
    if len({attempt.world_size for attempt in state.attempts}) == 1:
        assert sum(books.parts_ns.values()) == books.wall_ns * books.ranks
    windows = goodput.ettr(state, state.last_ns)
    assert windows is None or 0 <= windows <= 1
    for times in goodput.incident_times(state):
        if times.mttr is not None:
            split = [seconds for seconds in times.split.values() if seconds is not None]
            assert sum(split) == pytest.approx(times.mttr, abs=1e-6)
    assert max(map(len, goodput.ledger_lines(state))) <= 100

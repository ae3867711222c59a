"""Every recorded failure gets its verdict, again and again."""

import json
from pathlib import Path

import pytest

from harness import events as e
from tests.replay.replaying import DECIDED, compare, read, replay

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.mark.parametrize(
    "folder",
    sorted(path.parent for path in RECORDINGS.glob("*/*/expected.json")),
    ids=lambda folder: f"{folder.parent.name}/{folder.name}",
)
def test_a_recording_gets_its_verdict(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    state = replay(read(folder / "events.jsonl"))
    assert compare(state, expected) == []


def test_time_alone_brings_suspicion() -> None:
    """A hang is an absence of events: the clock has to go on between them."""
    records = read(RECORDINGS / "rank_stuck_outside_collective/sleeps/events.jsonl")
    first = next(at for at, r in enumerate(records) if isinstance(r.event, e.EvidenceTaken))
    state = replay(records[:first])
    assert state.incidents == []
    assert [look.suspicion for look in state.collections] == [True]
    assert state.collections[0].ordered_ns <= records[first].stamp.wall_ns


def test_patience_is_kept_in_a_replay() -> None:
    records = read(RECORDINGS / "rank_stuck_outside_collective/sleeps/events.jsonl")
    state = replay(records)
    assert state.run is not None
    (incident,) = state.incidents
    waited_ns = incident.detected_ns - incident.verdict.onset_ns
    assert waited_ns >= state.run.policy.stuck_patience * 1e9
    assert len(state.collections) > 1


def test_what_was_decided_then_plays_no_part() -> None:
    """A recording made today holds no decisions, and none of those in a journal are believed."""
    for file in RECORDINGS.glob("*/*/events.jsonl"):
        assert not [r for r in read(file) if isinstance(r.event, DECIDED)], file

"""Every recorded failure gets its verdict, again and again."""

import json
from pathlib import Path

import pytest

from tests.replay.replaying import compare, read, replay

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

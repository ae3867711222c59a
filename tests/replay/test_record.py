"""A recording of a run directory replays to the same verdict and holds no machine's names."""

from pathlib import Path

import pytest

from harness import codec
from tests.replay import record
from tests.replay.replaying import read, replay
from tests.replay.world import World


def test_a_run_directory_becomes_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(nproc=2)
    world.evidence = lambda rank: {
        "last_lines": (
            'File "/srv/venvs/one/lib/python3.11/site-packages/torch/distributed/c10d.py", line 1',
            "/data/secret/project/train.py failed",
        )
    }
    world.start()
    world.step(1)
    world.exit(1, signal=11)
    world.cries(0)
    world.judged()
    header = b'{"schema":1,"harness":"0.1.0","run":"brave-otter-12"}\n'
    lines = b"".join(codec.encode(record_) + b"\n" for record_ in world.records)
    (tmp_path / "journal.jsonl").write_bytes(header + lines)
    monkeypatch.setattr(record, "RECORDINGS", tmp_path / "recordings")

    assert record.main([str(tmp_path), "killed_by_signal/real"]) == 0
    events = tmp_path / "recordings/killed_by_signal/real/events.jsonl"
    text = events.read_text()
    assert "secret" not in text
    assert "/srv" not in text
    assert "site-packages/torch/distributed/c10d.py" in text
    assert "gloo/transport/tcp/pair.cc" in text
    verdict = replay(read(events)).incidents[0].verdict
    assert (verdict.verdict, verdict.first_failing) == ("killed_by_signal", (1,))
    assert "killed_by_signal" in capsys.readouterr().out


def test_bad_arguments_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main([]) == 2
    assert record.main([str(tmp_path), "exception/x"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2

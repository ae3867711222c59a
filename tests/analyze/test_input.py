"""What may lie in a directory of dumps: cut, empty, foreign, hostile, doubled, without a rank."""

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from harness.diagnosis.waits import judge
from harness.errors import UsageError
from harness.flightrecord import folder
from harness.flightrecord.folder import rank_in_name
from harness.flightrecord.readers import read_all
from tests.analyze.job import Form, Job, Stop, dump, write
from tests.analyze.programs import edited, megatron


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Rank 3 of 16 is late."""
    return write(Job(edited(megatron()[0], 3, 9, Stop(), drop=0)).run(), tmp_path)


def _system(path: Path) -> bytes:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {path}",)

    return pickle.dumps({"version": "2.9", "entries": [Evil()]})


MEMO_BOMB = b"\x80\x02}r" + struct.pack("<I", 0xFFFFFFF0) + b"."
"""Asks the unpickler for a memo of billions of places."""
DEEP_KEY = b"\x80\x02}" + b"N" + b"\x85" * 3_000_000 + b"Ns."
"""A dictionary key whose hash descends three million levels."""
DEEP_JSON = b'{"version": "2.9", "entries": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


def test_what_cannot_be_read_is_named_and_the_rest_judged(dumps: Path, tmp_path: Path) -> None:
    whole = (dumps / "_dump_0").read_bytes()
    planted = tmp_path.parent / f"{tmp_path.name}-planted"
    files = {
        "_dump_0": (whole[: len(whole) // 2], "truncated"),
        "_dump_101": (b"", "empty"),
        "_dump_102": (b"\x7fELF not a dump", "neither a pickle nor JSON"),
        "_dump_104": (_system(planted), "refused: it asks for posix.system"),
        "_dump_105": (MEMO_BOMB, "memory"),
        "_dump_106": (DEEP_KEY, "refused"),
        "_dump_107": (DEEP_JSON, "nested too deeply"),
        "_dump_108": (pickle.dumps({"version": "3.1", "entries": []}), "version is unknown: 3.1"),
        "_dump_109": (b'{"version": "2.9", "entries": [', "truncated"),
        "_dump_110": (pickle.dumps([1, 2]), "not a flight record"),
        "_dump_111": (
            pickle.dumps({"version": "2.9", "entries": [{"a": 1}]}),
            "none of its entries",
        ),
        "fault_injection.log": (b"rank 3 sleeps\n", "neither a pickle nor JSON"),
    }
    for name, (content, _) in files.items():
        (dumps / name).write_bytes(content)
    reading = folder.read(dumps)
    why = {note.file: note.why for note in reading.notes}
    assert why.keys() == files.keys()
    for name, (_, words) in files.items():
        assert words in why[name]
        assert "\n" not in why[name]
    assert not planted.exists()
    assert reading.waits.world_size == 16
    (verdict,) = judge(reading.waits)
    assert verdict.first_failing == (3,)


def test_two_dumps_of_one_rank(dumps: Path) -> None:
    old = pickle.loads((dumps / "_dump_3").read_bytes())
    old["entries"] = old["entries"][:2]
    (dumps / "old_rank3.pickle").write_bytes(pickle.dumps(old))
    reading = folder.read(dumps)
    (note,) = reading.notes
    assert (note.file, note.rank) == ("old_rank3.pickle", 3)
    assert "_dump_3 claims the same rank" in note.why
    assert judge(reading.waits)[0].first_failing == (3,)


def test_a_newer_schema_is_tried_and_named(dumps: Path) -> None:
    told = pickle.loads((dumps / "_dump_0").read_bytes()) | {"version": "2.11"}
    (dumps / "_dump_0").write_bytes(pickle.dumps(told))
    reading = folder.read(dumps)
    assert [note.why for note in reading.notes] == ["schema 2.11 is newer than any known; tried"]
    assert 0 in reading.waits.ranks


def test_names_that_tell_the_rank() -> None:
    names = {
        "_dump_12": 12, "rank12.json": 12, "nccl_trace_rank_12": 12, "trace-12.pkl": 12,
        "rank00003.json": 3, "dump_rank_7_attempt_2.pickle": 7, "5": 5, "rank_4_of_16": 4,
        "trace": None, "dump_20260102030405": None,
    }  # fmt: skip
    assert {name: rank_in_name(name) for name in names} == names


def test_a_dump_without_a_rank_in_its_name_is_known_by_its_groups(tmp_path: Path) -> None:
    job = Job(edited(megatron()[0], 3, 9, Stop(), drop=0)).run()
    letters = "abcdefghijklmnop"
    reading = folder.read(write(job, tmp_path, Form(name=lambda rank: f"dump-{letters[rank]}")))
    assert sorted(reading.waits.ranks) == list(range(16))
    assert reading.notes == ()


def test_ranks_without_a_dump(dumps: Path) -> None:
    """The one that all others wait for, and one that also waits."""
    (dumps / "_dump_3").unlink()
    (dumps / "_dump_12").unlink()
    reading = folder.read(dumps)
    assert reading.waits.world_size == 16
    (verdict,) = judge(reading.waits)
    assert 3 in verdict.first_failing
    assert verdict.confidence == "possible"
    assert "left no record" in verdict.reason


def test_directories_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        folder.read(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no files"):
        folder.read(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(UsageError, match=r"no flight record .* note.txt: not a flight record"):
        folder.read(tmp_path)
    with pytest.raises(UsageError, match="is not a directory"):
        folder.read(tmp_path / "note.txt")


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_no_damage_ends_in_anything_but_a_word(kind: str, tmp_path: Path) -> None:
    """Cut anywhere, or with any byte turned over, a file has a digest or a reason why not. Some
    of these pickles ask for gigabytes, so only a reader may touch them."""
    value = dump(Job(megatron(20)[0]).run(), 0, Form(frames=False))
    whole = pickle.dumps(value, 2) if kind == "pickle" else json.dumps(value).encode()
    for at in range(1, len(whole), len(whole) // 60):
        (tmp_path / f"cut_{at}").write_bytes(whole[:at])
        turned = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        (tmp_path / f"turned_{at}").write_bytes(turned)
    files = sorted(tmp_path.iterdir())
    answers = {path: (digest, why) for path, digest, why in read_all(files)}
    assert sorted(answers) == files
    for path, (digest, why) in answers.items():
        assert (digest is None) == bool(why)
        assert "\n" not in why
        assert not path.name.startswith("cut") or why

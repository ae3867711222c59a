"""The journal on real files: order, torn tails, damage, schema, followers."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import codec, journal
from harness import events as e
from harness.journal import JournalError, JournalWriter


def record(seq: int) -> e.Record:
    stamp = e.Stamp(run="t", attempt=0, source="agent:0", seq=seq, wall_ns=seq, mono_ns=seq)
    return e.Record(stamp=stamp, event=e.PhaseChanged(rank=seq, phase="step"))


def write(path: Path, count: int, first: int = 0) -> None:
    writer = JournalWriter(path, run="t", version="0.1")
    for seq in range(first, first + count):
        writer.append(record(seq))
    writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_what_is_written_is_read_in_order(path: Path) -> None:
    write(path, 3)
    write(path, 2, first=3)
    assert list(journal.read(path)) == [record(seq) for seq in range(5)]
    assert journal.read_header(path) == journal.Header(schema=1, harness="0.1", run="t")
    assert path.read_bytes().count(b"\n") == 6


def test_append_gives_the_index_also_after_a_resume(path: Path) -> None:
    write(path, 3)
    writer = JournalWriter(path, run="t", version="0.1")
    assert writer.count == 3
    assert writer.append(record(3)) == 3
    assert path.read_bytes().splitlines()[3 + 1] == codec.encode(record(3))
    writer.close()


@pytest.mark.parametrize("index", [0, 1, 1023, 1024, 1025, 2047, 2048, 2999, 3000, 3100])
@pytest.mark.parametrize("resumed", [False, True])
def test_lines_from_any_index(path: Path, index: int, resumed: bool) -> None:
    writer = JournalWriter(path, run="t", version="0.1")
    for seq in range(3000):
        writer.append(record(seq))
    if resumed:
        writer.close()
        writer = JournalWriter(path, run="t", version="0.1")
    reader = writer.lines_from(index)
    got = []
    while lines := reader.read(10_000):
        got += lines
    for seq in range(3000, 3200):
        writer.append(record(seq))
    while lines := reader.read(10_000):
        got += lines
    assert got == [codec.encode(record(seq)) for seq in range(index, 3200)]
    reader.close()
    writer.close()


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_tail_is_left_out_by_readers_and_set_aside_by_the_writer(
    path: Path, cut: int
) -> None:
    write(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    said: list[str] = []
    assert list(journal.read(path, say=said.append)) == [record(0), record(1)]
    assert said == [f"{path}:4: the last line is torn, left out"]
    said.clear()
    writer = JournalWriter(path, run="t", version="0.1", say=said.append)
    assert writer.count == 2
    writer.append(record(2))
    writer.close()
    assert path.read_bytes() == whole
    torn = path.with_name("journal.torn").read_bytes()
    assert torn == whole.splitlines(keepends=True)[-1][:-cut] + b"\n"
    assert len(said) == 1
    assert f"its {len(torn) - 1} bytes are now in journal.torn" in said[0]


def test_a_torn_header_is_begun_anew(path: Path) -> None:
    path.write_bytes(b'{"schema":1,')
    with pytest.raises(JournalError, match="no header yet"):
        list(journal.read(path))
    writer = JournalWriter(path, run="t", version="0.1", say=lambda text: None)
    writer.append(record(0))
    writer.close()
    assert list(journal.read(path)) == [record(0)]


def test_damage_in_the_middle_names_file_and_line(path: Path) -> None:
    write(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"rank":1', b'"rank":x')
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=r"journal\.jsonl:3: not a record: "):
        list(journal.read(path))
    said: list[str] = []
    got = list(journal.read(path, on_bad="skip", say=said.append))
    assert got == [record(0), record(2), record(3)]
    assert len(said) == 1
    assert ":3: not a record" in said[0]
    assert "left out" in said[0]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"schema":2,"harness":"9","run":"t"}\n', "has schema 2, this version .* schema 1"),
        (b"hello\n", ":1: not the header of a Harness journal"),
        (b"\xff\xfe\n", ":1: not the header"),
        (b"", "no header yet"),
    ],
)
def test_what_is_no_journal_of_ours_is_one_line(path: Path, content: bytes, complaint: str) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalError, match=complaint):
        list(journal.read(path))
    if content:
        with pytest.raises(JournalError, match=complaint):
            JournalWriter(path, run="t", version="0.1")
        assert path.read_bytes() == content


def test_missing_and_unwritable_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal at"):
        list(journal.read(tmp_path / "nowhere"))
    with pytest.raises(JournalError, match=r"cannot write .*No such file"):
        JournalWriter(tmp_path / "nowhere" / "journal.jsonl", run="t", version="0.1")
    with pytest.raises(JournalError, match=r"cannot read .*directory"):
        list(journal.read(tmp_path))


def test_a_second_writer_is_refused(path: Path) -> None:
    writer = JournalWriter(path, run="t", version="0.1")
    with pytest.raises(JournalError, match="written by another controller"):
        JournalWriter(path, run="t", version="0.1")
    writer.close()
    JournalWriter(path, run="t", version="0.1").close()


def test_a_record_is_one_line(path: Path) -> None:
    writer = JournalWriter(path, run="t", version="0.1")
    with pytest.raises(JournalError):
        writer.append_line(b"{\n}")
    writer.close()


def test_a_full_disk_is_one_line_and_leaves_no_half_record(path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from harness import events as e
from harness.journal import JournalError, JournalWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = JournalWriter(Path(sys.argv[1]), run="t", version="0.1")
stamp = e.Stamp(run="t", attempt=0, source="agent:0", seq=0, wall_ns=1, mono_ns=1)
try:
    while True:
        writer.append(e.Record(stamp=stamp, event=e.PhaseChanged(rank=0, phase="step")))
except JournalError as error:
    print(writer.count, error.message)
"""
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    count, message = done.stdout.strip().split(" ", 1)
    assert message == f"cannot write {path}: File too large"
    assert len(list(journal.read(path))) == int(count)
    assert path.read_bytes().endswith(b"}\n")


def test_followers_see_appends_until_stopped(path: Path) -> None:
    writer = JournalWriter(path, run="t", version="0.1")
    writer.append(record(0))
    stop = threading.Event()
    got: list[e.Record] = []
    for item in journal.follow(path, stop):
        got.append(item)
        if len(got) < 5:
            writer.append(record(len(got)))
        else:
            stop.set()
    assert got == [record(seq) for seq in range(5)]
    writer.close()

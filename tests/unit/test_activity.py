"""Signs of work of a real process, from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.agent import activity, asleep, processes
from harness.sightings import Activity

Watch = Callable[[str], Activity]

_SETUP = "import os, subprocess, sys, time\n"
_TURN = "sys.stderr.write('\\n'); sys.stderr.flush(); sys.stdin.readline()\n"
"""Tell that this place is reached, and stay there until told to go on."""


def below(pid: int) -> list[int]:
    return [stat.pid for stat in processes.descendants(pid)]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """What a process is seen to do while it runs `deed`, between two stops of it."""
    started: list[subprocess.Popen[str]] = []

    def run(deed: str) -> Activity:
        log = tmp_path / "rank.log"
        source = f"{_SETUP}{_TURN}{deed}\n{_TURN}"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", source],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.PIPE,
                cwd=tmp_path,
                text=True,
            )
        started.append(process)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stderr.readline()
        before = activity.read(process.pid, log, below(process.pid))
        process.stdin.write("\n")
        process.stdin.flush()
        process.stderr.readline()
        return activity.between(before, activity.read(process.pid, log, below(process.pid)))

    yield run
    for process in started:
        process.communicate("\n")
        assert process.returncode == 0


def test_a_process_that_does_nothing(watch: Watch) -> None:
    seen = watch("time.sleep(0.2)")
    assert seen.seconds >= 0.2
    assert seen.cpu_seconds <= 0.05
    assert (seen.log_bytes, seen.children_cpu_seconds, seen.traced_by) == (0, 0.0, 0)
    assert seen.io_bytes < 4096


def test_a_process_that_computes(watch: Watch) -> None:
    seen = watch("end = time.process_time() + 0.2\nwhile time.process_time() < end: pass")
    assert seen.cpu_seconds >= 0.15
    assert seen.log_bytes == 0


def test_a_process_that_prints(watch: Watch) -> None:
    seen = watch("print('step 1', flush=True)")
    assert seen.log_bytes == len("step 1\n")


def test_how_long_it_has_not_printed(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("step 1\n")
    ago = time.time() - 60
    os.utime(log, (ago, ago))
    reading = activity.read(os.getpid(), log)
    assert 60 <= activity.between(reading, reading).log_quiet_seconds < 120


def test_a_process_that_writes(watch: Watch) -> None:
    seen = watch("open('shard.bin', 'wb').write(bytes(1_000_000))")
    assert seen.io_bytes >= 1_000_000
    assert seen.log_bytes == 0


def test_a_process_whose_child_works(watch: Watch) -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    seen = watch(
        f"child = subprocess.Popen([sys.executable, '-c', {work!r}], text=True,\n"
        "    stdin=subprocess.PIPE, stdout=subprocess.PIPE)\nchild.stdout.readline()\n"
        # It lives until the second reading has been taken.
        "import atexit; atexit.register(child.communicate, '\\n')"
    )
    assert seen.children_cpu_seconds >= 0.25
    assert seen.cpu_seconds < 0.25


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep is another system call there")
def test_a_process_that_sleeps_until_a_point_in_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        while (left := asleep.seconds_left(child.pid)) is None:
            assert child.poll() is None
        assert 0 < left <= 3600
    finally:
        child.kill()
        child.wait()
    assert asleep.seconds_left(child.pid) is None


def test_a_process_that_waits_without_a_limit() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert asleep.seconds_left(child.pid) is None
    child.communicate(b"\n")


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    reading = activity.read(child.pid, tmp_path / "none.log")
    assert (reading.cpu_seconds, reading.io_bytes, reading.log_bytes) == (0.0, 0, 0)
    assert activity.between(reading, reading).traced_by == 0


def test_a_log_of_the_future_is_no_sign_of_life(watch: Watch, tmp_path: Path) -> None:
    """Somebody has set the clock back by an hour since the rank last printed."""
    hour = "; os.utime('rank.log', (time.time() + 3600,) * 2)"
    assert watch("print('x', flush=True)").log_quiet_seconds < 60
    assert watch(f"print('x', flush=True){hour}").log_quiet_seconds > 3600

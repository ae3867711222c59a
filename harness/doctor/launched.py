"""Ranks of the doctor's own: started as a run starts them, and compared with each other."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import runs
from harness.doctor import cores, limits, ranks
from harness.doctor.checks import Check
from harness.errors import PlatformError
from harness.processes import before_exec
from harness.setups import Setup
from harness.state import RunState
from harness.topology import ranks_name

_NAME = "doctor"
_MOST_SECONDS = 60.0
_END_SECONDS = 10.0
_CLOCK_SECONDS = 0.5
"""What ranks of one host may seem apart on a machine that is busy."""

Told = dict[str, Any]


def compare(count: int) -> list[Check]:
    """Start `count` ranks on this machine, have them meet and tell, and compare what they told.

    Takes a few seconds, at most a minute; nothing is left of it.
    """
    with tempfile.TemporaryDirectory(prefix="harness-doctor-") as name:
        folder = Path(name)
        (folder / "told").mkdir()
        said = _run(count, folder)
        told = {rank["rank"]: rank for rank in map(_read, sorted(folder.glob("told/*.json")))}
        state = _state(folder)
        if len(told) < count:
            return [broken(count, told, state, said)]
        return list(told_apart(told, state))


def _run(count: int, folder: Path) -> str:
    """What `harness run` said; the launcher takes all that it has started with it."""
    command = [
        *(sys.executable, "-m", "harness", "run", "--standalone", "--nnodes", "1"),
        *("--nproc-per-node", str(count), "--max-restarts", "0"),
        *("--runs-dir", str(folder), "--run-name", _NAME, "-m", "harness.doctor.probe"),
        str(folder / "told"),
    ]
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=before_exec(signal.SIGTERM),  # noqa: PLW1509
    ) as process:
        try:
            return process.communicate(timeout=_MOST_SECONDS)[1]
        except subprocess.TimeoutExpired:
            return f"error[{PlatformError.code}]: not at an end after {_MOST_SECONDS:g} s"
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    for each in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(each)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


def _read(path: Path) -> Told:
    told: Told = json.loads(path.read_text(encoding="utf-8"))
    return told


def _state(folder: Path) -> RunState:
    try:
        return runs.read(runs.find(_NAME, folder)).state
    except runs.RunNotFound:
        return RunState()


def broken(count: int, told: Mapping[int, Told], state: RunState, said: str) -> Check:
    """Not all ranks came so far: why, in the words of the run itself."""
    lines = [line for line in said.splitlines() if line.startswith("error")]
    verdict = state.incidents[0].verdict if state.incidents else None
    why = verdict.reason if verdict is not None else (lines or ["the run said nothing"])[0]
    return Check(
        name="ranks",
        level="fail",
        says=f"{len(told)} of {count} ranks started and met: {why}"[:300],
        help="harness run would fail here in the same way; what is listed above may tell why",
        facts={"started": len(told), "said": said.splitlines()[-20:]},
    )


def told_apart(told: Mapping[int, Told], state: RunState) -> Iterator[Check]:
    """What the ranks have alike, by their own words and by the journal of their run."""
    yield _met(told, state)
    yield from ranks.alike(_setups(told, state))
    yield _clocks(told)
    yield _speed(told)
    yield _files(told)


def _met(told: Mapping[int, Told], state: RunState) -> Check:
    """How long it took until all ranks ran, and then until all had met over Gloo."""
    attempt = state.attempt
    started = [] if attempt is None else [rank.started_ns for rank in attempt.ranks.values()]
    facts: dict[str, Any] = {"met_seconds": max(rank["met_seconds"] for rank in told.values())}
    if attempt is not None and all(started):
        facts["start_seconds"] = round((max(started) - state.started_ns) / 1e9, 3)
    took = f" after {facts['start_seconds']:.1f} s" if "start_seconds" in facts else ""
    says = f"all {len(told)} ran{took} and met within {facts['met_seconds']:.1f} s (Gloo)"
    return Check(name="ranks", level="ok", says=says, facts=facts)


def _setups(told: Mapping[int, Told], state: RunState) -> dict[int, Setup]:
    """What the ranks run with, by what they told in the journal and what they found installed."""
    setups = {} if state.attempt is None else state.attempt.setups
    return {
        rank: replace(setups.get(rank, Setup()), packages=found["packages"], code=found["code"])
        for rank, found in told.items()
    }


def _clocks(told: Mapping[int, Told]) -> Check:
    apart = {rank: found["clock_seconds"] for rank, found in told.items()}
    facts = {"ahead_seconds": {str(rank): seconds for rank, seconds in apart.items()}}
    wrong = {rank: s for rank, s in apart.items() if abs(s) > _CLOCK_SECONDS}
    if wrong:
        return Check(
            name="rank clocks",
            level="warn",
            says="; ".join(
                f"rank {rank} ({told[rank]['host']}) is {abs(seconds):.1f} s"
                f" {'ahead' if seconds > 0 else 'behind'}"
                for rank, seconds in list(wrong.items())[:3]
            ),
            help="run chrony or ntpd on all nodes: what happened first is told by their clocks",
            facts=facts,
        )
    most = max(map(abs, apart.values()))
    says = f"at most {most * 1000:.0f} ms from the middle one when leaving a barrier"
    return Check(name="rank clocks", level="ok", says=says, facts=facts)


def _speed(told: Mapping[int, Told]) -> Check:
    """The same work on all ranks at a time: CPU time, so sharing a core is no outlier."""
    took = {rank: found["block_seconds"] for rank, found in told.items()}
    slow = cores.slow_cores(took)
    facts = {"block_seconds": {str(rank): seconds for rank, seconds in took.items()}, "slow": slow}
    if slow:
        middle = statistics.median(took.values())
        factor = max(took[rank] for rank in slow) / middle
        where = ",".join(str(told[rank]["host"]) for rank in slow[:1])
        return Check(
            name="rank speed",
            level="warn",
            says=f"{ranks_name(slow)} ({where}) up to {factor:.1f} times slower than most",
            help="every step waits for its slowest rank: look at core speed above, bind elsewhere",
            facts=facts,
        )
    return Check(name="rank speed", level="ok", says=f"{_all(told)} alike", facts=facts)


def _files(told: Mapping[int, Told]) -> Check:
    """A rank's own limit, which its launcher or its container may have lowered."""
    wanted = limits.files_wanted(len(told))
    soft = {rank: found["files_soft"] for rank, found in told.items()}
    facts = {"soft": {str(rank): most for rank, most in soft.items()}, "wanted": wanted}
    few = [rank for rank, most in soft.items() if 0 <= most < wanted]
    odd = len(set(soft.values())) > 1
    if few or odd:
        texts = (f"{most} on {ranks_name(own)}" for most, own in _by_value(soft))
        return Check(
            name="rank files",
            level="warn",
            says=f"may have open: {', '.join(texts)}; {wanted} may be wanted",
            help=f"ulimit -n {wanted} before harness run, on every node",
            facts=facts,
        )
    says = f"{_all(told)} may have as many open"
    return Check(name="rank files", level="ok", says=says, facts=facts)


def _by_value(values: Mapping[int, int]) -> list[tuple[int, Sequence[int]]]:
    found: dict[int, list[int]] = {}
    for rank, value in sorted(values.items()):
        found.setdefault(value, []).append(rank)
    return sorted(found.items())


def _all(told: Mapping[int, Told]) -> str:
    return f"all {len(told)} ranks" if len(told) > 1 else "one rank"

"""The launcher with real controllers, agents and workers: every way to end leaves nothing behind.

Workers are shell scripts (`--no-python`), so that a run starts in a second.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from harness.launcher import CONTROLLER_RESTARTS_PER_MINUTE
from harness.portholder import free_port

PATIENCE = 240.0
SLEEPER = 'echo $$ > "$PIDS/$RANK.$TORCHELASTIC_RESTART_COUNT"; exec sleep 1000'
STUBBORN = """\
trap '' TERM INT HUP
echo $$ > "$PIDS/$RANK.0"
while :; do sleep 1000; done
"""
DAEMON = """\
setsid sh -c 'setsid sleep 1000 & echo $! > "$PIDS/daemon"' &
echo $$ > "$PIDS/$RANK.0"
exec sleep 1000
"""
UNTIL_TOLD = """\
echo $$ > "$PIDS/$RANK.0"
while [ ! -e "$PIDS/go" ]; do sleep 0.1; done
"""


class Launched:
    """A `harness run` in its own process, and what can be seen of it from outside."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *options: str,
        folder_of_run: str = "a",
        python: bool = False,
        zygote: bool = False,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        how = "--no-zygote" if python else "--no-python"
        self.folder = folder
        self.pids = folder / "pids"
        self.pids.mkdir(exist_ok=True)
        # Sockets are made below it, and the kernel bounds how long their paths may be.
        self.runtime = Path(tempfile.mkdtemp(prefix="harness-test-"))
        self.script = folder / ("train.py" if python else "worker.sh")
        self.script.write_text(script if python else f"#!/bin/sh\n{script}")
        self.script.chmod(0o700)
        self.runs = folder / f"runs-{folder_of_run}"
        self.output = folder / f"err-{folder_of_run}"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    *(sys.executable, "-m", "harness", "run", "--runs-dir", str(self.runs)),
                    *([] if zygote else [how]),
                    *(*options, str(self.script)),
                ],
                env={
                    **os.environ,
                    **(environ or {}),
                    "PIDS": str(self.pids),
                    "TMPDIR": str(self.runtime),
                },
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Look again and again while the launcher lives."""
        launcher = os.pidfd_open(self.process.pid)
        try:
            for _ in range(int(PATIENCE * 50)):
                ended = select.select([launcher], [], [], 0.02)[0]
                if condition():  # it may have come true just before the end
                    return
                assert not ended, f"ended before {what}:\n{self.output.read_text()}"
        finally:
            os.close(launcher)
        raise AssertionError(f"not in time: {what}\n{self.output.read_text()}")

    def until_working(self, *names: str) -> "Launched":
        files = [self.pids / name for name in names]
        self.until(lambda: all(f.exists() and f.read_text() for f in files), f"workers {names}")
        return self

    def pid_of(self, module: str) -> int:
        """The process that runs `harness.MODULE` for this run."""
        found: dict[int, int] = {}
        for pid in processes.descendants(self.process.pid):
            with contextlib.suppress(OSError):  # it has gone since
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if f"harness.{module}".encode() in words:
                    stat = Path(f"/proc/{pid}/stat").read_text()
                    found[pid] = int(stat.rpartition(")")[2].split()[1])
        # A child that has not become another program yet still bears the words of its parent.
        of_its_own = [pid for pid, parent in found.items() if parent not in found]
        assert len(of_its_own) == 1, f"{module}: {found}"
        return of_its_own[0]

    def end(self) -> tuple[int, list[str]]:
        """Exit code and the lines that Harness itself said."""
        code = self.process.wait(PATIENCE)
        return code, self.output.read_text().splitlines()

    def events(self, kind: str) -> list[dict[str, Any]]:
        journal = self.runs / "latest" / "journal.jsonl"
        whole = journal.read_text().rpartition("\n")[0] if journal.exists() else ""
        lines = whole.splitlines()[1:]
        records = [json.loads(line) for line in lines]
        return [record["event"] for record in records if record["type"] == kind]

    def orders(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.events("OrderGiven") if e["order"]["type"] == kind]

    def close(self) -> None:
        """Nothing of it is there afterwards. SIGINT does not wait for ranks to save."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)
        left = list(self.runtime.glob("harness-*"))  # torch keeps folders there, too
        shutil.rmtree(self.runtime, ignore_errors=True)
        # The agent of a launcher that was killed takes the directory along, in its own time.
        killed = self.process.returncode == -signal.SIGKILL
        assert killed or left == [], "a runtime directory was left"

    def everybody(self) -> list[int]:
        """Descriptors of all that lives now, this launcher included."""
        found = []
        for pid in {self.process.pid} | processes.descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it has gone since
                found.append(os.pidfd_open(pid))
        return found


def all_gone(descriptors: list[int]) -> None:
    """Wait for every process behind `descriptors` to end."""
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], PATIENCE)[0], "a process was left behind"
        os.close(descriptor)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def start(script: str, *options: str, **more: Any) -> Launched:
        started.append(Launched(tmp_path, script, *options, **more))
        return started[-1]

    yield start
    for run in started:
        run.close()


Start = Callable[..., Launched]


def test_a_run_that_ends_well_says_two_lines(launch: Start) -> None:
    run = launch("exit 0", "--nproc-per-node", "2", "--run-name", "fine")
    code, lines = run.end()
    assert code == 0
    assert lines[0].startswith("harness: run fine: 2 ranks, in ")
    assert lines[1].startswith("harness: fine succeeded after ")
    assert len(lines) == 2
    assert (run.runs / "latest").readlink() == Path("fine")
    settings = json.loads((run.runs / "fine" / "config.json").read_text())["settings"]
    assert settings["nproc_per_node"] == {"value": "2", "origin": "--nproc-per-node"}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_one_signal_stops_cleanly(launch: Start, number: signal.Signals, code: int) -> None:
    run = launch(SLEEPER, "--nproc-per-node", "2", "--stop-grace", "30")
    run.until_working("0.0", "1.0")
    everybody = run.everybody()
    run.process.send_signal(number)
    ended, lines = run.end()
    assert ended == code
    all_gone(everybody)
    (end,) = run.events("RunEnded")
    assert (end["outcome"], end["exit_code"]) == ("stopped", code)
    said = lines[1:]
    assert said[0].startswith(f"harness: {number.name}: stopping the run")
    assert len(said) <= 3


def test_ctrl_c_twice_kills_what_will_not_stop(launch: Start) -> None:
    run = launch(STUBBORN, "--nproc-per-node", "2", "--stop-grace", "600")
    run.until_working("0.0", "1.0")
    everybody = run.everybody()
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: "stopping" in run.output.read_text(), "the first Ctrl-C is noticed")
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    all_gone(everybody)


def test_an_early_ctrl_c_is_not_lost(launch: Start) -> None:
    run = launch(SLEEPER, "--stop-grace", "30")
    run.until(lambda: "run " in run.output.read_text(), "the run has a name")
    run.process.send_signal(signal.SIGINT)
    code, lines = run.end()
    assert code == 130
    assert not [line for line in lines if "Traceback" in line]


def test_a_killed_launcher_takes_everybody_along(launch: Start) -> None:
    run = launch(STUBBORN, "--nproc-per-node", "2").until_working("0.0", "1.0")
    everybody = run.everybody()
    run.process.kill()
    run.process.wait(PATIENCE)
    all_gone(everybody)


def test_a_killed_agent_takes_its_workers_along_and_the_books_are_closed(launch: Start) -> None:
    run = launch(STUBBORN, "--nproc-per-node", "2").until_working("0.0", "1.0")
    everybody = run.everybody()
    os.kill(run.pid_of("agent"), signal.SIGKILL)
    code, lines = run.end()
    assert code == 82
    all_gone(everybody)
    assert "harness: the agent died (killed by SIGKILL); its workers die with it" in lines
    assert "harness: run again, and training goes on from its last checkpoint" in lines
    (end,) = run.events("RunEnded")
    assert (end["outcome"], end["exit_code"]) == ("failed", 82)


def test_a_killed_controller_costs_nothing(launch: Start) -> None:
    run = launch(UNTIL_TOLD, "--nproc-per-node", "2").until_working("0.0", "1.0")
    os.kill(run.pid_of("controller"), signal.SIGKILL)
    run.until(lambda: len(run.events("ControllerStarted")) >= 2, "a second controller")
    (run.pids / "go").touch()
    code, lines = run.end()
    assert code == 0
    assert len(run.events("AttemptStarted")) == 1
    first, second = run.events("ControllerStarted")
    assert second["incarnation"] == 1
    assert second["address"] == first["address"]
    assert any("the controller died (killed by SIGKILL); starting it again" in x for x in lines)


@pytest.mark.slow
def test_a_controller_that_keeps_dying_is_given_up_in_words(launch: Start) -> None:
    run = launch(STUBBORN).until_working("0.0")
    everybody = run.everybody()
    most = CONTROLLER_RESTARTS_PER_MINUTE + 1
    for started in range(1, most + 1):
        run.until(
            lambda n=started: len(run.events("ControllerStarted")) >= n,  # type: ignore[misc]
            f"controller {started}",
        )
        os.kill(run.pid_of("controller"), signal.SIGKILL)
    run.until(
        lambda: (
            "within a minute" in run.output.read_text()
            or len(run.events("ControllerStarted")) > most
        ),
        "giving up, or one more",
    )
    if "within a minute" not in run.output.read_text():
        pytest.skip("this machine is too slow to start so many controllers within a minute")
    code, lines = run.end()
    text = "\n".join(lines)
    assert code == 70
    all_gone(everybody)
    assert f"the controller died {most} times within a minute (killed by SIGKILL)" in text
    assert "the run is given up and its workers are stopped" in text
    assert "controller.log and the memory left on this machine; run again" in text


def test_a_daemon_of_a_worker_does_not_escape(launch: Start) -> None:
    run = launch(DAEMON).until_working("0.0", "daemon")
    everybody = run.everybody()
    daemon = os.pidfd_open(int((run.pids / "daemon").read_text()))
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 143
    all_gone([*everybody, daemon])


def test_a_rank_that_ignores_sigterm_is_killed_and_named(launch: Start) -> None:
    run = launch(STUBBORN, "--nproc-per-node", "2", "--stop-grace", "0.3")
    run.until_working("0.0", "1.0")
    everybody = run.everybody()
    run.process.send_signal(signal.SIGTERM)
    code, lines = run.end()
    assert code == 143
    all_gone(everybody)
    assert "harness: ranks 0-1 did not stop within 0.3 s of SIGTERM and were killed" in lines


@pytest.mark.slow
def test_two_nodes_meet_whoever_comes_first(launch: Start) -> None:
    meet = ["--nnodes", "2", "--master-port", str(free_port()), "--nproc-per-node", "2"]
    joiner = launch(UNTIL_TOLD, *meet, "--node-rank", "1", folder_of_run="b")
    joiner.until(lambda: "waiting for the head" in joiner.output.read_text(), "it says it waits")
    head = launch(UNTIL_TOLD, *meet, "--node-rank", "0")
    head.until_working("0.0", "1.0", "2.0", "3.0")
    (head.pids / "go").touch()
    assert head.end()[0] == 0
    assert joiner.end()[0] == 0
    assert sorted(event["node_rank"] for event in head.events("AgentJoined")) == [0, 1]


def test_two_launchers_with_one_endpoint_share_the_roles(launch: Start) -> None:
    meet = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    runs = [launch(UNTIL_TOLD, *meet, folder_of_run=name) for name in "ab"]
    runs[0].until_working("0.0", "1.0")
    (runs[0].pids / "go").touch()
    assert [run.end()[0] for run in runs] == [0, 0]
    assert sum(run.runs.exists() and (run.runs / "latest").exists() for run in runs) == 1


def test_a_head_that_never_comes_is_an_error(launch: Start) -> None:
    meet = ["--nnodes", "2", "--node-rank", "1", "--master-port", str(free_port())]
    code, lines = launch(SLEEPER, *meet, "--rendezvous-timeout", "1").end()
    assert code == 82
    assert "error[H203]: nobody listens at 127.0.0.1:" in lines[1]


@pytest.mark.parametrize("options", [["--master-port"], ["--nnodes", "2", "--master-port"]])
def test_a_taken_port_is_named_and_leaves_no_run(launch: Start, options: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = launch(SLEEPER, *options, str(port))
        code, lines = run.end()
    assert code == 2
    assert lines[0].startswith(f"error[H201]: --master-port: port {port} on 127.0.0.1 cannot")
    assert not run.runs.exists()

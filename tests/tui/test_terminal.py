"""The app in a real terminal: whatever ends it, the terminal is as it was before."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from harness.cli.group import call

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
LIMIT_SECONDS = 240


class Terminal:
    """A tmux server of its own with one pane, in which a shell runs one command line."""

    def __init__(self, tmp_path, size):
        self.socket = f"harness-test-{uuid.uuid4().hex[:8]}"
        self.pid_file = tmp_path / "pid"
        self.size = size

    def tmux(self, *arguments):
        command = ["tmux", "-L", self.socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def start(self, *arguments, env):
        words = " ".join(f"'{word}'" for word in arguments)
        code = "import sys; from harness.cli import main; main(sys.argv[1:])"
        # The shell waits for the app in the foreground and says how it ended.
        line = (
            f'sh -c \'echo $$ > {self.pid_file}; exec {sys.executable} -c "{code}" "$@"\' '
            f"sh {words}; echo ended with $?; exec cat"
        )
        settings = [f"-e{name}={value}" for name, value in env.items()]
        width, height = self.size
        self.tmux("new-session", "-d", *settings, "-x", str(width), "-y", str(height), line)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def modes(self):
        return self.tmux("display-message", "-p", "#{alternate_on} #{mouse_any_flag}").strip()

    def title(self):
        return self.tmux("display-message", "-p", "#{pane_title}").strip()

    def wait_for(self, text, *, gone=False):
        end = time.monotonic() + LIMIT_SECONDS
        while (text in (screen := self.screen())) is gone:
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(tmp_path, (80, 24))
    yield made
    socket_path = made.tmux("display-message", "-p", "#{socket_path}").strip()
    made.tmux("kill-server")
    if socket_path:
        Path(socket_path).unlink(missing_ok=True)  # tmux leaves it behind


@pytest.fixture
def run_dir(tmp_path, scenes):
    folder = scenes.crashed().write(tmp_path / "runs")
    scenes.write_logs(folder, 0, {rank: ["step=212"] for rank in range(8)})
    return folder


ENDS = {
    "q": (None, "q", 0),
    "ctrl-c": (None, "C-c", 0),
    "sigterm": (signal.SIGTERM, None, 143),
    "sighup": (signal.SIGHUP, None, 129),
}


@pytest.mark.parametrize("end", ENDS)
def test_terminal_is_given_back(terminal, run_dir, end):
    number, key, code = ENDS[end]
    terminal.start("tui", str(run_dir), env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    terminal.wait_for("EXCEPTION")
    terminal.wait_for("rank 5 (dp1 pp0 tp1): ValueError: boom [not markup]")
    assert terminal.modes() == "1 1"
    assert terminal.title().startswith("EXCEPTION rank 5 ")
    if key is not None:
        terminal.tmux("send-keys", key)
    else:
        os.kill(int(terminal.pid_file.read_text()), number)
    terminal.wait_for(f"ended with {code}")
    assert terminal.modes() == "0 0"


def test_small_terminal_without_colour_over_vt100(terminal, run_dir):
    """All screens, with nothing but ASCII and no colour, where a terminal can least."""
    terminal.size = (60, 18)
    env = {"NO_COLOR": "1", "TERM": "vt100", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    terminal.start("tui", str(run_dir), "--ascii", "--readonly", env=env)
    terminal.wait_for("troubled ranks")
    assert terminal.wait_for("X<").isascii()
    for key, words in (
        ("2", "process groups"),
        ("3", "stacks of"),
        ("4", "step=212"),
        ("5", "metrics"),
        ("6", "incidents (1)"),
        ("7", "chaos-allowed"),
        ("S", "this view is read-only"),
    ):
        terminal.tmux("send-keys", key)
        screen = terminal.wait_for(words)
        assert screen.isascii()
        assert "rank 5" in screen.splitlines()[1]
    terminal.tmux("send-keys", "q")
    terminal.wait_for("ended with 0")


def test_a_bug_gives_the_terminal_back_and_is_said_in_one_line(terminal, run_dir, tmp_path):
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TMPDIR": str(tmp_path)}
    journal = run_dir / "journal.jsonl"
    broken = journal.read_bytes().replace(b'"detected_ns":', b'"detected_ns":9999999999999', 1)
    journal.write_bytes(broken)  # a year that no calendar has
    terminal.start("tui", str(run_dir), env=env)
    terminal.wait_for("ended with 70")
    assert terminal.modes() == "0 0"
    assert "error[H900]: a bug in Harness" in terminal.screen()
    assert "Traceback" not in terminal.screen()


def test_the_run_outlives_a_killed_view(terminal, controller):
    terminal.start("tui", controller.address, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    terminal.wait_for("LIVE")
    os.kill(int(terminal.pid_file.read_text()), signal.SIGKILL)
    terminal.wait_for("ended with 137")
    assert controller.process.poll() is None
    assert call(["status", controller.address]) in (0, 4)


SCRIPT = """
import time
import torch
import torch.distributed as dist
import harness

dist.init_process_group("gloo")
for step in range(1, 1_000_000):
    loss = torch.ones(1)
    dist.all_reduce(loss)
    time.sleep(0.02)
    harness.progress(step, loss=float(loss) / step, tokens=step * 64)
"""


@pytest.mark.slow
def test_a_rank_killed_from_the_screen_is_named_on_it(terminal, tmp_path):
    """A real run, its screens by address, a fault injected with keys alone, and the verdict."""
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "harness", "run", "--chaos-allowed", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path / "runs"), "train.py"], cwd=tmp_path, env=env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        try:
            _kill_from_the_screen(terminal, tmp_path / "runs" / "latest" / "controller.json")
            assert run.wait(LIMIT_SECONDS) in (130, 143, 1, 0)
        finally:
            run.terminate()


def _kill_from_the_screen(terminal, facts):
    end = time.monotonic() + LIMIT_SECONDS
    while not facts.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    address = json.loads(facts.read_text())["address"]
    terminal.start("tui", address, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    # Only words that stay once they are there: the headline of a verdict goes with the restart.
    for keys, words in (
        ((), "RUNNING"),
        (("l", "X"), "must be said"),
        (("Enter",), "Inject kill into rank 1, now?"),
    ):
        terminal.tmux("send-keys", *keys)
        terminal.wait_for(words)
    terminal.tmux("send-keys", "Enter")
    terminal.wait_for("Cancel", gone=True)
    for keys, words in (
        (("l", "X"), "must be said"),
        (("Enter",), "Inject kill into rank 1, now?"),
        (("y",), "last incident: killed_by_signal of rank 1"),
        (("3",), "stacks of 2 ranks"),
        (("6",), "recovered by"),
        (("S",), "Stop run"),
        (("y",), "STOPPED"),
    ):
        terminal.tmux("send-keys", *keys)
        terminal.wait_for(words)
    terminal.tmux("send-keys", "q")
    terminal.wait_for("ended with 0")

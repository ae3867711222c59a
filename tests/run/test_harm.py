"""Harm that comes from outside: what others left on the machine, disks that fill up, clocks that
jump, hosts that fail again. Each is named, and nothing of the training is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.portholder import free_port
from tests.run.test_elastic_nodes import JOIN, TRAIN, kill_node
from tests.run.test_launcher import SLEEPER, Launched
from tests.run.test_launcher import launch as launch  # noqa: PLC0414 - a fixture

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., Launched]

HOLDER = """\
import os, socket, sys, time
if os.fork():
    sys.exit()
held = socket.create_server(("127.0.0.1", 0))
print(held.getsockname()[1], os.getpid(), flush=True)
os.setsid()
os.close(1)
time.sleep(600)
"""


@pytest.fixture
def orphan() -> Iterator[tuple[int, int]]:
    """Port and pid of a process that some earlier job has left behind."""
    made = subprocess.run(
        [sys.executable, "-S", "-c", HOLDER], stdout=subprocess.PIPE, text=True, check=True
    )
    port, pid = map(int, made.stdout.split())
    yield port, pid
    os.kill(pid, signal.SIGKILL)


def test_a_port_kept_by_an_orphan_is_refused_with_its_holder(
    launch: Start, orphan: tuple[int, int]
) -> None:
    port, pid = orphan
    run = launch(SLEEPER, "--master-addr", "127.0.0.1", "--master-port", str(port))
    code, lines = run.end()
    assert code == 2
    said = "\n".join(lines)
    assert f"port {port}" in said
    assert f"pid {pid}" in said
    assert "orphan" in said
    assert "Traceback" not in said


FILLING = """\
import os, sys
import torch, torch.distributed as dist
import harness
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(512, 512)
ck = harness.Checkpointer(sys.argv[1], keep=9, every=1, sync=sys.argv[2] == "sync")
for step in range(ck.load(model=model) + 1, 6):
    torch.nn.init.constant_(model.weight, step)
    harness.progress(step)
    ck.maybe_save(step, model=model)
    ck.wait()
print("all steps done", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("how", ["sync", "background"])
def test_a_disk_that_fills_up_is_named_and_costs_no_step(tmp_path: Path, how: str) -> None:
    script, folder, disk = tmp_path / "train.py", tmp_path / "runs", tmp_path / "disk"
    script.write_text(FILLING)
    disk.mkdir()
    harness = f"{sys.executable} -m harness"
    # In a mount namespace of its own the disk is gone with the shell, however that ends.
    shell = f"""
        mount -t tmpfs -o size=3m full {disk} || exit 99
        {harness} run --runs-dir {folder} --nproc-per-node 2 {script} {disk} {how} || exit 98
        {harness} ckpt verify --json {disk} >{tmp_path}/verified
        {harness} run --runs-dir {folder} --nproc-per-node 2 {script} {disk} {how} || exit 97
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all steps done") >= 2
    assert "No space left on device" in done.stderr
    verified = json.loads((tmp_path / "verified").read_text())
    good = [found["step"] for found in verified["checkpoints"] if found["reason"] is None]
    assert good == [2, 1]


@pytest.mark.slow
def test_a_lock_file_that_a_killed_job_has_left_is_named(launch: Start, tmp_path: Path) -> None:
    script = """\
import os
import torch, torch.distributed as dist
from torch.utils.file_baton import FileBaton
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(8))
lock = FileBaton(os.path.join(os.environ["PIDS"], "lock"))
if dist.get_rank() == 1 and not lock.try_acquire():
    lock.wait()
dist.all_reduce(torch.ones(8))
"""
    (tmp_path / "pids").mkdir()
    (tmp_path / "pids" / "lock").touch()
    run = launch(script, "--nproc-per-node", "2", "--start-patience", "10", python=True)
    assert run.end()[0] == 80
    (incident,) = told(run)["incidents"]
    assert (incident["family"], incident["first_failing"]) == ("stuck", [1])
    assert "waits for a lock file to go away; a job that was killed leaves it" in incident["cause"]


CLOCK = """\
import os, time
_ns, _set = time.time_ns, os.environ["CLOCK"]
def _off():
    try:
        return int(open(_set).read() or 0)
    except OSError:
        return 0
time.time_ns = lambda: _ns() + _off() * 10**9
time.time = lambda: time.time_ns() / 1e9
"""


@pytest.mark.slow
def test_a_node_whose_clock_jumps(
    launch: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet = ["--nnodes", "2", "--master-port", str(free_port())]
    head = launch(TRAIN, *meet, "--node-rank", "0", python=True)
    clock = tmp_path / "clock"
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'later'}:{ROOT}")
    monkeypatch.setenv("CLOCK", str(clock))
    other = launch(TRAIN, *meet, "--node-rank", "1", folder_of_run="b", python=True)
    head.until_working("0.0", "1.0")
    for jump in ("3600", "-7200", "60"):
        clock.write_text(jump)
        wanted = furthest(head) + 20
        head.until(lambda wanted=wanted: furthest(head) >= wanted, "steps after the jump")
    (pid,) = (e["pid"] for e in head.events("WorkerStarted") if e["rank"] == 1)
    os.kill(pid, signal.SIGKILL)
    head.until_working("0.1", "1.1")
    (head.pids / "go").touch()
    assert [run.end()[0] for run in (head, other)] == [0, 0]
    assert len(head.events("AttemptStarted")) == 2
    report = told(head)
    (incident,) = report["incidents"]
    assert (incident["class"], incident["first_failing"]) == ("killed_by_signal", [1])
    ledger = report["ledger"]
    assert sum(ledger["seconds"].values()) == pytest.approx(ledger["rank_seconds"], rel=0.005)
    assert ledger["wall_seconds"] < 600


def furthest(run: Launched) -> int:
    """The furthest step that rank 1 has told of."""
    pulses = [pulse for event in run.events("PulsesRead") for pulse in event["pulses"]]
    return max((pulse["step"] for pulse in pulses if pulse["rank"] == 1), default=0)


def told(run: Launched) -> dict[str, Any]:
    command = [sys.executable, "-m", "harness", "report", "--json", "--runs-dir", str(run.runs)]
    report = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    found: dict[str, Any] = json.loads(report.stdout)
    return found


def on_host(name: str) -> list[str]:
    """A command's beginning that makes it run on a host of that name."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may name a host")
def test_a_host_that_fails_twice_is_left_out_while_others_can_take_its_place(
    launch: Start,
) -> None:
    meet = [
        *("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
    ]

    def join(host: str, folder: str) -> Launched:
        return launch(TRAIN, *meet, *JOIN, folder_of_run=folder, python=True, prefix=on_host(host))

    head = launch(TRAIN, *meet, "--node-rank", "0", python=True)
    first = join("frail", "b")
    head.until_working("0.0", "1.0")
    kill_node(first)
    head.until_working("0.1")
    second = join("frail", "c")
    head.until_working("0.2", "1.2")
    kill_node(second)
    head.until_working("0.3")
    third = join("frail", "d")
    head.until(lambda: "frail (node 1) is left out" in head.output.read_text(), "it is left out")
    other = join("sound", "e")
    head.until_working("0.4", "1.4")
    (head.pids / "go").touch()
    assert [run.end()[0] for run in (head, third, other)] == [0, 0, 0]
    nodes = [[node["host"] for node in event["nodes"]] for event in head.events("AttemptStarted")]
    mine = socket.gethostname()
    assert nodes == [[mine, "frail"], [mine], [mine, "frail"], [mine], [mine, "sound"]]
    struck = json.loads((head.runs / "strikes.json").read_text())
    assert "frail" in json.dumps(struck)
    assert mine not in json.dumps(struck)

"""The memory tier with real launchers, agents and Gloo ranks: who dies loses a step at most, reads
no file, and ends with the same parameters, bit by bit; and nothing is left in shared memory."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.portholder import free_port
from tests.run.test_launcher import Launched, all_gone
from tests.run.test_launcher import launch as launch  # noqa: PLC0414 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE = 200.0
"""A run imports torch up to five times here."""

TRAIN = """\
import hashlib, json, os, signal, sys, time
import torch
import torch.distributed as dist
import harness
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
pids, root = os.environ["PIDS"], os.environ["CK"]
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank + 5)
ck = harness.Checkpointer(root, every=int(os.environ["EVERY"]), memory_every=1)
start = ck.load(model=model, optimizer=optimizer, position=0)
result = {"start": start, "source": ck.source}
result["files"] = [name for name in opened if name.startswith(root)]
for step in range(start + 1, int(os.environ.get("END", "24")) + 1):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    harness.progress(step, loss=loss.item(), total_steps=24)
    ck.maybe_save(step, model=model, optimizer=optimizer, position=step)
    if harness.should_stop(step):
        break
    if step == 12 and "PAUSES" in os.environ:
        open(os.path.join(pids, f"pauses{rank}"), "w").write("12")
        while not os.path.exists(os.path.join(pids, "go")):
            time.sleep(0.01)
    if step > 12 and "PAUSES" in os.environ:
        time.sleep(0.02)  # of the step: those that are left shall not be over before the agreement
    if step == 12 and "HANGS" in os.environ:
        time.sleep(1000)
    if attempt == "0" and (step, str(rank)) == (12, os.environ.get("DIES")):
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == "0" and (step, str(rank)) == (12, os.environ.get("WAITS")):
        while harness.worker.guest.current().memory.sent < 11:
            time.sleep(0.01)
        open(os.path.join(pids, "ready"), "w").write(str(os.getpid()))
        time.sleep(1000)
ck.wait()
whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
result["end"] = hashlib.sha256(whole).hexdigest()
path = os.path.join(pids, f"result{rank}")
open(path + ".new", "w").write(json.dumps(result))
os.rename(path + ".new", path)
dist.barrier()
dist.destroy_process_group()
"""
JOIN = ("--rdzv-conf", "is_host=0")
Start = Callable[..., Launched]


def environ(folder: Path, name: str, **more: str) -> dict[str, str]:
    return {
        "CK": str(folder / name),
        "EVERY": "100",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        **more,
    }


def ending(run: Launched) -> tuple[int, list[str]]:
    """Exit code and what Harness said."""
    run.process.wait(PATIENCE)
    return run.end()


def results(run: Launched) -> list[dict[str, Any]]:
    found = [json.loads((run.pids / f"result{rank}").read_text()) for rank in (0, 1)]
    for rank in (0, 1):
        (run.pids / f"result{rank}").unlink()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The parameters at the end of the same training when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = Launched(
        folder, TRAIN, "--nproc-per-node", "2", zygote=True, python=True,
        environ=environ(folder, "ck"),
    )  # fmt: skip
    code, lines = ending(run)
    assert code == 0, lines
    first, second = results(run)
    assert first == second
    assert (first["start"], first["source"]) == (0, "")
    run.close()
    end: str = first["end"]
    return end


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Neither a name in shared memory, nor a process of these runs that holds any of it."""
    yield
    assert [name for name in os.listdir("/dev/shm") if "harness" in name] == []
    for process in (Path("/proc") / name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            held = [os.readlink(path) for path in (process / "fd").iterdir()]
            ours = str(tmp_path) in (process / "environ").read_text(errors="replace")
            assert not (ours and [name for name in held if "harness-memory" in name])


def test_a_killed_rank_costs_a_step_and_no_file_is_read(
    launch: Start, tmp_path: Path, undisturbed: str
) -> None:
    run = launch(
        TRAIN, "--nproc-per-node", "2", zygote=True, python=True,
        environ=environ(tmp_path, "ck", DIES="1"),
    )  # fmt: skip
    code, lines = ending(run)
    assert code == 0, lines
    for result in results(run):
        assert result["start"] in (11, 12)
        assert (result["source"], result["files"]) == ("memory", [])
        assert result["end"] == undisturbed
    (closed,) = run.events("IncidentClosed")
    assert closed["lost_steps"] <= 1
    report = [sys.executable, "-m", "harness", "report", "--json", "--runs-dir", str(run.runs)]
    told = json.loads(subprocess.run(report, capture_output=True, check=True).stdout)
    assert told["attempts"][1]["resumed_from"] == "memory"
    assert told["ledger"]["incidents"][0]["resumed_from"] == "memory"


def kill_nodes(head: Launched, nodes: list[Launched], ranks: set[int]) -> list[Launched]:
    """As if the machines of `ranks` went at once, when rank 1's step 11 is at its neighbour; the
    other nodes."""
    head.until_working("ready")  # rank 1 has its step 11 at the neighbour
    members = {e["pid"] for e in head.events("AgentJoined") if e["node_rank"] in ranks}
    dying = {node: node.pid_of("agent") for node in nodes if node.pid_of("agent") in members}
    everybody = [descriptor for node in dying for descriptor in node.everybody()]
    for node, agent in dying.items():
        os.kill(agent, signal.SIGKILL)
        node.process.kill()
    with contextlib.suppress(ProcessLookupError):  # it died with its agent
        os.kill(int((head.pids / "ready").read_text()), signal.SIGKILL)
    for node in dying:
        node.process.wait(240)
    all_gone(everybody)
    return [node for node in nodes if node not in dying]


def test_a_spare_goes_on_from_the_neighbours_copy(
    launch: Start, tmp_path: Path, undisturbed: str
) -> None:
    meet = [
        *("--nnodes", "2", "--spares", "1", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
    ]
    more = environ(tmp_path, "ck", WAITS="1")
    head = launch(TRAIN, *meet, "--node-rank", "0", python=True, environ=more)
    nodes = [
        launch(TRAIN, *meet, *JOIN, folder_of_run=name, python=True, environ=more) for name in "bc"
    ]
    head.until(lambda: len(head.events("AgentJoined")) >= 3, "the spare is here")
    others = kill_nodes(head, nodes, {1})
    code, lines = ending(head)
    assert code == 0, lines
    assert [ending(node)[0] for node in others] == [0]
    first, second = results(head)
    assert first["start"] in (11, 12)
    assert first == second
    assert (first["source"], first["files"]) == ("neighbour", [])
    assert first["end"] == undisturbed


def test_a_smaller_world_takes_it_through_a_checkpoint(launch: Start, tmp_path: Path) -> None:
    meet = [
        *("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
    ]
    more = environ(tmp_path, "ck", WAITS="1")
    head = launch(TRAIN, *meet, "--node-rank", "0", python=True, environ=more)
    other = launch(TRAIN, *meet, *JOIN, folder_of_run="b", python=True, environ=more)
    kill_nodes(head, [other], {1})
    code, lines = ending(head)
    assert code == 0, lines
    result = json.loads((head.pids / "result0").read_text())
    assert result["start"] in (11, 12)
    assert result["source"] == "disk"
    assert any(f"memory of step {result['start']} is saved as" in line for line in lines)


def test_a_replica_stands_in_where_the_neighbour_is_lost_too(launch: Start, tmp_path: Path) -> None:
    """Rank 1's copy may be on the node of rank 2, and both go; rank 0 holds the same parts."""
    meet = [
        *("--nnodes", "1:3", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
    ]
    more = environ(tmp_path, "ck", WAITS="1")
    head = launch(TRAIN, *meet, "--node-rank", "0", python=True, environ=more)
    nodes = [
        launch(TRAIN, *meet, *JOIN, folder_of_run=name, python=True, environ=more) for name in "bc"
    ]
    assert kill_nodes(head, nodes, {1, 2}) == []
    code, lines = ending(head)
    assert code == 0, lines
    result = json.loads((head.pids / "result0").read_text())
    assert result["start"] in (11, 12)
    assert result["source"] == "disk"
    (told,) = (line for line in lines if "is saved as" in line)
    assert "not certified" in told


def test_a_preempted_run_saves_on_disk_and_goes_on_from_there(
    launch: Start, tmp_path: Path
) -> None:
    run = launch(
        TRAIN, "--nproc-per-node", "2", "--preempt-grace", "100", zygote=True, python=True,
        environ=environ(tmp_path, "ck", PAUSES="1", END="1000"),
    )  # fmt: skip
    run.until_working("pauses0", "pauses1")
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: bool(run.orders("StopAtStep")), "a step to stop at")
    (run.pids / "go").touch()
    code, lines = ending(run)
    assert code == 84, lines
    first, second = results(run)
    assert first["end"] == second["end"]
    again = launch(
        TRAIN, "--nproc-per-node", "2", folder_of_run="b", zygote=True, python=True,
        environ=environ(tmp_path, "ck", END="0"),
    )  # fmt: skip
    assert ending(again)[0] == 0
    for result in results(again):
        assert 12 < result["start"] < 1000
        assert result["source"] == "disk"
        assert result["end"] == first["end"]


def test_a_run_that_gives_up_leaves_what_was_in_memory_as_a_checkpoint(
    launch: Start, tmp_path: Path, undisturbed: str
) -> None:
    lost = launch(
        TRAIN, "--nproc-per-node", "2", "--max-restarts", "0", zygote=True, python=True,
        environ=environ(tmp_path, "ck", DIES="1", EVERY="5"),
    )  # fmt: skip
    code, lines = ending(lost)
    assert code == 1
    (told,) = (line for line in lines if "not certified" in line)
    step = int(told.split()[4])
    assert step in (11, 12)
    ls = [sys.executable, "-m", "harness", "ckpt", "ls", "--json", str(tmp_path / "ck")]
    listed = json.loads(subprocess.run(ls, capture_output=True, check=True).stdout)
    newest = listed["checkpoints"][0]
    assert (newest["step"], newest["state"], newest["vouched_by"]) == (step, "saved", [])
    again = launch(
        TRAIN, "--nproc-per-node", "2", folder_of_run="b", zygote=True, python=True,
        environ=environ(tmp_path, "ck"),
    )  # fmt: skip
    assert ending(again)[0] == 0
    for result in results(again):
        assert (result["start"], result["source"]) == (step, "disk")
        assert result["end"] == undisturbed


def test_kill_9_of_launcher_and_agent_leaves_nothing(launch: Start, tmp_path: Path) -> None:
    run = launch(
        TRAIN, "--nproc-per-node", "2", python=True, zygote=True,
        environ=environ(tmp_path, "ck", HANGS="1"),
    )  # fmt: skip
    run.until(lambda: bool(run.events("MemoryHeld")), "memory is in use")
    everybody = run.everybody()
    agent = run.pid_of("agent")
    run.process.kill()
    with contextlib.suppress(ProcessLookupError):  # it ends by itself, too
        os.kill(agent, signal.SIGKILL)
    run.process.wait(240)
    all_gone(everybody)

"""How agents, zygotes and ranks end, and that nothing is left."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from harness import events, orders
from harness.processes import descendants

SLEEPY = """
    import time
    print("up", flush=True)
    time.sleep(1000)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def leads(pid: int) -> bool:
    """Whether it has a session of its own, as all that the zygote has forked for good."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


@pytest.mark.slow
def test_dead_zygote_harms_nobody_and_is_replaced(new_node: Callable[..., Any]) -> None:
    node = new_node()
    zygote = node.until(events.ZygoteReady).pid
    node.launch(SLEEPY)
    os.kill(zygote, signal.SIGKILL)
    ready = node.until(events.ZygoteReady)
    assert ready.pid != zygote
    assert all(alive(pid) for pid in _ranks(node))
    node.stop()
    started = node.launch("print('again')")
    assert {event.launched_by for event in started} == {"zygote"}
    assert {event.exit_code for event in node.finish().values()} == {0}
    assert "starting another" in node.err.read_text()


def test_the_next_attempt_comes_from_what_was_forked_ahead(new_node: Callable[..., Any]) -> None:
    node = new_node()  # with another's attempts before, some may wait already
    others: set[int] = set()
    started = node.launch(
        SLEEPY, store_is_up=lambda: others.update(descendants(node.process.pid))
    )  # those that wait may be there before the ranks are told of
    others |= {event.pid for event in started}

    def waiting() -> list[int]:
        new = descendants(node.process.pid) - others
        return sorted(pid for pid in new if alive(pid) and leads(pid))

    node.wait_until(lambda: len(waiting()) == 3)  # for two ranks and the store
    ahead = waiting()
    node.stop()
    assert waiting() == ahead
    os.kill(ahead[0], signal.SIGKILL)
    node.wait_until(lambda: waiting() == ahead[1:])
    started = node.launch("print('again')")
    assert ahead[2] in {event.pid for event in started}  # the other one became the store
    assert {event.exit_code for event in node.finish().values()} == {0}
    assert node.log(0) == node.log(1) == "again\n"


def test_killed_agent_takes_its_ranks_along(new_node: Callable[..., Any]) -> None:
    node = new_node(zygote=False)
    unused = node.until(events.ZygoteUnused)
    assert unused.why == "--no-zygote"
    started = node.launch(SLEEPY)
    assert {event.launched_by for event in started} == {"fresh"}
    node.wait_until(lambda: node.log(0) == node.log(1) == "up\n")
    pids = [node.process.pid, *descendants(node.process.pid)]
    node.process.kill()
    node.process.wait()
    node.wait_until(lambda: not any(alive(pid) for pid in pids))


def test_launcher_gone_means_all_gone(new_node: Callable[..., Any]) -> None:
    shell = [
        sys.executable,
        "-S",
        "-c",
        "import subprocess, sys; subprocess.call(sys.argv[1:], close_fds=False)",
    ]
    node = new_node(
        launch_line=shell,
        mode="command",
        script="sh",
        script_args=("-c", "echo up $RANK; sleep 1000"),
    )
    assert node.until(events.ZygoteUnused).why.startswith("--no-python")
    node.launch()
    node.wait_until(lambda: node.log(0) == "up 0\n" and node.log(1) == "up 1\n")
    pids = descendants(node.process.pid)
    node.process.kill()  # the launcher; the agent is its child
    node.process.wait()
    node.wait_until(lambda: not any(alive(pid) for pid in pids))
    assert not node.runtime_dir.exists()


def test_lost_controller_stops_the_node(new_node: Callable[..., Any]) -> None:
    node = new_node(mode="command", script="sleep", script_args=("1000",))
    node.launch()
    pids = descendants(node.process.pid)
    node.hang_up()
    assert node.process.wait(240) == 82
    assert not any(alive(pid) for pid in pids)
    assert node.err.read_text() == "harness: no word from the controller\n"


@pytest.mark.slow
def test_fresh_when_the_script_sets_variables_first(new_node: Callable[..., Any]) -> None:
    node = new_node(nproc_per_node=1)
    node.process.kill()
    node.script.write_text(
        "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport sys\n"
        "assert 'torch' not in sys.modules\nimport torch\nprint(torch.get_num_threads())\n"
        "weight = torch.nn.Parameter(torch.zeros(1))\noptimizer = torch.optim.SGD([weight], 0.1)\n"
        "optimizer.step()\nraise SystemExit('no more')\n"
    )
    node = new_node(nproc_per_node=1)
    assert "train.py:2 sets the environment before torch" in node.until(events.ZygoteUnused).why
    (started,) = node.launch(ranks=1)
    assert started.launched_by == "fresh"
    assert node.finish(1)[0].exit_code == 1
    assert node.log(0) == "2\nno more\n"
    assert max(p.step for e in node.of(events.PulsesRead) for p in e.pulses) == 1
    (raised,) = node.of(events.WorkerRaised)
    assert (raised.message, raised.where.line) == ("no more", 10)
    assert node.shutdown(75) == 75
    assert node.out.read_text() == "2\nno more\n"
    assert list(node.runtime_dir.iterdir()) == [node.runtime_dir / "job.json"]


def test_signal_asks_the_controller(node: Any) -> None:
    node.order(orders.Notify(text="a card"))
    node.wait_until(lambda: "a card\n" in node.err.read_text())  # it hears, also signals
    for number, command in (
        (signal.SIGTERM, {"type": "Preempt", "why": "SIGTERM received"}),
        (signal.SIGINT, {"type": "StopRun", "why": "SIGINT received", "signal": 2}),
        (signal.SIGHUP, {"type": "StopRun", "why": "the launcher was told to stop", "signal": 15}),
    ):
        node.commands.clear()
        node.process.send_signal(number)
        node.wait_until(lambda: node.read() and node.commands)
        assert node.commands == [command]


def _ranks(node: Any) -> list[int]:
    return [event.pid for event in node.of(events.WorkerStarted)]

"""A real run is preempted: every rank saves at one step, and the run says that it did."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.worker import pulse
from tests.run.test_launcher import Launched, all_gone

TRAIN = """\
import os, signal, sys, time
import harness
rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
step = 0
while True:
    step += 1
    time.sleep(0.001 * (1 + int(rank)))
    harness.progress(step)
    if step == 5:
        open(os.path.join(os.environ["PIDS"], rank), "w").write("5")
    if harness.should_stop(step):
        {then}
"""
SAVE = """harness.checkpoint_saved(step, f"ck/{step}", 0.0)
        print("stopped at", step, flush=True)
        break"""
GO_ON = "time.sleep(1000)"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def start(then: str, *options: str) -> Launched:
        started.append(Launched(tmp_path, TRAIN.replace("{then}", then), *options, python=True))
        return started[-1]

    yield start
    for run in started:
        run.close()


def test_all_ranks_save_at_one_step(launch: Callable[..., Launched]) -> None:
    run = launch(SAVE, "--nproc-per-node", "2", "--preempt-signal", "USR1", "--stop-grace", "60")
    run.until_working("0", "1")
    everybody = run.everybody()
    run.process.send_signal(signal.SIGUSR1)
    code, lines = run.end()
    all_gone(everybody)
    assert code == 84, lines
    logs = (run.runs / "latest" / "logs" / "attempt0").iterdir()
    steps = set(re.findall(r"stopped at (\d+)", "".join(log.read_text() for log in logs)))
    assert len(steps) == 1, "ranks of different speed stopped at different steps"
    assert lines[-1].endswith(f"(exit code 84): preempted, checkpoint of step {steps.pop()} saved")
    assert not [line for line in lines if "stack" in line]
    (end,) = run.events("RunEnded")
    assert (end["outcome"], end["exit_code"]) == ("stopped", 84)


@pytest.mark.slow
def test_it_can_be_asked_for_from_the_command_line(launch: Callable[..., Launched]) -> None:
    run = launch(SAVE, "--nproc-per-node", "2", "--stop-grace", "60")
    run.until_working("0", "1")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "stop", "--save", "--runs-dir", str(run.runs)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "the run is preempted\n")
    code, lines = run.end()
    assert code == 84, lines
    assert "preempted, checkpoint of step " in lines[-1]


def test_one_that_does_not_save_is_hurried_by_a_second_signal(
    launch: Callable[..., Launched],
) -> None:
    run = launch(GO_ON, "--preempt-grace", "600", "--stop-grace", "0.2")
    run.until_working("0")
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: any(o["order"]["agreed"] for o in run.orders("StopAtStep")), "agreement")
    run.process.send_signal(signal.SIGTERM)
    code, lines = run.end()
    assert code == 143
    assert "SIGTERM again: not waiting for the ranks to save" in "\n".join(lines)


def test_a_rank_saves_once_at_the_agreed_step_and_may_stop_at_another() -> None:
    page = pulse.make_page("0")
    agent, rank = pulse.PulseReader(page), pulse.PulseWriter(page)
    rank.put(step=7, phase="step", step_ns=1, loss=2.0, loss_finite=True, tokens=3, total_steps=4)
    agent.agree(pulse.SAVE, 3)
    agent.propose(pulse.STOP, 100)
    assert [rank.should_save(step) for step in range(6)] == [False] * 3 + [True] + [False] * 2
    assert not rank.should_stop(5)
    agent.agree(pulse.SAVE, 8)
    assert not agent.missed(pulse.SAVE)
    assert [rank.should_save(step) for step in (7, 10, 11)] == [False, True, False]
    agent.agree(pulse.STOP, 12)
    assert [rank.should_stop(step) for step in (11, 12, 13)] == [False, True, True]
    agent.propose(pulse.SAVE, 11)
    assert agent.missed(pulse.SAVE)
    assert (agent.asked(pulse.SAVE), agent.asked(pulse.STOP)) == (11, 13)
    assert (agent.read().step, agent.read().loss, agent.read().total_steps) == (7, 2.0, 4)
    agent.close()
    os.close(page)


def test_a_rank_waits_at_a_proposed_step_and_goes_on_to_a_later_one() -> None:
    page = pulse.make_page("0")
    agent, rank = pulse.PulseReader(page), pulse.PulseWriter(page)
    assert agent.asked(pulse.STOP) == agent.read().asked_stop == -1
    agent.propose(pulse.STOP, 3)
    assert not any(rank.should_stop(step) for step in range(3))
    assert agent.asked(pulse.STOP) == 2
    assert not agent.missed(pulse.STOP)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(rank.should_stop(3)))
    waiting.start()
    while agent.asked(pulse.STOP) != 3 or agent.missed(pulse.STOP):
        assert waiting.is_alive()
    agent.propose(pulse.STOP, 10)
    waiting.join()
    assert answers == [False]
    assert not rank.should_stop(5)
    agent.propose(pulse.STOP, 4)
    assert agent.missed(pulse.STOP)
    waiting = threading.Thread(target=rank.should_stop, args=[6])
    waiting.start()
    assert agent.missed(pulse.STOP), "it waits now, but had passed before"
    agent.propose(pulse.STOP, 7)
    waiting.join()
    agent.agree(pulse.STOP, 7)
    assert rank.should_stop(9)
    agent.close()
    os.close(page)

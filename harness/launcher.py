"""The parent of all that lives on a node: it starts controller and agent, restarts the controller,
hands on signals, and leaves nothing behind. No torch, no grpc, one thread.

It decides nothing about the run. It guarantees that the tree below it ends: it adopts orphans, so
nothing escapes it, and its own death is a signal to both children.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from harness import processes, rundir, runtimedir
from harness.children import Child, Children, signal_name
from harness.config import Job
from harness.errors import ExitCode, NodeFailure, PlatformError, UsageError

CONTROLLER_RESTARTS_PER_MINUTE = 5
SHOW_STACKS = (signal.SIGUSR1, signal.SIGQUIT)
"""Ctrl-\\ is the latter."""
READY_SECONDS = 30.0
"""Longest wait for a controller to listen, a cold import of its libraries included."""
READY_SECONDS_STARVED = 300.0
"""The same where it gets no CPU: only the time that it could run counts."""
HARD_STOP_AFTER_GRACE = 1.5
LEAVE_SECONDS = 5.0
LEAVE_SECONDS_STOPPED = 0.3
"""What the agent gets to leave by itself once the controller has; less when the user waits."""
CLOSING_SECONDS = 2.0
"""What the controller gets to write down how the run ended, once the agent is gone."""


def say(text: str) -> None:
    """One line to the user."""
    with contextlib.suppress(OSError):
        print(f"harness: {text}", file=sys.stderr, flush=True)


class Launcher:
    """Runs one node's part of a job to its end. Use it once, in the main thread."""

    def __init__(self, job: Job, *, run_dir: Path | None) -> None:
        """`run_dir` is the run's directory on the head node, None on the others."""
        self.job = job
        self.run_dir = run_dir
        self.address = job.controller
        self.preempt_signals = (signal.SIGTERM, signal.Signals[f"SIG{job.preempt_signal}"])
        self.children = Children(*self.preempt_signals)
        self.agent: Child | None = None
        self.controller: Child | None = None
        self.controller_starts: list[float] = []
        self.controller_due: float | None = None
        """When to start it again; None while it lives."""
        self.ready: dict[str, str] | None = None
        """The newest controller's first words: where it listens, or why it cannot."""
        self.stop_signal = 0
        self.stop_deadline = 0.0
        self.preempted = False
        """The stop gives the ranks time to save."""
        self.to_forward: list[int] = []
        """Signals that the agent has still to hear of."""
        self.leave_deadline: float | None = None
        self.kill_now = False
        self.began = time.monotonic()

    # --- from start to end ---------------------------------------------------------------------

    def run(self) -> int:
        """The exit code of `harness run` on this node."""
        with runtimedir.made() as runtime_dir, self.children:
            try:
                self.job.write(runtime_dir / runtimedir.JOB)
                return self._run(runtime_dir)
            finally:
                left = self.children.kill_all()
                if left:
                    say(f"could not kill {sorted(left)}: stuck in the kernel")

    def _run(self, runtime_dir: Path) -> int:
        if self.run_dir is None:
            self._wait_for_head()
        else:
            self._start_controller(self.run_dir)
            self._wait_until_ready()
            rundir.link_latest(Path(self.job.runs_dir), self.job.run)
            say(f"run {self.job.run}: {self._size()}, in {os.path.relpath(self.run_dir)}")
            if self.ready is not None and "metrics" in self.ready:
                say(f"metrics at http://{self.ready['metrics']}/metrics")
        if self.stop_signal:
            return self._end_by_force(self._stopped_code)
        self.agent = self.children.spawn(
            "harness.agent",
            ["--runtime-dir", str(runtime_dir), "--controller", self._agent_target()],
            death_signal=signal.SIGUSR2,
            # Until it asks for them itself: an early Ctrl-C is kept for it, see _forward_stop.
            ignored=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )
        return self._watch(self.agent)

    def _size(self) -> str:
        ranks, nodes = self.job.nproc_per_node * self.job.nnodes, str(self.job.nnodes)
        if self.job.nnodes == 1:
            return "1 rank" if ranks == 1 else f"{ranks} ranks"
        if self.job.min_nodes not in (0, self.job.nnodes):
            nodes = f"{self.job.min_nodes} to {nodes}"
        # Nodes may differ in size; only this one's is known before they join.
        here = f"{self.job.nproc_per_node} rank{'' if self.job.nproc_per_node == 1 else 's'}"
        return f"{nodes} nodes, {here} on this one"

    def _watch(self, agent: Child) -> int:
        """Until the agent is gone, one way or another."""
        while agent.status is None:
            if self.kill_now:
                return self._end_by_force(self._stopped_code)
            if self.stop_signal:
                self._forward_stop(agent)
                if time.monotonic() > self.stop_deadline:
                    say("the clean stop took too long; killing what is left")
                    return self._end_by_force(self._stopped_code)
            if not self._tend_controller():
                return self._end_by_force(ExitCode.INTERNAL)
            if self._overdue():
                return self._end_by_force(
                    int(self._run_ended().get("exit_code", self._stopped_code))
                )
            self._poll(self._patience())
        return self._agent_ended(agent, agent.status)

    def _overdue(self) -> bool:
        """Whether the agent is still here though the run is over and its controller has left."""
        if self.controller is None or self.controller.status != 0:
            return False
        if self.leave_deadline is None:
            hurry = LEAVE_SECONDS_STOPPED if self.stop_signal else LEAVE_SECONDS
            self.leave_deadline = time.monotonic() + hurry
        return time.monotonic() > self.leave_deadline

    def _patience(self) -> float | None:
        if self.to_forward:
            return 0.02
        due = [self.stop_deadline] if self.stop_signal else []
        if self.leave_deadline is not None:
            due.append(self.leave_deadline)
        if self.controller_due is not None:
            due.append(self.controller_due)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _poll(self, timeout: float | None) -> None:
        self.children.poll(timeout)
        while self.children.signals:
            self._signalled(self.children.signals.pop(0))

    def _signalled(self, number: int) -> None:
        preempt = number in self.preempt_signals
        if number in SHOW_STACKS and not preempt:
            self._show_stacks()
            return
        if self.stop_signal and not self.preempted:
            self.kill_now = self.kill_now or number == signal.SIGINT
            return
        policy = self.job.policy
        grace = policy.stop_grace
        again = "; Ctrl-C again kills at once" if number == signal.SIGINT else ""
        if self.stop_signal:
            say(f"{signal_name(number)} again: not waiting for the ranks to save{again}")
            self.preempted = False
        else:
            if preempt:
                grace += policy.preempt_grace
                again = f"; its ranks have {policy.preempt_grace:g} s to save, again stops at once"
            say(f"{signal_name(number)}: stopping the run{again}")
            self.preempted = preempt
        self.stop_signal = signal.SIGTERM if preempt else number
        self.stop_deadline = time.monotonic() + grace + HARD_STOP_AFTER_GRACE
        # To the agent SIGTERM is preemption, SIGHUP a plain stop, whatever it was here.
        other = signal.SIGTERM if self.preempted else signal.SIGHUP
        self.to_forward.append(signal.SIGINT if number == signal.SIGINT else other)

    def _show_stacks(self) -> None:
        """The run goes on; the agent asks for all stacks, which come on stderr."""
        agent = self.agent
        if agent is not None and processes.catches(agent.pid, signal.SIGUSR1):
            agent.kill(signal.SIGUSR1)
        else:
            say("no stacks: no workers are running yet")

    @property
    def _stopped_code(self) -> int:
        return ExitCode.INTERRUPTED if self.stop_signal == signal.SIGINT else ExitCode.TERMINATED

    # --- the controller ------------------------------------------------------------------------

    def _start_controller(self, run_dir: Path) -> None:
        self.job.write(run_dir / "job.json")
        self.controller_starts.append(time.monotonic())
        self.controller_due = None
        self.ready = None
        read_end, write_end = os.pipe()
        self.controller = self.children.spawn(
            "harness.controller",
            ["--run-dir", str(run_dir), "--bind", self.address, "--ready-fd", str(write_end)],
            death_signal=signal.SIGKILL,
            talk=True,
            output=run_dir / "controller.log",
            pass_fds=(write_end,),
        )
        os.close(write_end)
        self.children.read_line(read_end, self._controller_ready)

    def _controller_ready(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            self.ready = json.loads(line)
            if self.ready is not None and "address" in self.ready:
                self.address = self.ready["address"]

    def _wait_until_ready(self) -> None:
        controller = self.controller
        assert controller is not None
        began = before = processes.turns(controller.pid)
        left = READY_SECONDS
        while self.ready is None and controller.status is None and not self.stop_signal:
            now = processes.turns(controller.pid)
            left -= now.at - before.at - processes.starved(before, now)
            before = now
            if left <= 0 or now.at - began.at > READY_SECONDS_STARVED:
                raise PlatformError(
                    f"the controller did not start within {now.at - began.at:.0f} s",
                    help=f"see {self._controller_log}",
                )
            self._poll(min(left, 1.0))
        if self.ready is not None and "error" in self.ready:
            told = self.ready
            raise UsageError(told["error"], help=told.get("help"), code=told.get("code"))
        if self.ready is None and not self.stop_signal:
            raise PlatformError(
                f"the controller did not start ({controller.ended_how})",
                help=f"see {self._controller_log}",
            )

    @property
    def _controller_log(self) -> str:
        return os.path.relpath((self.run_dir or Path()) / "controller.log")

    def _tend_controller(self) -> bool:
        """Start it again when it has died; False when that has been done too often."""
        controller, now = self.controller, time.monotonic()
        if controller is None or self.run_dir is None or controller.status in (None, 0):
            return True
        if self.controller_due is None:
            self.controller_starts = [at for at in self.controller_starts if now - at < 60.0]
            recent = len(self.controller_starts)
            if recent > CONTROLLER_RESTARTS_PER_MINUTE:
                why = (self.ready or {}).get("error", controller.ended_how)
                say(
                    f"the controller died {recent} times within a minute ({why}): the run is given"
                    " up and its workers are stopped"
                )
                say(
                    f"see {self._controller_log} and the memory left on this machine; run again,"
                    " and training goes on from its last checkpoint"
                )
                return False
            say(f"the controller died ({controller.ended_how}); starting it again, workers go on")
            # One that could not have its port back yet must not use up its chances in a blink.
            self.controller_due = now + (0.5 if recent > 1 else 0.0)
        if now >= self.controller_due:
            self._start_controller(self.run_dir)
        return True

    def _wait_for_controller(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.controller is not None and self.controller.status is None:
            left = deadline - time.monotonic()
            if left <= 0 or self.kill_now:
                return
            self._poll(left)

    # --- another node's controller -------------------------------------------------------------

    def _wait_for_head(self) -> None:
        """Until somebody listens at the meeting place. Raises NodeFailure when nobody ever does."""
        host, _, port = self.address.rpartition(":")
        patience = self.job.policy.rendezvous_timeout
        told = False
        while not self.stop_signal:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
                return
            except OSError as error:
                why = error.strerror or str(error)
            waited = time.monotonic() - self.began
            if waited > patience:
                raise NodeFailure(
                    f"nobody listens at {self.address} after {patience:g} s ({why})",
                    help="start the head (--node-rank 0), or look at the address and the firewall",
                )
            if waited > 3.0 and not told:
                say(f"waiting for the head at {self.address} ({why}), up to {patience:g} s")
                told = True
            self._poll(0.1)

    # --- the agent -----------------------------------------------------------------------------

    def _agent_target(self) -> str:
        host, _, port = self.address.rpartition(":")
        return f"127.0.0.1:{port}" if host == "0.0.0.0" else self.address

    def _forward_stop(self, agent: Child) -> None:
        """Hand the stop on as soon as the agent listens to it."""
        if self.to_forward and processes.catches(agent.pid, self.to_forward[0]):
            agent.kill(self.to_forward.pop(0))

    def _agent_ended(self, agent: Child, status: int) -> int:
        explained = (ExitCode.USAGE, ExitCode.INTERNAL, ExitCode.NODE_LOST)
        ended = self._run_ended()
        clean = self.run_dir is None or bool(ended) or status in explained
        if status >= 0 and clean:
            # An agent that came when the run was over already knows less than the journal.
            status = int(ended.get("exit_code", status))
            self.children.kill_all(self._spared)
            self._wait_for_controller(CLOSING_SECONDS + 1.0)
            self._say_end(status)
            return status
        say(f"the agent died ({agent.ended_how}); its workers die with it")
        if self.run_dir is not None and not self.stop_signal:
            say("this node holds the run's controller and store: the run ends with its ranks;")
            say("run again, and training goes on from its last checkpoint")
        return self._end_by_force(self._stopped_code if self.stop_signal else ExitCode.NODE_LOST)

    # --- the end -------------------------------------------------------------------------------

    @property
    def _spared(self) -> tuple[Child, ...]:
        return (self.controller,) if self.controller is not None else ()

    def _end_by_force(self, exit_code: int) -> int:
        """Kill all but the controller and let that one close the books."""
        agent = self.agent
        why = "never started" if agent is None else agent.ended_how
        if agent is not None and agent.status is None:
            why = "killed by the launcher, which was told to stop"
        self.children.kill_all(self._spared)
        if self.controller is not None:
            pid = 0 if agent is None else agent.pid
            gone = {"type": "agent_gone", "node_rank": self.job.node_rank, "pid": pid, "why": why}
            self.controller.tell(json.dumps(gone).encode())
            others = self.job.policy.stop_grace if self.job.nnodes > 1 else 0.0
            hurry = self.kill_now or agent is None or bool(self._run_ended())
            self.kill_now = False
            self._wait_for_controller(0.5 if hurry else CLOSING_SECONDS + others)
        self._say_end(exit_code)
        return exit_code

    def _say_end(self, exit_code: int) -> None:
        took = f"after {time.monotonic() - self.began:.1f} s"
        code = f" (exit code {int(exit_code)})" if exit_code else ""
        if self.run_dir is None:
            say(f"this node left the run {took}{code}")
            return
        ended = self._run_ended()
        outcome = ended.get("outcome") or ("stopped" if self.stop_signal else "failed")
        # With an incident there is a card on the screen that says it better.
        told = (self.run_dir / "incidents").exists()
        reason = ended.get("reason", "")
        tell = (outcome == "failed" and not told) or reason.startswith("preempted")
        reason = f": {reason}" if reason and tell else ""
        say(f"{self.job.run} {outcome} {took}{code}{reason}")

    def _run_ended(self) -> dict[str, Any]:
        """The journal's RunEnded; empty while there is none, and on nodes that have none."""
        if self.run_dir is None:
            return {}
        try:
            with (self.run_dir / "journal.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 262_144))
                lines = file.read().splitlines()
        except OSError:
            return {}
        for line in reversed(lines):
            if b'"RunEnded"' in line:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    record = json.loads(line)
                    if record["type"] == "RunEnded":
                        event: dict[str, Any] = record["event"]
                        return event
        return {}

"""Carries out a plan: starts the run, asks its controller for each fault, waits for the end, and
leaves nothing behind, whatever happens meanwhile."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import journal, runs, runtimedir
from harness.chaos import kinds, residue
from harness.chaos.address import addressed
from harness.chaos.plan import Plan, Planned
from harness.chaos.residue import Residue
from harness.codec import CodecError, decode
from harness.errors import HarnessError
from harness.events import (
    AgentJoined,
    ControllerStarted,
    FaultInjected,
    Record,
    StoreReady,
    WorkerStarted,
)
from harness.faults import ANY, Fault
from harness.orders import Inject
from harness.portholder import free_port
from harness.processes import before_exec
from harness.state import RunState, fold
from harness.wire import observer

NAME = "it"
_LOOK_SECONDS = 0.02
_SHORTEST_LIMIT, _PER_STEP, _PER_FAULT = 240.0, 2.0, 60.0
"""Seconds until a run is called endless."""
_STOP_SECONDS = 10.0
_CONTROLLER_SECONDS, _LEAVE_SECONDS = 10, 60.0
"""How long nodes go on without the head, and in what time they are gone by themselves."""
_CALM_STEPS, _CALM_NS = 5, 5 * 10**9
_CALM_STEPS_MORE = 20
"""A fault that nothing has come of for so many steps and so long, or for so many steps more, is
past."""
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Executed:
    """What came of a plan. `code` is the head launcher's, `codes` are those of the other nodes in
    their order, None for one that did not end by itself; `refused` holds faults that the run did
    not take, in words."""

    plan: Plan
    folder: Path
    code: int
    state: RunState
    residue: Residue
    seconds: float
    timed_out: bool = False
    codes: tuple[int | None, ...] = ()
    refused: list[str] = field(default_factory=list)

    @property
    def work(self) -> Path:
        """Where the workload wrote."""
        return self.folder / "work"


class _Follower:
    """The run's state, as its journal grows."""

    def __init__(self, path: Path) -> None:
        self.state = RunState()
        self.pids: set[int] = set()
        self.ports: set[int] = set()
        self.struck_at = 0
        """Step of the furthest rank, since its start, when the newest fault was done."""
        self._path = path
        self._reader: journal.LineReader | None = None

    def look(self) -> None:
        if self._reader is None:
            if not runs.has_header(self._path):
                return
            self._reader = journal.LineReader(self._path, offset=0, skip=1)
        while lines := self._reader.read():
            for line in lines:
                with contextlib.suppress(CodecError):
                    self._take(decode(line))

    def _take(self, record: Record) -> None:
        match record.event:
            case AgentJoined(pid=pid) | WorkerStarted(pid=pid):
                self.pids.add(pid)
            case StoreReady(port=port):
                self.ports.add(port)
            case ControllerStarted(address=address):
                self.ports.add(int(address.rpartition(":")[2]))
            case FaultInjected():
                self.struck_at = max(_steps(self.state), default=0)
            case _:
                pass
        fold(self.state, record)

    def gone_on(self) -> bool:
        """Whether the run has gone on after the newest fault: in a new attempt, or for so many
        steps and seconds that the fault would have been told by now."""
        attempt, fault = self.state.attempt, self.state.faults[-1]
        if attempt is None or not _steps(self.state):
            return False
        if attempt.started_ns > fault.injected_ns:
            return True
        needed = max(kinds.find(fault.fault.kind).steps, _CALM_STEPS)
        made = min(_steps(self.state)) - self.struck_at
        quiet = time.time_ns() - fault.injected_ns > _CALM_NS
        # A run of quick steps would be over before the seconds are.
        return made >= needed and (quiet or made >= needed + _CALM_STEPS_MORE)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def commands(plan: Plan, folder: Path, port: int) -> list[list[str]]:
    """The command line of each node, the head first. `port` is where several nodes meet."""
    one = plan.workload
    base = [
        *(sys.executable, "-m", "harness", "run", "--runs-dir"),
    ]
    found = []
    for node in range(one.nodes):
        own = folder / "runs" if node == 0 else folder / f"runs-of-node-{node}"
        words = [*base, str(own), "--chaos-allowed", "--nproc-per-node", str(one.nproc)]
        if node == 0:
            words += ["--run-name", NAME]
        if one.nodes > 1:
            words += ["--nnodes", f"1:{one.nodes}", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            words += ["--controller-timeout", str(_CONTROLLER_SECONDS)]
            words += ["--node-rank", "0"] if node == 0 else ["--rdzv-conf", "is_host=0"]
        found.append([*words, *one.options, *one.command(folder / "work")])
    return found


def execute(plan: Plan, folder: Path, *, say: Say = lambda text: None) -> Executed:
    """Carry out `plan`; all that is written is in `folder`, which must not exist.

    Ctrl-C stops the run, undoes what was done and leaves nothing behind before it is raised.
    """
    folder.mkdir(parents=True)
    temp = Path(tempfile.mkdtemp(prefix="chaos-"))
    mark = uuid.uuid4().hex
    before = residue.shared_memory()
    follower = _Follower(folder / "runs" / NAME / journal.FILE_NAME)
    began = time.monotonic()
    done = Executed(
        plan=plan, folder=folder, code=-1, state=follower.state, residue=Residue(), seconds=0.0
    )
    environ = {**os.environ, residue.MARK: mark, "TMPDIR": str(temp), "OMP_NUM_THREADS": "1"}
    try:
        with _launched(plan, folder, environ) as nodes:
            _attend(plan, folder, nodes, follower, done, say)
        follower.look()
        if any(kinds.find(planned.fault.kind).leaves for planned in plan.faults):
            runtimedir.remove_abandoned(temp)  # as the next run on that host does
        done.residue = residue.left(mark, follower.pids, follower.ports, before, temp)
    finally:
        residue.kill_marked(mark)
        shutil.rmtree(temp, ignore_errors=True)
        follower.close()
    done.seconds = time.monotonic() - began
    return done


def _attend(
    plan: Plan,
    folder: Path,
    nodes: "list[subprocess.Popen[bytes]]",
    follower: _Follower,
    done: Executed,
    say: Say,
) -> None:
    """Ask for each fault when it may be asked for, until the run is over or out of time."""
    steps = plan.workload.steps
    seconds = _SHORTEST_LIMIT + _PER_STEP * steps + _PER_FAULT * len(plan.faults)
    limit = time.monotonic() + seconds
    waiting = list(plan.faults)
    asked, started = 0, False
    while nodes[0].poll() is None:
        follower.look()
        if not started and follower.state.attempts:  # a busy machine takes minutes to come to it
            started, limit = True, time.monotonic() + seconds
        for planned in list(waiting):
            fault = addressed(planned, follower.state)
            if fault is None or not _may(planned, follower, asked):
                continue
            answer = _ask(folder, fault)
            if answer is not None:
                waiting.remove(planned)
                accepted, why = answer
                asked += fault.times if accepted else 0
                say(why if accepted else f"refused: {why}")
                if not accepted:
                    done.refused.append(f"{fault.kind}: {why}")
        if time.monotonic() > limit:
            done.timed_out = True
            break
        time.sleep(_LOOK_SECONDS)
    done.refused += [f"{planned.fault.kind}: its moment never came" for planned in waiting]
    if not done.timed_out:
        done.code = nodes[0].wait()
        patience = _LEAVE_SECONDS if done.code == -signal.SIGKILL else _STOP_SECONDS
        until = time.monotonic() + patience
        for node in nodes[1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(max(0.0, until - time.monotonic()))
        done.codes = tuple(node.poll() for node in nodes[1:])


@contextlib.contextmanager
def _launched(
    plan: Plan, folder: Path, environ: Mapping[str, str]
) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """The launchers of all nodes; none of them runs afterwards."""
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands(plan, folder, free_port())):
            with open(folder / f"output{number or ''}.txt", "wb") as output:
                nodes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environ,
                        # Ctrl-C comes to us alone; we end the run.
                        start_new_session=True,
                        preexec_fn=before_exec(signal.SIGTERM),  # noqa: PLW1509
                    )
                )
        yield nodes
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            for node in nodes:
                if node.poll() is None:
                    node.send_signal(number)
            for node in nodes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.wait(_STOP_SECONDS)


def _may(planned: Planned, follower: _Follower, asked: int) -> bool:
    """Whether what the fault is to come after has happened. `asked` faults were asked for."""
    state = follower.state
    match planned.after:
        case "suspicion":
            return bool(state.faults) and bool(state.collections)
        case "incident":
            return bool(state.incidents)
        case "restart":
            return len(state.attempts) > 1
        case "before" if asked:
            return len(state.faults) >= asked and follower.gone_on()
        case _ if planned.fault.rank == ANY:
            return _at_work(state, planned.fault.node)
        case _:
            return state.run is not None


def _steps(state: RunState) -> list[int]:
    """That each rank of the newest attempt has made; none before all are at work."""
    attempt = state.attempt
    ranks = [] if attempt is None else list(attempt.ranks.values())
    return [rank.step for rank in ranks] if all(rank.collectives for rank in ranks) else []


def _at_work(state: RunState, node: int) -> bool:
    """Whether a rank of the node has come to its first step or collective: a node is known once it
    has joined, and its seconds count from when it is asked."""
    ranks = [] if state.attempt is None else state.attempt.ranks.values()
    return any(r.step or r.collectives for r in ranks if r.node_rank == max(node, 0))


def _ask(folder: Path, fault: Fault) -> tuple[bool, str] | None:
    """What the controller says to `fault`; None while there is nobody to ask."""
    try:
        raw = (folder / "runs" / NAME / "controller.json").read_text(encoding="utf-8")
        address = str(json.loads(raw)["address"])
        command = Inject(fault=fault)
        return observer.do_blocking(address, command, "chaos", runs.token(), runs.tls())
    except (OSError, ValueError, KeyError, HarnessError):
        return None

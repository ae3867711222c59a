"""One controller process from its first to its last line: opens the port, resumes or begins the
journal, serves until the run has ended or its launcher is gone."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import events as e
from harness.config import Job
from harness.controller.incident_files import IncidentFiles, Reporter, replace_file
from harness.controller.launcher_line import launcher_lines
from harness.controller.loop import Decider, Loop
from harness.controller.service import serve
from harness.controller.strike_file import StrikeFile
from harness.controller.upkeep import keep_durable, notice_silence
from harness.errors import ExitCode, HarnessError, OutputError, PlatformError
from harness.garbage import collect_seldom
from harness.journal import FILE_NAME, JournalWriter
from harness.membership import Strike
from harness.state import RunState
from harness.version import version
from harness.wire.server import open_server
from harness.wire.tls import Tls
from harness.wire.waiting import first_of, within

if TYPE_CHECKING:
    from harness.metrics.traces import Traces

log = logging.getLogger("harness.controller")

_FAREWELL_SECONDS = 2.0
_STREAMS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of the controller. `ready_fd` -1: nobody waits for the ready line."""

    run_dir: Path
    bind: str
    ready_fd: int = -1


def read_options() -> Options:
    """The options on this process's command line."""
    parser = argparse.ArgumentParser(prog="python -m harness.controller", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--bind", required=True, metavar="ADDR:PORT")
    parser.add_argument("--ready-fd", type=int, default=-1)
    given = parser.parse_args()
    return Options(run_dir=given.run_dir, bind=given.bind, ready_fd=given.ready_fd)


def run_controller(options: Options, decider: Decider, reporter: Reporter) -> int:
    """Be the controller of a run; the exit code.

    The ready line goes to `options.ready_fd`; foreseeable errors are one line on stderr, all
    else goes to `controller.log` in the run directory.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a key press
    os.umask(0o077)  # it starts no process of a user: nothing of what it writes is for others
    ready = _ReadyLine(options.ready_fd)
    try:
        _log_to(options.run_dir / "controller.log")
        collect_seldom()
        return asyncio.run(_run(options, ready, decider, reporter))
    except HarnessError as error:
        log.error("%s", error.message)
        ready.tell({"error": error.message, "help": error.help or "", "code": error.code})
        _say_on_stderr(error.message)
        return error.exit_code
    except Exception as error:
        log.exception("the controller failed")
        what = f"the controller failed: {type(error).__name__}: {error}".splitlines()[0]
        ready.tell({"error": what, "help": "see controller.log", "code": PlatformError.code})
        _say_on_stderr(f"{what} (see {options.run_dir / 'controller.log'})")
        return ExitCode.INTERNAL


async def _run(options: Options, ready: "_ReadyLine", decider: Decider, reporter: Reporter) -> int:
    job = Job.read(options.run_dir / "job.json")
    server, address = open_server(options.bind, job.token, Tls.of_job(job))
    writer = JournalWriter(
        options.run_dir / FILE_NAME, run=job.run, version=version(), say=_say_aloud
    )
    files = IncidentFiles(options.run_dir, reporter)
    strike_file = StrikeFile(options.run_dir.parent, job.policy.strike_window, _say_aloud)

    traces = _open_traces(job)

    def on_event(state: RunState, event: e.Event) -> None:
        files.on_event(state, event)
        if traces is not None:
            traces.on_event(state, event)
        if isinstance(event, e.HostStruck):
            strike_file.add(state.strikes[-1])
        if isinstance(event, e.IncidentSettled):
            mine = [s for s in state.strikes if (s.run, s.incident) == (job.run, event.incident_id)]
            strike_file.settle(job.run, event.incident_id, mine)

    loop = Loop(writer=writer, decider=decider, on_event=on_event)
    loop.resume(writer.path)
    if traces is not None:
        traces.resume(loop.state)
    files.write_all(loop.state)
    fresh = loop.state.run is None
    strike_file.add(*(strike for strike in loop.state.strikes if strike.run == job.run))
    started = _run_started(job, strike_file.read() if fresh else ())
    loop.start(started, os.getpid(), address)
    log.info("run %s, incarnation %d, at %s", job.run, loop.state.incarnations - 1, address)
    closing = asyncio.Event()
    serve(server, loop, closing)
    await server.start()
    replace_file(
        options.run_dir / "controller.json",
        json.dumps({"address": address, "pid": os.getpid()}) + "\n",
    )
    doors = contextlib.ExitStack()
    metrics = _open_metrics(doors, job, loop)
    ready.tell({"address": address, **({"metrics": metrics} if metrics else {})})
    try:
        await first_of(
            _run_is_over(loop),
            _launcher_is_gone(loop),
            notice_silence(loop),
            keep_durable(loop),
            _broken(loop),
        )
    finally:
        closing.set()
        doors.close()
        # Bounded: a controller that cannot go on must end, so that the next one can.
        with contextlib.suppress(asyncio.TimeoutError):
            await within(2 * _STREAMS_SECONDS, server.stop(_STREAMS_SECONDS))
        if traces is not None:
            await asyncio.to_thread(traces.close)
        writer.close()
    return ExitCode.OK


def _open_traces(job: Job) -> "Traces | None":
    """Imported only where somebody asks for traces."""
    if "OTEL_TRACES_EXPORTER" not in os.environ:
        return None
    from harness.metrics.traces import open_traces

    return open_traces(os.environ, job.run, version())


def _open_metrics(doors: contextlib.ExitStack, job: Job, loop: Loop) -> str:
    """Where the run's metrics are told; empty where nobody wants them, or nobody can have them."""
    address = job.metrics_at(agent=False)
    if not address:
        return ""
    from harness.metrics.endpoint import FOLDER, NotOpen, open_endpoint
    from harness.metrics.run import of_run

    door = open_endpoint(
        address,
        token=job.token,
        run=job.run,
        take=lambda: of_run(loop.state, loop.writer.path.stat().st_size),
        found_in=job.run_dir / FOLDER / "controller.json",
    )
    try:
        return doors.enter_context(door)
    except NotOpen as error:
        _say_aloud(str(error))
        return ""


async def _run_is_over(loop: Loop) -> None:
    await loop.ended.wait()
    assert loop.state.ended is not None
    log.info("run ended: %s (%s)", loop.state.ended.outcome, loop.state.ended.reason)
    with contextlib.suppress(asyncio.TimeoutError):
        await within(_FAREWELL_SECONDS, loop.agents.all_departed())


async def _launcher_is_gone(loop: Loop) -> None:
    async for gone in launcher_lines(0):
        agent = loop.agents.by_source(f"agent:{gone.node_rank}")
        if agent is not None and gone.pid not in (0, agent.pid):
            log.info("agent of node %d, pid %d, was replaced before", gone.node_rank, gone.pid)
            continue
        loop.lose(gone.node_rank, gone.why)
    log.warning("the launcher is gone")


async def _broken(loop: Loop) -> None:
    await loop.broken


def _run_started(job: Job, strikes: tuple[Strike, ...]) -> e.RunStarted:
    return e.RunStarted(
        run=job.run,
        command=(job.script, *job.script_args),
        nnodes=job.nnodes,
        min_nodes=job.min_nodes,
        spares=job.spares,
        grow=job.grow,
        strikes=strikes,
        policy=job.policy,
        chaos_allowed=job.chaos_allowed,
        harness_version=version(),
        master_port=job.master_port,
        master_addr=job.master_addr,
        run_dir=_as_typed(job),
    )


def _as_typed(job: Job) -> str:
    """The run directory as a user in the launcher's working directory would type it."""
    path = os.path.relpath(job.run_dir, job.cwd)
    return str(job.run_dir) if path.startswith("..") else path


def _log_to(path: Path) -> None:
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False  # where the disk is full there is nothing to say it to
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


class _ReadyLine:
    """One JSON line to whoever started this process, told once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, line: dict[str, str]) -> None:
        fd, self._fd = self._fd, -1  # the number may soon be another file's
        if fd >= 0:
            with contextlib.suppress(OSError):  # nobody waits for it any more
                os.write(fd, json.dumps(line).encode() + b"\n")
                os.close(fd)


def _say_aloud(text: str) -> None:
    log.warning("%s", text)
    _say_on_stderr(text)


def _say_on_stderr(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"harness: {text}", file=sys.stderr, flush=True)

"""The agent itself: takes orders, keeps the node's processes, reports what happens to them."""

import asyncio
import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import assert_never

from harness import events as e
from harness import orders as o
from harness.agent import (
    crash,
    facts,
    faults,
    keeping,
    lookouts,
    processes,
    showing,
    signals,
    snapshots,
    torn,
    vitals,
    workers,
)
from harness.agent.agreeing import tell_step
from harness.agent.console import Console
from harness.agent.digests import Digests
from harness.agent.environment import node_environ
from harness.agent.launch import Launcher
from harness.agent.line import Link
from harness.agent.looking import EVIDENCE_SHARE, Looks
from harness.agent.memory import NodeMemory
from harness.agent.readings import Readings
from harness.agent.stopping import Stopper
from harness.agent.store_host import StoreHost
from harness.agent.watchkeeper import WatchKeeper
from harness.agent.workers import Ending, Worker
from harness.agent.zygote_client import Zygote, ZygoteGone
from harness.agent.zygote_keeper import ZygoteKeeper
from harness.config import Job
from harness.errors import ExitCode, HarnessError, NodeFailure, PlatformError
from harness.topology import ranks_name
from harness.wire.waiting import until_beat

_SIGN_OF_LIFE_SECONDS = 1.0


class _Abandoned(Exception):
    """The workers are to be stopped before they were started."""


class Agent:
    """One node's supervisor. `run` returns the exit code of the process."""

    def __init__(self, job: Job, runtime_dir: Path, link: Link) -> None:
        self._job = job
        self._link = link
        self._runtime_dir = runtime_dir / "ranks"
        self._run_dir = Path(job.runs_dir) / job.run
        self._node_rank = job.node_rank
        self._early: list[Callable[[int], e.Event]] | None = []
        self._environ = node_environ(job, os.environ)
        self._store = StoreHost(self._environ, self._runtime_dir / "store.log")
        self._workers: dict[int, Worker] = {}
        self._digests = Digests(lambda: self._node_rank, link.report, job.python)
        self._attempt = 0
        self._pause = job.policy.pulse_interval
        self._oom_before: vitals.OomCounter | None = None
        self._stopper: Stopper | None = None
        self._stop_asked = asyncio.Event()
        self._launches: asyncio.Task[None] | None = None
        """What HostStore or StartWorkers have under way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shown = len(job.local_ranks_filter) or job.nproc_per_node
        self._console = Console(shown, prefixed=job.nnodes * job.nproc_per_node > 1)
        self._readings = Readings(
            lambda: [worker for worker in self._workers.values() if worker.alive], link.report
        )
        self._memory = NodeMemory(
            job, link.report, self._console.notice, self._in_background, self._runtime_dir
        )
        self._zygotes = ZygoteKeeper(
            job,
            self._environ,
            self._runtime_dir / "zygote.log",
            on_ready=self._zygote_ready,
            on_unused=self._zygote_unused,
            notice=self._console.notice,
        )
        node = faults.Node(
            rank=lambda: self._node_rank,
            pids=lambda: [worker.pid for worker in self._workers.values() if worker.alive],
            find=self._live_worker,
            zygote=lambda: self._zygotes.pid,
            run_dir=lambda: self._run_dir,
            flushed=link.flushed,
        )
        self._faults = faults.Faults(
            node,
            report=link.report,
            notice=self._console.notice,
            in_background=self._in_background,
        )
        self._looks = Looks(self._report, job.policy.evidence_budget)
        self._watch = WatchKeeper(job, self._environ, self._report, self._console.notice)

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until Shutdown, or until the controller is lost. No process is left afterwards."""
        self._runtime_dir.mkdir(mode=0o700, exist_ok=True)
        try:
            self._zygotes.start()
            welcome = await self._link.join()
            self._node_rank = welcome.node_rank
            self._run_dir = Path(self._job.runs_dir) / (welcome.run or self._job.run)
            self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            early, self._early = self._early or [], None
            for make in early:
                self._report(make(self._node_rank))
            self._memory.open(welcome.run or self._job.run, self._node_rank)
            self._watch.start(self._node_rank)
            self._in_background(self._report_pulses())
            self._in_background(self._readings.keep(self._node_rank))
            self._in_background(snapshots.keep(self._workers.values))
            self._in_background(self._digests.watch(self._workers.values))
            place = (self._job, self._run_dir, self._node_rank, self._workers.values)
            for lookout in lookouts.of_node(*place, self._link.report, self._console.notice):
                self._in_background(lookout)
            return await self._serve()
        except HarnessError as error:
            self._tell(error)
            with contextlib.suppress(HarnessError):
                await self._stop(self._job.policy.stop_grace)
            return int(error.exit_code)
        except Exception:
            self._tell(PlatformError(crash.keep(self._run_dir, traceback.format_exc())))
            return int(ExitCode.INTERNAL)
        finally:
            await self._end()

    async def _serve(self) -> int:
        orders = asyncio.ensure_future(self._take_orders())
        watched: list[asyncio.Future[Any]] = [orders, self._broken]
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if not orders.done():
            orders.cancel()
            self._broken.result()
        return await orders

    async def _take_orders(self) -> int:
        async for order in self._link.orders():
            if isinstance(order, o.Shutdown):
                return order.exit_code
            await self._obey(order)
        raise NodeFailure("the controller has hung up without ending the run")

    async def _obey(self, order: o.Order) -> None:
        match order:
            case o.HostStore():
                self._launch(self._host_store(order))
            case o.StartWorkers():
                self._launch(self._start_workers(order))
            case o.CollectEvidence():
                self._in_background(self._collect(order))
            case o.TakeStacks():
                self._in_background(self._take_stacks(order))
            case o.StopWorkers():
                self._stop_asked.set()
                self._in_background(self._stop_workers(order))
            case o.SetAside():
                self._in_background(self._watch.set_aside(order))
            case o.TellDigests() | o.LookClosely() | o.CertifyCheckpoint():
                self._digests.obey(order)
            case o.HoldCheckpoint():
                torn.hold(order, self._console.notice)
            case o.KeepMemory():
                self._in_background(self._keep_memory(order))
            case o.StopAtStep() | o.SaveAtStep():
                self._in_background(self._tell_step(order))
            case o.InjectFault():
                self._faults.order(order.fault)
            case o.Notify():
                self._console.notice(order.text)
            case o.Shutdown():
                pass
            case _:
                assert_never(order)

    async def _end(self) -> None:
        """Leave nothing behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._faults.undo_all()
        await self._stop(0.0)
        self._zygotes.kill()
        self._watch.kill()
        self._store.stop()
        self._memory.close()
        processes.kill_below(os.getpid())
        await asyncio.to_thread(self._console.close)
        await self._link.close()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                error = task.exception()
                if not self._broken.done() and error is not None:
                    self._broken.set_exception(error)

        task.add_done_callback(done)
        return task

    def _report(self, event: e.Event) -> None:
        self._link.report(self._attempt, event)

    def _tell(self, error: HarnessError) -> None:
        help_ = f"; {error.help}" if error.help else ""
        self._console.notice(f"harness: {error.message}{help_}")

    # --- what is told of the zygote ------------------------------------------------------------

    def _zygote_ready(self, pid: int, seconds: float) -> None:
        self._report_once_joined(
            lambda node: e.ZygoteReady(node_rank=node, pid=pid, seconds=seconds)
        )

    def _zygote_unused(self, why: str) -> None:
        self._report_once_joined(lambda node: e.ZygoteUnused(node_rank=node, why=why))

    def _report_once_joined(self, make: Callable[[int], e.Event]) -> None:
        """Report an event that needs the node's rank, which the controller may have to give."""
        if self._early is None:
            self._report(make(self._node_rank))
        else:
            self._early.append(make)

    # --- orders --------------------------------------------------------------------------------

    def _launch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` beside the orders that follow: the zygote's imports take seconds, and a stop
        must not wait for them. What needs the workers waits with `_launched`."""
        self._stop_asked.clear()

        async def launch() -> None:
            with contextlib.suppress(_Abandoned):
                await work
            if self._launches == asyncio.current_task():
                self._launches = None

        self._launches = self._in_background(launch())

    async def _launched(self) -> None:
        if self._launches is not None:
            await asyncio.wait([self._launches])

    async def _zygote(self) -> Zygote | None:
        """The zygote once it can fork. Raises _Abandoned when a stop is asked for before."""
        ready = asyncio.ensure_future(self._zygotes.ready())
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait([ready, stop], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise _Abandoned
            return ready.result()
        finally:
            ready.cancel()
            stop.cancel()

    async def _host_store(self, order: o.HostStore) -> None:
        self._attempt = order.attempt
        try:
            port = await self._store.host(order.address, order.port, await self._zygote())
        except NodeFailure as failure:
            why = failure.message if failure.help is None else f"{failure.message}; {failure.help}"
            self._report(e.StoreFailed(attempt=order.attempt, why=why))
            return
        self._in_background(self._watch_store(order.attempt))
        self._report(e.StoreReady(attempt=order.attempt, address=order.address, port=port))

    async def _watch_store(self, attempt: int) -> None:
        if await self._store.until_dead():
            why = "the process that hosts the store died"
            self._report(e.StoreFailed(attempt=attempt, why=why))

    async def _start_workers(self, order: o.StartWorkers) -> None:
        self._attempt = order.attempt
        self._workers.clear()
        self._readings.begin(order.world_size)
        self._pause = self._job.policy.reports_apart(order.nnodes)
        self._watch.begin(order)
        self._oom_before = vitals.read_oom_counter()
        launcher = Launcher(
            *(self._job, self._runtime_dir, self._run_dir, self._environ),
            memory=self._memory.descriptor,
            armed=self._faults.armed_for,
        )
        zygote = await self._zygote()
        await self._memory.begin(order)
        await asyncio.gather(
            *(
                self._start_worker(launcher, order, local_rank, zygote)
                for local_rank in range(order.local_world_size)
            )
        )
        self._zygotes.fork_ahead(order.local_world_size + 1)  # and the store

    async def _start_worker(
        self, launcher: Launcher, order: o.StartWorkers, local_rank: int, zygote: Zygote | None
    ) -> None:
        try:
            try:
                worker = await launcher.start(order, local_rank, zygote)
            except ZygoteGone as gone:
                self._console.notice(
                    f"harness: rank {order.first_rank + local_rank} starts as a fresh process: "
                    f"the zygote could not fork it ({gone.message})"
                )
                worker = await launcher.start(order, local_rank, None)
        except OSError as error:
            raise NodeFailure(
                f"rank {order.first_rank + local_rank} could not be started: {error}"
            ) from None
        self._workers[worker.rank] = worker
        self._report(
            e.WorkerStarted(
                rank=worker.rank,
                local_rank=local_rank,
                node_rank=self._node_rank,
                pid=worker.pid,
                launched_by=worker.launched_by,
            )
        )
        if not self._job.local_ranks_filter or local_rank in self._job.local_ranks_filter:
            self._console.follow(worker.rank, worker.files.log)
        workers.watch(worker, self._on_fact, self._on_exit)
        self._faults.started(worker)

    async def _collect(self, order: o.CollectEvidence) -> None:
        await self._launched()
        seen = list(self._workers.values())
        await self._looks.answer(order, seen, self._run_dir, self._node_rank)

    async def _take_stacks(self, order: o.TakeStacks) -> None:
        await self._launched()
        chosen = [w for w in self._workers.values() if not order.ranks or w.rank in order.ranks]
        seconds = self._job.policy.evidence_budget * EVIDENCE_SHARE
        self._report(await showing.take_stacks(chosen, order, self._node_rank, seconds))

    async def _stop_workers(self, order: o.StopWorkers) -> None:
        await self._launched()
        await self._stop(order.grace)
        await self._watch.settle()
        self._memory.stopped()
        self._link.report(
            order.attempt, e.WorkersStopped(node_rank=self._node_rank, attempt=order.attempt)
        )

    async def _keep_memory(self, order: o.KeepMemory) -> None:
        path, log = self._runtime_dir / "keep", self._run_dir / "memory.log"
        done = await keeping.keep(order, self._job, self._memory.file_of, self._environ, path, log)
        self._link.report(order.failed, replace(done, node_rank=self._node_rank))

    async def _tell_step(self, order: o.StopAtStep | o.SaveAtStep) -> None:
        await self._launched()
        answer = await tell_step(order, self._workers.values(), self._node_rank)
        if answer is not None:
            self._link.report(order.attempt, answer)

    async def _stop(self, grace: float) -> None:
        if self._stopper is not None and grace == 0:
            self._stopper.hurry()
        mine = self._stopper = Stopper(list(self._workers.values()), self._own_sessions)
        stubborn = await mine.stop(grace)
        if stubborn:
            self._console.notice(
                f"harness: {ranks_name(stubborn)} did not stop within {grace:g} s of SIGTERM and"
                f" {'was' if len(stubborn) == 1 else 'were'} killed"
            )

    def _own_sessions(self) -> set[int]:
        """The sessions whose processes are not the workers'."""
        return {os.getsid(0), self._store.pid, self._watch.pid, *self._zygotes.pids} - {0}

    def _live_worker(self, rank: int) -> Worker | None:
        worker = self._workers.get(rank)
        return worker if worker is not None and worker.alive else None

    # --- what workers do -----------------------------------------------------------------------

    def _on_fact(self, worker: Worker, fact: dict[str, Any]) -> None:
        if self._memory.heard(worker, fact) or self._faults.heard(worker, fact):
            return
        try:
            event = facts.event_of(worker, fact, self._node_rank)
        except facts.BadFact as bad:
            self._console.notice(f"harness: {bad}")
            return
        if isinstance(event, e.WorkerRaised):
            # What it holds at this moment may be why.
            self._readings.vitals(self._node_rank, [worker])
        if event is not None:
            self._link.report(worker.attempt, event)

    def _on_exit(self, worker: Worker, ending: Ending) -> None:
        worker.exit_text, worker.ended_at = ending.text, time.monotonic()
        self._report_changed(worker)
        self._digests.read([worker])
        self._memory.tell()
        killed = ending.signal == 9 and not worker.told_to_stop
        self._link.report(
            worker.attempt,
            e.WorkerExited(
                rank=worker.rank,
                pid=worker.pid,
                exit_code=ending.exit_code,
                signal=ending.signal,
                exited_ns=ending.exited_ns,
                ordered=worker.told_to_stop,
                max_rss_bytes=ending.max_rss_bytes,
                oom=vitals.oom_sentence(self._oom_before, worker.pid) if killed else None,
                error_file=worker.error_file(),
                torn=torn.among(worker.written),
            ),
        )
        self._console.finish(worker.rank, worker.files.log)
        worker.ended.set_result(None)

    def _report_changed(self, worker: Worker) -> None:
        pulse = worker.changed_pulse()
        if pulse is not None:
            self._link.report(
                worker.attempt, e.PulsesRead(node_rank=self._node_rank, pulses=(pulse,))
            )

    async def _report_pulses(self) -> None:
        """The pulses that changed, every interval; nothing but a sign of life once a second."""
        said = 0.0
        while True:
            alive = [worker for worker in self._workers.values() if worker.alive]
            beats = not self._looks.said(self._pause)
            read = [worker.changed_pulse(beats=beats) for worker in alive]
            changed = [pulse for pulse in read if pulse is not None]
            now = time.monotonic()
            if changed or (beats and now - said >= _SIGN_OF_LIFE_SECONDS):
                said = now
                self._report(e.PulsesRead(node_rank=self._node_rank, pulses=tuple(changed)))
                known = {worker.pid for worker in alive} | self._own_sessions()
                processes.reap_orphans(known, os.getsid(0))
            await asyncio.sleep(until_beat(self._pause))

    # --- the launcher's signals ----------------------------------------------------------------

    async def _ask(self, command: o.Command, refused: str) -> None:
        try:
            accepted, why = await self._link.command(command, "launcher")
            if not accepted:
                self._console.notice(f"harness: {refused}: {why}")
        except HarnessError as error:
            self._tell(error)

    def on_stacks_wanted(self) -> None:
        """Somebody wants to see all stacks on this terminal."""
        request = f"{self._node_rank}-{time.time_ns()}"
        command = o.ShowStacks(request=request, show_on=self._node_rank)
        self._in_background(self._ask(command, "no stacks"))

    def on_signal(self, number: int, name: str) -> None:
        command = signals.command_of(number, name)
        self._in_background(self._ask(command, f"{name}: not stopping"))

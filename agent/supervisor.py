"""The agent itself: takes orders, keeps the node's processes, reports what happens to them."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec
from typing_extensions import assert_never

from harness import events as e
from harness import orders as o
from harness.agent import evidence, faults, processes, store_host, vitals, workers
from harness.agent.console import Console
from harness.agent.environment import node_environ
from harness.agent.launch import Launcher
from harness.agent.script_scan import why_not_zygote
from harness.agent.stopping import Stopper
from harness.agent.workers import Ending, Worker
from harness.agent.zygote_client import Zygote, ZygoteGone
from harness.config import Job
from harness.errors import HarnessError, NodeFailure

_SIGN_OF_LIFE_SECONDS = 1.0
_MOST_ZYGOTES = 4
_EVIDENCE_SHARE = 0.8
"""Of the controller's budget; the rest is for the way there."""
_FACTS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        e.WorkerRaised,
        e.PhaseChanged,
        e.MeshDeclared,
        e.GroupCreated,
        e.CheckpointSaved,
        e.CheckpointLoaded,
        e.FactsLost,
    )
}


class Welcome(Protocol):
    """What the controller says to an agent that joins."""

    @property
    def run(self) -> str: ...
    @property
    def node_rank(self) -> int: ...


class Link(Protocol):
    """The agent's line to the controller (harness.wire.agent_link.AgentLink)."""

    async def join(self) -> Welcome: ...
    def orders(self) -> AsyncIterator[o.Order]: ...
    def report(self, attempt: int, event: e.Event) -> None: ...
    async def command(self, command: o.Command, by: str) -> tuple[bool, str]: ...
    async def close(self) -> None: ...


class Agent:
    """One node's supervisor. `run` returns the exit code of the process."""

    def __init__(self, job: Job, runtime_dir: Path, link: Link) -> None:
        self._job = job
        self._link = link
        self._runtime_dir = runtime_dir / "ranks"
        self._run_dir = Path()
        self._node_rank = max(job.node_rank, 0)
        self._environ = node_environ(job, os.environ)
        self._zygote: Zygote | None = None
        self._zygotes_started = 0
        self._why_fresh = ""
        self._said_fresh = ""
        self._workers: dict[int, Worker] = {}
        self._attempt = 0
        self._store_pid = 0
        self._oom_before: vitals.OomCounter | None = None
        self._stopper: Stopper | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shown = len(job.local_ranks_filter) or job.nproc_per_node
        self._console = Console(shown, prefixed=job.nnodes * job.nproc_per_node > 1)

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until Shutdown, or until the controller is lost. No process is left afterwards."""
        self._runtime_dir.mkdir(mode=0o700, exist_ok=True)
        try:
            self._why_fresh = why_not_zygote(self._job)
            if not self._why_fresh:
                self._start_zygote()
            welcome = await self._link.join()
            self._node_rank = welcome.node_rank
            self._run_dir = Path(self._job.runs_dir) / (welcome.run or self._job.run)
            (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
            self._say_fresh()
            self._in_background(self._report_pulses())
            return await self._serve()
        except HarnessError as error:
            self._tell(error)
            with contextlib.suppress(HarnessError):
                await self._stop(self._job.policy.stop_grace)
            return int(error.exit_code)
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
                await self._host_store(order)
            case o.StartWorkers():
                await self._start_workers(order)
            case o.CollectEvidence():
                self._in_background(self._collect(order))
            case o.StopWorkers():
                self._in_background(self._stop_workers(order))
            case o.InjectFault():
                self._inject(order)
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
        await self._stop(0.0)
        if self._zygote is not None:
            self._zygote.kill()
        store_host.stop(self._store_pid)
        processes.kill_below(os.getpid())
        await asyncio.to_thread(self._console.close)
        await self._link.close()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                error = task.exception()
                if not self._broken.done() and error is not None:
                    self._broken.set_exception(error)

        task.add_done_callback(done)

    def _report(self, event: e.Event) -> None:
        self._link.report(self._attempt, event)

    def _tell(self, error: HarnessError) -> None:
        help_ = f"; {error.help}" if error.help else ""
        self._console.notice(f"harness: {error.message}{help_}")

    # --- the zygote ----------------------------------------------------------------------------

    def _start_zygote(self) -> None:
        self._zygotes_started += 1
        try:
            self._zygote = Zygote(
                self._environ,
                self._job.cwd,
                self._runtime_dir / "zygote.log",
                self._zygote_ended,
            )
        except OSError as error:
            self._why_fresh = f"the zygote could not be started: {error.strerror}"
            return
        self._zygote.ready.add_done_callback(self._zygote_ready)

    def _zygote_ready(self, ready: "asyncio.Future[float]") -> None:
        if self._zygote is not None and not ready.cancelled() and ready.exception() is None:
            self._report(
                e.ZygoteReady(
                    node_rank=self._node_rank, pid=self._zygote.pid, seconds=ready.result()
                )
            )

    def _zygote_ended(self, zygote: Zygote, why: str) -> None:
        """It died unasked. Another one takes its place unless it could not do its work."""
        if zygote is not self._zygote:
            return
        self._zygote = None
        unfit = zygote.ready.done() and zygote.ready.exception() is not None
        if unfit or self._zygotes_started >= _MOST_ZYGOTES:
            self._why_fresh = f"the zygote cannot be used: {why}"
            self._say_fresh()
            return
        self._console.notice(f"harness: the zygote is gone ({why}); starting another")
        self._start_zygote()

    def _say_fresh(self) -> None:
        if self._why_fresh and self._why_fresh != self._said_fresh:
            self._said_fresh = self._why_fresh
            self._report(e.ZygoteUnused(node_rank=self._node_rank, why=self._why_fresh))

    async def _ready_zygote(self) -> Zygote | None:
        """A zygote that can fork, waiting for its imports; None when there is none to be had."""
        while self._zygote is not None:
            zygote = self._zygote
            try:
                await asyncio.shield(zygote.ready)
                if not zygote.ended:
                    return zygote
            except ZygoteGone:
                pass
            await asyncio.sleep(0.01)  # its end is noticed in a moment
        return None

    # --- orders --------------------------------------------------------------------------------

    async def _host_store(self, order: o.HostStore) -> None:
        self._attempt = order.attempt
        store_host.stop(self._store_pid)
        self._store_pid = 0
        try:
            listening = store_host.bind(order.address, order.port)
        except NodeFailure as failure:
            why = failure.message if failure.help is None else f"{failure.message}; {failure.help}"
            self._report(e.StoreFailed(attempt=order.attempt, why=why))
            return
        port = listening.getsockname()[1]
        log = os.open(
            self._runtime_dir / "store.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        )
        try:
            self._store_pid = await self._fork_store(listening, log)
        finally:
            listening.close()
            os.close(log)
        self._in_background(self._watch_store(order.attempt, self._store_pid))
        # The socket takes connections already; whoever serves it may come a moment later.
        self._report(e.StoreReady(attempt=order.attempt, address=order.address, port=port))

    async def _fork_store(self, listening: Any, log: int) -> int:
        zygote = await self._ready_zygote()
        if zygote is not None:
            try:
                return await zygote.fork({"what": "store"}, [log, listening.fileno()])
            except ZygoteGone:
                pass
        return store_host.start_fresh(listening, self._environ, log)

    async def _watch_store(self, attempt: int, pid: int) -> None:
        """Say so when the host of the store dies while it is needed."""
        pidfd = os.pidfd_open(pid)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        if pid == self._store_pid:
            self._store_pid = 0
            processes.reap(pid)
            self._report(
                e.StoreFailed(attempt=attempt, why="the process that hosts the store died")
            )

    async def _start_workers(self, order: o.StartWorkers) -> None:
        self._attempt = order.attempt
        self._workers.clear()
        self._oom_before = vitals.read_oom_counter()
        launcher = Launcher(self._job, self._runtime_dir, self._run_dir, self._environ)
        zygote = await self._ready_zygote()
        await asyncio.gather(
            *(
                self._start_worker(launcher, order, local_rank, zygote)
                for local_rank in range(order.local_world_size)
            )
        )

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

    async def _collect(self, order: o.CollectEvidence) -> None:
        started = time.monotonic()
        await evidence.collect(
            list(self._workers.values()),
            order.collection,
            self._run_dir,
            self._job.policy.evidence_budget * _EVIDENCE_SHARE,
            self._report,
        )
        self._report(
            e.EvidenceComplete(
                collection=order.collection,
                node_rank=self._node_rank,
                seconds=round(time.monotonic() - started, 3),
            )
        )

    async def _stop_workers(self, order: o.StopWorkers) -> None:
        await self._stop(order.grace)
        self._link.report(
            order.attempt, e.WorkersStopped(node_rank=self._node_rank, attempt=order.attempt)
        )

    async def _stop(self, grace: float) -> None:
        if self._stopper is not None and grace == 0:
            self._stopper.hurry()
        mine = self._stopper = Stopper(list(self._workers.values()), self._own_sessions)
        await mine.stop(grace)

    def _own_sessions(self) -> set[int]:
        """The sessions whose processes are not the workers'."""
        own = {os.getsid(0)}
        if self._zygote is not None:
            own.add(self._zygote.pid)
        if self._store_pid:
            own.add(self._store_pid)
        return own

    def _inject(self, order: o.InjectFault) -> None:
        if order.fault.kind not in faults.KINDS:
            self._console.notice(
                f"harness: unknown kind of fault: {order.fault.kind!r} "
                f"(known: {', '.join(faults.KINDS)})"
            )
            return
        self._in_background(self._do_fault(order))

    async def _do_fault(self, order: o.InjectFault) -> None:
        worker, injected = await faults.inject(order.fault, self._live_worker)
        self._link.report(worker.attempt, injected)

    def _live_worker(self, rank: int) -> Worker | None:
        worker = self._workers.get(rank)
        return worker if worker is not None and worker.alive else None

    # --- what workers do -----------------------------------------------------------------------

    def _on_fact(self, worker: Worker, fact: dict[str, Any]) -> None:
        kind = fact.pop("type", "")
        if kind == "HookFailed":
            self._console.notice(f"harness: rank {worker.rank}: a hook failed: {fact.get('why')}")
            return
        try:
            event = msgspec.convert({**fact, "rank": worker.rank}, _FACTS[kind])
        except (KeyError, msgspec.ValidationError) as error:
            self._console.notice(f"harness: rank {worker.rank} sent a bad fact {kind!r}: {error}")
            return
        self._link.report(worker.attempt, event)

    def _on_exit(self, worker: Worker, ending: Ending) -> None:
        worker.exit_text = ending.text
        self._report_changed(worker)
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
            changed = [pulse for worker in alive if (pulse := worker.changed_pulse()) is not None]
            now = time.monotonic()
            if changed or now - said >= _SIGN_OF_LIFE_SECONDS:
                said = now
                self._report(e.PulsesRead(node_rank=self._node_rank, pulses=tuple(changed)))
            await asyncio.sleep(self._job.policy.pulse_interval)

    # --- the launcher's signals ----------------------------------------------------------------

    async def ask_to_stop(self, number: int, name: str) -> None:
        """The launcher has got a signal: ask the controller to stop the run."""
        try:
            accepted, why = await self._link.command(
                o.StopRun(why=f"{name} received", signal=number), "launcher"
            )
            if not accepted:
                self._console.notice(f"harness: {name}: not stopping: {why}")
        except HarnessError as error:
            self._tell(error)

    def on_signal(self, number: int, name: str) -> None:
        self._in_background(self.ask_to_stop(number, name))

"""The health of a node's GPUs: watched, told when it changes, and laid at the ranks on them."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from threading import Thread
from typing import TypeVar, cast

from harness import events as e
from harness.agent.kernellog import KernelLog, Xid, xid_of
from harness.agent.nvml import NoGpus, Nvml, load
from harness.agent.workers import Worker
from harness.devices import XIDS, Gpu, GpuFailed, GpusRead

_SECONDS = 5.0
_LOG_SECONDS = 1.0
_QUIET_SECONDS = 10.0

Report = Callable[[int, e.Event], None]
T = TypeVar("T")


class Gpus:
    """`gpus` is the newest reading. The kernel log is read once a second, NVML every five, in a
    thread: it may block for as long as a failing GPU does."""

    def __init__(
        self, node_rank: int, workers: Callable[[], Collection[Worker]], report: Report
    ) -> None:
        self.gpus: Sequence[Gpu] = ()
        self.xids: dict[tuple[int, int], int] = {}
        """How often each error was reported, by the index of its GPU and its number."""
        self._quiet: dict[tuple[int, int, tuple[int, ...]], float] = {}
        """Until when no more is said of the same error: a dying GPU reports it in storms."""
        self._node_rank = node_rank
        self._workers = workers
        self._report = report

    async def watch(self) -> None:
        """For as long as the agent lives; at once over where there are no GPUs."""
        try:
            nvml = await _in_thread(lambda: Nvml(load()))
        except NoGpus:
            return
        log, due = KernelLog(), 0.0
        try:
            while True:
                if time.monotonic() >= due:
                    self.read(await _in_thread(nvml.read))
                    due = time.monotonic() + _SECONDS
                self.heard(log.lines())
                await asyncio.sleep(_LOG_SECONDS)
        finally:
            log.close()

    def read(self, gpus: Sequence[Gpu]) -> None:
        """Take in a reading of all GPUs."""
        before = {gpu.index: gpu for gpu in self.gpus}
        self.gpus = gpus
        attempt = self._attempt()
        if [_health(gpu) for gpu in before.values()] != [_health(gpu) for gpu in gpus]:
            self._report(attempt, GpusRead(node_rank=self._node_rank, gpus=tuple(gpus)))
        for gpu in gpus:
            for text in _worse(before.get(gpu.index, gpu), gpu):
                # The pids that were there: a lost GPU names none.
                self._fail(0, text, before.get(gpu.index, gpu))

    def heard(self, lines: Iterable[str]) -> None:
        """Take in new lines of the kernel log."""
        for line in lines:
            xid = xid_of(line)
            if xid is not None:
                self._told(xid)

    def _told(self, xid: Xid) -> None:
        gpu = next((gpu for gpu in self.gpus if gpu.bus_id == xid.bus_id), None)
        index = -1 if gpu is None else gpu.index
        self.xids[index, xid.number] = self.xids.get((index, xid.number), 0) + 1
        if xid.number in XIDS:
            self._fail(xid.number, xid.text, gpu, xid.pid)

    def _fail(self, xid: int, text: str, gpu: Gpu | None, pid: int = 0) -> None:
        ranks, proven = self._ranks(gpu, pid)
        key, now = (self._attempt(), xid, ranks), time.monotonic()
        if now < self._quiet.get(key, 0.0):
            return
        self._quiet[key] = now + _QUIET_SECONDS
        self._report(
            self._attempt(),
            GpuFailed(
                node_rank=self._node_rank,
                xid=xid,
                text=text,
                seen_ns=time.time_ns(),
                gpu=-1 if gpu is None else gpu.index,
                uuid="" if gpu is None else gpu.uuid,
                ranks=ranks,
                proven=proven,
            ),
        )

    def _ranks(self, gpu: Gpu | None, pid: int) -> tuple[tuple[int, ...], bool]:
        """Ranks on a GPU, and whether they were seen there."""
        workers = list(self._workers())
        pids = {pid, *(() if gpu is None else gpu.pids)}
        seen = tuple(sorted(worker.rank for worker in workers if worker.pid in pids))
        if seen or gpu is None:
            return seen, bool(seen)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = {str(gpu.index), gpu.uuid}
        local = [place for place, name in enumerate(visible) if name.strip() in names]
        if visible == [""]:
            local = [gpu.index]
        return tuple(sorted(w.rank for w in workers if w.local_rank in local)), False

    def _attempt(self) -> int:
        return max((worker.attempt for worker in self._workers()), default=0)


def _health(gpu: Gpu) -> Gpu:
    """What of a reading is worth a line in the journal when it changes."""
    return replace(
        gpu,
        pids=(),
        memory_used_bytes=None,
        temperature_celsius=None,
        power_watts=None,
        busy=None,
        pcie_replays=None,
        nvlink_errors=None,
        ecc_corrected=None,
    )


def _worse(before: Gpu, now: Gpu) -> list[str]:
    """What has happened to a GPU between two readings that no healthy one has, in words."""
    found = []
    if now.lost and not before.lost:
        found.append(f"GPU {now.index} is lost: the driver does not reach it any more")
    was, errors = before.ecc_uncorrected or 0, now.ecc_uncorrected or 0
    if errors > was:
        found.append(f"GPU {now.index}: uncorrectable ECC errors rose from {was} to {errors}")
    if now.remap_failed and not before.remap_failed:
        found.append(f"GPU {now.index}: a row of memory could not be remapped")
    return found


async def _in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread that nobody waits for when the agent ends: a driver
    may never come back."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def run() -> None:
        result: T | None = None
        failed: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failed)

    Thread(target=run, name="nvml", daemon=True).start()
    return await done

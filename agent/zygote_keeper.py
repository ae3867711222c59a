"""Keeps one zygote alive for the whole run, or says aloud why there is none."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.agent.script_scan import why_not_zygote
from harness.agent.zygote_client import Zygote, ZygoteGone
from harness.config import Job

_MOST_ZYGOTES = 4
"""In one run; when so many have died there is something wrong with them."""

_AHEAD_SECONDS = 1.0
"""From the start of an attempt until processes are forked for the next one."""


class ZygoteKeeper:
    """`on_ready(pid, seconds)` and `on_unused(why)` are told what the controller should know,
    `notice` what the user should."""

    def __init__(
        self,
        job: Job,
        environ: Mapping[str, str],
        log: Path,
        *,
        on_ready: Callable[[int, float], None],
        on_unused: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        self._job = job
        self._environ = environ
        self._log = log
        self._on_ready = on_ready
        self._on_unused = on_unused
        self._notice = notice
        self._zygote: Zygote | None = None
        self._started = 0
        self._ahead: asyncio.Task[None] | None = None

    @property
    def pids(self) -> set[int]:
        """The zygote and what it has forked ahead; also the ids of their sessions."""
        return set() if self._zygote is None else self._zygote.pids

    @property
    def pid(self) -> int:
        """0: there is none."""
        return 0 if self._zygote is None else self._zygote.pid

    def start(self) -> None:
        """Start one, unless this job's ranks must be fresh processes."""
        why = why_not_zygote(self._job)
        if why:
            self._on_unused(why)
        else:
            self._start()

    def _start(self) -> None:
        self._started += 1
        try:
            self._zygote = Zygote(self._environ, self._job.cwd, self._log, self._ended)
        except OSError as error:
            self._on_unused(f"the zygote could not be started: {error.strerror}")
            return
        self._zygote.ready.add_done_callback(self._is_ready)

    def _is_ready(self, ready: "asyncio.Future[float]") -> None:
        if self._zygote is not None and not ready.cancelled() and ready.exception() is None:
            self._on_ready(self._zygote.pid, ready.result())

    def _ended(self, zygote: Zygote, why: str) -> None:
        """It died unasked. Another one takes its place unless it could not do its work."""
        if zygote is not self._zygote:
            return
        self._zygote = None
        unfit = zygote.ready.done() and zygote.ready.exception() is not None
        if unfit or self._started >= _MOST_ZYGOTES:
            self._on_unused(f"the zygote cannot be used: {why}")
            return
        self._notice(f"harness: the zygote is gone ({why}); starting another")
        self._start()

    async def ready(self) -> Zygote | None:
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

    def fork_ahead(self, count: int) -> None:
        """Have `count` processes ready for the next attempt, a little later: the ranks that start
        now come first."""
        if self._job.policy.max_restarts > 0 and (self._ahead is None or self._ahead.done()):
            self._ahead = asyncio.ensure_future(self._fork_ahead(count))

    async def _fork_ahead(self, count: int) -> None:
        await asyncio.sleep(_AHEAD_SECONDS)
        if self._zygote is not None:
            with contextlib.suppress(ZygoteGone, OSError):  # then the next attempt forks its own
                await self._zygote.stand_by(count)

    def kill(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote = None

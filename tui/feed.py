"""Where the screens get their records: a journal, finished or growing, or a live controller.

All feeds fold records into one model in a thread of their own, so that a slow source or a long
journal never holds up a key press. Whoever reads the model holds the lock.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness import journal, runs
from harness.errors import HarnessError
from harness.events import Record
from harness.runfollow import GONE_SECONDS
from harness.state import RunState
from harness.tui.model import Model

if TYPE_CHECKING:
    from harness.wire.tls import Tls

log = logging.getLogger("harness.tui")

Pump = Callable[["Feed"], None]
_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 1.0
ENDED, GONE = "ENDED", "GONE"
"""How fresh a run is of which nothing more will come: it said so, or nobody of it is left."""


class Feed:
    """A model that grows while `pump` runs. `label` says how fresh it is, in one word."""

    def __init__(self, pump: Pump, *, source: str) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.stop_asked = threading.Event()
        self.version = 0
        self.label = "OPENING"
        self.trouble = ""
        """One line when the source cannot be read; empty when all is well."""
        self.received = 0
        self.model = Model()
        self.held_ns: int | None = None
        """The moment at which the screens were held; what comes later waits at its source."""
        self._going = threading.Event()
        self._going.set()
        self._pump = pump
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the pump to end and wait for it, at most two seconds."""
        self.stop_asked.set()
        self._going.set()
        if self._thread is not None:
            self._thread.join(2.0)

    @property
    def now_ns(self) -> int:
        """Wall clock of what is shown, nanoseconds."""
        return time.time_ns() if self.held_ns is None else self.held_ns

    @property
    def holding(self) -> bool:
        return self.held_ns is not None

    def hold(self, holding: bool) -> None:
        """Hold the screens as they are, or let them go on; nothing is lost meanwhile."""
        if holding:
            self.held_ns = self.now_ns
            self._going.clear()
        else:
            self.held_ns = None
            self._going.set()
        self.version += 1

    @property
    def over(self) -> bool:
        """Nothing more will come of it."""
        return self.label in (ENDED, GONE)

    @contextmanager
    def state(self) -> Iterator[RunState]:
        """The state, held still."""
        with self.lock:
            yield self.model.state

    def take(self, record: Record) -> None:
        if self.held_ns is not None:
            self._going.wait()
        with self.lock:
            self.model.apply(record)
            self.received += 1
            self.version += 1
            if self.model.state.ended is not None:
                self.label = ENDED

    def say(self, label: str, trouble: str = "") -> None:
        with self.lock:
            if self.model.state.ended is not None:
                label = ENDED
            self.label, self.trouble = label, " ".join(trouble.split())
            self.version += 1

    def _run(self) -> None:
        try:
            self._pump(self)
        except HarnessError as error:
            self.say("BROKEN", error.message)
        except Exception as error:
            log.exception("the feed of %s ended", self.source)
            self.say("BROKEN", f"{type(error).__name__}: {error}")


def journal_feed(path: Path, label: str = "LIVE") -> Feed:
    """Follows the journal at `path`, which need not exist yet, until the feed is stopped; `label`
    says how fresh it is then."""

    def pump(feed: Feed) -> None:
        feed.say("WAITING")
        while not runs.has_header(path):
            if feed.stop_asked.wait(0.1):
                return
        feed.say(label)
        if label == "LIVE":
            threading.Thread(target=_watch_life, args=(feed, path), daemon=True).start()
        notes = journal.follow(
            path, feed.stop_asked, on_bad="skip", say=lambda note: feed.say(feed.label, note)
        )
        for record in notes:
            feed.take(record)

    return Feed(pump, source=str(path))


def _watch_life(feed: Feed, path: Path) -> None:
    """Say when no process of the run is left; a controller is started anew within three seconds."""
    missing = 0.0
    while not feed.stop_asked.wait(_LOOK_SECONDS):
        with feed.state() as state:
            gone = runs.is_gone(runs.RunFolder(path=path.parent), state)
        missing = missing + _LOOK_SECONDS if gone else 0.0
        if missing > GONE_SECONDS and feed.label != GONE:
            feed.say(GONE)
        elif not gone and feed.label == GONE:
            feed.say("LIVE")


def controller_feed(address: str, token: str, tls: "Tls | None" = None) -> Feed:
    """Watches the controller at `address`, from the first record on, again after every loss."""

    def pump(feed: Feed) -> None:
        asyncio.run(_watch(feed, address, token, tls))

    return Feed(pump, source=address)


async def _watch(feed: Feed, address: str, token: str, tls: "Tls | None") -> None:
    stopped = asyncio.ensure_future(asyncio.to_thread(feed.stop_asked.wait))
    while not feed.stop_asked.is_set():
        watching = asyncio.ensure_future(_watch_once(feed, address, token, tls))
        await asyncio.wait({watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            return
        error = watching.exception()
        if error is not None and not isinstance(error, (HarnessError, OSError)):
            raise error
        if feed.label == ENDED:
            return
        why = error.message if isinstance(error, HarnessError) else "the connection was closed"
        feed.say("RETRYING", f"no controller at {address}: {why}")
        await asyncio.wait({stopped}, timeout=_RETRY_SECONDS)


async def _watch_once(feed: Feed, address: str, token: str, tls: "Tls | None") -> None:
    from harness.wire import observer  # grpc is heavy, and only this feed needs it
    from harness.wire.tls import PLAIN

    async for index, record in observer.watch(address, feed.received, token, tls or PLAIN):
        if index < feed.received:
            continue
        if feed.label in ("OPENING", "RETRYING"):
            feed.say("LIVE")
        feed.take(record)

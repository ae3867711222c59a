"""Where the screens get their records: a journal, finished or growing, or a live controller.

All feeds fold records into one state in a thread of their own, so that a slow source or a long
journal never holds up a key press. Whoever reads the state holds the lock.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import journal, runs
from harness.errors import HarnessError
from harness.events import Record
from harness.state import RunState, fold
from harness.tui.view import run_loss

log = logging.getLogger("harness.tui")

Pump = Callable[["Feed"], None]
MOST_LOSSES = 512
_RETRY_SECONDS = 1.0


class Feed:
    """A state that grows while `pump` runs. `label` says how fresh it is, in one word."""

    def __init__(self, pump: Pump, *, source: str) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.stop_asked = threading.Event()
        self.version = 0
        self.label = "OPENING"
        self.trouble = ""
        """One line when the source cannot be read; empty when all is well."""
        self.losses: list[float] = []
        self.received = 0
        self._state = RunState()
        self._loss_step = -1
        self._pump = pump
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the pump to end and wait for it, at most two seconds."""
        self.stop_asked.set()
        if self._thread is not None:
            self._thread.join(2.0)

    @contextmanager
    def state(self) -> Iterator[RunState]:
        """The state, held still."""
        with self.lock:
            yield self._state

    def take(self, record: Record) -> None:
        with self.lock:
            fold(self._state, record)
            self.received += 1
            self.version += 1
            attempt = self._state.attempt
            if type(record.event).__name__ == "PulsesRead" and attempt is not None:
                self._note_loss(attempt.step)
            if self._state.ended is not None:
                self.label = "ENDED"

    def say(self, label: str, trouble: str = "") -> None:
        with self.lock:
            if self._state.ended is not None:
                label = "ENDED"
            self.label, self.trouble = label, journal_note(trouble)
            self.version += 1

    def _note_loss(self, step: int) -> None:
        if step == self._loss_step:
            return
        self._loss_step = step
        loss = run_loss(self._state)
        if loss is not None:
            self.losses.append(loss)
            del self.losses[:-MOST_LOSSES]

    def _run(self) -> None:
        try:
            self._pump(self)
        except HarnessError as error:
            self.say("BROKEN", error.message)
        except Exception as error:
            log.exception("the feed of %s ended", self.source)
            self.say("BROKEN", f"{type(error).__name__}: {error}")


def journal_note(text: str) -> str:
    """A message of a reader, on one line."""
    return " ".join(text.split())


def journal_feed(path: Path) -> Feed:
    """Follows the journal at `path`, which need not exist yet, until the feed is stopped."""

    def pump(feed: Feed) -> None:
        feed.say("WAITING")
        while not runs.has_header(path):
            if feed.stop_asked.wait(0.1):
                return
        feed.say("LIVE")
        notes = journal.follow(
            path, feed.stop_asked, on_bad="skip", say=lambda note: feed.say(feed.label, note)
        )
        for record in notes:
            feed.take(record)

    return Feed(pump, source=str(path))


def controller_feed(address: str, token: str) -> Feed:
    """Watches the controller at `address`, from the first record on, again after every loss."""

    def pump(feed: Feed) -> None:
        asyncio.run(_watch(feed, address, token))

    return Feed(pump, source=address)


async def _watch(feed: Feed, address: str, token: str) -> None:
    stopped = asyncio.ensure_future(asyncio.to_thread(feed.stop_asked.wait))
    while not feed.stop_asked.is_set():
        watching = asyncio.ensure_future(_watch_once(feed, address, token))
        await asyncio.wait({watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            return
        error = watching.exception()
        if error is not None and not isinstance(error, (HarnessError, OSError)):
            raise error
        if feed.label == "ENDED":
            return
        why = error.message if isinstance(error, HarnessError) else "the connection was closed"
        feed.say("RETRYING", f"no controller at {address}: {why}")
        await asyncio.wait({stopped}, timeout=_RETRY_SECONDS)


async def _watch_once(feed: Feed, address: str, token: str) -> None:
    from harness.wire import observer  # grpc is heavy, and only this feed needs it

    async for index, record in observer.watch(address, feed.received, token):
        if index < feed.received:
            continue
        if feed.label in ("OPENING", "RETRYING"):
            feed.say("LIVE")
        feed.take(record)

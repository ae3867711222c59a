"""Waiting for one of several things, or for a limited time, such that a cancellation always
arrives. (`asyncio.wait_for` before Python 3.12 swallows one that comes with the result.)"""

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_TOO_SOON = 0.25
"""Of a pause: a beat that is nearer than this is left out."""


def until_beat(seconds: float) -> float:
    """About `seconds`, such that all who pause for so long, or for a multiple of it, wake up
    together: to wake up costs an idle process more than what it then does."""
    left = seconds - time.monotonic() % seconds
    return left if left >= _TOO_SOON * seconds else left + seconds


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`. Raises asyncio.TimeoutError, and cancels it, after `seconds`."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


class News(asyncio.Event):
    """An event that costs little to wait for with a limit, again and again, many times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._limited: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        super().set()
        for waiting in self._limited:
            _settle(waiting)

    async def within(self, seconds: float) -> bool:
        """Whether it is set, waiting for it for `seconds` at most."""
        if not self.is_set():
            loop = asyncio.get_running_loop()
            waiting: asyncio.Future[None] = loop.create_future()
            self._limited.add(waiting)
            timer = loop.call_later(seconds, _settle, waiting)
            try:
                await waiting
            finally:
                timer.cancel()
                self._limited.discard(waiting)
        return self.is_set()


def _settle(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


async def set_within(seconds: float, event: asyncio.Event) -> bool:
    """Whether `event` is set, waiting for it for `seconds` at most."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting], timeout=seconds)
        return event.is_set()
    finally:
        waiting.cancel()


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first ends, cancel the others, raise what the first raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

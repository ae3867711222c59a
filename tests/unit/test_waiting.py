"""Waiting for a limited time: for what comes, for what does not, and until one is cancelled; and
together with others."""

import asyncio
import time

import pytest

from harness.wire.waiting import News, until_beat

LONG = 600.0


def test_what_is_there_is_not_waited_for() -> None:
    async def run() -> bool:
        news = News()
        news.set()
        return await news.within(LONG)

    assert asyncio.run(run())


def test_all_who_wait_hear_of_it_however_they_wait() -> None:
    async def run() -> list[bool]:
        news = News()
        waiting = [asyncio.ensure_future(news.within(LONG)) for _ in range(2)]
        waiting.append(asyncio.ensure_future(news.wait()))
        await asyncio.sleep(0)
        news.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(run()) == [True, True, True]


def test_what_does_not_come_is_waited_for_no_longer_and_again() -> None:
    async def run() -> list[bool]:
        news = News()
        found = [await news.within(0.001), await news.within(0.0)]
        news.set()
        found.append(await news.within(LONG))
        news.clear()
        return [*found, await news.within(0.001)]

    assert asyncio.run(run()) == [False, False, True, False]


def test_a_cancellation_arrives_even_with_the_news() -> None:
    async def run() -> None:
        news = News()
        waiting = asyncio.ensure_future(news.within(LONG))
        await asyncio.sleep(0)
        news.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await news.within(LONG)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("now", "pause", "left"),
    [(100.0, 0.25, 0.25), (100.1, 0.25, 0.15), (100.2, 0.25, 0.3), (100.1, 1.0, 0.9),
     (100.1, 0.5, 0.4), (100.9, 1.0, 1.1), (7.0, 1.024, 0.168 + 1.024)],
)  # fmt: skip
def test_pauses_end_together(
    now: float, pause: float, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert until_beat(pause) == pytest.approx(left)

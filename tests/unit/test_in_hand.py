"""The exception that a main thread is handling, as its heartbeat sees it."""

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from harness.worker.inhand import InHand
from harness.worker.link import Link, receive, socket_pair


class Beat:
    """Looks from another thread, as the heartbeat does, whenever it is told to."""

    def __init__(self) -> None:
        self.ours, theirs = socket_pair()
        self.in_hand = InHand(Link(theirs.detach()))

    def __call__(self, times: int = 1) -> list[dict[str, Any]]:
        """What has been told after so many looks."""
        for _ in range(times):
            thread = threading.Thread(target=self.in_hand.look)
            thread.start()
            thread.join()
        return receive(self.ours) or []

    def close(self) -> None:
        os.close(self.in_hand._link._descriptor)
        self.ours.close()


@pytest.fixture
def beat() -> Iterator[Beat]:
    one = Beat()
    yield one
    one.close()


def test_nothing_is_told_of_a_healthy_thread(beat: Beat) -> None:
    assert beat(3) == []


def test_an_exception_whose_finally_waits(beat: Beat) -> None:
    """It is told once, when it is still there at the second look, and again when it has gone."""
    told: list[dict[str, Any]] = []

    def fails() -> None:
        try:
            raise KeyError("caption")
        finally:
            for _ in range(5):
                told.extend(beat())
                looks.append(len(told))

    looks: list[int] = []
    with pytest.raises(KeyError):
        fails()
    assert looks == [0, 1, 1, 1, 1]
    (fact,) = told
    assert fact["type"] == "Handling"
    assert (fact["error"]["exc_type"], fact["error"]["message"]) == ("KeyError", "'caption'")
    assert fact["error"]["where"]["file"] == __file__
    assert fact["error"]["where"]["function"].endswith("fails")
    assert fact["error"]["seen_ns"] > 0
    assert beat() == [{"type": "Handling", "error": None}]
    assert beat(2) == []


def test_an_exception_that_is_over_by_the_next_look(beat: Beat) -> None:
    try:
        raise ValueError("once")
    except ValueError:
        assert beat() == []
    assert beat(2) == []


def test_another_exception_takes_its_place(beat: Beat) -> None:
    try:
        raise ValueError("first")
    except ValueError:
        assert [fact["error"]["message"] for fact in beat(2)] == ["first"]
        try:
            raise RuntimeError("second")
        except RuntimeError:
            assert [fact["error"] and fact["error"]["message"] for fact in beat(2)] == [
                None,
                "second",
            ]


def test_only_the_main_thread_counts(beat: Beat) -> None:
    """A worker thread that handles an error for long is no sign of a rank that has failed."""
    raised, done = threading.Event(), threading.Event()

    def other() -> None:
        try:
            raise ValueError("elsewhere")
        except ValueError:
            raised.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    raised.wait()
    try:
        assert beat(3) == []
    finally:
        done.set()
        thread.join()


def test_no_reference_is_kept(beat: Beat) -> None:
    """The frames of an exception hold tensors: they must go when the user's program lets go."""

    class Tensor:
        pass

    def fails() -> "weakref.ref[Tensor]":
        tensor = Tensor()
        seen = weakref.ref(tensor)
        try:
            raise ValueError("with a tensor in its frame")
        except ValueError:
            assert len(beat(2)) == 1
        return seen

    gc.disable()
    try:
        assert fails()() is None
    finally:
        gc.enable()


def test_a_message_that_cannot_be_made(beat: Beat) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    try:
        raise Mute
    except Mute:
        assert beat(4) == []


def test_an_agent_that_is_gone(beat: Beat) -> None:
    beat.ours.close()
    try:
        raise ValueError("unheard")
    except ValueError:
        for _ in range(3):
            beat.in_hand.look()

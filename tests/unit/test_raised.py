"""What is told of an exception, when telling it is interrupted or its text cannot be had."""

from types import SimpleNamespace
from typing import Any

from harness.worker import raised


class Link:
    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def say(self, kind: str, **fields: Any) -> bool:
        self.said.append(fields)
        return True


def told(error: BaseException) -> dict[str, Any]:
    link = Link()
    guest = SimpleNamespace(link=link, step=3, assignment=SimpleNamespace(last_record=""))
    raised.tell(guest, error, None)  # type: ignore[arg-type]
    (fact,) = link.said
    return fact


class Interrupted(Exception):
    """As when a signal handler raises while its text is read."""

    times = 2  # the traceback module swallows the first

    def __str__(self) -> str:
        if self.times:
            self.times -= 1
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.")
        return "connection reset"


def test_an_interruption_costs_nothing_and_is_told() -> None:
    fact = told(Interrupted())
    assert fact["message"] == "connection reset"
    assert "DataLoader worker (pid 7) is killed" in fact["cause"]


def test_a_text_that_cannot_be_had_is_said_to_be_none() -> None:
    error = Interrupted()
    error.times = 1000
    assert told(error)["message"] == "(no text: RuntimeError while it was read)"

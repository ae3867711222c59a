"""Facts of a worker on their way to the agent."""

import types
from typing import Any

import pytest

from harness import events as e
from harness.agent import facts
from harness.topology import runs_of
from harness.worker.link import Link, receive, socket_pair

WORKER: Any = types.SimpleNamespace(rank=3)


def through(kind: str, **fields: Any) -> list[dict[str, Any]] | None:
    ours, theirs = socket_pair()
    with ours, theirs:
        assert Link(theirs.fileno()).say(kind, **fields)
        return receive(ours)


@pytest.mark.parametrize("ranks", [range(100_000), range(5, 90_000, 8), (4, 1, 9, 9), ()])
def test_a_group_of_tens_of_thousands_is_one_message(ranks: tuple[int, ...]) -> None:
    (fact,) = through("GroupCreated", pg="0", pg_desc="default_pg", runs=runs_of(ranks)) or ()
    assert facts.event_of(WORKER, fact, 0) == e.GroupCreated(
        rank=3, pg="0", pg_desc="default_pg", ranks=tuple(ranks)
    )


@pytest.mark.parametrize("runs", [[[0, 1, 1 << 21]], [[0, 1, -(1 << 62)]], [[0, 1]], 7])
def test_a_group_that_no_run_has_is_a_bad_fact(runs: Any) -> None:
    fact = {"type": "GroupCreated", "pg": "0", "pg_desc": "", "runs": runs}
    with pytest.raises(facts.BadFact):
        facts.event_of(WORKER, fact, 0)

"""An optimizer step that some ranks leave out: when it is a divergence, and when it is none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import marks, replicas, unstepped
from harness.sightings import DigestPart, DigestRow, MarkSample
from harness.state import AttemptState, digesting
from harness.state.marking import BACKWARD, STEP, Book, Difference, Sample, steps_fewer
from harness.state.sampling import marks_differ, take_samples
from harness.topology import runs_of

B, S, C = BACKWARD, STEP, "collective"
USUAL = (B, C, S)
SKIPPED = (B, C)


def unstepped_of(programs: Sequence[Sequence[str]]) -> Difference | None:
    """Ranks side by side, as in `test_marking`."""
    book = Book(len(programs))
    for rank, program in enumerate(programs):
        counts: dict[str, int] = {}
        seq = 0
        for at, what in enumerate(program):
            if what == C:
                seq += 1
                continue
            counts[what] = count = counts.get(what, 0) + 1
            sample = Sample(ranks=(rank,), seq=seq, counters=(), at_ns=at)
            book.add(what, 1, count, rank, sample)
    assert book.difference() is None
    return None if book.unstepped is None else book.unstepped[1]


def steps(*kinds: Sequence[str]) -> list[str]:
    return [what for kind in kinds for what in kind]


ALL = steps(*[USUAL] * 20)
ONE = steps(*[USUAL] * 9, SKIPPED, *[USUAL] * 10)


def test_a_step_left_out() -> None:
    found = unstepped_of([ALL, ALL, ONE])
    assert found is not None
    assert (found.count, steps_fewer(found)) == (10, 1)
    event = marks_differ(found, "0", "default_pg", "/u/t.py:9:main", 0, unstepped=True)
    assert (event.odd, event.steps, event.tied) == ((2,), 1, False)


def test_two_collectives_a_step_and_two_steps_left_out() -> None:
    usual, skipped = (B, C, C, S), (B, C, C)
    odd = steps(*[usual] * 9, skipped, skipped, *[usual] * 10)
    found = unstepped_of([steps(*[usual] * 20), odd, steps(*[usual] * 20)])
    assert found is not None
    assert steps_fewer(found) == 2


def test_a_step_made_twice() -> None:
    found = unstepped_of([ALL, steps(*[USUAL] * 9, (S,), *[USUAL] * 10), ALL])
    assert found is not None
    assert steps_fewer(found) == -1


def test_of_two_ranks_the_one_that_left_the_rhythm() -> None:
    found = unstepped_of([ALL, ONE])
    assert found is not None
    event = marks_differ(found, "0", "", "", 0, unstepped=True)
    assert (event.odd, event.tied, event.steps) == ((1,), False, 1)


HARMLESS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "all leave it out together": (ONE, ONE),
    "left out from time to time": (
        steps(*([USUAL] * 7 + [SKIPPED]) * 3),
        steps(*([USUAL] * 7 + [SKIPPED]) * 3),
    ),
    "one never steps": (ALL, steps(*[SKIPPED] * 20)),
    "uneven from the start": (ALL, steps(SKIPPED, *[USUAL] * 19)),
    "made up for at once": (
        ALL,
        steps(*[USUAL] * 9, SKIPPED, (B, C, S, S), *[USUAL] * 9),
    ),
    "no backward pass since": (
        steps(*[USUAL] * 9, *[(C, S)] * 5),
        steps(*[USUAL] * 9, (C,), *[(C, S)] * 5),
    ),
    "the end, one step before": (ALL, steps(*[USUAL] * 19, SKIPPED)),
    "rounds of unequal length": (
        steps(*[(B, B, C, S)] * 12),
        steps(*[(B, B, B, C, S)] * 12),
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_it(name: str) -> None:
    one, other = HARMLESS[name]
    assert unstepped_of([one, one, other]) is None
    assert unstepped_of([other, one]) is None


def test_a_collective_that_goes_with_the_pass_is_no_step() -> None:
    """A pass and its collective left out: that is another verdict's."""
    book = Book(3)
    for rank in range(3):
        seq = 0
        for count in range(1, 20):
            seq += not (rank == 2 and count == 9)
            for kind in (B, S):
                sample = Sample(ranks=(rank,), seq=seq, counters=(), at_ns=count)
                book.add(kind, 1, count, rank, sample)
    assert book.unstepped is None
    assert book.difference() is not None


# --- with the digests ----------------------------------------------------------------------------

Values = Callable[[int, int], int]
"""Of a rank, at a look."""
WORLD = 3
EVENT = replace(
    marks_differ(
        unstepped_of([ALL, ALL, ONE]) or pytest.fail("no difference"),
        "0", "default_pg", "/u/train.py:14:main", 0, unstepped=True,
    )
)  # fmt: skip


def attempt_of(
    values: Values,
    *,
    event: e.MarksDiffer = EVENT,
    stride: int = 1,
    lag: int = 1,
    last: int = 16,
    **changes: Any,
) -> AttemptState:
    """Looks at the end of each `stride`-th step and at the begin of the next; rank 2 has `lag`
    steps left out behind it from the begin of step 10 on."""
    fields: dict[str, Any] = {
        "part": 1, "site": "parameters", "how": "ddp", "name": "weight … bias", "tensors": 2,
        "ranks": tuple(range(WORLD)), "members": runs_of(range(WORLD)), **changes,
    }  # fmt: skip
    attempt = AttemptState(index=0, world_size=WORLD, ranks={}, nodes={}, why="", started_ns=0)
    tell(attempt, parts=(DigestPart(**fields),))
    for step in range(1, last):
        for count in (2 * step + 1, 2 * step + 2) if step % stride == 0 else ():
            rows = tuple(
                DigestRow(
                    part=1, count=count, value=values(rank, count), ranks=(rank,), step=step,
                    at_ns=count, progress=count + 2 * lag * (rank == 2 and count >= 20),
                )
                for rank in range(WORLD)
            )  # fmt: skip
            tell(attempt, rows=rows)
    attempt.marks_differ.append((event, ("agent:0", 9)))
    return attempt


def tell(
    attempt: AttemptState,
    parts: tuple[DigestPart, ...] = (),
    rows: tuple[DigestRow, ...] = (),
) -> None:
    event = e.DigestsRead(node_rank=0, parts=parts, rows=rows)
    digesting.note(attempt, ("agent:0", 3), event)


def updates(count: int) -> int:
    """Optimizer steps made by look `count`."""
    return (count - 1) // 2


def diverging(rank: int, count: int) -> int:
    return updates(count) + 1000 * (rank == 2 and count > 20)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("how", ["ddp", "fsdp", "hand"])
def test_replicas_go_apart(stride: int, how: str) -> None:
    """Looks fall on the step in question (3), or right after it, or on neither side of it."""
    attempt = attempt_of(diverging, stride=stride, how=how, last=26)
    if how == "hand":
        track = next(iter(attempt.replicas.tracks.values()))
        assert (track.split is not None and track.split.moved >= 3) == (stride < 3)
        if stride > 2:
            assert unstepped.find(attempt) == []  # equal too seldom to be learnt
            return
    (finding,) = unstepped.find(attempt)
    assert (finding.verdict, finding.ranks) == ("replica_divergence", (2,))
    assert finding.confidence == "proven"
    assert finding.where is not None
    assert finding.where.line == 14
    assert finding.cause.startswith(
        "rank 2 made one optimizer step fewer than the others between step 9 and 10, with every"
        " backward pass in common; 2 parameters (weight … bias) went apart by the"
    )
    assert marks.find(attempt) == []  # no collective is missing


def one_more(rank: int, count: int) -> int:
    """Rank 2 makes step 10 without gradients: it is a step behind by its count."""
    return updates(count) - (rank == 2 and count > 20)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_a_step_more_that_changes_nothing(stride: int) -> None:
    event = replace(EVENT, steps=-1)
    attempt = attempt_of(one_more, event=event, stride=stride, lag=-1, last=26)
    assert unstepped.find(attempt) == []
    assert attempt.replicas.suspicions == []


def test_a_step_more_that_changes_something() -> None:
    found = unstepped.find(attempt_of(diverging, event=replace(EVENT, steps=-1), lag=-1))
    assert [finding.ranks for finding in found] == [(2,)]
    assert "made one optimizer step more than the others" in found[0].cause


EQUAL: Mapping[str, dict[str, Any]] = {
    "nothing was left out": {"values": lambda rank, count: updates(count), "lag": 0},
    "a step that changes nothing": {"values": one_more},
    "averaged now and then": {
        "values": lambda rank, count: updates(count) + 1000 * rank * (0 < count % 8 < 7)
    },
    "equal again": {
        "values": lambda rank, count: updates(count) + 1000 * (rank == 2 and count == 21)
    },
    "never replicas": {"values": lambda rank, count: updates(count) + 1000 * rank},
    "shards": {"values": diverging, "how": "sharded"},
    "apart before": {
        "values": lambda rank, count: updates(count) + 1000 * (rank == 2 and count > 9)
    },
    "stepped elsewhere": {"values": diverging, "lag": 0},
    "the others went apart": {
        "values": lambda rank, count: updates(count) + 1000 * (rank == 0 and count > 20)
    },
}


@pytest.mark.parametrize("name", EQUAL)
def test_no_divergence_by_steps(name: str) -> None:
    assert unstepped.find(attempt_of(**EQUAL[name])) == []


def test_what_the_marks_do_not_tell_is_still_no_devices_doing() -> None:
    """Two of two tensors, or one of forty: a rank that came there on another way was sent."""
    attempt = attempt_of(diverging, tensors=1)
    attempt.marks_differ.clear()
    (known,) = attempt.replicas.suspicions
    finding = replicas.change(known)
    assert (finding.verdict, finding.ranks) == ("replica_divergence", (2,))
    assert "different numbers of calls" in finding.reason


def test_nodes_tell_of_steps_left_out() -> None:
    """One rank each; the controller compares, and names the line of the step."""
    attempt = AttemptState(index=0, world_size=WORLD, ranks={}, nodes={}, why="", started_ns=0)
    for count in range(4, 80, 4):
        for kind, key in ((BACKWARD, 1), (STEP, 2)):
            for rank in range(WORLD):
                missed = kind == STEP and rank == 1 and count > 41
                sample = MarkSample(
                    pg="0", pg_desc="default_pg", size=WORLD, ranks=(rank,), kind=kind, key=key,
                    site=f"/u/t.py:{key}:main", count=count, seq=count + missed, at_ns=count,
                    counters=(), name="", value=0,
                )  # fmt: skip
                take_samples(
                    attempt, e.MarksSampled(node_rank=rank, samples=(sample,)), ("agent:0", 5)
                )
    ((event, _),) = attempt.marks_differ
    assert (event.odd, event.steps, event.count) == ((1,), 1, 44)
    assert event.site == "/u/t.py:2:main"

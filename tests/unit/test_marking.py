"""Marks of made-up programs: what is a desync, and what only looks like one."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from harness.diagnosis import marks
from harness.events import MarksSampled
from harness.sightings import MarkCounter, MarkSample
from harness.state.marking import BACKWARD, FORWARD, STEP, Book, Difference, Sample, odd_ranks
from harness.state.sampling import marks_differ, take_samples
from harness.state.words import AttemptState

F, B, S, C, LOOP = FORWARD, BACKWARD, STEP, "collective", "loop"
Program = Sequence[str]
"""Marks and collectives in order; LOOP moves the program's own counter on."""


def compare(
    programs: Sequence[Program], *, counters: bool = True, strides: Sequence[int] = (1,)
) -> Difference | None:
    """All ranks side by side, each mark of each rank in order, of the counts that a rank records:
    the multiples of its stride."""
    book, found = Book(len(programs)), None
    for rank, program in enumerate(programs):
        counts: dict[str, int] = {}
        seq = step = 0
        for at, what in enumerate(program):
            if what == C:
                seq += 1
            elif what == LOOP:
                step += 1
            else:
                counts[what] = count = counts.get(what, 0) + 1
                if count % strides[rank % len(strides)]:
                    continue
                drift = ((77, step - count),) if counters else ()
                sample = Sample(ranks=(rank,), seq=seq, counters=drift, at_ns=at)
                book.add(what, 1, count, rank, sample)
                found = found or book.difference()
    return None if found is None else found[1]


def loop(step: Program, times: int) -> list[str]:
    return [LOOP, *step] * times


DDP = (F, B, C, S)
SILENT = (B, C)


@pytest.mark.parametrize("counters", [True, False])
def test_a_collective_left_out(counters: bool) -> None:
    usual = loop((B, C, S), 20)
    odd = [*loop((B, C, S), 9), LOOP, B, S, *loop((B, C, S), 10)]
    found = compare([usual, usual, odd], counters=counters)
    assert found is not None
    assert odd_ranks(found)[0] == (2,)
    assert (found.kind, found.count) in {(BACKWARD, 11), (STEP, 10)}


def test_a_collective_too_many_and_a_tie() -> None:
    usual, odd = loop(SILENT, 20), [*loop(SILENT, 9), C, *loop(SILENT, 11)]
    found = compare([usual, odd, usual])
    assert found is not None
    assert odd_ranks(found) == ((1,), 9)
    two = compare([usual, odd])  # the rhythm tells
    assert two is not None
    assert odd_ranks(two) == ((1,), 9)
    usual, odd = loop(SILENT, 20), [*loop(SILENT, 6), LOOP, B, *loop(SILENT, 13)]
    early = compare([usual, odd])  # too early for that
    assert early is not None
    assert odd_ranks(early) == ((0, 1), None)


def test_a_backward_pass_that_is_skipped_with_its_collective() -> None:
    usual, odd = loop(DDP, 12), [*loop(DDP, 5), LOOP, F, *loop(DDP, 6)]
    found = compare([usual, odd, usual])
    assert found is not None
    assert (found.kind, found.count) == (FORWARD, 7)
    assert odd_ranks(found) == ((1,), 6)


def with_extra(step: Program, extra: Program, at: int = 9) -> list[str]:
    """One more of something, within the step and not counted by the program's loop."""
    return [*loop(step, at), LOOP, *extra, *step, *loop(step, 10)]


LOOKALIKES: dict[str, tuple[Program, Program]] = {
    "a backward pass more": (loop((B, C, S), 20), with_extra((B, C, S), (B,))),
    "a batch in two parts": (loop((B, C), 20), with_extra((B, C), (B,))),
    "a forward done again": (loop(DDP, 20), with_extra(DDP, (F,))),
    "an optimizer step not made": (
        loop((B, C, S), 20),
        [*loop((B, C, S), 9), LOOP, B, C, *loop((B, C, S), 10)],
    ),
    "uneven from the start": (loop((B, C), 20), [C, *loop((B, C), 20)]),
    "accumulation": (loop((B, B, B, C, S), 9), loop((B, B, B, C, S), 9)),
    "accumulation in other parts": (loop((B, B, C), 20), loop((B, B, B, C), 20)),
    "rounds of unequal length": (loop([B] * 10 + [C], 9), loop([B] * 12 + [C], 9)),
    "rounds, one of them longer": (
        loop([B] * 3 + [C], 20),
        [*loop([B] * 3 + [C], 6), LOOP, *[B] * 4, C, *loop([B] * 3 + [C], 12)],
    ),
    "a difference that passes": (
        loop(SILENT, 20),
        [*loop(SILENT, 9), C, *loop(SILENT, 1), LOOP, B, *loop(SILENT, 9)],
    ),
    "a difference that has only begun": (
        loop(SILENT, 20),
        [*loop(SILENT, 17), C, *loop(SILENT, 2)],
    ),
    "one ends before the others": (loop(SILENT, 200), loop(SILENT, 20)),
    "one makes no marks": (loop(SILENT, 20), [C] * 20),
}


@pytest.mark.parametrize("strides", [(1,), (2,), (1, 2), (4, 2)])
@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_are_not_flagged(name: str, strides: Sequence[int]) -> None:
    one, other = LOOKALIKES[name]
    for longer in ([], list(one[-(len(one) // 2) :]) * 3):
        programs = [*one, *longer], [*other, *longer]
        if name == "a difference that has only begun" and longer:
            continue
        assert compare([programs[0], programs[1], programs[0]], strides=strides) is None
        assert compare(programs[::-1], strides=strides) is None


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize(("strides", "count"), [((4,), 32), ((1, 2, 4), 32), ((2, 1), 30)])
def test_ranks_that_record_fewer_counts_are_compared_by_those(
    strides: Sequence[int], count: int, counters: bool
) -> None:
    usual, odd = loop((B, C, S), 60), [*loop((B, C, S), 28), LOOP, B, S, *loop((B, C, S), 31)]
    found = compare([usual, usual, odd], counters=counters, strides=strides)
    assert found is not None
    assert odd_ranks(found)[0] == (2,)
    assert found.count == count
    assert found.row[0].seq - found.row[2].seq == 1


def test_where_the_program_counts_nothing_two_kinds_must_agree() -> None:
    for one, other in [
        (loop(SILENT, 20), [*loop(SILENT, 9), B, *loop(SILENT, 10)]),
        (loop(DDP, 20), [*loop(DDP, 9), F, *loop(DDP, 10)]),
    ]:
        assert compare([one, one, other], counters=False) is None


def test_lost_records_end_a_comparison() -> None:
    book = Book(2)
    for count in range(1, 30):
        for rank in range(2):
            sample = Sample(
                ranks=(rank,), seq=count + (rank and count > 15), counters=((1, 0),), at_ns=count
            )
            book.add(BACKWARD, 1, count, rank, sample)
        if count in (15, 17):
            book.interrupt()
        assert book.difference() is None


def sampled(step_of: Callable[[int], int], nodes: int = 3) -> Iterable[MarksSampled]:
    """Nodes of two ranks each that tell every fourth count, and every eighth."""
    for count in range(4, 120, 4):
        for node in range(nodes):
            if node == 1 and count % 8:
                continue
            sample = MarkSample(
                pg="0", pg_desc="default_pg", size=2 * nodes, ranks=(2 * node, 2 * node + 1),
                kind=BACKWARD, key=1, site="/u/train.py:7:main", count=count,
                seq=count - (node == 2) * step_of(count), at_ns=count,
                counters=(MarkCounter(name=5, drift=0),),
                name="step", value=count - 1,
            )  # fmt: skip
            yield MarksSampled(node_rank=node, samples=(sample,))


def attempt() -> AttemptState:
    return AttemptState(index=0, world_size=6, ranks={}, nodes={}, why="", started_ns=1)


def test_nodes_are_compared_by_what_they_tell() -> None:
    differs, alike = attempt(), attempt()
    for event in sampled(lambda count: count > 61):
        take_samples(differs, event, ("agent:0", 5))
    for event in sampled(lambda count: 0):
        take_samples(alike, event, ("agent:0", 5))
    assert not alike.marks_differ
    ((found, _),) = differs.marks_differ
    assert found.count == 64
    assert {place.rank: place.seq for place in found.places} == {
        0: 64, 1: 64, 2: 64, 3: 64, 4: 63, 5: 63,
    }  # fmt: skip


def test_the_words() -> None:
    usual, odd = loop(SILENT, 20), [*loop(SILENT, 9), LOOP, B, *loop(SILENT, 10)]
    found = compare([usual, usual, odd, usual])
    assert found is not None
    state = attempt()
    state.marks_differ.append((marks_differ(found, "0", "default_pg", "", 0), ("agent:0", 3)))
    (finding,) = marks.find(state)
    assert (finding.verdict, finding.ranks) == ("collective_mismatch", (2,))
    assert finding.victims == (0, 1, 3)
    assert finding.cause == (
        "rank 2 skipped one collective between backward pass 10 and 11: by then rank 2 had made 9"
        " collectives on default_pg, ranks 0-1,3 10; no error, for the sizes match"
    )

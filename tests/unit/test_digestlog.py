"""Digests on their way: the ring in shared memory, how often a rank looks, and its agent's rows."""

import mmap
import random
from types import SimpleNamespace
from typing import Any

from harness.agent.digests import Digests, parts_of
from harness.topology import runs_of
from harness.worker import digestlog
from harness.worker.digestlog import Values
from harness.worker.digests.optimizers import SLICES
from harness.worker.digests.pace import Pace, scattered


def ring() -> tuple[digestlog.DigestWriter, digestlog.DigestReader]:
    memory = mmap.mmap(-1, 64 + digestlog.REGION_BYTES)
    return digestlog.DigestWriter(memory, 64), digestlog.DigestReader(memory, 64)


def values(count: int, size: int) -> Values:
    digests = tuple((1 << 64) - 1 - at for at in range(size))
    return Values(plan=1, count=count, step=count, progress=-3, at_ns=7, digests=digests)


def test_what_is_written_comes_back_over_the_end_of_the_ring() -> None:
    writer, reader = ring()
    rng = random.Random(5)
    for count in range(120):
        written = [values(count, rng.randrange(20_000)), {"plan": count, "tensors": []}]
        assert writer.values(written[0])  # type: ignore[arg-type]
        assert writer.plan(written[1])  # type: ignore[arg-type]
        assert reader.new() == written
    assert reader.lost == 0


def test_a_flipped_bit_in_the_ring_is_lost_and_never_another_digest() -> None:
    rng = random.Random(3)
    for _ in range(300):
        memory = mmap.mmap(-1, 64 + digestlog.REGION_BYTES)
        writer, reader = digestlog.DigestWriter(memory, 64), digestlog.DigestReader(memory, 64)
        written = [values(count, 6) for count in range(3)]
        for each in written:
            writer.values(each)
        memory[72 + rng.randrange(writer._written)] ^= 1 << rng.randrange(8)
        found = reader.new()
        assert found in (written[:0], written[:1], written[:2], written)
        assert reader.lost == (found != written)  # a bit of the padding harms nothing
        writer.values(values(3, 6))
        assert reader.new() == [values(3, 6)]


def test_a_reader_that_falls_behind_loses_what_was_there_and_goes_on() -> None:
    writer, reader = ring()
    for count in range(80):
        writer.values(values(count, 10_000))
    assert reader.new() == []
    assert reader.lost == 1
    writer.values(values(80, 3))
    assert reader.new() == [values(80, 3)]


def test_what_is_too_large_is_not_told() -> None:
    writer, reader = ring()
    assert not writer.values(values(1, digestlog.MOST_TENSORS + 1))
    assert writer.values(values(2, digestlog.MOST_TENSORS))
    assert [found.count for found in reader.new() if isinstance(found, Values)] == [2]


def test_looks_cost_their_share_and_ranks_meet() -> None:
    """A rank of twice the speed looks at other counts, but not only at others."""
    now = 0.0

    def walk(step_seconds: float, cost: float) -> set[int]:
        nonlocal now
        now = 0.0
        pace, looked = Pace(1, 0.01, 2, lambda: now), set()
        for count in range(1, 4001):
            now += step_seconds
            if pace.due(count):
                now += cost
                looked.add(count)
                pace.looked(count, cost)
        return looked

    fast, slow = walk(0.004, 0.001), walk(0.008, 0.001)
    assert len(fast) * 0.001 < 0.012 * 4000 * 0.004
    assert len(fast & slow) >= min(len(fast), len(slow)) - 8
    assert 1 in fast & slow


def test_every_slice_of_the_state_is_looked_at_whatever_the_stride() -> None:
    for stride in (1, 2, 8, 64):
        first = [scattered(stride * k, SLICES) for k in range(1, 49)]
        assert set(first) == set(range(SLICES))


def plan(members: list[int], groups: list[int], marks: tuple[str, ...] = ()) -> dict[str, object]:
    return {
        "plan": 1,
        "site": "parameters",
        "number": 0,
        "place": "",
        "groups": [["ddp", "", members], ["dtensor", "tp", [0, 4]]],
        "tensors": [["w", [4, 4], "float32", groups, marks], ["b", [4], "float32", [0], []]],
    }


def test_tensors_are_told_by_who_should_have_them_in_common() -> None:
    both = {part.told.how: part for part in parts_of(plan([0, 1], [0, 1]), 0)}
    assert both["ddp"].places == (0, 1)
    assert both["dtensor"].places == (0,)
    assert both["dtensor"].told.members == ((0, 4, 2),)


def test_other_tensors_or_members_make_another_part() -> None:
    (mine,) = parts_of(plan([0, 1], [0]), 0)
    (same,) = parts_of(plan([0, 1], [0]), 1)
    (others,) = parts_of(plan([2, 3], [0]), 0)
    assert mine.told.part == same.told.part != others.told.part


def test_what_is_cut_and_undeclared_is_compared_with_nothing() -> None:
    assert [part.places for part in parts_of(plan([0, 1], [], ("cut",)), 0)] == [(1,)]
    alone = parts_of(plan([0, 1], []), 0)
    assert {part.told.how for part in alone} == {"ddp", "learnt"}


def test_all_groups_that_sum_a_tensor_are_told_though_they_come_at_once() -> None:
    """Of tensor parallelism: each rank has its own replicas of a part that all have."""

    def worker(rank: int) -> Any:
        over = [rank % 2, rank % 2 + 2]
        told = {**plan([0], [0]), "groups": [["hand", "", over]]}
        look = Values(plan=1, count=2, step=1, progress=0, at_ns=1, digests=(5, 6))
        logs = SimpleNamespace(digests=SimpleNamespace(new=lambda: [told, look]))
        return SimpleNamespace(rank=rank, attempt=0, logs=logs)

    reported: list[Any] = []
    digests = Digests(lambda: 0, lambda _, event: reported.append(event))
    assert digests.read([worker(rank) for rank in range(4)])
    (event,) = reported
    assert {(part.name, part.members, part.ranks) for part in event.parts} == {
        (name, runs_of(ranks), ranks) for name in ("w", "b") for ranks in ((0, 2), (1, 3))
    }

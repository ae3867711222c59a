"""What calls of collectives name besides tensors: noted by the rank, read and compared."""

import mmap
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.collectives import Collective, GroupCreation, Terms
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import rank_wait
from harness.diagnosis.waits.record import Waits
from harness.diagnosis.waits.terms import disagreement
from harness.events import EvidenceTaken
from harness.sightings import ProcessFacts
from harness.worker import exchanges, sites


class Tensor:
    """Stands for a tensor of a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        found = 1
        for size in self.shape:
            found *= size
        return found


class Group:
    """Stands for torch's ProcessGroup."""

    def __init__(self) -> None:
        self.seq = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.seq

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        self.seq += 1

    def alltoall_base(self, *args: Any) -> None:
        self.seq += 1

    alltoall = alltoall_base


def watched(ranks: tuple[int, ...]) -> tuple[Group, Any, sites.SiteReader]:
    """A group, its hooked methods, and what the agent reads."""
    memory = mmap.mmap(-1, 64 + sites.REGION_BYTES)
    writer, group = sites.SiteWriter(memory, 64), Group()
    known = {id(group): (7, ranks)}
    hooked = SimpleNamespace(
        **{
            name: writer.noted(getattr(Group, name), known, [])
            for name in ("broadcast", "alltoall_base", "alltoall")
        }
    )
    return group, hooked, sites.SiteReader(memory, 64)


def test_the_root_of_a_call_is_noted() -> None:
    group, hooked, reader = watched((4, 5, 6))
    options = SimpleNamespace(rootRank=2)
    hooked.broadcast(group, [Tensor(3)], options)
    hooked.broadcast(group, Tensor(3), 1)
    hooked.broadcast(group, Tensor(3), root=0, timeout=None)
    hooked.broadcast(group, [Tensor(3)], opts=options)
    hooked.broadcast(group, [Tensor(3)])
    hooked.alltoall(group, [Tensor(3)] * 3, [Tensor(3)] * 3)
    assert [call.root for call in reader.calls()] == [2, 1, 0, 2, -1, -1]
    assert {call.group for call in reader.calls()} == {7}


def test_the_parts_of_an_all_to_all_are_noted() -> None:
    group, hooked, reader = watched((4, 5, 6))
    hooked.alltoall_base(group, Tensor(6, 8), Tensor(9, 8), [], [], None)
    hooked.alltoall_base(group, Tensor(6, 8), Tensor(9, 2), [1, 2, 3], [0, 4, 5], None)
    hooked.alltoall(group, [Tensor(2)] * 3, [Tensor(3, n) for n in range(3)])
    hooked.broadcast(group, [Tensor(3)])
    hooked.alltoall_base(group, "no tensor", 3)  # torch will say what is wrong with it
    assert [call.parts for call in reader.calls()] == [
        exchanges.Parts(seq=0, sent=(24, 24, 24), received=(16, 16, 16)),
        exchanges.Parts(seq=1, sent=(0, 8, 10), received=(8, 16, 24)),
        exchanges.Parts(seq=2, sent=(0, 3, 6), received=(2, 2, 2)),
        None,
        None,
    ]


def test_large_groups_and_old_calls_have_no_parts() -> None:
    group, hooked, reader = watched(tuple(range(exchanges.MOST_MEMBERS + 1)))
    hooked.alltoall_base(group, Tensor(650), Tensor(650), [], [], None)
    assert [call.parts for call in reader.calls()] == [None]

    group, hooked, reader = watched((0, 1))
    for _ in range(exchanges.CAPACITY + 3):
        hooked.alltoall_base(group, Tensor(4), Tensor(4), [], [], None)
    known = [call.parts is not None for call in reader.calls()]
    assert known == [False] * 3 + [True] * exchanges.CAPACITY


def never(rank: int) -> list[Terms]:
    return []


def root(at: int) -> Terms:
    return Terms(root=at)


def test_the_minority_names_another_root() -> None:
    told = {4: root(0), 5: root(0), 6: root(2)}
    found = disagreement("broadcast", (4, 5, 6), told, never)
    assert found is not None
    assert (found.verdict, found.odd, found.tied) == ("collective_mismatch", (6,), False)
    assert found.words == (
        "ranks 4-5 called broadcast from rank 4, rank 6 called broadcast from rank 6"
    )
    reduced = disagreement("reduce", (4, 5, 6), told, never)
    assert reduced is not None
    assert "reduce to rank 4" in reduced.words


def test_of_two_roots_the_new_one_is_odd() -> None:
    told = {0: root(0), 1: root(1)}
    tied = disagreement("gather", (0, 1), told, never)
    assert tied is not None
    assert (tied.odd, tied.tied) == ((0, 1), True)
    known = disagreement("gather", (0, 1), told, lambda rank: [root(0)] * 3)
    assert known is not None
    assert (known.odd, known.tied) == ((1,), False)
    wandering = disagreement("gather", (0, 1), told, lambda rank: [root(0), root(1), root(0)])
    assert wandering is not None
    assert wandering.tied


def test_what_agrees_or_is_not_known_is_no_disagreement() -> None:
    assert disagreement("broadcast", (0, 1), {0: root(1), 1: root(1)}, never) is None
    assert disagreement("broadcast", (0, 1), {0: root(1), 1: root(-1)}, never) is None
    fits = {0: Terms(sent=(1, 2), received=(1, 3)), 1: Terms(sent=(3, 4), received=(2, 4))}
    assert disagreement("all_to_all", (0, 1), fits, never) is None
    alone = {0: Terms(sent=(1, 9), received=(1, 9))}
    assert disagreement("all_to_all", (0, 1), alone, never) is None
    other_group = {0: Terms(sent=(1, 9), received=(1, 9)), 1: fits[1]}
    assert disagreement("all_to_all", (0, 1, 2), other_group, never) is None


@pytest.mark.parametrize(
    ("sent_by_1", "before", "odd", "tied"),
    [
        ((1, 2, 3), (), (1,), False),  # it does not fit with two others
        ((2, 2, 3), (), (1, 2), True),
        ((2, 2, 3), ((2, 2, 2),) * 3, (1,), False),  # it always was as the other has it
        ((2, 2, 3), ((2, 2, 2), (2, 1, 2), (2, 2, 2)), (1, 2), True),
    ],
)
def test_whose_parts_do_not_fit(
    sent_by_1: tuple[int, ...], before: Sequence[tuple[int, ...]], odd: tuple[int, ...], tied: bool
) -> None:
    even = (2, 2, 2)
    told = {rank: Terms(sent=even, received=even) for rank in range(3)}
    told[1] = Terms(sent=sent_by_1, received=even)
    found = disagreement(
        "all_to_all", (0, 1, 2), told, lambda rank: [Terms(sent=s, received=even) for s in before]
    )
    assert found is not None
    assert (found.verdict, found.odd, found.tied) == ("shape_mismatch", odd, tied)
    assert "rank 1 sends to rank 2 3 and that one has room for 2" in found.words


def test_a_hang_at_another_root_is_told() -> None:
    made = GroupCreation(
        pg="0", pg_desc="default_pg", ranks=(0, 1, 2), member=True, begun_ns=1, ended_ns=2
    )
    ranks = {}
    for rank in range(3):
        entries = tuple(
            Collective(
                record_id=at, pg="0", pg_desc="default_pg", seq_id=at + 1, op="gloo:broadcast",
                sizes=((8,),), dtypes=("Float",), state="scheduled", retired=at < 4,
                created_ns=1000 + at,
                terms=Terms(root=1 if rank == 1 and at == 4 else 0),
            )
            for at in range(5)
        )  # fmt: skip
        ranks[rank] = rank_wait(
            EvidenceTaken(
                collection=1, rank=rank, collectives=entries, groups=(made,),
                process=ProcessFacts(state="S", wchan="", cpu_seconds=1.0, rss_bytes=1, threads=4),
            )
        )  # fmt: skip
    (verdict,) = judge(Waits(world_size=3, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("collective_mismatch", (1,))
    assert verdict.victims == (0, 2)
    assert verdict.cause == (
        "#5 on default_pg: ranks 0,2 called broadcast from rank 0,"
        " rank 1 called broadcast from rank 1"
    )

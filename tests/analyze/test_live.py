"""Evidence of living ranks through the same graph: process, stack, two looks, logs of our own."""

from collections.abc import Mapping

import pytest

from harness.collectives import Collective
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import PointToPoint, rank_wait
from harness.diagnosis.waits.record import Creation, Group, RankWait, Waits
from harness.events import EvidenceTaken
from harness.incidents import Verdict, Where
from harness.sightings import Frame, ProcessFacts

WORLD = Group(name="0", desc="default_pg", ranks=(0, 1, 2, 3))
USER = Where(file="/home/u/train.py", line=30, function="load_batch")


def entries(count: int, *, waits: bool) -> tuple[Collective, ...]:
    return tuple(
        Collective(
            record_id=at, pg="0", pg_desc="default_pg", seq_id=at + 1, op="gloo:all_reduce",
            sizes=((8,),), dtypes=("Float",), state="scheduled",
            retired=not (waits and at == count - 1), created_ns=1000 + at,
        )
        for at in range(count)
    )  # fmt: skip


def process(state: str, wchan: str = "") -> ProcessFacts:
    return ProcessFacts(state=state, wchan=wchan, cpu_seconds=1.0, rss_bytes=1, threads=4)


def late(**seen: object) -> EvidenceTaken:
    return EvidenceTaken(
        collection=1,
        rank=2,
        **{"process": process("S"), "collectives": entries(3, waits=False)} | seen,  # type: ignore[arg-type]
    )


def judged(odd: RankWait) -> Verdict:
    """Ranks 0, 1 and 3 wait in their fourth all_reduce."""
    ranks: Mapping[int, RankWait] = {
        rank: rank_wait(
            EvidenceTaken(
                collection=1, rank=rank, process=process("S"), collectives=entries(4, waits=True)
            ),
            groups=[WORLD],
        )
        for rank in (0, 1, 3)
    }
    (verdict,) = judge(Waits(world_size=4, ranks={**ranks, 2: odd}))
    assert verdict.first_failing == (2,)
    assert verdict.victims == (0, 1, 3)
    return verdict


LOADER = (Frame(file="/x/torch/utils/data/dataloader.py", line=9, function="_try_get_data"),)
KINDS = {
    "rank_frozen": late(process=process("T")),
    "rank_stuck_in_io": late(process=process("D", "nfs_wait_bit_killable")),
    "dataloader_stuck": late(frames=LOADER, user_frame=USER),
    "rank_stuck_outside_collective": late(user_frame=USER),
    "stuck_before_first_collective": late(collectives=()),
}


@pytest.mark.parametrize("verdict", KINDS)
def test_what_the_late_rank_does(verdict: str) -> None:
    assert judged(rank_wait(KINDS[verdict], groups=[WORLD])).verdict == verdict


def test_a_rank_in_an_uninterruptible_sleep_is_frozen() -> None:
    seen = late(process=process("D", "do_coredump_wait"))
    assert judged(rank_wait(seen, groups=[WORLD])).verdict == "rank_frozen"


def test_a_rank_that_goes_on_is_late_not_stuck() -> None:
    now = late(user_frame=USER)
    before = late(collectives=entries(2, waits=False))
    assert judged(rank_wait(now, groups=[WORLD], earlier=before)).verdict == "straggler"
    stuck = rank_wait(now, groups=[WORLD], earlier=now)
    assert judged(stuck).verdict == "rank_stuck_outside_collective"


def test_the_line_of_the_late_rank_is_told() -> None:
    found = judged(rank_wait(KINDS["rank_stuck_outside_collective"], groups=[WORLD]))
    assert found.where == USER
    assert found.confidence == "proven"


def test_point_to_point_of_our_own_log() -> None:
    """Rank 0 waits for a second message of rank 1, which waits for rank 2, which does not send."""

    def one(rank: int, *log: PointToPoint) -> RankWait:
        seen = EvidenceTaken(collection=1, rank=rank, process=process("S"), user_frame=USER)
        return rank_wait(seen, p2p=log)

    def receive(peer: int, ordinal: int, *, done: bool) -> PointToPoint:
        return PointToPoint(
            group="0", peers=(peer,), send=False, ordinal=ordinal, done=done, created_ns=ordinal
        )

    sent = PointToPoint(group="0", peers=(0,), send=True, ordinal=1, done=True, created_ns=1)
    ranks = {
        0: one(0, receive(1, 1, done=True), receive(1, 2, done=False)),
        1: one(1, sent, receive(2, 1, done=False)),
        2: one(2),
    }
    (verdict,) = judge(Waits(world_size=3, ranks=ranks))
    assert verdict.first_failing == (2,)
    assert verdict.victims == (0, 1)


def test_a_receive_from_anybody_waits_for_all_of_them() -> None:
    anybody = PointToPoint(group="0", peers=(0, 2), send=False, ordinal=1, done=False, created_ns=1)
    seen = EvidenceTaken(collection=1, rank=1, process=process("S"))
    idle = EvidenceTaken(collection=1, rank=0, process=process("S"), user_frame=USER)
    waiting = PointToPoint(group="0", peers=(0,), send=False, ordinal=1, done=False, created_ns=1)
    ranks = {
        0: rank_wait(idle),
        1: rank_wait(seen, p2p=[anybody]),
        2: rank_wait(EvidenceTaken(collection=1, rank=2, process=None), p2p=[waiting]),
    }
    (verdict,) = judge(Waits(world_size=3, ranks=ranks))
    assert verdict.first_failing == (0,)


def test_a_member_that_does_not_make_its_group() -> None:
    def one(rank: int, creating: Creation | None) -> RankWait:
        seen = EvidenceTaken(collection=1, rank=rank, process=process("S"), user_frame=USER)
        return rank_wait(seen, creating=creating)

    making = Creation(ranks=(0, 1, 2), desc="mesh_tp", began_ns=5)
    ranks = {0: one(0, making), 1: one(1, None), 2: one(2, making), 3: one(3, None)}
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("group_mismatch", (1,))
    assert verdict.innocent == (3,)

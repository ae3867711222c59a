"""Evidence of living ranks through the same graph: process, stack, two looks, logs of our own."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.collectives import Collective, GroupCreation, PointToPoint
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import rank_wait
from harness.diagnosis.waits.record import RankWait, Waits
from harness.events import EvidenceTaken
from harness.incidents import Verdict, Where
from harness.sightings import Frame, ProcessFacts

WORLD = GroupCreation(
    pg="0", pg_desc="default_pg", ranks=(0, 1, 2, 3), member=True, begun_ns=1, ended_ns=2
)
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
        groups=(WORLD,),
        **{"process": process("S"), "collectives": entries(3, waits=False)} | seen,  # type: ignore[arg-type]
    )


def judged(odd: RankWait) -> Verdict:
    """Ranks 0, 1 and 3 wait in their fourth all_reduce."""
    ranks: Mapping[int, RankWait] = {
        rank: rank_wait(
            EvidenceTaken(
                collection=1,
                rank=rank,
                process=process("S"),
                groups=(WORLD,),
                collectives=entries(4, waits=True),
            )
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
    assert judged(rank_wait(KINDS[verdict])).verdict == verdict


def test_a_rank_in_an_uninterruptible_sleep_is_frozen() -> None:
    seen = late(process=process("D", "do_coredump_wait"))
    assert judged(rank_wait(seen)).verdict == "rank_frozen"


def test_a_rank_that_goes_on_is_late_not_stuck() -> None:
    assert judged(rank_wait(late(user_frame=USER, advanced=True))).verdict == "straggler"
    stuck = rank_wait(late(user_frame=USER, advanced=False))
    assert judged(stuck).verdict == "rank_stuck_outside_collective"


def test_the_line_of_the_late_rank_is_told() -> None:
    found = judged(rank_wait(KINDS["rank_stuck_outside_collective"]))
    assert found.where == USER
    assert found.confidence == "proven"


def operation(direction: str, peer: int, number: int, state: str, group: str = "0") -> PointToPoint:
    return PointToPoint(
        direction=direction, peer=peer, pg=group, pg_desc="", tag=0, number=number, sizes=(4,),
        dtype="float32", state=state, begun_ns=number, ended_ns=0,
    )  # fmt: skip


def exchanging(rank: int, *log: PointToPoint) -> RankWait:
    return rank_wait(
        EvidenceTaken(
            collection=1, rank=rank, process=process("S"), user_frame=USER, p2p=log, groups=(WORLD,)
        )
    )


def test_point_to_point_of_our_own_log() -> None:
    """Rank 0 waits for a second message of rank 1, which waits for rank 2, which does not send."""
    ranks = {
        0: exchanging(0, operation("recv", 1, 1, "done"), operation("recv", 1, 2, "waiting")),
        1: exchanging(1, operation("send", 0, 1, "done"), operation("recv", 2, 1, "waiting")),
        2: exchanging(2),
    }
    (verdict,) = judge(Waits(world_size=3, ranks=ranks))
    assert verdict.first_failing == (2,)
    assert verdict.victims == (0, 1)


def test_what_is_only_posted_waits_for_nobody() -> None:
    """Rank 1 has posted a receive ahead and computes; rank 0 waits for a message of it."""
    ranks = {
        0: exchanging(0, operation("recv", 1, 1, "waiting")),
        1: exchanging(1, operation("recv", 0, 1, "posted")),
    }
    (verdict,) = judge(Waits(world_size=2, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("rank_stuck_outside_collective", (1,))


def test_a_receive_from_anybody_waits_for_all_of_them() -> None:
    ranks = {
        0: exchanging(0),
        1: exchanging(1, operation("recv", -1, 1, "waiting")),
        2: exchanging(2, operation("recv", 0, 1, "waiting")),
        3: exchanging(3, operation("recv", 0, 1, "waiting")),
    }
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert verdict.first_failing == (0,)


def group(name: str, *ranks: int, member: bool = True, done: bool = True) -> GroupCreation:
    return GroupCreation(
        pg=name, pg_desc="mesh_tp", ranks=ranks, member=member, begun_ns=5,
        ended_ns=6 if done else 0,
    )  # fmt: skip


def making(rank: int, *groups: GroupCreation) -> RankWait:
    return rank_wait(
        EvidenceTaken(
            collection=1, rank=rank, process=process("S"), user_frame=USER, groups=(WORLD, *groups)
        )
    )


def test_a_member_that_does_not_make_its_group() -> None:
    begun = group("1", 0, 1, 2, done=False)
    ranks = {0: making(0, begun), 1: making(1), 2: making(2, begun), 3: making(3)}
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("rank_stuck_outside_collective", (1,))
    assert verdict.innocent == (3,)


def test_a_member_that_stands_in_something_else() -> None:
    """Rank 1 has left the group out and waits for all in a collective."""
    begun = group("1", 0, 1, 2, done=False)

    def elsewhere(rank: int) -> RankWait:
        seen = EvidenceTaken(
            collection=1, rank=rank, process=process("S"), groups=(WORLD,),
            collectives=entries(4, waits=True),
        )  # fmt: skip
        return rank_wait(seen)

    ranks = {0: making(0, begun), 1: elsewhere(1), 2: making(2, begun), 3: elsewhere(3)}
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("group_mismatch", (1,))


def test_one_rank_makes_a_group_alone() -> None:
    """The others have gone on to a collective of all."""
    seen = EvidenceTaken(
        collection=1, rank=0, process=process("S"), groups=(WORLD,),
        collectives=entries(4, waits=True),
    )  # fmt: skip
    others = {rank: rank_wait(replace(seen, rank=rank)) for rank in (0, 1)}
    alone = making(2, group("1", 0, 1, 2, done=False))
    (verdict,) = judge(Waits(world_size=3, ranks={**others, 2: alone}))
    assert (verdict.verdict, verdict.first_failing) == ("group_mismatch", (2,))


def test_all_in_the_first_group_lack_nobody() -> None:
    """It has no name before it is there, and none of them has made it; blaming any is wrong."""
    first = replace(WORLD, pg="", pg_desc="init_process_group", ended_ns=0)
    seen = {
        rank: EvidenceTaken(
            collection=1, rank=rank, process=process("R"), user_frame=USER, groups=(first,)
        )
        for rank in range(4)
    }
    ranks = {rank: rank_wait(evidence) for rank, evidence in seen.items()}
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert (verdict.verdict, verdict.confidence) == ("network_stall", "possible")
    late = rank_wait(replace(seen[2], groups=()))
    (verdict,) = judge(Waits(world_size=4, ranks=ranks | {2: late}))
    assert (verdict.verdict, verdict.first_failing) == ("stuck_before_first_collective", (2,))


def test_an_old_call_that_never_finished_takes_no_room_beside_the_newest() -> None:
    old, *new = entries(4, waits=False)
    far = [replace(entry, seq_id=entry.seq_id + 10**15) for entry in new]
    seen = late(collectives=(replace(old, retired=False), *far))
    (track,) = rank_wait(seen).tracks.values()
    assert (track.first, len(track.calls), track.completed) == (10**15 + 2, 3, 0)


def test_one_name_for_two_groups() -> None:
    ranks = {
        rank: making(rank, group("1", *((0, 3) if rank in (0, 3) else (1, 2)), done=False))
        for rank in range(4)
    }
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("group_mismatch", (0, 1, 2, 3))


def test_groups_of_one_hashed_name_do_not_clash() -> None:
    """What splits a group names all parts alike, and not by counting."""
    ranks = {
        rank: making(rank, group("4f1c", *((0, 1) if rank < 2 else (2, 3)))) for rank in range(4)
    }
    assert judge(Waits(world_size=4, ranks=ranks)) == []


def test_a_second_group_of_the_same_ranks_is_another_group() -> None:
    first = group("1", 0, 1)
    ranks = {0: making(0, first, group("2", 0, 1, done=False)), 1: making(1, first)}
    (verdict,) = judge(Waits(world_size=2, ranks=ranks))
    assert verdict.first_failing == (1,)


def test_messages_of_another_tag_are_others() -> None:
    """Each waits for a message with a tag of which the other has sent none."""

    def one(direction: str, peer: int, tag: int, state: str) -> PointToPoint:
        return replace(operation(direction, peer, 1, state), tag=tag)

    ranks = {
        0: exchanging(0, one("send", 1, 1, "done"), one("recv", 1, 2, "waiting")),
        1: exchanging(1, one("send", 0, 3, "done"), one("recv", 0, 4, "waiting")),
    }
    (verdict,) = judge(Waits(world_size=2, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("p2p_deadlock", (0, 1))


def test_a_rank_that_was_stopped_in_a_message_keeps_its_other_end_waiting() -> None:
    """Both have called it, and it is not the network that does not carry it."""
    stopped = exchanging(2, operation("send", 1, 1, "waiting"))
    ranks = {
        1: exchanging(1, operation("recv", 2, 1, "waiting")),
        2: replace(stopped, process=process("T")),
    }
    (verdict,) = judge(Waits(world_size=3, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("rank_frozen", (2,))


def test_a_collective_that_no_record_has_is_seen_on_the_stack() -> None:
    barrier = Frame(
        file="/x/torch/distributed/distributed_c10d.py", line=9, function="monitored_barrier"
    )
    ranks = {
        rank: rank_wait(
            EvidenceTaken(
                collection=1, rank=rank, process=process("S", "futex_do_wait"), groups=(WORLD,),
                collectives=entries(4, waits=rank == 2),
                frames=(barrier,) if rank != 2 else (),
            )
        )
        for rank in range(4)
    }  # fmt: skip
    for rank in (0, 1, 3):
        ranks[rank] = rank_wait(
            EvidenceTaken(
                collection=1, rank=rank, process=process("S", "futex_do_wait"), groups=(WORLD,),
                collectives=entries(3, waits=False), frames=(barrier,),
            )
        )  # fmt: skip
    (verdict,) = judge(Waits(world_size=4, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("collective_mismatch", (2,))

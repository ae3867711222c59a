"""Ranks that wait for somebody who does not exist, and those that only come late."""

from dataclasses import replace

from harness.collectives import STORE, GroupCreation
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import rank_wait
from harness.diagnosis.waits.record import RankWait, Waits
from harness.events import EvidenceTaken
from harness.incidents import Verdict, Where

INIT = GroupCreation(
    pg="", pg_desc="init_process_group", ranks=(0, 1), member=True, begun_ns=1, ended_ns=0
)
FIRST = replace(INIT, pg="0", pg_desc="default_pg", begun_ns=2)
LINE = Where(file="/home/u/train.py", line=4, function="<module>")


def standing(rank: int, *groups: GroupCreation, advanced: bool = False) -> RankWait:
    return rank_wait(
        EvidenceTaken(
            collection=1, rank=rank, process=None, user_frame=LINE, groups=groups, advanced=advanced
        )
    )


def judged(*ranks: RankWait) -> Verdict | None:
    waits = Waits(world_size=len(ranks), ranks={wait.rank: wait for wait in ranks})
    verdicts = judge(waits)
    return verdicts[0] if verdicts else None


def test_a_world_of_more_ranks_than_there_are() -> None:
    four = replace(FIRST, ranks=(0, 1, 2, 3))
    found = judged(standing(0, INIT, replace(four, place=0)), standing(1, INIT, four))
    assert found is not None
    assert (found.verdict, found.first_failing) == ("stuck_before_first_collective", (0, 1))
    assert found.confidence == "proven"
    assert found.where == LINE
    assert found.cause == (
        "the script makes a world of 4 ranks, and this run has 2 (WORLD_SIZE=2): ranks 0-1 wait for"
        " ranks 2-3, which do not exist"
    )


def test_a_group_with_a_rank_that_is_none() -> None:
    made = replace(FIRST, ended_ns=3)
    tp = replace(FIRST, pg="1", pg_desc="tp", ranks=(1, 5))
    found = judged(standing(0, replace(INIT, ended_ns=3), made), standing(1, made, tp))
    assert found is not None
    assert found.first_failing == (1,)
    assert found.cause.startswith("the script makes a group with rank 5, and this run has 2")


def test_two_ranks_that_say_they_are_one() -> None:
    three = replace(FIRST, ranks=(0, 1, 2))
    found = judged(
        standing(0, INIT, replace(three, place=0)),
        standing(1, INIT, replace(three, place=0)),
        standing(2, INIT, replace(three, place=2)),
    )
    assert found is not None
    assert (found.first_failing, found.victims) == ((0, 1), (2,))
    assert found.cause == (
        "ranks 0-1 all say that they are rank 0 (the script gives init_process_group a rank, or"
        " sets RANK): they wait for rank 1, that nobody says to be"
    )


def test_a_store_where_none_is() -> None:
    store = replace(INIT, pg="localhost:12355", pg_desc=STORE, begun_ns=2)
    found = judged(standing(0, INIT, store), standing(1, INIT, store))
    assert found is not None
    assert (found.verdict, found.first_failing) == ("stuck_before_first_collective", (0, 1))
    assert "the rendezvous store at localhost:12355" in found.cause


def test_ranks_in_another_order_are_no_doubles() -> None:
    found = judged(
        standing(0, INIT, replace(FIRST, place=1)), standing(1, INIT, replace(FIRST, place=0))
    )
    assert found is None or found.verdict == "network_stall"


def test_who_has_met_the_others_waits_for_nobody_of_that_kind() -> None:
    """A store of the user's own, found at once, and a small group that is made."""
    store = replace(INIT, pg="localhost:12355", pg_desc=STORE, ended_ns=3)
    found = judged(standing(0, INIT, store, FIRST), standing(1, INIT, store, FIRST))
    assert found is None or found.verdict == "network_stall"


def test_who_goes_on_is_not_judged() -> None:
    four = replace(FIRST, ranks=(0, 1, 2, 3))
    found = judged(standing(0, INIT, four, advanced=True), standing(1, INIT, four, advanced=True))
    assert found is None or found.verdict != "stuck_before_first_collective"

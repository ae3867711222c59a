"""Calls that differ and that the backend lets pass, from the arrivals that agents report."""

from harness import events as e
from harness.incidents import Incident
from harness.sightings import RankArrivals
from tests.replay.world import START_NS, World


def reported(*calls: str, go_on: bool = True) -> World:
    """Each rank called its own of `calls` as the sixth collective of the group of all ranks, and
    all called the same as the seventh if they `go_on`."""
    world = World(nproc=len(calls)).start()
    members = tuple(range(len(calls)))
    world.say(e.GroupCreated(rank=0, pg="0", pg_desc="default_pg", ranks=members), 0)
    world.say(
        e.ArrivalsRead(
            node_rank=0, base_ns=START_NS, groups=("0",), ops=("all_reduce",),
            calls=(*calls, "barrier"),
            ranks=tuple(
                RankArrivals(
                    rank=rank, records=(5, 6)[: 1 + go_on], groups=(0, 0)[: 1 + go_on],
                    seqs=(6, 7)[: 1 + go_on], entered_us=(rank, 10 + rank)[: 1 + go_on],
                    calls=(rank, len(calls))[: 1 + go_on],
                )
                for rank in members
            ),
        ),
        0,
    )  # fmt: skip
    return world


def incident(world: World) -> Incident | None:
    return world.state.incidents[0] if world.state.incidents else None


def test_another_type_is_told_and_stops_the_run() -> None:
    found = incident(reported("all_reduce 8 float", "all_reduce 8 int", "all_reduce 8 float"))
    assert found is not None
    assert (found.verdict.verdict, found.verdict.first_failing) == ("shape_mismatch", (1,))
    assert found.verdict.victims == (0, 2)
    assert (found.action, found.exit_code) == ("stop", 80)
    assert found.verdict.cause.startswith(
        "#6 on default_pg: ranks 0,2 all_reduce 8 float, rank 1 all_reduce 8 int"
    )


def test_another_operation() -> None:
    found = incident(reported("broadcast 8 float", "all_reduce 8 float", "all_reduce 8 float"))
    assert found is not None
    assert (found.verdict.verdict, found.verdict.first_failing) == ("collective_mismatch", (0,))


def test_two_sides_are_both_listed() -> None:
    found = incident(reported("all_reduce 8 float", "all_reduce 9 float"))
    assert found is not None
    assert found.verdict.first_failing == (0, 1)


def test_ranks_that_are_held_there_are_left_to_a_look() -> None:
    calls = ("broadcast 8 float", "barrier", "barrier")
    assert incident(reported(*calls, go_on=False)) is None


def test_equal_calls_say_nothing() -> None:
    assert incident(reported("barrier", "barrier", "barrier")) is None


def grouped(*made: tuple[str, tuple[int, ...]]) -> World:
    world = World(nproc=4).start()
    for name, ranks in (("0", (0, 1, 2, 3)), *made):
        world.say(e.GroupCreated(rank=ranks[0], pg=name, pg_desc="undefined", ranks=ranks), 0)
    return world


def test_one_number_for_two_groups() -> None:
    found = incident(grouped(("1", (0, 3)), ("1", (1, 2))))
    assert found is not None
    assert (found.verdict.verdict, found.verdict.first_failing) == ("group_mismatch", (0, 1, 2, 3))
    assert found.action == "stop"


def test_groups_of_a_second_life_count_anew() -> None:
    everybody = ("0", (0, 1, 2, 3))
    assert incident(grouped(("1", (0, 3)), ("2", (1, 2)), everybody, ("1", (1, 2)))) is None


def test_names_that_hold_their_ranks_do_not_clash() -> None:
    assert incident(grouped(("f3a9", (0, 1)), ("f3a9", (2, 3)))) is None

"""Leaks: told while there is time, not for what a start, a cache or an allocator takes."""

from harness import events as e
from harness.incidents import Incident
from harness.sightings import Vitals
from tests.replay.timeline import hold
from tests.replay.world import World

MIB = 1 << 20


def said(world: World) -> list[tuple[str, tuple[int, ...]]]:
    return [(i.verdict.verdict, i.verdict.first_failing) for i in world.state.incidents]


def only(world: World) -> Incident:
    assert len(world.state.incidents) == 1, said(world)
    return world.state.incidents[0]


def flat(rank: int, second: int) -> int:
    return 300 * MIB + second % 2 * MIB


def few(rank: int, second: int) -> int:
    return 20 + second % 3


def test_memory_of_one_rank() -> None:
    world = World().start()
    hold(world, 30, few, lambda rank, second: 300 * MIB + (8 * MIB * second if rank == 2 else 0))
    incident = only(world)
    assert said(world) == [("resource_leak_memory", (2,))]
    assert incident.action == "report"
    assert "0.8 MiB per step" in incident.verdict.cause
    assert "2 h" in incident.verdict.cause


def test_memory_of_all_ranks_when_half_of_it_is_gone() -> None:
    world = World().start()
    hold(world, 80, few, lambda rank, second: 300 * MIB + 8 * MIB * second, available=2 << 30)
    assert said(world) == [("resource_leak_memory", (0, 1, 2, 3))]


def test_files_of_one_rank() -> None:
    world = World().start()
    hold(world, 30, lambda rank, second: 20 + (10 * second if rank == 1 else 0), flat)
    incident = only(world)
    assert said(world) == [("resource_leak_fd", (1,))]
    assert "1 per step" in incident.verdict.cause
    assert "the limit of 1024" in incident.verdict.cause


def test_files_of_all_ranks() -> None:
    world = World().start()
    hold(world, 90, lambda rank, second: 20 + 2 * second, flat, fd_limit=4096)
    assert said(world) == [("resource_leak_fd", (0, 1, 2, 3))]


def test_a_crash_after_the_report_is_judged_as_ever() -> None:
    world = World().start()
    hold(world, 30, lambda rank, second: 20 + (10 * second if rank == 1 else 0), flat)
    world.raises(0, "ValueError", "no")
    world.judged()
    assert said(world) == [("resource_leak_fd", (1,)), ("exception", (0,))]
    assert world.incident.action == "restart"


# --- nothing is told -----------------------------------------------------------------------------


def test_caches_that_fill_up() -> None:
    world = World().start()
    hold(
        world,
        200,
        lambda rank, second: 20 + min(second, 10) * 4,
        lambda rank, second: 300 * MIB + int(1500 * MIB * (1 - 0.9**second)),
    )
    assert said(world) == []


def test_a_start_in_one_go_after_a_quiet_time() -> None:
    """Data loaders of the first evaluation, buffers of the first checkpoint of rank 0."""
    world = World().start()
    hold(
        world,
        200,
        lambda rank, second: 20 if second < 90 else 220,
        lambda rank, second: 300 * MIB + (4000 * MIB if rank == 0 and second > 90 else 0),
    )
    assert said(world) == []


def test_memory_that_comes_and_goes() -> None:
    world = World().start()
    hold(world, 200, few, lambda rank, second: 300 * MIB + (second % 6) * 40 * MIB * (rank == 0))
    assert said(world) == []


def test_growth_that_would_take_weeks() -> None:
    world = World().start()
    hold(world, 200, few, lambda rank, second: 100 * MIB + second * MIB // 2, available=2 << 40)
    assert said(world) == []


# --- the end of it -------------------------------------------------------------------------------


def exhausted(
    world: World, rank: int, message: str = "[Errno 24] Too many open files: 'a'"
) -> None:
    for fds in (16, 136, 256):
        world.pass_time(1.2)
        seen = Vitals(
            rank=rank, fds=fds, fd_limit=256, memory_bytes=300 * MIB, collectives=fds // 10
        )
        world.say(e.VitalsRead(node_rank=0, vitals=(seen,), memory_available_bytes=0), 0)
    world.raises(rank, "OSError", message, collectives=25)
    world.judged()
    world.obey()


def test_out_of_files_restarts_and_the_same_again_stops() -> None:
    world = World(nproc=2).start()
    exhausted(world, 1)
    first = world.incident
    assert (first.verdict.verdict, first.verdict.first_failing) == ("resource_leak_fd", (1,))
    assert "grew from 16 to 256 of 256 allowed, 10 per collective" in first.verdict.cause
    assert first.action == "restart"
    for _ in range(3):
        if world.incident.action == "restart":
            exhausted(world, 1)
    assert world.incident.action == "stop"


def test_out_of_files_before_any_work_is_an_exception() -> None:
    world = World(nproc=2).start()
    world.raises(1, "OSError", "[Errno 24] Too many open files", collectives=0)
    world.judged()
    assert said(world) == [("exception", (1,))]


def test_memory_that_ran_out_tells_its_growth() -> None:
    world = World().start()
    hold(world, 90, few, lambda rank, second: 300 * MIB + 8 * MIB * second)
    world.raises(2, "MemoryError", "")
    world.judged()
    assert said(world) == [("out_of_memory", (2,))]
    assert "its memory had grown by 0.8 MiB per step" in world.incident.verdict.cause

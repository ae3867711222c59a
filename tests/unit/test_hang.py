"""Suspicion, looks, patience: when a run that stands still gets a verdict, and when it does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness import events as e
from harness import orders as o
from harness import recovery
from harness.collectives import GroupCreation, PointToPoint
from harness.incidents import Incident, Where
from harness.policy import Policy
from harness.sightings import (
    Activity,
    ChildTaken,
    ExceptionInHand,
    Frame,
    ProcessFacts,
    ThreadTaken,
)
from tests.replay.world import SECOND, World, collective

USER = Where(file="/home/u/train.py", line=30, function="mix")
WORLD_GROUP = GroupCreation(
    pg="0", pg_desc="default_pg", ranks=(0, 1, 2), member=True, begun_ns=1, ended_ns=2
)
IN_ALL_REDUCE = (
    Frame(file="/v/site-packages/torch/distributed/c10d.py", line=9, function="all_reduce"),
    Frame(file="/home/u/train.py", line=12, function="train"),
)
POLICY = Policy()


def waiting(seq: int = 6, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """A rank that stands in its `seq`-th collective."""
    done = tuple(collective(at) for at in range(seq))
    sizes = () if op == "barrier" else ((64,),)
    seen: dict[str, Any] = {
        "collectives": (*done, collective(seq, op, sizes, retired=False)),
        "frames": IN_ALL_REDUCE,
        "user_frame": replace(USER, line=12, function="train"),
        "groups": (WORLD_GROUP,),
        "advanced": False,
        "cpu_delta": 0.0,
        "looked_apart": 0.4,
        "activity": Activity(seconds=0.3, log_quiet_seconds=1e6),
    }
    return seen | more


def away(rounds: int = 5, function: str = "mix", **more: Any) -> dict[str, Any]:
    """A rank that is in the user's code after `rounds` collectives."""
    place = replace(USER, function=function)
    return (
        waiting()
        | {
            "collectives": tuple(collective(at) for at in range(rounds + 1)),
            "frames": (Frame(file=place.file, line=place.line, function=function),),
            "user_frame": place,
        }
        | more
    )


def stalled(*seen: dict[str, Any], steps: int = 5) -> World:
    """Three ranks that made `steps` steps and then stand as `seen`."""
    world = World(nproc=3)
    world.evidence = lambda rank: seen[rank]
    world.start()
    world.say(e.PulsesRead(node_rank=0, pulses=()), 0)
    for step in range(1, steps + 1):
        world.step(step)
    return world


def go_on(world: World, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
    """Let time pass, evidence being taken as ordered."""
    end_ns = world.now_ns + int(seconds * SECOND)
    while not until():
        due_ns = recovery.next_wake_ns(world.state, world.now_ns)
        if due_ns is None or due_ns > end_ns:
            world.now_ns = end_ns
            return
        world.wake()
        world.obey(o.CollectEvidence)


def verdict_within(world: World, seconds: float) -> Incident | None:
    go_on(world, seconds, until=lambda: bool(world.state.incidents))
    return world.state.incidents[0] if world.state.incidents else None


def seconds_still(world: World) -> float:
    """From the last progress to now."""
    attempt = world.state.attempt
    assert attempt is not None
    return (world.now_ns - max(r.advanced_ns for r in attempt.ranks.values())) / SECOND


def test_progress_raises_no_suspicion() -> None:
    world = stalled(waiting(), waiting(), waiting())
    assert [it for it in world.pending if isinstance(it[1], o.CollectEvidence)] == []
    assert world.state.collections == []


def test_a_look_comes_after_the_floor_and_changes_nothing() -> None:
    world = stalled(waiting(), waiting(), away())
    world.wake()
    (look,) = world.state.collections
    assert look.suspicion
    assert abs(seconds_still(world) - POLICY.stall_floor) < 0.3
    world.obey(o.CollectEvidence)
    assert world.state.stage == "running"
    assert world.state.incidents == []
    assert world.state.attempt is not None
    assert world.state.attempt.stall is not None
    assert world.state.attempt.stall.look.ranks == (2,)


def test_evidence_that_came_too_late_is_waited_for_the_next_time() -> None:
    """Else every look of a busy machine comes to nothing, and no verdict ever comes."""
    world = stalled(waiting(), waiting(), away())
    world.wake()
    ordered_ns = world.now_ns
    world.wake()
    attempt = world.state.attempt
    assert attempt is not None
    assert attempt.stall is not None
    assert "could not be seen in time" in attempt.stall.look.why
    assert world.now_ns - ordered_ns == POLICY.evidence_budget * SECOND
    world.now_ns = ordered_ns + 9 * SECOND
    world.obey(o.CollectEvidence)
    while len(world.state.collections) < 2:
        world.wake()
    (_, second) = world.state.collections
    due_ns = recovery.next_wake_ns(world.state, world.now_ns)
    assert due_ns is not None
    assert due_ns - second.ordered_ns > 9 * SECOND


def test_slow_steps_raise_the_floor() -> None:
    world = stalled(waiting(), waiting(), waiting())
    for step in range(6, 30):
        world.step(step, seconds=4.0)
        world.obey(o.CollectEvidence)
    looks = len(world.state.collections)
    for step in range(30, 40):
        world.step(step, seconds=4.0)
        world.obey(o.CollectEvidence)
    assert len(world.state.collections) == looks


def test_a_disagreement_needs_no_patience() -> None:
    world = stalled(waiting(), waiting(), waiting(op="barrier"))
    incident = verdict_within(world, 10)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == (
        "collective_mismatch",
        (2,),
    )
    assert (incident.action, incident.exit_code) == ("stop", 80)
    assert seconds_still(world) < 2


def receiving(peer: int) -> dict[str, Any]:
    """A rank that waits, for the first time, for a message where the others call a collective."""
    message = PointToPoint(
        direction="recv", peer=peer, pg="0", pg_desc="default_pg", tag=0, number=1, sizes=(3,),
        dtype="float32", state="waiting", begun_ns=9, ended_ns=0,
    )  # fmt: skip
    in_recv = (replace(IN_ALL_REDUCE[0], function="recv"), *IN_ALL_REDUCE[1:])
    return away(function="load") | {"p2p": (message,), "frames": in_recv}


def test_ranks_that_wait_for_each_other_in_different_ways_need_no_patience() -> None:
    world = stalled(waiting(), receiving(2), waiting())
    incident = verdict_within(world, 90)
    assert incident is not None
    assert incident.verdict.verdict == "collective_mismatch"
    assert incident.verdict.first_failing == (1, 2)
    assert (incident.verdict.confidence, incident.action) == ("likely", "stop")
    assert seconds_still(world) < 2


def test_a_rank_that_does_nothing_is_stuck_when_patience_ends() -> None:
    world = stalled(waiting(), waiting(), away())
    incident = verdict_within(world, 30)
    assert incident is not None
    verdict = incident.verdict
    assert (verdict.verdict, verdict.first_failing) == ("rank_stuck_outside_collective", (2,))
    assert (verdict.victims, verdict.step, verdict.where) == ((0, 1), 5, USER)
    assert POLICY.stuck_patience <= seconds_still(world) < POLICY.stuck_patience + 0.7


def test_where_no_pause_was_long_half_the_patience_is_enough() -> None:
    world = stalled(waiting(), waiting(), away(), steps=12)
    assert verdict_within(world, 10) is not None
    assert POLICY.stuck_patience / 2 <= seconds_still(world) < POLICY.stuck_patience / 2 + 0.7


IN_QUEUE = (
    Frame(file="/usr/lib/python3.11/threading.py", line=1, function="wait"),
    Frame(file="/usr/lib/python3.11/queue.py", line=1, function="get"),
    Frame(file=USER.file, line=30, function="mix"),
)
IN_LIBRARY = (
    Frame(file="/v/site-packages/locks/lock.py", line=1, function="acquire"),
    Frame(file=USER.file, line=30, function="mix"),
)


@pytest.mark.parametrize(("frames", "factor"), [(IN_QUEUE, 2.5), (IN_LIBRARY, 1.0)])
def test_what_a_rank_waits_for_beyond_its_own_code_may_be_late(
    frames: tuple[Frame, ...], factor: float
) -> None:
    world = stalled(waiting(), waiting(), away(frames=frames), steps=12)
    assert verdict_within(world, 20) is not None
    assert 0 <= seconds_still(world) - factor * POLICY.stuck_patience < 0.7


@pytest.mark.parametrize(
    ("wchan", "factor"),
    [
        ("wait_woken", 2.5),
        ("poll_schedule_timeout.constprop.0", 2.5),
        ("locks_lock_inode_wait", 2.5),
        ("fcntl_setlk", 2.5),
        ("futex_do_wait", 0.5),
        ("pipe_read", 1.0),
    ],
)
def test_who_is_outside_of_the_job_may_be_late(wchan: str, factor: float) -> None:
    process = ProcessFacts(state="S", wchan=wchan, cpu_seconds=1, rss_bytes=1, threads=1)
    world = stalled(waiting(), waiting(), away(process=process), steps=12)
    assert verdict_within(world, 20) is not None
    assert 0 <= seconds_still(world) - factor * POLICY.stuck_patience < 0.7


def test_where_a_pause_was_long_it_is_not() -> None:
    world = stalled(waiting(), waiting(), away(), steps=12)
    world.step(13, seconds=2.0)
    world.obey(o.CollectEvidence)
    assert verdict_within(world, 3) is None
    assert verdict_within(world, 10) is not None


BUSY = Activity(seconds=0.3, cpu_seconds=0.3, log_quiet_seconds=1e6)


def test_a_rank_that_computes_gets_four_times_as_much_as_an_idle_one() -> None:
    """An evaluation in the script's own lines looks like a loop without end."""
    world = stalled(waiting(), waiting(), away(activity=BUSY), steps=12)
    assert verdict_within(world, 4 * POLICY.stuck_patience - 1) is None
    assert verdict_within(world, 2) is not None


STARVED = replace(BUSY, cpu_seconds=0.05, starved_seconds=0.24)


def test_a_rank_that_gets_no_cpu_is_given_longer_but_not_for_ever() -> None:
    world = stalled(waiting(), waiting(), away(activity=STARVED), steps=12)
    assert verdict_within(world, 4 * POLICY.stuck_patience) is None
    assert verdict_within(world, 5 * POLICY.stuck_patience) is not None


def asleep(seconds: float) -> Activity:
    return Activity(seconds=0.3, log_quiet_seconds=1e6, asleep_seconds=seconds)


@pytest.mark.parametrize("function", ["mix", "save_model"])
def test_a_rank_that_sleeps_beyond_all_patience_is_not_waited_for(function: str) -> None:
    world = stalled(waiting(), waiting(), away(function=function, activity=asleep(3600)))
    incident = verdict_within(world, 30)
    assert incident is not None
    assert incident.verdict.first_failing == (2,)
    assert "it has put itself to sleep for another 3600 s" in incident.verdict.reason
    assert seconds_still(world) < 2


def test_a_rank_that_will_wake_in_time_is_waited_for() -> None:
    seen = away(function="save_model", activity=asleep(POLICY.work_patience - 5))
    world = stalled(waiting(), waiting(), seen)
    assert verdict_within(world, POLICY.work_patience - 2) is None


def test_a_short_sleep_is_slept_out_and_one_that_goes_on_and_on_is_not() -> None:
    """In the user's own line: what wakes soon by itself is no hang, whatever it waits for."""
    world = stalled(waiting(), waiting(), away(activity=asleep(POLICY.work_patience - 15)))
    incident = verdict_within(world, 2 * POLICY.work_patience)
    assert incident is not None
    assert incident.verdict.first_failing == (2,)
    assert POLICY.work_patience - 15 < seconds_still(world) < POLICY.work_patience + 4


def sleeping(world: World, wakes: Callable[[float], float], rounds: int = 5) -> None:
    """Rank 2 sleeps, after so many `rounds`: `wakes` gives when it will wake, in seconds from now
    on, by when it is."""
    began_ns = world.now_ns

    def evidence(rank: int) -> dict[str, Any]:
        now = (world.now_ns - began_ns) / SECOND
        sleeps = away(rounds, activity=asleep(wakes(now) - now))
        return sleeps if rank == 2 else waiting(seq=rounds + 1)

    world.evidence = evidence


def test_one_long_sleep_is_slept_out() -> None:
    """Patience ends just before it wakes: then it gets some more to go on."""
    patience = POLICY.stuck_patience
    world = stalled(waiting(), waiting(), waiting())
    sleeping(world, lambda now: patience + 0.3)
    assert verdict_within(world, 10 * patience) is not None
    assert 2 * patience < seconds_still(world) < 3 * patience


@pytest.mark.parametrize("nap", [0.25, 0.6, 1.0, 2.7])
@pytest.mark.parametrize("steps", [0, 9])
def test_a_loop_of_short_sleeps_looks_for_something_and_has_an_end(nap: float, steps: int) -> None:
    """It is judged when it cannot move any more before its patience ends."""
    world = stalled(waiting(), waiting(), waiting(), steps=steps)
    sleeping(world, lambda now: (now // nap + 1) * nap, rounds=steps)
    least = 2.5 * POLICY.stuck_patience if steps else POLICY.start_patience
    assert verdict_within(world, 5 * least) is not None
    assert least - nap <= seconds_still(world) < least + 4


def test_a_look_that_comes_late_makes_nothing_take_longer() -> None:
    """On a crowded machine the first look may come when all patience is over already."""
    late = 4 * POLICY.stuck_patience
    world = stalled(waiting(), waiting(), away())
    world.pass_time(late)
    world.obey(o.CollectEvidence)
    assert verdict_within(world, 30) is not None
    assert seconds_still(world) < late + 2


def test_a_rank_may_sleep_longer_before_its_first_steps() -> None:
    naps = 2 * POLICY.start_patience
    world = stalled(waiting(seq=1), waiting(seq=1), away(0, activity=asleep(naps)), steps=0)
    incident = verdict_within(world, 6 * POLICY.start_patience)
    assert incident is not None
    assert naps < seconds_still(world) < 3 * POLICY.start_patience + 5


LOADER = Where(file="/home/u/train.py", line=12, function="train")
IN_LOADER = (
    Frame(file="/v/site-packages/torch/utils/data/dataloader.py", line=9, function="_next_data"),
    Frame(file=LOADER.file, line=LOADER.line, function=LOADER.function),
)


def loads(function: str = "__getitem__", wchan: str = "futex_wait", **more: Any) -> dict[str, Any]:
    """A rank that waits for its loader, of which one process is in the user's `function`."""
    child = ChildTaken(
        pid=77,
        name="pt_data_worker",
        process=ProcessFacts(state="S", wchan=wchan, cpu_seconds=1, rss_bytes=1, threads=1),
        frames=(
            Frame(file="/home/u/data.py", line=4, function=function),
            Frame(
                file="/v/site-packages/torch/utils/data/_utils/fetch.py", line=1, function="fetch"
            ),
            Frame(file=LOADER.file, line=1, function="load_all"),
        ),
        user_frame=Where(file="/home/u/data.py", line=4, function=function),
        **more,
    )
    return away(frames=IN_LOADER, user_frame=LOADER, children=(child,))


LATE = {
    "in the user's code": (loads(), 1.2 * POLICY.stuck_patience),
    "named as loading": (loads("read_shard"), 2.5 * POLICY.stuck_patience),
    "waiting for a server": (loads(wchan="sk_wait_data"), 2.5 * POLICY.stuck_patience),
    "asleep for an hour": (loads("read_shard", asleep_seconds=3600.0), 0.9),
}


@pytest.mark.parametrize("name", LATE)
def test_a_loader_gets_time_by_what_its_processes_do(name: str) -> None:
    seen, seconds = LATE[name]
    world = stalled(waiting(), waiting(), seen)
    incident = verdict_within(world, 30)
    assert incident is not None
    assert incident.verdict.verdict == "dataloader_stuck"
    assert "its process 77 is in" in incident.verdict.cause
    assert seconds <= seconds_still(world) < seconds + 0.9


SLOW = {
    "save": (away(function="save_model"), POLICY.work_patience),
    "busy evaluation": (away(function="evaluate", activity=BUSY), 3 * POLICY.work_patience),
    "torch.save": (
        away(frames=(
            Frame(file="/v/site-packages/torch/serialization.py", line=1, function="_write"),
            Frame(file=USER.file, line=30, function="mix"),
        )),
        POLICY.work_patience,
    ),
    "no stack": (away(frames=(), user_frame=None), POLICY.work_patience),
    "first rounds": (away(rounds=1), POLICY.start_patience),
    "busy first rounds": (away(rounds=1, activity=BUSY), 15 * POLICY.start_patience),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_places_that_take_their_time_get_it(name: str) -> None:
    seen, seconds = SLOW[name]
    steps = 0 if "first" in name else 5
    world = stalled(waiting(2) if steps == 0 else waiting(), waiting(2) if steps == 0 else
                    waiting(), seen, steps=steps)  # fmt: skip
    assert verdict_within(world, seconds - 1) is None
    assert verdict_within(world, 3) is not None


def test_what_torch_wraps_around_every_step_is_no_work() -> None:
    around = Frame(
        file="/v/site-packages/torch/optim/optimizer.py",
        line=520,
        function="Optimizer.profile_hook_step.<locals>.wrapper",
    )
    main = Frame(file="/home/u/train.py", line=71, function="main")
    seen = away(frames=(Frame(file=USER.file, line=30, function="mix"), around, main))
    world = stalled(waiting(), waiting(), seen)
    assert verdict_within(world, 10) is not None
    assert seconds_still(world) < POLICY.stuck_patience + 0.7


ALIVE = {
    "prints": away(activity=Activity(seconds=0.3, log_bytes=10)),
    "reads": away(activity=Activity(seconds=0.3, io_bytes=1 << 20, log_quiet_seconds=1e6)),
    "children": away(
        activity=Activity(seconds=0.3, children_cpu_seconds=0.2, log_quiet_seconds=1e6)
    ),
    "debugger": away(activity=Activity(seconds=0.3, traced_by=77, log_quiet_seconds=1e6)),
    "traced": away(
        process=ProcessFacts(state="t", wchan="", cpu_seconds=1, rss_bytes=1, threads=1)
    ),
    "pdb": away(frames=(Frame(file="/usr/lib/python3.11/pdb.py", line=1, function="interaction"),
                        Frame(file=USER.file, line=30, function="mix"))),
    "requests": away(frames=(
        Frame(file="/usr/lib/python3.11/asyncio/base_events.py", line=1, function="run_forever"),
        Frame(file=USER.file, line=30, function="mix"),
    )),
    "goes on": away(advanced=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIVE)
def test_a_sign_of_life_is_waited_for(name: str) -> None:
    world = stalled(waiting(), waiting(), ALIVE[name])
    assert verdict_within(world, 600) is None
    assert world.state.stage == "running"


def test_looks_become_rarer() -> None:
    world = stalled(waiting(), waiting(), ALIVE["reads"])
    go_on(world, 120)
    assert len(world.state.collections) < 15


def test_a_place_that_went_on_by_itself_is_given_more_time() -> None:
    world = stalled(waiting(), waiting(), away(function="save_model"))
    go_on(world, 15)
    world.step(6)
    assert world.state.attempt is not None
    assert world.state.attempt.stall is None
    world.evidence = lambda rank: [waiting(), waiting(), away(function="save_model")][rank]
    assert verdict_within(world, 28) is None
    assert verdict_within(world, 8) is not None


def test_a_phase_that_the_script_told_of_is_believed() -> None:
    world = stalled(waiting(), waiting(), away())
    world.phase(2, "checkpoint")
    assert verdict_within(world, 10 * POLICY.work_patience - 5) is None
    assert verdict_within(world, 10) is not None


def test_a_stopped_process() -> None:
    stopped = ProcessFacts(state="T", wchan="do_signal_stop", cpu_seconds=1, rss_bytes=1, threads=1)
    world = stalled(waiting(), waiting(), away(function="save_model", process=stopped))
    incident = verdict_within(world, 6)
    assert incident is not None
    assert (incident.verdict.verdict, incident.action) == ("rank_frozen", "restart")


def test_a_stopped_process_amid_a_collective() -> None:
    """All have called it, and the one that is stopped holds it up."""
    stopped = ProcessFacts(state="T", wchan="do_signal_stop", cpu_seconds=1, rss_bytes=1, threads=1)
    world = stalled(waiting(), waiting(), waiting(process=stopped))
    incident = verdict_within(world, 6)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == ("rank_frozen", (2,))


def test_an_exception_that_clean_up_holds_back() -> None:
    error = ExceptionInHand(exc_type="KeyError", message="4", where=USER, seen_ns=1 << 62)
    world = stalled(waiting(), waiting(), waiting(op="barrier", handling=error))
    incident = verdict_within(world, 6)
    assert incident is not None
    verdict = incident.verdict
    assert (verdict.verdict, verdict.first_failing, verdict.where) == (
        "exception_hidden_by_cleanup",
        (2,),
        USER,
    )
    assert verdict.cause == "KeyError: 4, kept back by its clean-up"
    assert incident.action == "stop"


def test_an_exception_that_was_got_over_long_ago_says_nothing() -> None:
    error = ExceptionInHand(exc_type="ImportError", message="fast", where=USER, seen_ns=1)
    world = stalled(waiting(), waiting(), waiting(op="barrier", handling=error))
    incident = verdict_within(world, 6)
    assert incident is not None
    assert incident.verdict.verdict == "collective_mismatch"


def test_of_two_sides_the_one_below_a_condition_on_the_rank_is_odd() -> None:
    branch = ("/home/u/train.py:20: if rank == 0:",)
    world = World(nproc=2)
    group = replace(WORLD_GROUP, ranks=(0, 1))
    sides = [
        waiting(op="broadcast", branches=branch, groups=(group,)),
        waiting(op="barrier", groups=(group,)),
    ]
    world.evidence = lambda rank: sides[rank]
    world.start()
    for step in range(1, 6):
        world.step(step)
    incident = verdict_within(world, 6)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == (
        "collective_mismatch",
        (0,),
    )


def test_all_idle_before_the_first_collective() -> None:
    nothing = away(rounds=-1, function="load_extension")
    world = stalled(nothing, nothing, nothing, steps=0)
    assert verdict_within(world, POLICY.start_patience - 1) is None
    incident = verdict_within(world, 4)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == (
        "stuck_before_first_collective",
        (0, 1, 2),
    )


def test_ranks_without_a_common_group_may_idle() -> None:
    nothing = away(rounds=-1, groups=())
    world = stalled(nothing, nothing, nothing, steps=0)
    assert verdict_within(world, 600) is None


def test_a_pause_of_all_ranks_is_no_hang() -> None:
    world = stalled(away(), away(), away())
    assert verdict_within(world, POLICY.start_patience - 1) is None


def test_what_is_left_after_the_script_may_do_what_it_likes() -> None:
    """The other ranks have ended; rank 2 waits for a server, its groups are gone."""
    world = stalled(away(), away(), away())
    world.phase(2, "teardown")
    world.exit(0, 0)
    world.exit(1, 0)
    assert verdict_within(world, 600) is None


@pytest.mark.parametrize("frames", [IN_ALL_REDUCE, ()], ids=["in an operation", "not seen"])
def test_ranks_whose_records_are_not_to_be_had_may_wait_for_another(
    frames: tuple[Frame, ...],
) -> None:
    """It answers too late, or its socket has too long a path."""
    unheard = ("flight record: no answer to fr_trace_json within 2.0 s",)
    seen = [waiting(collectives=(), frames=frames, missing=unheard) for _ in range(2)]
    world = stalled(*seen, away())
    incident = verdict_within(world, 600)
    assert incident is not None
    verdict = incident.verdict
    assert verdict.verdict == "rank_stuck_outside_collective"
    assert (verdict.first_failing, verdict.innocent) == ((2,), (0, 1))
    assert verdict.cause.startswith("rank 2 stands in mix between two collectives, asleep in ")
    assert verdict.cause.endswith(" and does nothing")
    assert "ranks 0-1 may wait for that (flight record: no answer" in verdict.reason


def test_one_rank_alone_waits_for_no_other() -> None:
    world = World(nproc=1)
    world.evidence = lambda rank: away(groups=(replace(WORLD_GROUP, ranks=(0,)),))
    world.start()
    for step in range(1, 6):
        world.step(step)
    assert verdict_within(world, 600) is None


def test_the_last_rank_that_cannot_end() -> None:
    shutdown = away(
        frames=(Frame(file="/usr/lib/python3.11/threading.py", line=1, function="_shutdown"),),
        user_frame=None,
    )
    world = stalled(shutdown, shutdown, shutdown)
    world.exit(0, 0)
    world.exit(1, 0)
    incident = verdict_within(world, 15)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == ("teardown_hang", (2,))
    world.obey()
    assert world.state.ended is not None
    assert (world.state.ended.outcome, world.state.ended.exit_code) == ("succeeded", 0)


def test_a_pool_of_threads_that_is_joined_at_the_end() -> None:
    lib = "/usr/lib/python3.11"
    joined = away(
        frames=(
            Frame(file=f"{lib}/threading.py", line=1, function="Thread.join"),
            Frame(file=f"{lib}/concurrent/futures/thread.py", line=1, function="_python_exit"),
            Frame(file=f"{lib}/threading.py", line=1, function="_shutdown"),
        ),
        user_frame=None,
        threads=(ThreadTaken(name="uploader", where=replace(USER, function="upload")),),
    )
    world = stalled(joined, joined, joined)
    world.exit(0, 0)
    world.exit(1, 0)
    incident = verdict_within(world, 15)
    assert incident is not None
    assert incident.verdict.verdict == "teardown_hang"
    assert "its thread uploader is in upload" in incident.verdict.cause
    assert incident.verdict.where == replace(USER, function="upload")


def test_an_exit_handler_that_does_not_end() -> None:
    handler = away(frames=(Frame(file=USER.file, line=9, function="finish"),), frames_by="py-spy")
    world = stalled(handler, handler, handler)
    world.exit(0, 0)
    world.exit(1, 0)
    incident = verdict_within(world, 15)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == ("teardown_hang", (2,))


def test_a_rank_that_left_while_others_wait_for_it() -> None:
    world = stalled(waiting(), waiting(), waiting())
    world.exit(2, 0)
    incident = verdict_within(world, 6)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == ("rank_exited_early", (2,))


def test_nobody_is_blamed_while_a_rank_cannot_be_seen() -> None:
    world = stalled(waiting(), waiting(), away())
    world.wake()
    assert world.pending.pop() is not None  # its agent does not answer
    for node in [0]:
        world.say(e.EvidenceComplete(collection=0, node_rank=node, seconds=0.1), node)
    assert world.state.incidents == []


def test_a_suspicion_keeps_no_incident_number() -> None:
    world = stalled(waiting(), waiting(), away(function="save_model"))
    go_on(world, 10)
    world.step(6)
    world.raises(1, "ValueError", "bad")
    incident = world.judged()
    assert incident.id == 1

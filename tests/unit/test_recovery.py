"""The plan's corners: waiting, giving up, harm on request, and what a stop may interrupt."""

from dataclasses import replace

import pytest

from harness import events as e
from harness import orders as o
from harness import recovery
from harness.faults import Fault
from harness.policy import Policy
from tests.replay.world import World


def _orders(world: World, kind: type) -> list[tuple[int, o.Order]]:
    return [
        (record.event.node_rank, record.event.order)
        for record in world.records
        if isinstance(record.event, e.OrderGiven) and isinstance(record.event.order, kind)
    ]


def _stop(world: World, signal: int) -> None:
    stop = o.StopRun(why="asked to", signal=signal)
    accepted, why = recovery.accept(world.state, stop)
    world.say(e.CommandTaken(command=stop, by="test", accepted=accepted, why=why))


def test_the_happy_path_gives_each_order_once() -> None:
    world = World(nnodes=2, nproc=2).start()
    world.step(1)
    world.finish()
    given = [
        type(record.event.order).__name__
        for record in world.records
        if isinstance(record.event, e.OrderGiven)
    ]
    assert given == ["HostStore", "StartWorkers", "StartWorkers", "Shutdown", "Shutdown"]
    starts = [order for _, order in _orders(world, o.StartWorkers)]
    assert [(s.first_rank, s.local_world_size, s.world_size) for s in starts] == [
        (0, 2, 4),
        (2, 2, 4),
    ]
    assert world.state.ended is not None
    assert world.state.ended.outcome == "succeeded"


def test_nodes_that_do_not_join_are_named() -> None:
    world = World(nnodes=4, policy=Policy(rendezvous_timeout=30))
    world.join(0)
    world.join(2)
    assert recovery.next_wake_ns(world.state, world.now_ns) == world.state.started_ns + 30 * 10**9
    world.pass_time(30)
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 82
    assert world.state.ended.reason == "node 1,3 did not join within 30 s"
    (node, notice), *others = _orders(world, o.Notify)
    assert node == 0
    assert not others
    assert "2 of 4 nodes are here" in notice.text


def test_a_node_lost_while_gathering_may_come_back() -> None:
    world = World(nnodes=2)
    world.join(0)
    world.lose(0)
    world.join(1)
    assert world.state.ended is None
    world.join(0, pid=7)
    assert [type(order) for _, order in world.pending] == [o.HostStore]


def test_a_store_that_never_comes_ends_the_run() -> None:
    world = World(policy=Policy(rendezvous_timeout=30))
    world.join(0)
    world.pass_time(30)
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 82


def test_every_attempt_gets_a_store_of_its_own() -> None:
    world = World(nproc=2).start()
    world.step(1)
    world.exit(1, signal=11)
    world.judged()
    world.obey()
    stores = [order.attempt for _, order in _orders(world, o.HostStore)]
    assert stores == [0, 1]
    assert [attempt.index for attempt in world.state.attempts] == [0, 1]


@pytest.mark.parametrize(("nproc", "most"), [(2, 256), (100, 64)])
def test_small_worlds_are_asked_for_several_steps_of_records(nproc: int, most: int) -> None:
    """What is a habit of a program shows in several of its steps, of fifty operations and more."""
    world = World(nproc=nproc).start()
    world.exit(1, signal=11)
    assert [order.most for _, order in world.pending] == [most]


def test_nobody_is_stopped_before_evidence_is_taken() -> None:
    world = World(nproc=2).start()
    world.exit(1, signal=11)
    assert [type(order) for _, order in world.pending] == [o.CollectEvidence]
    world.pass_time(4.9)
    assert not world.state.incidents
    world.pass_time(0.1)
    assert [type(order) for _, order in world.pending][-1] is o.StopWorkers
    assert world.incident.verdict.first_failing == (1,)


@pytest.mark.parametrize(("signal", "code"), [(2, 130), (15, 143), (1, 129), (0, 143)])
def test_a_stop_settles_the_exit_code(signal: int, code: int) -> None:
    world = World(nproc=2).start()
    _stop(world, signal)
    grace = {order.grace for _, order in _orders(world, o.StopWorkers)}
    assert grace == {world.policy.stop_grace}
    world.obey()
    assert world.state.ended is not None
    assert (world.state.ended.outcome, world.state.ended.exit_code) == ("stopped", code)


def test_a_stop_interrupts_judging() -> None:
    world = World(nproc=2).start()
    world.exit(1, signal=11)
    _stop(world, 2)
    world.obey(o.StopWorkers)
    assert world.state.ended is not None
    assert world.state.ended.outcome == "stopped"
    assert not world.state.incidents


def test_a_stop_before_any_worker_ends_at_once() -> None:
    world = World(nnodes=2)
    world.join(0)
    _stop(world, 15)
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 143
    assert [node for node, _ in _orders(world, o.Shutdown)] == [0]


def test_a_node_that_cannot_stop_its_workers_is_given_up() -> None:
    world = World(nproc=2).start()
    world.step(1)
    world.exit(1, signal=11)
    world.judged()
    world.pass_time(world.policy.stop_grace + world.policy.stop_limit - 0.1)
    assert world.state.ended is None
    world.pass_time(0.1)
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 82
    assert "could not stop its workers within 32 s" in world.state.ended.reason


def test_failures_while_stopping_change_nothing() -> None:
    world = World(nproc=3).start()
    world.step(1)
    world.exit(1, signal=11)
    world.judged()
    world.raises(0, "ValueError", "in a handler of SIGTERM")
    world.exit(2, signal=6)
    world.obey()
    assert len(world.state.incidents) == 1
    assert len(world.state.attempts) == 2


def test_a_node_lost_while_stopping_ends_the_run() -> None:
    world = World(nnodes=2, nproc=1).start()
    world.step(1)
    world.exit(1, signal=11)
    assert world.judged().action == "restart"
    world.lose(1)
    world.obey()
    assert world.state.ended is not None
    assert world.state.ended.exit_code == 82
    assert world.state.incidents[0].outcome == "failed"


def test_a_node_lost_while_judging_takes_the_restart_away() -> None:
    world = World(nnodes=2, nproc=1).start()
    world.step(1)
    world.exit(0, signal=11)
    world.lose(1)
    incident = world.judged()
    assert incident.verdict.verdict == "killed_by_signal"
    assert (incident.action, incident.exit_code) == ("stop", 82)


def test_another_agent_in_place_of_a_lost_one_owes_nothing_and_takes_part() -> None:
    world = World(nnodes=2, nproc=1).start()
    world.step(1)
    world.lose(1)
    world.join(1, pid=9)
    assert world.judged().action == "restart"
    world.obey()
    assert {node for node, _ in _orders(world, o.StopWorkers)} == {0}
    assert len(world.state.attempts) == 2
    world.step(2)
    world.finish()
    assert {node for node, _ in _orders(world, o.Shutdown)} == {0, 1}


def test_no_restarts_allowed_is_the_scripts_own_failure() -> None:
    world = World(nproc=2, policy=Policy(max_restarts=0)).start()
    world.step(1)
    world.exit(1, signal=11)
    assert world.judged().action_reason == "no restarts are allowed (--max-restarts 0)"
    assert world.incident.exit_code == 1


@pytest.mark.parametrize(
    ("exc_type", "ranks", "action"),
    [
        ("AssertionError", (0, 1), "stop"),
        ("AssertionError", (1,), "restart"),
        ("ConnectionError", (0, 1), "restart"),
        ("RuntimeError", (0, 1), "restart"),
    ],
)
def test_what_every_rank_raises_alike_would_be_raised_again(
    exc_type: str, ranks: tuple[int, ...], action: str
) -> None:
    world = World(nproc=2).start()
    for step in range(1, 5):
        world.step(step)
    for rank in ranks:
        world.raises(rank, exc_type, "phases are over")
        world.exit(rank, 1)
    assert world.judged().action == action


@pytest.mark.parametrize(
    "message",
    [
        "DDP expects same model across all ranks, but Rank 1 has 2 params, while rank 0 has"
        " inconsistent 4 params.",
        "[Rank 1]: params[0] in this process with sizes [4, 8] appears not to match sizes of the"
        " same param in process 0.",
        "Expected to have finished reduction in the prior iteration before starting a new one.",
        "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight",
    ],
)
def test_models_that_differ_would_differ_again(message: str) -> None:
    world = World(nproc=2).start()
    world.raises(1, "RuntimeError", message)
    world.exit(1, 1)
    incident = world.judged()
    assert (incident.verdict.first_failing, incident.action) == ((1,), "stop")
    assert "the models are not the same" in incident.action_reason


@pytest.mark.parametrize(
    ("exc_type", "message", "action"),
    [
        ("bdb.BdbQuit", "", "stop"),
        ("EOFError", "EOF when reading a line", "stop"),
        ("RuntimeError", "input(): lost sys.stdin", "stop"),
        ("EOFError", "Ran out of input", "restart"),
        ("RuntimeError", "link flap", "restart"),
    ],
)
def test_nobody_answers_a_program_that_asks(exc_type: str, message: str, action: str) -> None:
    world = World(nproc=2).start()
    for step in range(1, 5):
        world.step(step)
    world.raises(1, exc_type, message)
    world.exit(1, 1)
    assert world.judged().action == action
    asks = "ranks have no stdin" in world.judged().verdict.cause
    assert asks == (action == "stop")


def test_restarts_are_counted_within_the_window() -> None:
    world = World(nproc=2, policy=Policy(max_restarts=1, restart_window=100)).start()
    for step in (1, 2):
        world.step(step)
        world.now_ns += 200 * 10**9
        world.exit(1, signal=9)
        assert world.judged().action == "restart", step
        world.obey()
    world.step(3)
    world.exit(1, signal=9)
    assert world.judged().action == "stop"
    assert "all 1 restarts allowed within 100 s are used up" in world.incident.action_reason


def test_kills_from_outside_without_counted_steps_are_not_the_same_failure() -> None:
    world = World(nproc=2, policy=Policy(max_restarts=5)).start()
    for _ in range(4):
        world.exit(1, signal=9)
        assert world.judged().action == "restart"
        world.obey()
    assert len(world.state.attempts) == 5


def test_recovery_closes_the_incident_with_its_cost() -> None:
    world = World(nproc=2).start()
    for step in range(1, 6):
        world.step(step)
    world.save(3)
    world.exit(1, signal=11)
    world.judged()
    world.obey()
    world.load(3)
    assert world.incident.outcome == "open"
    world.step(4)
    assert (world.incident.outcome, world.incident.lost_steps) == ("recovered", 2)


def test_an_incident_that_follows_before_any_step_closes_the_first_as_failed() -> None:
    world = World(nproc=2, policy=Policy(same_failure_limit=3)).start()
    for _ in range(2):
        world.exit(1, signal=11)
        world.judged()
        world.obey()
    assert [incident.outcome for incident in world.state.incidents] == ["failed", "open"]


def test_harm_is_passed_on_once_and_only_where_allowed() -> None:
    world = World(nnodes=2, nproc=2, chaos_allowed=True).start()
    inject = o.Inject(fault=Fault(kind="kill", rank=3, step=7))
    assert recovery.accept(world.state, inject)[0]
    world.say(e.CommandTaken(command=inject, by="test", accepted=True, why=""))
    world.step(1)
    assert _orders(world, o.InjectFault) == [(1, o.InjectFault(fault=inject.fault))]
    assert recovery.accept(World(nproc=2).start().state, inject) == (
        False,
        "the run was started without --chaos-allowed",
    )
    nobody = o.Inject(fault=Fault(kind="kill", rank=9))
    assert recovery.accept(world.state, nobody) == (
        False,
        "there is no rank 9; the ranks are 0-3",
    )


def test_the_card_goes_to_the_head_and_to_the_node_where_it_began() -> None:
    world = World(nnodes=3, nproc=1).start()
    world.step(1)
    world.exit(2, signal=11)
    world.judged()
    assert sorted(node for node, _ in _orders(world, o.Notify)) == [0, 2]


def test_a_card_is_shown_once_even_where_the_runs_folder_has_a_long_name() -> None:
    world = World(nproc=2)
    assert world.state.run is not None
    world.state.run = replace(world.state.run, run_dir="../" * 40 + "runs/brave-otter-12")
    world.start()
    world.step(1)
    world.exit(1, signal=11)
    world.judged()
    ((_, order),) = _orders(world, o.Notify)
    assert "incidents/001/" not in order.text


def test_a_resumed_controller_does_not_call_agents_silent() -> None:
    world = World(nproc=1).start()
    world.now_ns += 60 * 10**9
    world.say(e.ControllerStarted(pid=3, address="127.0.0.1:1", incarnation=1))
    assert world.state.nodes[0].seen_ns == world.now_ns
    assert world.state.incarnations == 2

"""Failures as a sequence of records, each with the verdict it must get.

`python -m tests.replay.construct` writes them as recordings. A scenario knows the kind of failure,
never a script: texts are those of torch 2.13.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from harness import events as e
from harness import orders as o
from harness.collectives import Collective, PointToPoint, Terms
from harness.incidents import Where
from harness.policy import Policy
from harness.sightings import Frame, ProcessFacts, Vitals
from tests.replay.timeline import hold, steps
from tests.replay.world import (
    CRY,
    SECOND,
    SIZE_ABORT,
    START_NS,
    TIMED_OUT,
    WHERE,
    World,
    collective,
    history,
)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`expected` is compared with the first incident and the end of the run."""

    name: str
    build: Callable[[], World]
    expected: dict[str, Any] = field(default_factory=dict)


SCENARIOS: list[Scenario] = []
_DIST = 'File "/site-packages/torch/distributed/distributed_c10d.py", line 3081, in all_reduce'


def scenario(name: str, **expected: Any) -> Callable[[Callable[[], World]], Callable[[], World]]:
    def add(build: Callable[[], World]) -> Callable[[], World]:
        SCENARIOS.append(Scenario(name=name, build=build, expected=expected))
        return build

    return add


def _waiting(seq: int) -> dict[str, Any]:
    """Evidence of a rank that waits in its `seq`-th collective."""
    return {
        "collectives": history(seq, collective(seq, retired=False)),
        "frames": (
            Frame(file="/site-packages/torch/distributed/c10d.py", line=1, function="wait"),
            Frame(file="/home/u/train.py", line=12, function="train"),
        ),
        "user_frame": WHERE,
    }


def _judge_and_end(world: World) -> World:
    """Let the incident come; when it restarts, the next attempt takes a step and finishes."""
    incident = world.judged()
    world.obey()
    if incident.action == "restart":
        world.step(incident.verdict.step + 1)
        world.finish()
    return world


# --- no incident ---------------------------------------------------------------------------------


@scenario("healthy/plain", incidents=0, outcome="succeeded", exit_code=0)
def plain() -> World:
    world = World().start()
    for step in range(1, 6):
        world.step(step)
    world.finish()
    return world


@scenario("healthy/one_rank_ends_first", incidents=0, outcome="succeeded", exit_code=0)
def one_rank_ends_first() -> World:
    world = World().start()
    world.step(1)
    world.exit(3, 0)
    world.pass_time(60)
    for rank in range(3):
        world.exit(rank, 0)
    world.obey()
    return world


@scenario("healthy/stopped_by_user", incidents=0, outcome="stopped", exit_code=130)
def stopped_by_user() -> World:
    world = World().start()
    world.step(1)
    stop = o.StopRun(why="interrupted", signal=2)
    world.say(e.CommandTaken(command=stop, by="launcher", accepted=True, why=""))
    world.obey()
    return world


# --- exception -----------------------------------------------------------------------------------


@scenario(
    "exception/once_in_mid_run",
    verdict="exception",
    first_failing=[1],
    victims=[0, 2, 3],
    action="restart",
    outcome="succeeded",
    where_line=12,
)
def once_in_mid_run() -> World:
    world = World(evidence=lambda rank: _waiting(8) if rank == 3 else {}).start()
    for step in range(1, 4):
        world.step(step)
    world.raises(1, "RuntimeError", "link flap")
    world.cries(0, 2)
    world.exit(1, 1)
    return _judge_and_end(world)


@scenario(
    "exception/error_then_slow_exit",
    verdict="exception",
    first_failing=[1],
    victims=[0, 2],
    action="restart",
)
def error_then_slow_exit() -> World:
    """The victims handle their cries and exit at once, before the culprit's exception surfaces."""
    world = World(nproc=3).start()
    world.phase(1, "teardown")
    world.exit(2, 1)
    world.exit(0, 1)
    world.obey(o.CollectEvidence)
    world.pass_time(0.02)
    world.raises(1, "KeyError", "'caption'", ago=0.005)
    return _judge_and_end(world)


@scenario(
    "exception/import_error_on_one_node",
    verdict="exception",
    first_failing=[2, 3],
    victims=[0, 1],
    action="stop",
    exit_code=1,
)
def import_error_on_one_node() -> World:
    def evidence(rank: int) -> dict[str, Any]:
        frame = Frame(file="/site-packages/torch/distributed/rendezvous.py", line=1, function="x")
        return {"frames": (frame,)} if rank < 2 else {}

    world = World(nnodes=2, nproc=2, evidence=evidence).start()
    where = Where(file="/home/u/train.py", line=5, function="<module>")
    for rank in (3, 2):
        text = "No module named 'tokenizer_fast_ext'"
        world.raises(rank, "ModuleNotFoundError", text, where=where, collectives=0)
        world.exit(rank, 1)
    return _judge_and_end(world)


@scenario("exception/silent_exit_code", verdict="exception", first_failing=[2], victims=[0, 1, 3])
def silent_exit_code() -> World:
    world = World(evidence=lambda rank: _waiting(8) if rank == 3 else {}).start()
    world.step(1)
    world.exit(2, 7)
    world.cries(0, 1)
    return _judge_and_end(world)


@scenario(
    "exception/told_by_the_log_only",
    verdict="exception",
    first_failing=[0],
    victims=[1],
    action="restart",
    where_line=9,
)
def told_by_the_log_only() -> World:
    """A program without our hooks: its log has the traceback."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/u/tool.py", line 9, in main',
        "    rows[5]",
        "IndexError: list index out of range",
    )
    cry = ("Traceback (most recent call last):", f"  {_DIST}", f"RuntimeError: {CRY}")
    world = World(
        nproc=2, evidence=lambda rank: {"last_lines": lines if rank == 0 else cry}
    ).start()
    world.step(1)
    world.exit(1, 1)
    world.exit(0, 1)
    return _judge_and_end(world)


@scenario(
    "killed_by_signal/cries_raised_again_as_own",
    verdict="killed_by_signal",
    first_failing=[0],
    victims=[1, 2, 3],
)
def cry_raised_again_as_own() -> World:
    """Victims that wrap their cry into an exception of their own, and one that leaves with 0."""
    world = World().start()
    world.step(1)
    world.raises(1, "TrainingFailed", "step 2 failed", cause=f"RuntimeError: {CRY}")
    world.raises(2, "RuntimeError", "Connection reset by peer", traceback=f"  {_DIST}\n    work")
    world.exit(0, signal=11)
    world.exit(3, 0)
    return _judge_and_end(world)


@scenario("exception/only_cries", verdict="exception", first_failing=[1], confidence="possible")
def only_cries() -> World:
    world = World(nproc=2).start()
    world.step(1)
    world.cries(1)
    world.pass_time(0.1)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "exception/same_step_twice",
    verdict="exception",
    first_failing=[0, 1],
    action="restart",
    incidents=2,
    last_action="stop",
    outcome="failed",
    exit_code=75,
)
def same_step_twice() -> World:
    world = World(nproc=2).start()
    for _ in range(2):
        world.step(11)
        world.step(12)
        for rank in range(2):
            world.raises(rank, "RuntimeError", f"loss is wrong on rank {rank} at step 12")
        world.judged()
        world.obey()
    return world


# --- start-up ------------------------------------------------------------------------------------


@scenario(
    "deterministic_failure/config_error",
    verdict="deterministic_failure",
    first_failing=[0, 1],
    victims=[],
    action="stop",
    outcome="failed",
    exit_code=1,
)
def config_error() -> World:
    world = World(nproc=2).start()
    text = "hidden 1000 not divisible by heads 12"
    world.raises(1, "AssertionError", text, collectives=0)
    world.obey(o.CollectEvidence)
    world.pass_time(0.2)
    world.raises(0, "AssertionError", text, collectives=0)
    return _judge_and_end(world)


@scenario(
    "port_in_use/store",
    verdict="port_in_use",
    first_failing=[],
    action="stop",
    outcome="failed",
    exit_code=2,
)
def store_port_in_use() -> World:
    world = World()
    world.join(0)
    world.pending.clear()
    why = "cannot listen on 127.0.0.1:29500: [Errno 98] Address already in use"
    world.say(e.StoreFailed(attempt=0, why=why), 0)
    world.obey()
    return world


@scenario("port_in_use/script", verdict="port_in_use", first_failing=[0], action="stop")
def script_port_in_use() -> World:
    world = World(nproc=2).start()
    text = (
        "The server socket has failed to listen on any local network address. port: 29501,"
        " useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    world.raises(0, "torch.distributed.DistNetworkError", text, collectives=0)
    return _judge_and_end(world)


# --- killed --------------------------------------------------------------------------------------


@scenario(
    "killed_by_signal/sigkill",
    verdict="killed_by_signal",
    first_failing=[2],
    victims=[0, 1, 3],
    action="restart",
    cause_has="nothing proves that memory ran out; it held 280 MiB",
)
def sigkill() -> World:
    world = World(evidence=lambda rank: _waiting(12) if rank == 3 else {}).start()
    for step in range(1, 7):
        world.step(step)
    world.save(5)
    world.cries(1)
    world.exit(2, signal=9, max_rss_bytes=280 << 20)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "checkpoint_incomplete/part_never_written",
    verdict="checkpoint_incomplete",
    first_failing=[1],
    victims=[],
    action="report",
    cause_has="not part 1 of it",
    outcome="succeeded",
    exit_code=0,
)
def part_never_written() -> World:
    world = World(nproc=2).start()
    world.step(20)
    path, like = "/ck/shard0_step10.pt", "/ck/shard1_step5.pt"
    world.say(e.CheckpointFile(rank=0, what="saved", path=path, step=10), 0)
    world.say(e.CheckpointFile(rank=1, what="saved", path=like, step=5), 0)
    why = "step 10 is there in part: shard0_step10.pt is, but not part 1 of it, which step 5 has"
    flaw = e.CheckpointFlaw(
        node_rank=0, kind="incomplete", path=path, why=why, step=10, aside=(path,), like=(like,)
    )
    world.say(flaw, 0)
    world.finish()
    return world


@scenario("killed_by_signal/segfault", verdict="killed_by_signal", first_failing=[0], victims=[1])
def segfault() -> World:
    world = World(nproc=2).start()
    world.step(1)
    world.exit(0, signal=11)
    world.exit(1, signal=6)  # an input/output thread that met the closed connection
    world.evidence = lambda rank: {"last_lines": ("terminate called", f"  what():  {CRY}")}
    return _judge_and_end(world)


@scenario(
    "out_of_memory/kernel",
    verdict="out_of_memory",
    first_failing=[1],
    victims=[0],
    action="restart",
)
def oom_kernel() -> World:
    world = World(nproc=2).start()
    world.step(1)
    world.exit(1, signal=9, oom="the cgroup's oom_kill counter rose from 0 to 1")
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "out_of_memory/before_the_first_step",
    verdict="out_of_memory",
    first_failing=[0, 1],
    action="stop",
    exit_code=83,
)
def oom_at_start() -> World:
    world = World(nproc=2).start()
    text = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8 GiB"
    for rank in range(2):
        world.raises(rank, "torch.OutOfMemoryError", text, collectives=4)
    return _judge_and_end(world)


@scenario(
    "dataloader_worker_died/sigbus",
    verdict="dataloader_worker_died",
    first_failing=[2],
    victims=[0, 1],
    action="restart",
    cause_has="Bus error",
)
def dataloader_sigbus() -> World:
    world = World(nproc=3).start()
    message = "DataLoader worker (pid(s) 4711) exited unexpectedly"
    cause = (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible"
        " that dataloader's workers are out of shared memory."
    )
    world.raises(2, "RuntimeError", message, cause=cause)
    world.cries(0, 1)
    return _judge_and_end(world)


@scenario("device_fault/ecc", verdict="device_fault", first_failing=[3], action="restart")
def ecc() -> World:
    world = World().start()
    world.step(1)
    text = "CUDA error: uncorrectable ECC error encountered"
    world.raises(3, "torch.AcceleratorError", text)
    world.cries(0, 1, 2)
    return _judge_and_end(world)


# --- nobody raised -------------------------------------------------------------------------------


@scenario(
    "rank_exited_early/uneven_data",
    verdict="rank_exited_early",
    first_failing=[3],
    victims=[0, 1, 2],
    action="stop",
    exit_code=1,
)
def uneven_data() -> World:
    """The others cry before the interpreter of the one that left has come to its end."""
    world = World(evidence=lambda rank: _waiting(8) if rank == 1 else {}).start()
    world.phase(3, "teardown")
    world.pass_time(0.01)
    world.cries(0, 2)
    world.obey(o.CollectEvidence)
    world.pass_time(0.9)
    world.exit(3, 0)
    world.cries(1)
    return _judge_and_end(world)


@scenario(
    "rank_exited_early/left_its_groups",
    verdict="rank_exited_early",
    first_failing=[1],
    victims=[0],
)
def left_its_groups() -> World:
    """It destroyed its groups and is busy with something else; it never exits by itself."""
    world = World(nproc=2).start()
    world.phase(1, "teardown")
    world.pass_time(0.01)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "exception_hidden_by_cleanup/traceback_in_log",
    verdict="exception_hidden_by_cleanup",
    first_failing=[1],
    victims=[0, 2],
    action="stop",
    where_line=44,
)
def traceback_in_log() -> World:
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 44, in step',
        "    row['caption']",
        "KeyError: 'caption'",
        "uploading the log ...",
    )
    world = World(nproc=3, evidence=lambda rank: {"last_lines": lines if rank == 1 else ()}).start()
    world.phase(1, "teardown")
    world.pass_time(0.01)
    world.cries(0, 2)
    return _judge_and_end(world)


@scenario(
    "timeout_waiting_for_slow_rank/long_preparation",
    verdict="timeout_waiting_for_slow_rank",
    first_failing=[0],
    victims=[1, 2],
    action="stop",
    exit_code=80,
    confidence="proven",
)
def long_preparation() -> World:
    busy = ProcessFacts(state="R", wchan="0", cpu_seconds=9.0, rss_bytes=1 << 28, threads=5)
    at = Where(file="/home/u/train.py", line=10, function="<module>")

    def evidence(rank: int) -> dict[str, Any]:
        own = {"process": busy, "user_frame": at, "collectives": history(1)}
        return own if rank == 0 else {}

    world = World(nproc=3, evidence=evidence).start()
    world.pass_time(6)
    world.raises(1, "RuntimeError", TIMED_OUT)
    world.cries(2)
    return _judge_and_end(world)


@scenario(
    "timeout_waiting_for_slow_rank/named_by_monitored_barrier",
    verdict="timeout_waiting_for_slow_rank",
    first_failing=[2],
    victims=[0, 1],
    action="stop",
)
def named_by_monitored_barrier() -> World:
    text = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 5000 ms"
    inside = Frame(file="/site-packages/torch/distributed/c10d.py", line=1, function="barrier")
    world = World(nproc=3, evidence=lambda rank: {"frames": (inside,) if rank == 1 else ()}).start()
    world.pass_time(5)
    frames = 'File "/site-packages/torch/distributed/distributed_c10d.py", line 1, in barrier'
    world.raises(0, "RuntimeError", text, traceback=frames)
    return _judge_and_end(world)


@scenario(
    "teardown_abort/after_the_last_line",
    verdict="teardown_abort",
    first_failing=[1],
    victims=[],
    action="report",
    outcome="failed",
    exit_code=1,
)
def after_the_last_line() -> World:
    world = World(nproc=2).start()
    world.step(1)
    for rank in range(2):
        world.phase(rank, "teardown")
    world.exit(1, signal=6)
    world.judged()
    world.exit(0, 0)
    world.obey()
    return world


@scenario(
    "exception/others_abort_on_their_way_out",
    verdict="exception",
    first_failing=[2],
    victims=[3],
)
def others_abort_on_their_way_out() -> World:
    """A rank leaves with an error code after the last collective; a finished one aborts later."""
    world = World().start()
    world.step(4)
    for rank in (0, 1, 3):
        world.phase(rank, "teardown")
    world.exit(2, 3)
    world.obey(o.CollectEvidence)
    world.exit(3, signal=6)
    return _judge_and_end(world)


# --- mismatched collectives ----------------------------------------------------------------------

_SMALL, _LARGE = ((100, 16),), ((200, 16),)


@scenario(
    "shape_mismatch/minority_on_record",
    verdict="shape_mismatch",
    first_failing=[3],
    victims=[0, 1, 2],
    action="stop",
    exit_code=80,
    cause_has="rank 3 all_reduce 200x16 float",
)
def minority_on_record() -> World:
    """The neighbour aborts; the odd one only cries."""

    def evidence(rank: int) -> dict[str, Any]:
        sizes = {3: _LARGE, 2: None}.get(rank, _SMALL)
        last = () if sizes is None else (collective(4, "all_reduce", sizes, retired=False),)
        lines = SIZE_ABORT if rank == 2 else ()
        return {"collectives": history(4, *last) if last else (), "last_lines": lines}

    world = World(evidence=evidence).start()
    world.exit(2, signal=6)
    world.cries(3, 1)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/odd_one_aborted",
    verdict="shape_mismatch",
    first_failing=[0],
    victims=[1, 2, 3],
    action="stop",
    confidence="likely",
)
def odd_one_aborted() -> World:
    """Its own record died with it; all others agree, so it alone can differ."""

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 0:
            return {"last_lines": SIZE_ABORT}
        return {"collectives": history(4, collective(4, "all_reduce", _LARGE, retired=False))}

    world = World(evidence=evidence).start()
    world.exit(0, signal=6)
    world.cries(1)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/never_there_before",
    verdict="shape_mismatch",
    first_failing=[1],
    victims=[0, 2],
    action="stop",
    confidence="likely",
)
def never_there_before() -> World:
    """The aborted one left no record of it; of the two others one does as in all rounds before."""

    def evidence(rank: int) -> dict[str, Any]:
        rounds = tuple(collective(at, sizes=_SMALL) for at in range(6))
        if rank == 0:
            return {"collectives": rounds, "last_lines": SIZE_ABORT}
        last = collective(6, sizes=_LARGE if rank == 1 else _SMALL, retired=False)
        return {"collectives": (*rounds, last)}

    world = World(nproc=3, evidence=evidence).start()
    world.exit(0, signal=6)
    world.cries(1)
    return _judge_and_end(world)


@scenario("shape_mismatch/two_ranks", verdict="shape_mismatch", first_failing=[0, 1], action="stop")
def two_ranks() -> World:
    """In the first round there is nothing to compare with."""

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 1:
            return {"last_lines": SIZE_ABORT}
        return {"collectives": history(1, collective(1, "all_reduce", _LARGE, retired=False))}

    world = World(nproc=2, evidence=evidence).start()
    world.exit(1, signal=6)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/parts_of_an_all_to_all",
    verdict="shape_mismatch",
    first_failing=[1],
    victims=[0, 2],
    action="stop",
    cause_has="rank 1 sends to rank 2 3 and that one has room for 2",
)
def parts_of_an_all_to_all() -> World:
    """The receiver aborts and is innocent; that it has called the same is noted in its memory."""
    even = (2, 2, 2)

    def evidence(rank: int) -> dict[str, Any]:
        rounds = [
            replace(collective(at, "all_to_all", ()), terms=Terms(sent=even, received=even))
            for at in range(6)
        ]
        if rank == 1:
            rounds[5] = replace(rounds[5], terms=Terms(sent=(1, 2, 3), received=even))
        if rank == 2:
            return {"collectives": (replace(rounds[5], retired=False),), "last_lines": SIZE_ABORT}
        return {"collectives": (*rounds, collective(6, "all_to_all", (), retired=False))}

    world = World(nproc=3, evidence=evidence).start()
    world.exit(2, signal=6)
    world.cries(0, 1)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/parts_not_on_record",
    verdict="shape_mismatch",
    first_failing=[0, 1, 2],
    action="stop",
    confidence="likely",
    cause_has="all_to_all",
)
def parts_not_on_record() -> World:
    """Who aborts is mostly innocent there: nobody is named alone."""

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 2:
            return {"last_lines": SIZE_ABORT}
        rounds = tuple(collective(at, "all_to_all", ()) for at in range(6))
        return {"collectives": (*rounds, collective(6, "all_to_all", (), retired=False))}

    world = World(nproc=3, evidence=evidence).start()
    world.exit(2, signal=6)
    world.cries(0, 1)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/message",
    verdict="shape_mismatch",
    first_failing=[0],
    victims=[1],
    action="stop",
    confidence="proven",
    cause_has="rank 0 sends 4x16 float32, rank 1 has room for 4x8 float32",
)
def message_of_another_shape() -> World:
    """A stage that sends more than it always has."""
    text = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 256 vs 128. "

    def message(rank: int, number: int) -> PointToPoint:
        larger = rank == 0 and number == 5
        return PointToPoint(
            direction="recv" if rank else "send", peer=1 - rank, pg="0", pg_desc="default_pg",
            tag=0, number=number, sizes=(4, 16) if larger else (4, 8), dtype="float32",
            state="waiting" if rank and number == 5 else "done",
            begun_ns=START_NS + number * SECOND, ended_ns=0,
        )  # fmt: skip

    def evidence(rank: int) -> dict[str, Any]:
        told = {"p2p": tuple(message(rank, number) for number in range(1, 6))}
        return {**told, "last_lines": (text,)} if rank else told

    world = World(nproc=2, evidence=evidence).start()
    world.exit(1, signal=6)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "collective_mismatch/other_root",
    verdict="collective_mismatch",
    first_failing=[2],
    victims=[0, 1],
    action="stop",
    cause_has="rank 2 called broadcast from rank 2",
)
def other_root() -> World:
    """Alike but for the rank that it comes from."""

    def evidence(rank: int) -> dict[str, Any]:
        rounds = [replace(collective(at, "broadcast"), terms=Terms(root=0)) for at in range(6)]
        if rank == 2:
            rounds[5] = replace(rounds[5], terms=Terms(root=2))
        rounds[5] = replace(rounds[5], retired=False)
        return {"collectives": tuple(rounds), "last_lines": SIZE_ABORT if rank == 1 else ()}

    world = World(nproc=3, evidence=evidence).start()
    world.exit(1, signal=6)
    world.cries(0, 2)
    return _judge_and_end(world)


@scenario(
    "collective_mismatch/skipped_by_one_of_two",
    verdict="collective_mismatch",
    first_failing=[0],
    victims=[1],
    action="stop",
    confidence="likely",
    cause_has="rank 0 skipped the one before",
)
def skipped_by_one_of_two() -> World:
    """In a row of equal calls only more than the last one tells what had to come. Rank 1, which
    had room for that, aborted."""
    weight, bias = ((512, 8),), ((512,),)
    text = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 4096 vs 512. "

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 1:
            return {"last_lines": (text,)}
        rounds = tuple(collective(at, sizes=bias if at % 3 == 2 else weight) for at in range(14))
        return {"collectives": (*rounds, collective(14, sizes=weight, retired=False))}

    world = World(nproc=2, evidence=evidence).start()
    world.step(4)
    world.exit(1, signal=6)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/of_two_the_aborted_one",
    verdict="shape_mismatch",
    first_failing=[1],
    victims=[0],
    action="stop",
    confidence="likely",
)
def of_two_the_aborted_one() -> World:
    """Rank 0 called what it had called in all rounds."""

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 1:
            return {"last_lines": SIZE_ABORT}
        rounds = tuple(collective(at, sizes=_LARGE) for at in range(6))
        return {"collectives": (*rounds, collective(6, sizes=_LARGE, retired=False))}

    world = World(nproc=2, evidence=evidence).start()
    world.exit(1, signal=6)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "collective_mismatch/skipped",
    verdict="collective_mismatch",
    first_failing=[2],
    victims=[0, 1, 3],
    action="stop",
)
def skipped() -> World:
    """Rank 2 leaves one gradient out: what it calls is what always follows."""
    weight, bias = ((512, 8),), ((8,),)

    def evidence(rank: int) -> dict[str, Any]:
        rounds = tuple(collective(at, sizes=(weight, bias)[at % 2]) for at in range(6))
        if rank == 1:
            return {"last_lines": SIZE_ABORT}
        last = collective(6, sizes=bias if rank == 2 else weight, retired=False)
        return {"collectives": (*rounds, last)}

    world = World(evidence=evidence).start()
    world.step(3)
    world.exit(1, signal=6)
    world.cries(2)
    return _judge_and_end(world)


@scenario(
    "collective_mismatch/skipped_and_aborted",
    verdict="collective_mismatch",
    first_failing=[2],
    victims=[0, 1, 3],
    confidence="likely",
    cause_has="rank 2 skipped it",
)
def skipped_and_aborted() -> World:
    """Rank 2 has room for the small tensor that always follows the large one."""
    large, small = ((512, 8),), ((8,),)
    text = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 2048 vs 4. "

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 2:
            return {"last_lines": (text,)}
        rounds = tuple(collective(at, sizes=(large, small)[at % 2]) for at in range(8))
        return {"collectives": (*rounds, collective(8, sizes=large, retired=False))}

    world = World(evidence=evidence).start()
    world.exit(2, signal=6)
    world.cries(1, 3)
    return _judge_and_end(world)


def _gathered_by_two(first: int) -> World:
    """FSDP over two ranks: a block is gathered as 8,208 elements, the ones after it as 5,152. Their
    halves are as long as the quarters of all-reduces that came just before. The record of rank 0
    begins with its call of number `first`."""
    gathers = [("all_gather", ((8208,),)), *[("all_gather", ((5152,),))] * 4]
    reduces = [*[("all_reduce", ((10304,),))] * 3, ("all_reduce", ((16416,),))]
    step = [*gathers, *reduces, ("all_reduce", ((2,),))]
    rounds = {at: collective(at, *step[(at - 1) % 10 - 5]) for at in range(1, 49)}

    def evidence(rank: int) -> dict[str, Any]:
        if rank == 1:
            known = tuple(rounds[at] for at in range(first, 41))
            return {"collectives": known, "last_lines": _size_abort(16416, 10304)}
        return {"collectives": tuple(rounds[at] for at in range(first, 48))}

    world = World(nproc=2, evidence=evidence).start()
    world.exit(1, signal=6)
    world.cries(0)
    return _judge_and_end(world)


_GATHERED = "#46 on default_pg: rank 0 all_gather 8208 float; rank 1 skipped it"


@scenario(
    "collective_mismatch/skipped_all_gather_of_two",
    verdict="collective_mismatch",
    first_failing=[1],
    victims=[0],
    action="stop",
    confidence="likely",
    cause_has=_GATHERED,
)
def skipped_all_gather_of_two() -> World:
    return _gathered_by_two(1)


@scenario(
    "collective_mismatch/skipped_after_two_rounds",
    verdict="collective_mismatch",
    first_failing=[1],
    victims=[0],
    action="stop",
    confidence="likely",
    cause_has=_GATHERED,
)
def skipped_after_two_rounds() -> World:
    return _gathered_by_two(21)


@scenario(
    "collective_mismatch/skipped_after_one_round",
    verdict="collective_mismatch",
    first_failing=[0, 1],
    victims=[],
    action="stop",
    confidence="likely",
    cause_has=_GATHERED,
)
def skipped_after_one_round() -> World:
    """Whether such a step always begins so, nobody can tell."""
    return _gathered_by_two(31)


def _size_abort(came: int, room: int) -> tuple[str, ...]:
    return (f"what():  [enforce fail] op.preamble.length <= op.nbytes. {came} vs {room}. ",)


@scenario(
    "shape_mismatch/two_aborted",
    verdict="shape_mismatch",
    first_failing=[4],
    victims=[0, 1, 2, 3, 5, 6, 7],
    action="stop",
    confidence="likely",
)
def two_aborted() -> World:
    """Rank 4 passed 10,305 elements instead of 10,304: its pieces are of 2,580 bytes, the last of
    2,520. Rank 3, next to it, had room for the usual 2,576."""
    aborts = {3: _size_abort(2580, 2576), 4: _size_abort(2576, 2520)}

    def evidence(rank: int) -> dict[str, Any]:
        rounds = tuple(collective(at, sizes=((10304,),), retired=at < 9) for at in range(10))
        if rank in aborts:
            return {"last_lines": aborts[rank]}
        return {"collectives": rounds}

    world = World(nproc=8, evidence=evidence).start()
    world.exit(3, signal=6)
    world.exit(4, signal=6)
    world.cries(2, 5)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/nobody_on_record",
    verdict="shape_mismatch",
    first_failing=[1],
    victims=[0, 2],
    action="stop",
    confidence="likely",
)
def nobody_on_record() -> World:
    """Both of a pair aborted: rank 0 with room for what it had called in earlier rounds, rank 1
    with room for 8,225 elements in pieces of 8,228 bytes."""
    aborts = {0: _size_abort(8228, 8224), 1: _size_abort(8224, 8216)}

    def evidence(rank: int) -> dict[str, Any]:
        pair = str(1 + rank // 2)
        sizes = [((8224,),), ((10304,),)]
        mesh = [collective(at, sizes=sizes[at % 2], pg=pair, desc="mesh_dp") for at in range(6)]
        return {"collectives": tuple(mesh), "last_lines": aborts.get(rank, ())}

    world = World(evidence=evidence).start()
    for pg, ranks in (("1", (0, 1)), ("2", (2, 3))):
        world.say(e.GroupCreated(rank=ranks[0], pg=pg, pg_desc="mesh_dp", ranks=ranks), 0)
    world.exit(0, signal=6)
    world.exit(1, signal=6)
    world.cries(2)
    return _judge_and_end(world)


def _in_two_groups(odd: tuple[tuple[int, ...], ...], aborted: tuple[str, ...]) -> World:
    """Four ranks, all-reduces in (0, 1), and in (0, 2) and (1, 3), of one role; rank 2 aborts in
    its sixth of the latter, where rank 0 calls `odd` instead of 4,096 elements."""
    shapes = [((4096,),), ((5184,),), ((5184,),)]

    def evidence(rank: int) -> dict[str, Any]:
        role = {"pg": str(1 + rank % 2), "desc": "mesh_dp"}
        mesh = [collective(at, sizes=shapes[at % 3], **role) for at in range(4, 6)]
        last = odd if rank == 0 else shapes[0]
        mesh.append(collective(6, sizes=last, retired=rank % 2 == 1, **role))
        if rank == 2:
            return {"collectives": tuple(mesh[:1]), "last_lines": aborted}
        if rank % 2 == 1:
            mesh.append(collective(7, sizes=shapes[1], retired=False, **role))
        others = [collective(at, sizes=((8, 4),), pg="3", retired=at < 70) for at in range(60, 71)]
        return {"collectives": (*mesh, *others) if rank < 2 else tuple(mesh)}

    world = World(evidence=evidence).start()
    for pg, ranks in (("1", (0, 2)), ("2", (1, 3)), ("3", (0, 1))):
        desc = "undefined" if pg == "3" else "mesh_dp"
        world.say(e.GroupCreated(rank=ranks[0], pg=pg, pg_desc=desc, ranks=ranks), 0)
    world.exit(2, signal=6)
    world.cries(0, 1, 3)
    return _judge_and_end(world)


@scenario(
    "shape_mismatch/told_by_other_groups",
    verdict="shape_mismatch",
    first_failing=[0],
    victims=[1, 2, 3],
    action="stop",
    confidence="likely",
    cause_has="#6 on mesh_dp: rank 0 all_reduce 4097 float",
)
def shape_told_by_other_groups() -> World:
    return _in_two_groups(((4097,),), _size_abort(4100, 4096))


@scenario(
    "collective_mismatch/told_by_other_groups",
    verdict="collective_mismatch",
    first_failing=[0],
    victims=[1, 2, 3],
    action="stop",
    confidence="likely",
    cause_has="rank 0 skipped the one before",
)
def skip_told_by_other_groups() -> World:
    return _in_two_groups(((5184,),), _size_abort(5184, 4096))


@scenario(
    "collective_mismatch/next_by_habit",
    verdict="collective_mismatch",
    first_failing=[0],
    victims=[1, 2, 3],
    action="stop",
)
def next_by_habit() -> World:
    """What has to follow one of several equal calls is told by more than the last one."""
    layer, rest = ((10304,),), ((16416,),)

    def evidence(rank: int) -> dict[str, Any]:
        rounds = tuple(collective(at, sizes=rest if at % 4 == 3 else layer) for at in range(26))
        if rank == 3:
            return {"last_lines": _size_abort(4104, 2576)}
        last = collective(26, sizes=rest if rank == 0 else layer, retired=False)
        return {"collectives": (*rounds, last)}

    world = World(evidence=evidence).start()
    world.step(6)
    world.exit(3, signal=6)
    world.cries(0)
    return _judge_and_end(world)


@scenario(
    "collective_mismatch/skipped_sizes_of_objects",
    verdict="collective_mismatch",
    first_failing=[0],
    victims=[1],
    action="stop",
    cause_has="#2 on checkpoint: rank 0 all_gather 0 byte, rank 1 all_gather 1 long",
)
def skipped_sizes_of_objects() -> World:
    """Rank 0 is at the bytes of an exchange of objects whose sizes it has not exchanged."""
    return _objects((collective(2, "all_gather", ((0,),), dtype="Byte"),), 0)


@scenario(
    "collective_mismatch/skipped_bytes_of_objects",
    verdict="collective_mismatch",
    first_failing=[1],
    victims=[0],
    action="stop",
    cause_has="#3 on checkpoint: rank 0 all_gather 64 byte, rank 1 all_gather 1 long",
)
def skipped_bytes_of_objects() -> World:
    """Rank 1 is at the sizes of the next exchange where the bytes of this one are exchanged."""
    sizes = collective(2, "all_gather", ((1,),), dtype="Long")
    return _objects((sizes, collective(3, "all_gather", ((64,),), dtype="Byte")), 1)


def _objects(mine: tuple[Collective, ...], odd: int) -> World:
    """Two ranks that exchange an object for the first time on their group. Rank 0's calls are
    `mine`, and rank 1 calls the sizes at each place."""
    site = "/home/u/train.py:40:save"
    begin = collective(1, "broadcast", ((1,),), dtype="Long")
    theirs = [collective(at, "all_gather", ((1,),), dtype="Long") for at in range(2, 2 + len(mine))]

    def evidence(rank: int) -> dict[str, Any]:
        calls = [replace(call, site=site) for call in (mine, theirs)[rank]]
        named = [replace(call, pg="9", pg_desc="checkpoint") for call in (begin, *calls)]
        return {"collectives": (*named[:-1], replace(named[-1], retired=False))}

    world = World(nproc=2, evidence=evidence).start()
    world.say(e.GroupCreated(rank=0, pg="9", pg_desc="checkpoint", ranks=(0, 1)), 0)
    world.cries(1 - odd)
    return _judge_and_end(world)


@scenario(
    "collective_mismatch/other_operation",
    verdict="collective_mismatch",
    first_failing=[1],
    victims=[0, 2, 3],
)
def other_operation() -> World:
    def evidence(rank: int) -> dict[str, Any]:
        op = "broadcast" if rank == 1 else "all_reduce"
        return {"collectives": history(3, collective(3, op, retired=False))}

    world = World(evidence=evidence).start()
    world.cries(0)
    return _judge_and_end(world)


# --- nodes ---------------------------------------------------------------------------------------


@scenario(
    "node_lost/one_of_two",
    verdict="node_lost",
    first_failing=[2, 3],
    victims=[0, 1],
    action="stop",
    outcome="failed",
    exit_code=82,
)
def one_of_two() -> World:
    world = World(nnodes=2, nproc=2, evidence=lambda rank: _waiting(5) if rank == 1 else {})
    world.start()
    world.step(1)
    world.cries(0)
    world.pending = [(node, order) for node, order in world.pending if node == 0]
    world.obey(o.CollectEvidence)
    world.pass_time(5)
    world.lose(1)
    return _judge_and_end(world)


@scenario(
    "node_lost/the_only_one",
    verdict="node_lost",
    first_failing=[0, 1, 2, 3],
    victims=[],
    action="stop",
    outcome="failed",
    exit_code=82,
)
def the_only_one() -> World:
    world = World().start()
    world.step(1)
    world.lose(0, "its agent was killed by signal 9")
    return world


@scenario(
    "killed_by_signal/restarts_used_up",
    verdict="killed_by_signal",
    first_failing=[1],
    incidents=2,
    action="restart",
    last_action="stop",
    outcome="failed",
    exit_code=75,
)
def restarts_used_up() -> World:
    world = World(nproc=2, policy=Policy(max_restarts=1)).start()
    for at in range(2):
        world.step(10 + at)
        world.exit(1, signal=9)
        world.judged()
        world.obey()
        world.now_ns += SECOND
    return world


# --- slow and leaking ----------------------------------------------------------------------------


@scenario(
    "straggler/from_a_step_on",
    verdict="straggler",
    first_failing=[3],
    victims=[0, 1, 2],
    action="report",
    confidence="likely",
    incidents=1,
    outcome="succeeded",
    exit_code=0,
    cause_has="since all_reduce #21",
)
def late_from_a_step_on() -> World:
    world = World().start()
    steps(world, 45, lambda rank, step: 0.35 if rank == 3 and step >= 20 else 0.05)
    world.finish()
    return world


@scenario(
    "unsynchronised_pauses/in_turn",
    verdict="unsynchronised_pauses",
    first_failing=[0, 1, 2, 3],
    victims=[],
    action="report",
    incidents=1,
    outcome="succeeded",
)
def pauses_in_turn() -> World:
    world = World().start()
    steps(world, 64, lambda rank, step: 0.05 + (0.25 if step % 8 == 2 * rank else 0.0))
    world.finish()
    return world


@scenario("healthy/rank_0_saves_every_ten_steps", incidents=0, outcome="succeeded", exit_code=0)
def rank_0_saves() -> World:
    world = World().start()
    steps(world, 60, lambda rank, step: 0.2 + (3.0 if rank == 0 and step % 10 == 9 else 0.0))
    world.finish()
    return world


@scenario(
    "resource_leak_memory/one_of_four",
    verdict="resource_leak_memory",
    first_failing=[2],
    action="report",
    incidents=1,
    outcome="succeeded",
    cause_has="1.6 MiB per step",
)
def memory_of_one_rank() -> World:
    world = World().start()
    hold(
        world,
        20,
        lambda rank, second: 20,
        lambda rank, second: (300 << 20) + ((second << 24) if rank == 2 else 0),
    )
    world.finish()
    return world


@scenario(
    "resource_leak_fd/all_ranks",
    verdict="resource_leak_fd",
    first_failing=[0, 1],
    action="report",
    incidents=1,
    outcome="succeeded",
)
def files_of_all_ranks() -> World:
    world = World(nproc=2).start()
    hold(world, 70, lambda rank, second: 20 + 2 * second, lambda rank, second: 300 << 20)
    world.finish()
    return world


@scenario(
    "resource_leak_fd/exhausted",
    verdict="resource_leak_fd",
    first_failing=[1],
    victims=[0],
    action="restart",
    cause_has="10 per collective",
)
def files_exhausted() -> World:
    world = World(nproc=2, evidence=lambda rank: _waiting(8) if rank == 0 else {}).start()
    for fds in (16, 136, 256):
        world.pass_time(1.2)
        seen = Vitals(rank=1, fds=fds, fd_limit=256, memory_bytes=300 << 20, collectives=fds // 10)
        world.say(e.VitalsRead(node_rank=0, vitals=(seen,), memory_available_bytes=1 << 34), 0)
    world.raises(1, "OSError", "[Errno 24] Too many open files: 'data'", collectives=25)
    return _judge_and_end(world)

"""An agent over real processes: launch, facts, exits, evidence, stopping."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from harness import events, orders
from harness.agent import flight
from harness.faults import Fault

GLOO = """
    import os, sys, torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    second = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        ddp(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step:
            second.step()
    print("done", step, __name__, sys.argv, __file__ == os.path.abspath(sys.argv[0]))
    dist.destroy_process_group()
"""


def test_two_gloo_ranks_train_and_leave(node: Any) -> None:
    started = node.launch(GLOO)
    exits = node.finish()
    assert {event.launched_by for event in started} == {"zygote"}
    assert [exits[rank].exit_code for rank in (0, 1)] == [0, 0], node.log(0)
    assert node.log(0) == f"done 2 __main__ [{str(node.script)!r}] True\n"
    newest = {p.rank: p for e in node.of(events.PulsesRead) for p in e.pulses}
    assert {rank: (p.step, p.phase) for rank, p in newest.items()} == {
        0: (3, "teardown"),
        1: (3, "teardown"),
    }
    assert newest[0].heartbeat_ns > 0
    groups = {(g.pg_desc, g.rank, g.ranks) for g in node.of(events.GroupCreated)}
    assert {("default_pg", 0, (0, 1)), ("mesh_tp", 0, (0,)), ("mesh_tp", 1, (1,))} == groups
    meshes = {m.rank: (m.names, m.sizes, m.coordinates) for m in node.of(events.MeshDeclared)}
    assert meshes == {0: (("dp", "tp"), (2, 1), (0, 0)), 1: (("dp", "tp"), (2, 1), (1, 0))}
    assert exits[0].max_rss_bytes > 1 << 20


def test_groups_that_die_with_their_function_do_not_deadlock(node: Any) -> None:
    """Without the drain this hangs in the first or second round (torch's exit deadlock); without a
    store of its own a later group finds the addresses of the one before."""
    node.launch(
        """
        import torch, torch.distributed as dist
        def train():
            dist.init_process_group("gloo")
            ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for step in range(2):
                ddp(torch.ones(2, 16)).sum().backward()
                optimizer.step()
            dist.destroy_process_group()
        for turn in range(10):
            train()
        """,
        ranks=4,
    )
    assert [event.exit_code for event in node.finish(4).values()] == [0] * 4, node.log(0)


def test_worker_environment_is_that_of_torchrun(node: Any) -> None:
    node.launch(
        """
        import os
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK"
        names += " ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR TORCHELASTIC_RUN_ID OMP_NUM_THREADS"
        names += " TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
        names += " TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING"
        print(*(os.environ[name] for name in names.split()))
        print(sorted(name for name in os.environ if name.startswith("HARNESS")))
        assert int(os.environ["MASTER_PORT"]) > 0
        assert os.path.isdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]))
        """
    )
    assert {e.exit_code for e in node.finish().values()} == {0}, node.log(1)
    restart = node.attempt
    expected = f"1 1 2 2 0 1 1 2 default 127.0.0.1 none 1 {restart} 3 True 1\n[]\n"
    assert node.log(1) == expected


def test_exception_comes_before_exit_with_the_users_line(node: Any) -> None:
    node.launch(
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        def inner():
            try:
                {}["weights"]
            except KeyError as error:
                torch.nn.Linear(2, 2)(torch.ones(3))
        dist.barrier()
        if os.environ["RANK"] == "1":
            inner()
        dist.barrier()
        """
    )
    exits = node.finish()
    assert exits[1].exit_code == 1
    kinds = [type(r.event).__name__ for r in node.records if getattr(r.event, "rank", 1) == 1]
    assert kinds.index("WorkerRaised") < kinds.index("WorkerExited")
    raised = next(event for event in node.of(events.WorkerRaised) if event.rank == 1)
    assert raised.exc_type == "RuntimeError"
    assert "mat1 and mat2" in raised.message
    assert (raised.where.line, raised.where.function) == (8, "inner")
    assert raised.where.file == str(node.script)
    assert raised.cause == "KeyError: 'weights'"
    assert raised.collectives == 1
    assert "bootstrap" not in node.log(1)
    assert "KeyError: 'weights'" in node.log(1)
    victim = next(event for event in node.of(events.WorkerRaised) if event.rank == 0)
    assert victim.raised_ns > raised.raised_ns
    assert victim.where.line == 12


def test_syntax_error_and_exit_codes(node: Any) -> None:
    node.launch("x = 1\ny = = 2\n", ranks=1)
    assert node.finish(1)[0].exit_code == 1
    (raised,) = node.of(events.WorkerRaised)
    assert (raised.exc_type, raised.where.line, raised.collectives) == ("SyntaxError", 2, 0)
    assert "Traceback" not in node.log(0)
    assert node.log(0).endswith("SyntaxError: invalid syntax\n")

    node.launch(
        """
        import atexit, os, sys, threading, time
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 11)
        sys.exit(7)
        """
    )
    exits = node.finish()
    assert (exits[0].exit_code, exits[0].signal) == (7, None)
    assert (exits[1].exit_code, exits[1].signal) == (None, signal.SIGSEGV)
    assert node.log(0) == "thread\nat exit\n"
    (raised,) = node.of(events.WorkerRaised)
    assert (raised.rank, raised.exc_type, raised.message) == (0, "SystemExit", "7")
    node.order(orders.CollectEvidence(collection=0, attempt=node.attempt, why="test"))
    dead = node.until(events.EvidenceTaken, lambda taken: taken.rank == 1)
    assert dead.frames_by == "faulthandler"
    assert dead.user_frame.line == 6
    assert any("gone (killed by SIGSEGV)" in text for text in dead.missing)
    node.until(events.EvidenceComplete)


def test_record_writes_the_error_file(node: Any) -> None:
    node.launch(
        """
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("recorded")
        main()
        """,
        ranks=1,
    )
    exited = node.finish(1)[0]
    assert exited.exit_code == 1
    assert "ValueError: recorded" in exited.error_file
    assert node.of(events.WorkerRaised)[0].where.line == 5


def test_evidence_of_waiting_looping_and_stopped_ranks(node: Any) -> None:
    started = node.launch(
        """
        import os, signal, sys, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        dist.all_reduce(torch.ones(3))
        print("ready", flush=True)
        if rank == 1:
            time.sleep(1000)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(5, 2))
        """,
        ranks=3,
    )
    pids = {event.rank: event.pid for event in started}
    frozen = lambda: _state(pids[2]) == "T"  # noqa: E731
    node.wait_until(frozen)
    node.wait_until(lambda: _wchan(pids[1]) == "hrtimer_nanosleep")
    node.until(
        events.PulsesRead,
        lambda read: any(pulse.rank == 0 and pulse.collectives >= 2 for pulse in read.pulses),
    )
    node.order(orders.CollectEvidence(collection=4, attempt=node.attempt, why="test"))
    taken = {}
    while len(taken) < 3:
        event = node.until(events.EvidenceTaken)
        taken[event.rank] = event
    complete = node.until(events.EvidenceComplete)
    ask = orders.CollectEvidence(
        collection=6, attempt=node.attempt, why="test", apart=0.1, together=True
    )
    node.order(ask)
    together = node.until(events.EvidenceOfNode)
    assert node.until(events.EvidenceComplete, lambda it: it.collection == 6).node_rank == 0
    node.stop()
    assert sorted(seen.rank for seen in together.taken) == [0, 1, 2]
    for seen in together.taken:
        assert (seen.collection, seen.user_frame) == (6, taken[seen.rank].user_frame)
        assert tuple(seen.collectives) == tuple(taken[seen.rank].collectives)
    assert complete.collection == 4
    waiting, sleeping, stopped = (taken[rank] for rank in range(3))
    assert (waiting.user_frame.line, waiting.frames_by) == (11, "itself")
    assert [c.sizes for c in waiting.collectives] == [((3,),), ((5, 2),)]
    assert [c.op for c in waiting.collectives] == ["gloo:all_reduce"] * 2
    assert [c.retired for c in waiting.collectives] == [True, False]
    assert [c.seq_id for c in waiting.collectives] == [1, 2]
    assert waiting.collectives[0].pg_desc == "default_pg"
    assert (sleeping.user_frame.line, sleeping.frames_by) == (8, "itself")
    assert len(sleeping.collectives) == 1
    assert sleeping.last_lines == ("ready",)
    assert (stopped.process.state, stopped.user_frame.line) == ("T", 10)
    assert stopped.frames_by == "py-spy"
    (missing,) = stopped.missing
    assert missing.startswith("flight record: the process is stopped and cannot answer")
    for event in taken.values():
        for name in event.files:
            assert (node.run_dir / name).stat().st_size > 0
            assert name.startswith("incidents/005/")
    exits = {event.rank: event for event in node.of(events.WorkerExited)}
    assert all(event.ordered for event in exits.values())


def test_objects_of_the_script_are_finalized_at_exit(node: Any) -> None:
    node.launch(
        """
        import os
        class Writer:
            def __del__(self, write=os.write):
                write(1, b"flushed" + bytes([10]))
        writer = Writer()
        """,
        ranks=1,
    )
    node.finish(1)
    assert node.log(0) == "flushed\n"


def test_evidence_does_no_harm_to_a_rank_that_is_leaving(node: Any, tmp_path: Path) -> None:
    """A request for the stack of an interpreter that is being taken down would abort it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    started = node.launch(
        f"""
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.destroy_process_group()
        class Late:
            def __del__(self, opened=os.open, flags=os.O_RDONLY, read=os.read):
                read(opened({str(gate)!r}, flags), 1)
        late = Late()
        """,
        ranks=1,
    )
    with gate.open("wb", buffering=0) as opened:  # returns when the interpreter is at `late`
        assert _state(started[0].pid) != "Z"
        node.order(orders.CollectEvidence(collection=0, attempt=node.attempt, why="test"))
        node.until(events.EvidenceComplete)
        servers = list(node.runtime_dir.rglob("a*r0.sock"))
        assert servers
        for server in servers:
            with pytest.raises(flight.Unanswered):
                asyncio.run(flight.ask(server, "dump_traceback", 5.0))
        opened.write(b"x")
    assert [event.exit_code for event in node.finish(1).values()] == [0], node.log(0)


def test_stop_takes_children_and_orphans_along(node: Any) -> None:
    started = node.launch(
        """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
        child = subprocess.Popen(sleep)
        escaped = subprocess.Popen(sleep, start_new_session=True)
        middle = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid)"
        orphan = subprocess.check_output([sys.executable, "-S", "-c", middle, *sleep[:-1],
            "import os; os.close(1); " + sleep[-1]])
        print(child.pid, escaped.pid, int(orphan), flush=True)
        time.sleep(1000)
        """,
        ranks=1,
    )
    node.wait_until(lambda: node.log(0).endswith("\n"))
    pids = [started[0].pid, *map(int, node.log(0).split())]
    node.stop(grace=0.2)
    (exited,) = node.of(events.WorkerExited)
    assert (exited.signal, exited.ordered) == (signal.SIGKILL, True)
    assert [pid for pid in pids if _state(pid) not in ("", "Z")] == []


def test_fault_hits_the_rank_at_its_step(node: Any) -> None:
    node.order(orders.InjectFault(fault=Fault(kind="kill", rank=1, step=5)))
    node.launch(
        """
        import os, time, torch
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(40 if os.environ["RANK"] == "0" else 10_000):
            time.sleep(0.01)
            optimizer.step()
        """
    )
    exits = node.finish()
    assert (exits[0].exit_code, exits[1].signal) == (0, signal.SIGKILL)
    names = [type(record.event).__name__ for record in node.records]
    assert "FaultInjected" in names[: names.index("WorkerExited")]
    steps = [p.step for e in node.of(events.PulsesRead) for p in e.pulses if p.rank == 1]
    assert 5 <= max(steps) < 10_000


def test_sdk_reaches_the_agent(node: Any) -> None:
    node.launch(
        """
        import os, harness, multiprocessing
        def child():
            harness.progress(99)
            harness.checkpoint_saved(99, "child", 1.0)
        harness.checkpoint_loaded(10, "ckpt/10")
        for step in (11, 12):
            harness.progress(step, loss=1.5 if step == 11 else float("nan"), tokens=step * 100,
                             total_steps=20)
        with harness.phase("checkpoint"):
            harness.checkpoint_saved(12, "ckpt/12", 0.25)
        fork = multiprocessing.get_context("fork").Process(target=child)
        fork.start(); fork.join()
        assert fork.exitcode == 0
        """,
        ranks=1,
    )
    assert node.finish(1)[0].exit_code == 0, node.log(0)
    pulse = [read.pulses for read in node.of(events.PulsesRead) if read.pulses][-1]
    assert (pulse[0].step, pulse[0].tokens, pulse[0].total_steps) == (12, 1200, 20)
    assert (pulse[0].loss, pulse[0].loss_finite) == (None, False)
    assert [(e.step, e.path) for e in node.of(events.CheckpointLoaded)] == [(10, "ckpt/10")]
    assert [(e.step, e.path, e.seconds) for e in node.of(events.CheckpointSaved)] == [
        (12, "ckpt/12", 0.25)
    ]
    assert [e.phase for e in node.of(events.PhaseChanged)] == ["checkpoint", "step"]


def test_port_in_use_is_one_clear_line(node: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node.order(orders.HostStore(attempt=node.attempt, address="127.0.0.1", port=port))
        failed = node.until(events.StoreFailed)
    assert failed.why.startswith(f"port {port} on 127.0.0.1 is in use by another program")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def _wchan(pid: int) -> str:
    with open(f"/proc/{pid}/wchan") as file:
        return file.read()

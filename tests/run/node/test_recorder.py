"""What the recorder keeps of real ranks: sends and receives, groups, progress, last records."""

import os
import signal
from typing import Any

from harness import events, orders

PAIRS = """
    import os, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    odd_first = dist.new_group([1, 0], group_desc="pair")
    apart = dist.new_group([2], group_desc="apart")
    if rank < 2:
        peer = 1 - rank
        for turn in range(3):
            ops = [dist.P2POp(dist.isend, torch.ones(2, 3), peer, odd_first, tag=7),
                   dist.P2POp(dist.irecv, torch.ones(2, 3), peer, odd_first, tag=7)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
    dist.all_reduce(torch.ones(1))
    print("ready", flush=True)
    if rank == 0:
        dist.recv(torch.ones(4, dtype=torch.int64), src=1, group=odd_first)
    if rank == 1:
        dist.recv(torch.ones(4))
    if rank == 2:
        dist.new_group([0, 2], group_desc="late")
"""


def collect(node: Any, ranks: int, **how: Any) -> dict[int, events.EvidenceTaken]:
    node.order(orders.CollectEvidence(collection=0, attempt=node.attempt, why="test", **how))
    taken = [node.until(events.EvidenceTaken) for _ in range(ranks)]
    node.until(events.EvidenceComplete)
    return {event.rank: event for event in taken}


def test_sends_receives_and_groups_of_waiting_ranks(node: Any) -> None:
    node.launch(PAIRS, ranks=3)
    node.wait_until(lambda: all("ready" in node.log(rank) for rank in range(3)))
    for _ in range(100):
        taken = collect(node, 3, apart=0.4)
        open_now = [taken[0].p2p[-1].state, taken[1].p2p[-1].state, taken[2].groups[-1].ended_ns]
        # The pulse page lags a heartbeat behind: a look right after an operation sees progress.
        if open_now == ["waiting", "waiting", 0] and not any(t.advanced for t in taken.values()):
            break
    node.stop()
    zero, one, two = (taken[rank] for rank in range(3))
    done = [
        (op.direction, op.peer, op.pg_desc, op.tag, op.number, op.sizes, op.dtype, op.state)
        for op in zero.p2p[:-1]
    ]
    assert done == [
        (direction, 1, "pair", 7, number, (2, 3), "float32", "done")
        for number in (1, 2, 3)
        for direction in ("send", "recv")
    ]
    assert all(op.ended_ns >= op.begun_ns > 0 for op in zero.p2p[:-1])
    last = zero.p2p[-1]
    assert (last.peer, last.number, last.sizes, last.dtype) == (1, 1, (4,), "int64")
    assert (last.state, last.ended_ns) == ("waiting", 0)
    anybody = one.p2p[-1]
    assert (anybody.peer, anybody.pg_desc, anybody.state) == (-1, "default_pg", "waiting")
    made = [(group.pg_desc, group.ranks, group.member, group.ended_ns > 0) for group in two.groups]
    assert made == [
        ("init_process_group", (0, 1, 2), True, True),
        ("default_pg", (0, 1, 2), True, True),
        ("pair", (0, 1), False, True),
        ("apart", (2,), True, True),
        ("late", (0, 2), True, False),
    ]
    assert [taken[rank].advanced for rank in range(3)] == [False] * 3
    assert zero.looked_apart >= 0.4
    assert zero.pulse is not None
    assert zero.pulse.collectives >= 7  # six in the pair and the all_reduce


def test_a_rank_that_dies_without_a_word_has_a_last_record(node: Any) -> None:
    started = node.launch(
        """
        import os, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for step in range(100):
            dist.all_reduce(torch.ones(3))
        if dist.get_rank() == 0:
            dist.send(torch.ones(5), 1)
        else:
            dist.recv(torch.ones(5), 0)
        print("ready", flush=True)
        time.sleep(1000)
        """
    )
    node.wait_until(lambda: "ready" in node.log(1))
    for look in range(400):  # the periodic record is the only one that a stopped rank has
        stopped = look % 20 == 19
        os.kill(started[1].pid, signal.SIGSTOP if stopped else signal.SIGCONT)
        seen = collect(node, 2)[1]
        fresh = len(seen.collectives) == 64 and seen.pulse.collectives >= 102
        if stopped and fresh and seen.record_age is not None:
            break
    assert seen.record_age is not None
    assert any(f"as of {seen.record_age:.1f} s before this look" in text for text in seen.missing)
    os.kill(started[1].pid, signal.SIGKILL)
    node.until(events.WorkerExited)
    dead = collect(node, 2)[1]
    node.stop()
    assert dead.process is None
    assert len(dead.collectives) == 64
    assert dead.collectives[-1].seq_id == 100
    assert dead.record_age is not None
    assert any(f"as of {dead.record_age:.1f} s before its end" in text for text in dead.missing)
    assert [(op.direction, op.peer, op.state) for op in dead.p2p] == [("recv", 0, "done")]
    assert dead.pulse is not None
    assert dead.pulse.collectives >= 102
    assert dead.advanced is None


def test_hooks_stand_aside(node: Any) -> None:
    """Forked children write nothing, wrong arguments get torch's own words, destroyed groups
    count on, and torch.distributed may come late."""
    node.launch(
        """
        import os, sys
        import torch
        def late():
            import torch.distributed as dist
            return dist
        dist = late()
        dist.init_process_group("gloo")
        from harness.worker.guest import current
        recorder = current().recorder
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        before = recorder.operations()
        dist.destroy_process_group(group)
        assert recorder.operations() == before >= 1, (before, recorder.operations())
        try:
            dist.group.WORLD.send("no tensors", 0)
        except TypeError as error:
            assert "incompatible function arguments" in str(error)
        child = os.fork()
        if child == 0:
            with recorder.creating("x", "y", [0], True) as number:
                os._exit(number)
        assert os.waitpid(child, 0)[1] == 0
        class Halves(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, at): return at / 2
        assert len(list(torch.utils.data.DataLoader(Halves(), num_workers=1))) == 4
        work = dist.isend(torch.ones(1), 1 - dist.get_rank())
        dist.recv(torch.ones(1), 1 - dist.get_rank())
        work.wait()
        dist.destroy_process_group()
        print("left", flush=True)
        """
    )
    exits = node.finish()
    assert {event.exit_code for event in exits.values()} == {0}, node.log(0) + node.log(1)
    dead = collect(node, 2)[0]
    assert {op.state for op in dead.p2p} <= {"done", "failed"}
    assert [g.pg_desc for g in dead.groups] == ["init_process_group", "default_pg", "undefined"]
    assert node.log(0).splitlines()[-1] == "left"  # a newer Python warns of a fork beside threads

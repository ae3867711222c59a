"""Marks and call sites of real ranks: desyncs that hang nothing, and what looks like one."""

import os
import signal
from typing import Any

from harness import events, orders
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import rank_wait
from harness.diagnosis.waits.record import Waits

SETUP = """
    import os, time, torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    R, W = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
"""
SILENT = (
    SETUP
    + """
    w = torch.zeros(8, requires_grad=True)

    def average(grad):
        dist.all_reduce(grad)
        return grad / W

    def train(steps):
        for step in range(steps):
            loss = ((w - R) ** 2).sum()
            loss.backward()
            if (R, step) != (1, 14):
                average(w.grad)
            with torch.no_grad():
                w.sub_(0.1 * w.grad)
            w.grad = None
            if step % 5 == 0:
                time.sleep(0.01)
    train(40 + (R == 1))
    """
)
DDP = (
    SETUP
    + """
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for step in range(40):
        x = torch.ones(8, 16)
        if (R, step) == (2, 12):
            x[0, 0] = float("nan")
        loss = net(x).square().mean()
        if not torch.isfinite(loss):
            continue
        opt.zero_grad(); loss.backward(); opt.step()
    dist.all_reduce(torch.ones(16, 1)) if R == 2 else None
    """
)
HEALTHY = (
    SETUP
    + """
    Ddp = torch.nn.parallel.DistributedDataParallel
    STEPS = 12

    def model(on=None):
        net = Ddp(torch.nn.Linear(16, 1), process_group=on or dist.new_group())
        return net, torch.optim.SGD(net.parameters(), 0.01)

    def plain(net, opt, x=torch.ones(4, 16)):
        opt.zero_grad(); net(x).square().mean().backward(); opt.step()

    def uneven():
        net, opt = model(dist.group.WORLD)
        with net.join():
            for step in range(STEPS - 3 * R):
                plain(net, opt)

    def evaluation_by_one_rank():
        net, opt = model()
        for step in range(STEPS):
            plain(net, opt)
            if R == 0 and step == 6:
                with torch.no_grad():
                    net.eval(); net(torch.ones(4, 16)); net.train()
                net.module(torch.ones(4, 16)).sum().item()
                net(torch.ones(4, 16))  # forgotten: neither no_grad nor eval

    def accumulation():
        net, opt = model()
        for step in range(STEPS):
            for part in range(3):
                with net.no_sync():
                    net(torch.ones(4, 16)).sum().backward()
            plain(net, opt)

    def resampled():
        net, opt = model()
        step = 0
        while step < STEPS:
            loss = net(torch.ones(4, 16)).square().mean()
            if (R, step) == (1, 6) and not vars(opt).get("again"):
                opt.again = True
                continue
            opt.zero_grad(); loss.backward(); opt.step()
            step += 1

    def probed():
        w = torch.zeros(4, requires_grad=True)
        group = dist.new_group()
        opt = torch.optim.SGD([w], 0.1)
        for step in range(STEPS):
            for part in range(2 if (R, step) == (1, 6) else 1):  # memory was short there
                (w * w).sum().backward()
            dist.all_reduce(w.grad, group=group)
            if (R, step) != (0, 8):  # as a scaler that saw an overflow
                opt.step()

    def in_turn():
        w = torch.zeros(4, requires_grad=True)
        for step in range(STEPS):
            (w * w).sum().backward()
            if R < 2:
                peer, x = 1 - R, torch.ones(1)
                work = dist.isend(x, peer); dist.recv(x, peer); work.wait()
                if step > 6 and R == 0:
                    dist.send(x, 1)
                elif step > 6:
                    dist.recv(x, 0)
            dist.all_reduce(w.grad)

    uneven(); evaluation_by_one_rank(); accumulation(); resampled(); probed()
    before = os.getpid()
    if os.fork() == 0:
        (torch.zeros(1, requires_grad=True) * 2).sum().backward()
        os._exit(0)
    os.wait()
    in_turn()
    print("healthy", flush=True)
    time.sleep(0.5)
    dist.barrier()
    dist.destroy_process_group()  # torch may abort where groups are left to the exit
    """
)
FINAL = """
    import os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    R = dist.get_rank()
    def save():
        dist.barrier()
    def finish():
        dist.barrier()
    for step in range(5):
        dist.all_reduce(torch.ones(4))
    if R == 0:
        save()
    finish()
    while True:
        time.sleep(0.1)
"""


def test_an_all_reduce_left_out_in_silence(node: Any) -> None:
    node.launch(SILENT, ranks=3)
    found = node.until(events.MarksDiffer)
    node.stop()
    assert found.odd == (1,)
    assert (found.kind, found.count, found.name, found.value) == ("backward", 16, "step", 15)
    assert (found.value_before, found.agreed) == (14, 15)
    assert found.site.endswith(":train")
    assert found.left_out.endswith(":average")


def test_a_batch_that_one_rank_leaves_out(node: Any) -> None:
    node.launch(DDP, ranks=3)
    found = node.until(events.MarksDiffer)
    node.stop()
    assert found.odd == (2,)
    assert (found.kind, found.count, found.value_before) == ("forward", 14, 12)


def test_healthy_programs_that_are_not_symmetric(node: Any) -> None:
    node.launch(HEALTHY, ranks=3)
    exits = node.finish(3)
    assert {event.exit_code for event in exits.values()} == {0}, [node.log(r) for r in range(3)]
    assert node.of(events.MarksDiffer) == []
    assert all("healthy" in node.log(rank) for rank in range(3))


def test_one_barrier_too_many_is_told_by_the_lines(node: Any) -> None:
    started = node.launch(FINAL, ranks=3)
    for _ in range(200):
        node.order(orders.CollectEvidence(collection=0, attempt=node.attempt, why="t", apart=0.4))
        taken = [node.until(events.EvidenceTaken) for _ in range(3)]
        node.until(events.EvidenceComplete)
        if all(len(each.collectives) >= 6 for each in taken) and not any(
            each.advanced for each in taken
        ):
            break
    os.kill(started[0].pid, signal.SIGKILL)
    node.stop()
    ranks = {each.rank: rank_wait(each) for each in taken}
    (verdict,) = judge(Waits(world_size=3, ranks=ranks))
    assert (verdict.verdict, verdict.first_failing) == ("collective_mismatch", (0,))
    assert "(save) and ranks 1-2 barrier at train.py:" in verdict.cause
    assert verdict.where is not None
    assert verdict.where.function == "save"

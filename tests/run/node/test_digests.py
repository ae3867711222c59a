"""Digests of real ranks: what is planted is seen on the right ranks, and nothing else is."""

from typing import Any

from harness import events as e
from harness import orders
from harness.diagnosis import replicas
from harness.incidents import Finding
from harness.state import AttemptState
from harness.state import digesting

SETUP = """
    import sys, time, torch, torch.distributed as dist
    from torch import nn
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    R, W = dist.get_rank(), dist.get_world_size()
    Ddp = nn.parallel.DistributedDataParallel
    STEPS, AT = 10, 5

    def net(name):
        torch.manual_seed(0)
        inner = nn.Sequential()
        inner.add_module(name, nn.Linear(64, 64)); inner.add_module("head", nn.Linear(64, 4))
        return inner

    def flip(tensor, rank, bit=9):
        tensor = getattr(tensor, "_local_tensor", tensor)
        if R == rank:
            with torch.no_grad():
                tensor.view(torch.int32).view(-1)[3] ^= 1 << bit

    def train(model, opt, before=None, within=None, loss_of=None):
        torch.manual_seed(R)
        for step in range(STEPS):
            if step == AT and before:
                before()
            opt.zero_grad()
            out = model(torch.randn(8, 64))
            out.square().mean().backward()
            if step == AT and within:
                within()
            opt.step()
            time.sleep(0.03)

    def ddp(name, **kwargs):
        model = Ddp(net(name), **kwargs)
        return model, torch.optim.Adam(model.parameters(), 1e-3), getattr(model.module, name).weight
"""
PLANTED = (
    SETUP
    + """
    def at_rest():
        model, opt, w = ddp("at_rest")
        train(model, opt, before=lambda: flip(w, 2))
    def reduced():
        model, opt, w = ddp("reduced")
        train(model, opt, within=lambda: flip(w.grad, 1))
    def moment():
        global STEPS
        STEPS = 24
        model, opt, w = ddp("moment")
        train(model, opt, before=lambda: flip(opt.state[w]["exp_avg"], 3))
        STEPS = 10
    def other_rate():
        model, opt, w = ddp("other_rate")
        def faster():
            opt.param_groups[0]["lr"] *= 1 + (R == 1)
        train(model, opt, before=faster)
    def not_reduced():
        model, opt, w = ddp("not_reduced")
        train(model, opt, before=lambda: model.require_backward_grad_sync and model.__setattr__(
            "require_backward_grad_sync", False))
    def pair():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        model, opt, w = ddp("pair", process_group=groups[R // 2])
        train(model, opt, before=lambda: flip(w, 3))
    def zero():
        from torch.distributed.optim import ZeroRedundancyOptimizer
        model = Ddp(net("zero"))
        opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        train(model, opt, before=lambda: flip(model.module.zero.weight, 0))
    def hybrid():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = net("hybrid")
        fully_shard(model, mesh=mesh)
        opt = torch.optim.Adam(model.parameters(), 1e-3)
        train(model, opt, before=lambda: flip(model.hybrid.weight, 3))
    def tensor_parallel():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        torch.manual_seed(0)
        cut = nn.Parameter(DTensor.from_local(torch.randn(4, 8), mesh, [Shard(0)]))
        scale = nn.Parameter(DTensor.from_local(torch.ones(8) + R, mesh, [Replicate()], run_check=False))
        opt = torch.optim.SGD([cut, scale], 0.1)
        for step in range(STEPS):
            cut.grad, scale.grad = torch.zeros_like(cut) + 0.1 * R, torch.zeros_like(scale)
            opt.step(); time.sleep(0.03)
    for program in (at_rest, reduced, moment, other_rate, not_reduced, pair, zero, hybrid, tensor_parallel):
        program(); dist.barrier()
    """
)


def folded(node: Any, ranks: int) -> AttemptState:
    """What the state holds of the digests that were reported."""
    attempt = AttemptState(index=node.attempt, world_size=ranks, ranks={}, nodes={}, why="", started_ns=0)
    for record in node.records:
        if isinstance(record.event, e.DigestsRead | e.DigestsTold):
            digesting.note(attempt, (record.stamp.source, record.stamp.seq), record.event)
    return attempt


def findings(node: Any, ranks: int) -> dict[str, Finding]:
    """Claims about the attempt, by the site and the name in their cause."""
    attempt = folded(node, ranks)
    for known in replicas.unnamed(attempt):
        part, count = known.track.part.part, known.at.count
        node.order(orders.TellDigests(attempt=node.attempt, part=part, count=count))
        node.until(e.DigestsTold, lambda told, part=part: told.part == part)
    attempt = folded(node, ranks)
    return {
        f"{known.track.part.site}: {known.track.part.name}": replicas.change(known)
        for known in attempt.replicas.suspicions
    }


def test_what_is_planted_is_found(node: Any) -> None:
    node.launch(PLANTED, ranks=4)
    exits = node.finish(4)
    assert {event.exit_code for event in exits.values()} == {0}, node.log(0)
    found = findings(node, 4)
    for key, finding in found.items():
        print(key, "->", finding.verdict, finding.ranks, finding.confidence, finding.cause, "|", finding.reason)
    assert 0

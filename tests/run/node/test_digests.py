"""Digests of real ranks: what is planted is seen on the right ranks, and nothing else is."""

from pathlib import Path
from typing import Any

import pytest

from harness import events as e
from harness import orders
from harness.diagnosis import replicas
from harness.incidents import Finding
from harness.policy import Policy
from harness.state import AttemptState, digesting
from tests.run.node.conftest import Node

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
            time.sleep(0.01)

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
        own = torch.ones(8) + R
        scale = nn.Parameter(DTensor.from_local(own, mesh, [Replicate()], run_check=False))
        opt = torch.optim.SGD([cut, scale], 0.1)
        for step in range(STEPS):
            cut.grad, scale.grad = torch.zeros_like(cut) + 0.1 * R, torch.zeros_like(scale)
            opt.step(); time.sleep(0.01)
    for program in (at_rest, reduced, moment, other_rate, not_reduced, pair, zero, hybrid,
                    tensor_parallel):
        program(); dist.barrier()
    dist.destroy_process_group()
    """
)


def folded(node: Any, ranks: int) -> AttemptState:
    """What the state holds of the digests that were reported."""
    attempt = AttemptState(
        index=node.attempt, world_size=ranks, ranks={}, nodes={}, why="", started_ns=0
    )
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


@pytest.mark.slow
def test_what_is_planted_is_found(new_node: Any) -> None:
    node = new_node(policy=Policy(digest_share=1e9))
    node.launch(PLANTED, ranks=4)
    exits = node.finish(4)
    assert {event.exit_code for event in exits.values()} == {0}, node.log(0)
    found = findings(node, 4)
    said = {
        key: (known.verdict, known.ranks, known.confidence)
        for key, known in found.items()
        if "state" not in key or "moment" in key  # that of the others follows their parameters
    }
    corrupt, apart = "silent_data_corruption", "replica_divergence"
    whole = "weight … head.bias"
    assert said == {
        f"parameters: at_rest.{whole}": (corrupt, (2,), "proven"),
        f"gradients: reduced.{whole}": (corrupt, (1,), "likely"),
        f"parameters: reduced.{whole}": (corrupt, (1,), "likely"),
        "optimizer state: exp_avg of moment.weight … exp_avg_sq of moment.weight": (
            (corrupt, (3,), "likely")
        ),
        f"parameters: moment.{whole}": (corrupt, (3,), "likely"),
        f"parameters: other_rate.{whole}": (apart, (1,), "likely"),
        f"gradients: not_reduced.{whole}": (apart, (0, 1, 2, 3), "likely"),
        f"parameters: not_reduced.{whole}": (apart, (0, 1, 2, 3), "likely"),
        f"parameters: pair.{whole}": (corrupt, (3,), "proven"),
        f"parameters: zero.{whole}": (corrupt, (0,), "proven"),
        f"parameters: hybrid.{whole}": (corrupt, (3,), "proven"),
        "parameters: #1 [8]": ("tp_replicated_param_divergence", (0, 1, 2, 3), "proven"),
    }


WATCHED = (
    SETUP
    + """
    import json
    torch.manual_seed(0)
    model, opt, w = ddp("watched")
    seen = []
    for step in range(12):
        opt.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        before = [p._version for p in model.parameters()], w.grad._version
        loss = torch.ones(2) * R
        dist.all_reduce(loss)
        opt.step()
        seen.append([before, [p._version for p in model.parameters()], loss.tolist()])
    records = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))["entries"]
    calls = [
        [x["profiling_name"], x["collective_seq_id"], x["op_id"], x["input_sizes"]] for x in records
    ]
    print("SAW", json.dumps([seen, calls, torch.initial_seed(), torch.rand(2).tolist(),
          [p.double().sum().item() for p in model.parameters()]]), flush=True)
    dist.destroy_process_group()
    """
)


@pytest.mark.slow
def test_a_program_cannot_tell_whether_it_is_digested(tmp_path: Path) -> None:
    """The same collectives in the flight record, the same numbers, the same version counters."""
    logs = []
    for name, policy in (("off", Policy(digests=0)), ("on", Policy(digest_share=1e9))):
        (tmp_path / name).mkdir()
        node = Node(tmp_path / name, policy=policy)
        try:
            node.launch(WATCHED, ranks=2)
            node.finish(2)
            logs.append([node.log(rank).partition("SAW")[2] for rank in range(2)])
            looks = sum(len(event.rows) for event in node.of(e.DigestsRead))
            assert looks == 0 if name == "off" else looks >= 24
        finally:
            node.close()
    assert logs[0] == logs[1]
    assert "gloo:all_reduce" in logs[0][0]

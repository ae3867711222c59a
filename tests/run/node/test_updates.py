"""Owners of shards that update them wrongly, which no replica can show."""

from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import doubts
from harness.policy import Policy
from harness.state import AttemptState, digesting

PROGRAM = """
    import sys, torch, torch.distributed as dist
    from torch import nn
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    R, W = dist.get_rank(), dist.get_world_size()
    NOW = [0, ""]
    right = sys.modules["torch.optim.adam"].adam

    def wrong(params, *args, **kwargs):
        right(params, *args, **kwargs)
        if R == 1 and NOW[0] >= 6 and NOW[1] == "bad":  # as a device that adds wrongly
            for p in params:
                p = getattr(p, "_local_tensor", p)
                if p.dim() == 2:
                    p.view(torch.int32)[3, 5] ^= 1 << 16

    sys.modules["torch.optim.adam"].adam = wrong

    def train(model, opt, name):
        NOW[1] = name
        for step in range(16):
            NOW[0] = step
            opt.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            opt.step()

    def net(name):
        torch.manual_seed(0)
        inner = nn.Sequential()
        inner.add_module(name, nn.Linear(64, 32))
        return inner

    def fsdp(name):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        model = net("fsdp_" + name)
        fully_shard(model, mesh=init_device_mesh("cpu", (W,)))
        train(model, torch.optim.AdamW(model.parameters(), 1e-3), name)

    def zero(name):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        model = nn.parallel.DistributedDataParallel(net("zero_" + name))
        opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        train(model, opt, name)

    for name in ("good", "bad"):
        fsdp(name); zero(name); dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_wrong_update_of_an_owner_s_shard(new_node: Any) -> None:
    node = new_node(policy=Policy(audit_share=1, digests=0))
    node.launch(PROGRAM, ranks=2)
    exits = node.finish(2)
    assert {event.exit_code for event in exits.values()} == {0}, node.log(0)
    told = [event for event in node.of(e.DoubtRaised) if event.doubt.check == "update"]
    assert {event.rank for event in told} == {1}
    assert {event.doubt.subject.rpartition(".")[0] for event in told} <= {"fsdp_bad", "zero_bad"}
    (first,) = [event for event in told if event.doubt.subject == "fsdp_bad.weight"][:1]
    assert first.doubt.shows.startswith("[3, 5] is ")
    attempt = AttemptState(index=0, world_size=2, ranks={}, nodes={}, why="", started_ns=0)
    attempt.surveyed_ns = first.doubt.at_ns + 60 * 10**9
    digesting.note(attempt, ("agent:0", 1), first)
    (finding,) = doubts.find(attempt)
    assert (finding.verdict, finding.ranks) == ("silent_data_corruption", (1,))
    assert finding.cause.startswith("rank 1 updated fsdp_bad.weight wrongly in step ")

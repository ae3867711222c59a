"""An agent over real processes: launch, facts, exits, evidence, stopping."""

from typing import Any

from harness import events

GLOO = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 4)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        ddp(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done", step)
    dist.destroy_process_group()
"""


def test_two_gloo_ranks_train_and_leave(node: Any) -> None:
    started = node.launch(GLOO)
    assert {event.launched_by for event in started} == {"zygote"}
    exits = node.finish()
    assert [exits[rank].exit_code for rank in (0, 1)] == [0, 0], node.log(0)
    assert node.log(0) == "done 2\n"
    steps = {p.rank: p.step for e in node.of(events.PulsesRead) for p in e.pulses}
    assert steps == {0: 3, 1: 3}
    assert [(g.rank, g.ranks) for g in node.of(events.GroupCreated)] == [(0, (0, 1))]

"""Real ranks that check their own numbers: programs that are right, dropout included, raise
nothing, and faults are found that need a program of their own. tests/run/test_fault_models.py
plants the others."""

from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import doubts
from harness.policy import Policy
from harness.state import AttemptState, digesting

SETUP = """
    import contextlib, random, sys, torch, torch.distributed as dist
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    R, W = dist.get_rank(), dist.get_world_size()
    CALLS, WRONG, REENTRANT, CKPT = [0], 0, False, False

    class Block(nn.Module):
        def __init__(self, at):
            super().__init__()
            self.at, self.first, self.second = at, nn.Linear(32, 32), nn.Linear(32, 32)
            self.drop = nn.Dropout(0.2)
        def forward(self, x):
            CALLS[0] += self.at == 1
            out = self.second(self.drop(torch.relu(self.first(x))))
            if (R, self.at, CALLS[0]) == (2, 1, WRONG):
                out = out * (1 + 2**-10)
            return x + out

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(at) for at in range(3)])
            self.norm, self.head = nn.BatchNorm1d(32), nn.Linear(32, 4)
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=REENTRANT) if CKPT else block(x)
            return self.head(self.norm(x))

    def ddp(steps=8, accumulate=1, autocast=False):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(Net())
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        torch.manual_seed(R)
        for step in range(steps):
            optimizer.zero_grad()
            for micro in range(accumulate):
                last = micro == accumulate - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                        out = model(torch.randn(8, 32, requires_grad=CKPT))
                    out.float().square().mean().backward()
            optimizer.step()
        seen = [p.double().sum().item() for p in model.parameters()]
        print("SEEN", seen, torch.rand(2).tolist(), random.random(), model.module.norm.running_mean,
              [len(p.grad.shape) for p in model.parameters()])
    def shards(flip=None, nan=None):
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for step in range(10):
            if step == flip:
                with torch.no_grad():
                    model[0].weight._local_tensor.view(torch.int32).view(-1)[0] ^= 1 << 9
            optimizer.zero_grad()
            out = model(torch.randn(8, 32))
            if step == nan and R == 2:
                out.register_hook(lambda g: g * float("nan"))
            out.square().mean().backward()
            optimizer.step()
    def by_hand(nan):
        torch.manual_seed(0)
        model = nn.Linear(32, 8)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(10):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 32)).square().mean()
            (loss * (float("nan") if step == nan and R == 2 else 1)).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
"""
END = """
    from harness.worker.guest import current
    auditor = current().auditor
    print("LOOKS", auditor.replays.looks, auditor.recomputes.looks, auditor.replays.why_not)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.run.node.conftest import Node

    policy = Policy(audit_share=1e9, replays=1, digest_share=1e9)
    made = Node(tmp_path_factory.mktemp("audited"), policy=policy)
    yield made
    made.close()


def run(node: Any, program: str, ranks: int = 4) -> list[tuple[str, tuple[int, ...], str]]:
    node.launch(SETUP + "\n    " + program + END, ranks=ranks)
    exits = node.finish(ranks)
    assert {event.exit_code for event in exits.values()} == {0}, node.log(0)
    assert "hook failed" not in node.err.read_text()
    attempt = AttemptState(
        index=node.attempt, world_size=ranks, ranks={}, nodes={}, why="", started_ns=0
    )
    attempt.gone.update(range(ranks))
    for record in node.records:
        if isinstance(record.event, e.DoubtRaised):
            digesting.note(attempt, (record.stamp.source, record.stamp.seq), record.event)
    return [(f.verdict, f.ranks, f.cause) for f in doubts.find(attempt)]


CORRUPT, SPOILT = "silent_data_corruption", "nonfinite"
PLANTED = {
    "a reentrant recomputation": (
        "CKPT = REENTRANT = True; WRONG = 12; ddp()",
        CORRUPT,
        2,
        "block blocks.1",
    ),
    "NaN under FSDP": ("shards(nan=5)", SPOILT, 2, "2."),
    "NaN by hand": ("by_hand(5)", SPOILT, 2, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(audited: Any, name: str) -> None:
    program, verdict, rank, words = PLANTED[name]
    found = run(audited, program)
    assert [known[:2] for known in found] == [(verdict, (rank,))]
    assert words in found[0][2]


@pytest.mark.slow
def test_a_program_that_computes_otherwise_each_time_is_no_device(audited: Any) -> None:
    noisy = "Block.forward = lambda self, x: self.second(self.first(x)) * random.random(); "
    found = run(audited, f"{noisy}CKPT = True; ddp()", ranks=2)
    assert [known[:2] for known in found] == [("nondeterminism", (0, 1))]


CALLED = """
    import json
    found = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))["entries"]
    print("SEEN", [[x["profiling_name"], x["collective_seq_id"], x["input_sizes"]] for x in found])
"""
SAME = (
    "random.seed(3); ddp(8, accumulate=2); CKPT = True; ddp(8, autocast=True); REENTRANT = True;"
    " ddp(8); shards()"
)


@pytest.mark.slow
def test_a_program_is_the_same_with_and_without(audited: Any, new_node: Any) -> None:
    """Parameters, random numbers, buffers, and the collectives in the flight record."""
    seen = []
    for node in (audited, new_node(policy=Policy(audit_share=0))):
        node.launch(SETUP + "\n    " + SAME + CALLED, ranks=2)
        assert {event.exit_code for event in node.finish(2).values()} == {0}, node.log(0)
        assert not node.of(e.DoubtRaised)
        seen.append([x for x in node.log(1).splitlines() if "SEEN" in x])
    assert len(seen[0]) == 4
    assert seen[0] == seen[1]


CLEAN = {
    "dropout and accumulation": "ddp(12, accumulate=2); ddp(8, autocast=True)",
    "recomputed": "CKPT = True; ddp(12); ddp(8, autocast=True)",
    "all shards written by the program": "shards(flip=5)",
    "by hand": "by_hand(-1)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_right_programs_raise_nothing(audited: Any, name: str) -> None:
    assert run(audited, CLEAN[name]) == []
    said = audited.log(0).partition("LOOKS ")[2].split()
    if "ddp" in CLEAN[name]:
        assert int(said[0]) == 20, audited.log(0)
    if "CKPT" in CLEAN[name]:
        assert int(said[1]) >= 50

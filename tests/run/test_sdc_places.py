"""Whole runs in which numbers go wrong: the card says where, and what is excluded is left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SETUP = """\
import os, sys, time, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
R, W = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
Ddp = nn.parallel.DistributedDataParallel
AGAIN = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
REACHED = os.open("reached", os.O_RDWR | os.O_CREAT)

def steps(first=0):
    # Until the rollback, however long that takes here; then past all that was seen before it.
    last = int(os.pread(REACHED, 9, 0)) + 50 if AGAIN else 1_000_000
    for step in range(first, last):
        if R == 0 and not AGAIN:
            os.pwrite(REACHED, b"%9d" % step, 0)
        yield step

def train(net, optimizer, steps, at=-1, harm=None, pause=0.02):
    for step in range(steps):
        if step == at and harm and not AGAIN:
            harm()
        optimizer.zero_grad(); net(torch.randn(8, 64)).square().mean().backward()
        optimizer.step(); time.sleep(pause)
"""


def harness(here: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=here,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def run(here: Path, program: str, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """What was said, and the incidents."""
    (here / "train.py").write_text(SETUP + program + "\ndist.destroy_process_group()\n")
    done = harness(here, "run", *options, "train.py")
    assert done.returncode == 0, done.stderr + done.stdout
    report = harness(here, "report", "--json")
    incidents: list[dict[str, Any]] = json.loads(report.stdout)["incidents"]
    return done.stderr, incidents


FLIP = """
inner = nn.Sequential(nn.Linear(64, 192), nn.Linear(192, 64))
net = Ddp(inner)
def harm():
    if R == 2:
        inner[1].weight.data.view(torch.int32)[12, 51] ^= 1 << 22
train(net, torch.optim.SGD(net.parameters(), 1e-9), 12 if AGAIN else 1_000_000, 20, harm)
"""


@pytest.mark.slow
def test_the_element_is_named_with_bit_and_values(tmp_path: Path) -> None:
    said, incidents = run(tmp_path, FLIP, "--nproc-per-node", "3")
    (incident,) = incidents
    assert (incident["class"], incident["first_failing"]) == ("silent_data_corruption", [2])
    assert incident["action"] == "rollback"
    assert "parameter 1.weight " in incident["cause"]
    where = incident["cause"].partition("equal until then; ")[2]
    assert where.startswith("[12, 51] bit 22: rank 2 has "), incident["cause"]
    assert ", ranks 0-1 " in where
    assert where in incident["reason"]
    assert "[12, 51] bit 22" in " ".join(said.split())
    assert "1.weight [12, 51] bit 22" in json.dumps(incident["evidence"])


EXCLUDED = """
inner = nn.Linear(64, 64)
inner.ema = nn.Linear(64, 64)
inner.register_buffer("seen", torch.zeros(4))
net = Ddp(inner, broadcast_buffers=False, find_unused_parameters=True)
def harm():
    with torch.no_grad():
        inner.ema.weight += R  # one rank keeps an average of its own
        inner.seen += R
optimizer = torch.optim.SGD([{"params": [inner.weight, inner.bias]},
                             {"params": inner.ema.parameters(), "lr": 0.0}], 1e-3)
train(net, optimizer, 60, 10, harm)
"""


@pytest.mark.slow
def test_what_is_excluded_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "harness.toml").write_text('digest_exclude = ["ema.*", "seen"]\n')
    _, incidents = run(tmp_path, EXCLUDED, "--nproc-per-node", "2")
    assert incidents == []
    settings = json.loads((tmp_path / "runs" / "latest" / "config.json").read_text())["settings"]
    assert settings["digest_exclude"]["origin"].endswith("harness.toml")


WRONG_UPDATES = """
inner = nn.Linear(64, 64)
net, taken = Ddp(inner), [0]
right = sys.modules["torch.optim.adam"].adam
def wrong(params, *args, **kwargs):
    right(params, *args, **kwargs)
    taken[0] += 1
    if R == 1 and taken[0] in WHEN and not AGAIN:
        params[0].view(torch.int32)[5, 7] ^= 1 << 14
sys.modules["torch.optim.adam"].adam = wrong
train(net, torch.optim.AdamW(net.parameters(), 1e-3), 12 if AGAIN else 1_000_000, pause=0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "ranks", "reason"),
    [
        ("range(20, 1_000_000)", [1], "a third place decides between two replicas"),
        ("(20,)", [0, 1], "the fault was of the moment"),
    ],
)
def test_of_two_replicas_none_is_named_by_chance(
    tmp_path: Path, when: str, ranks: list[int], reason: str
) -> None:
    program = f"WHEN = {when}\n{WRONG_UPDATES}"
    said, incidents = run(tmp_path, program, "--nproc-per-node", "2", "--audit-share", "0")
    (incident,) = incidents
    assert (incident["class"], incident["first_failing"]) == ("silent_data_corruption", ranks)
    assert reason in incident["reason"]
    assert incident["action"] == "rollback"
    assert "[5, 7] bit" in incident["cause"]
    assert "strikes: " in said
    (strike,) = json.loads((tmp_path / "runs" / "strikes.json").read_text())["strikes"]
    assert (strike["why"], strike["local_ranks"]) == ("silent_data_corruption", ranks)


WRONG_ONCE = """
inner = nn.Linear(64, 64)
net = Ddp(inner)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step in steps():
    torch.manual_seed(100 * step + R)
    optimizer.zero_grad(); net(torch.randn(8, 64)).square().mean().backward()
    if step == 12 and R == 1 and not AGAIN:
        inner.weight.grad.view(torch.int32)[5, 7] ^= 1 << 22
    optimizer.step(); time.sleep(0.02)
"""


@pytest.mark.slow
def test_of_two_replicas_the_next_attempt_tells_which(tmp_path: Path) -> None:
    said, incidents = run(tmp_path, WRONG_ONCE, "--nproc-per-node", "2", "--digest-share", "1")
    (incident,) = incidents
    assert (incident["class"], incident["first_failing"]) == ("silent_data_corruption", [1])
    assert (incident["confidence"], incident["innocent"]) == ("proven", [0])
    assert "reduced gradient of weight" in incident["cause"]
    assert said.count("harness: incident 1 is settled: it was rank 1, not rank 0; attempt 1") == 1
    (strike,) = json.loads((tmp_path / "runs" / "strikes.json").read_text())["strikes"]
    assert strike["local_ranks"] == [1]


RESUMED = """
FLIP = 0
inner = nn.Linear(64, 64)
net = Ddp(inner)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
first = 0
if os.path.exists("step.pt"):
    saved = torch.load("step.pt")
    inner.load_state_dict(saved["net"]); optimizer.load_state_dict(saved["optimizer"]); first = 7
for step in steps(first + 1):
    torch.manual_seed(100 * step + R)
    optimizer.zero_grad(); net(torch.randn(8, 64)).square().mean().backward()
    if step == 12 and R == 1 and not AGAIN and not FLIP:
        inner.weight.grad.view(torch.int32)[5, 7] ^= 1 << 22
    optimizer.step(); time.sleep(0.02)
    if step == FLIP and R == 1 and not AGAIN:
        inner.weight.data.view(torch.int32)[5, 7] ^= 1 << 21
    if step == 7 and R == 0 and not AGAIN:
        torch.save({"net": inner.state_dict(), "optimizer": optimizer.state_dict()}, "step.pt")
"""


@pytest.mark.slow
def test_the_next_attempt_tells_which_from_a_checkpoint_between_two_looks(tmp_path: Path) -> None:
    """Every second step is looked at; counted from step 7 on, that of the fault is none of them."""
    said, (incident,) = run(
        tmp_path, RESUMED, "--nproc-per-node", "2", "--digest-share", "1", "--digests", "2"
    )
    assert (incident["class"], incident["first_failing"]) == ("silent_data_corruption", [1])
    assert (incident["confidence"], incident["innocent"]) == ("proven", [0])
    assert "harness: incident 1 is settled: it was rank 1, not rank 0; attempt 1" in said


@pytest.mark.slow
def test_numbers_tell_where_the_fault_was_between_two_looks(tmp_path: Path) -> None:
    """By the next look both have taken in gradients of wrong parameters: no bits are right.

    The words are read a second or two after that, at a step that is computed again as well: so
    there are few steps to a second until then."""
    slow = "time.sleep(0.02 if AGAIN or step < 14 else 0.3)"
    program = RESUMED.replace("FLIP = 0", "FLIP = 14").replace("time.sleep(0.02)", slow)
    said, (incident,) = run(
        tmp_path, program, "--nproc-per-node", "2", "--digest-share", "1", "--digests", "4"
    )
    assert (incident["class"], incident["first_failing"]) == ("silent_data_corruption", [1])
    assert (incident["confidence"], incident["innocent"]) == ("likely", [0])
    assert "numbers much nearer to those of rank 0 than to those of rank 1" in incident["reason"]
    assert "harness: incident 1 is settled: it was rank 1, not rank 0; attempt 1" in said

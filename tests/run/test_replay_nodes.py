"""Micro-batches that a rank on another node computes again: two launchers on loopback, each with an
agent and ranks of its own."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.portholder import free_port
from tests.run.test_launcher import Launched
from tests.run.test_launcher import launch as launch  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).resolve().parents[2] / "bench" / "scripts"
TRAIN = f"""\
import json, os, sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import torch, torch.distributed as dist
import injector, replicated
from harness.worker.guest import current
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, pids = dist.get_rank(), os.environ["PIDS"]
fault = json.loads(os.environ["FAULT"])
if fault:
    injector.arm(injector.Fault(**fault))
if "WAIT" in os.environ:
    open(os.path.join(pids, f"{{rank}}.0"), "w").write("up")
    while not os.path.exists(os.path.join(pids, "go")):
        time.sleep(0.02)
done = replicated.train("ddp", steps=int(os.environ["STEPS"]))
found = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))["entries"]
calls = [[x["profiling_name"], x["collective_seq_id"], x["input_sizes"]] for x in found]
auditor = getattr(current(), "auditor", None)
looks = (auditor.replays.looks, auditor.replays.far, auditor.replays.why_not) if auditor else None
told = dict(calls=calls, end=replicated.numbers_of(done), looks=looks)
with open(os.path.join(pids, f"told{{rank}}"), "w") as file:
    json.dump(told, file)
dist.barrier()
dist.destroy_process_group()
"""
EVERYTHING = ("--replays", "1", "--audit-share", "1")
NOTHING = ("--replays", "0", "--audit-share", "0", "--digests", "0")
STEPS = 16
Start = Callable[..., Launched]


def start(
    launch: Start,
    tmp_path: Path,
    *options: str,
    ranks: int,
    fault: dict[str, Any] | None = None,
    folders: str = "ab",
    **environ: str,
) -> tuple[Launched, Launched]:
    """Two nodes of `ranks` ranks each."""
    meet = [
        *("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
        *("--nproc-per-node", str(ranks), "--max-restarts", "0", *options),
    ]
    variables = {
        "FAULT": json.dumps(fault),
        "STEPS": str(STEPS),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        **environ,
    }
    how: dict[str, Any] = {"python": True, "zygote": ranks > 1, "environ": variables}
    head = launch(TRAIN, *meet, "--node-rank", "0", folder_of_run=folders[0], **how)
    other = launch(TRAIN, *meet, "--node-rank", "1", folder_of_run=folders[1], **how)
    return head, other


def told(node: Launched, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((node.pids / f"told{rank}").read_text()) for rank in range(ranks)]


def skip_where_batches_are_late(node: Launched, ranks: int) -> None:
    """What comes later than it is waited for is left alone, as the product is to do."""
    looks = [rank["looks"][0] for rank in told(node, ranks)]
    if min(looks) < STEPS:
        pytest.skip(f"this machine is too busy: of {STEPS} batches {looks} came in time")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_that_was_wrong_once_is_told_by_another_node(
    launch: Start, tmp_path: Path, ranks: int
) -> None:
    """With one rank a node every round goes between nodes, with two every other one does."""
    wrong = 2 * ranks - 1
    fault = {"where": "local gradient", "rank": wrong, "step": 7, "call": 3}
    head, other = start(launch, tmp_path, *EVERYTHING, ranks=ranks, fault=fault)
    code, lines = head.end()
    other.end()
    if code == 0:
        skip_where_batches_are_late(head, 2 * ranks)
    (opened,) = [event["incident"]["verdict"] for event in head.events("IncidentOpened")]
    assert (opened["verdict"], opened["first_failing"]) == ("silent_data_corruption", [wrong])
    assert code == 81, lines
    (doubt,) = [event["doubt"] for event in head.events("DoubtRaised")]
    assert (doubt["check"], doubt["peer"], doubt["again"]) == ("replay", wrong, "second")
    assert doubt["ring"] == 2 * ranks, "it was a round between nodes"


def test_nothing_is_told_of_a_right_run_and_nothing_in_it_changes(
    launch: Start, tmp_path: Path
) -> None:
    """Numbers, and all collectives in their order, are those of a run without any check."""
    seen = []
    for options, folders in ((EVERYTHING, "ab"), (NOTHING, "cd")):
        head, other = start(launch, tmp_path, *options, ranks=1, folders=folders)
        assert (head.end()[0], other.end()[0]) == (0, 0)
        assert head.events("DoubtRaised") == []
        seen.append(told(head, 2))
    came = 0
    for with_checks, without in zip(*seen, strict=True):
        looks, far, why_not = with_checks.pop("looks")
        assert (looks, why_not) == (far, "")
        assert without.pop("looks") is None
        assert with_checks == without
        came += far
    if not came:
        pytest.skip("this machine is too busy: no batch came in time")


def test_an_agent_that_stands_still_stalls_no_step(launch: Start, tmp_path: Path) -> None:
    head, other = start(
        launch,
        tmp_path,
        "--replays",
        "1",
        "--audit-share",
        "0.9",
        "--agent-timeout",
        "200",
        ranks=1,
        STEPS="120",
        WAIT="1",
    )
    head.until_working("0.0", "1.0")
    agent = other.pid_of("agent")
    os.kill(agent, signal.SIGSTOP)
    try:
        (head.pids / "go").touch()
        head.until_working("told0", "told1")
    finally:
        os.kill(agent, signal.SIGCONT)
    assert (head.end()[0], other.end()[0]) == (0, 0)
    assert head.events("DoubtRaised") == []
    assert [rank["looks"][1] for rank in told(head, 2)] < [30, 30]

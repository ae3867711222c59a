"""From a fault to the next step, beside torchrun and the peers, with one script in one run.

    .venv/bin/python bench/recovery.py [--times 10] [--ranks 4] [--faults kill,raise,exit]
        [--only harness,torchrun] [--peers DIR] [--no-results]

bench/scripts/recovering.py trains on `--ranks` ranks and loses rank 2 once in step 55. Every launch
is one fault; launches of all systems are interleaved, so that whatever else the machine does falls
on all alike. Times are taken by the ranks themselves: the fault just before it happens, a step when
it is done; the launch just before the command starts. The peers are installed below DIR from the
package index when they are not there; what cannot be had is said and left out. Prints Markdown and
writes bench/results/recovery-RANKS.md. Trust the ratios, not the seconds.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import launched
import peer_envs
import running

from harness.portholder import free_port

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "scripts" / "recovering.py"
FAULTS = {"kill": "SIGKILL", "raise": "an exception", "exit": "exit code 3"}
SYSTEMS = {
    "harness": "harness",
    "torchrun": "torchrun, store not shared",
    "nvrx": "NVRx in-process, polling",
    "torchft": "torchft, time limits of 2 s",
}
OTHERS = {
    "nvrx_ft": "NVRx ft_launcher, heartbeats of 2 s",
    "dlrover": "DLRover",
}
"""Restart as torchrun does: bench/peers.py has them as well."""
LIMIT = 120.0
_AFTER = 3
"""Steps after the first new one that a launch is watched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds; None: not seen. `cold`: launch to first step. From the fault on: `verdict` (ours
    alone tells), `resumed` (first step after it), `new` (first step beyond the one it struck)."""

    cold: float | None
    verdict: float | None
    resumed: float | None
    new: float | None


Event = tuple[str, float, int, int, int]


def commands(
    system: str, ranks: int, fault: str, folder: Path, pythons: Mapping[str, Path]
) -> list[tuple[list[str], dict[str, str]]]:
    """What is started for one launch, each with what it adds to the environment."""
    count = ["--nproc-per-node", str(ranks)]
    kind = {"nvrx": "inprocess"}.get(system, system if system == "torchft" else "plain")
    script = [str(SCRIPT), kind, str(folder), fault]
    python = str(pythons.get(system, sys.executable))
    port = free_port()
    elastic = ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint"]
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    match system:
        case "harness":
            ours = [python, "-m", "harness", "run", "--runs-dir", str(folder / "runs")]
            return [([*ours, "--run-name", "it", *count, *script], {})]
        case "torchrun":
            theirs = [python, "-m", "torch.distributed.run", "--nnodes", "1", *count, *elastic]
            return [([*theirs, f"127.0.0.1:{port}", *script], own_store)]
        case "nvrx":
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
            return [([python, *script], {**place, "RANK": str(rank)}) for rank in range(ranks)]
        case "nvrx_ft":
            theirs = [python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "--nnodes=1"]
            limits = [
                *("--monitor-interval=0.1", "--workers-stop-timeout=2"),
                *("--ft-workload-check-interval=0.5", "--ft-rank-heartbeat-timeout=2"),
                "--ft-initial-rank-heartbeat-timeout=120",
            ]
            more = {"HARNESS_BENCH_HEARTBEATS": "1", **own_store}
            return [([*theirs, *count, *elastic, f"127.0.0.1:{port}", *limits, *script], more)]
        case "dlrover":
            return _dlrover(python, count, port, script)
    lighthouse = [
        *(str(Path(python).with_name("torchft_lighthouse")), "--min_replicas", "2"),
        *("--bind", f"[::]:{port}", "--join_timeout_ms", "1000"),
        *("--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "50"),
    ]
    each = [python, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "1"]
    shared = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "TORCHFT_SECONDS": "2"}
    return [
        (lighthouse, {}),
        *(
            (
                [*each, *elastic, f"127.0.0.1:{free_port()}", *script],
                {**shared, "REPLICA_GROUP_ID": str(rank)},
            )
            for rank in range(ranks)
        ),
    ]


def _dlrover(
    python: str, count: Sequence[str], port: int, script: Sequence[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """A master and a launcher: with --standalone it does not start beside torch 2.13."""
    master = [python, "-u", "-m", "dlrover.python.master.main", "--port", str(port)]
    names = ("NODE_RANK", "NODE_ID", "WORKER_ID", "WORKER_RANK")
    job = f"bench{port}"
    node = {
        **dict.fromkeys(names, "0"),
        **{"NODE_TYPE": "worker", "NODE_NUM": "1", "JOB_NAME": job, "ELASTIC_JOB_NAME": job},
        "DLROVER_MASTER_ADDR": f"127.0.0.1:{port}",
    }
    run = [python, "-m", "dlrover.trainer.torch.elastic_run", "--nnodes=1", *count]
    return [
        ([*master, "--node_num", "1", "--job_name", job, "--platform", "local"], node),
        ([*run, "--max-restarts=3", f"--training-port={free_port()}", *script], node),
    ]


def launch(system: str, ranks: int, fault: str, pythons: Mapping[str, Path]) -> Recovery:
    """One launch with one fault, watched until it has recovered or for LIMIT seconds."""
    with tempfile.TemporaryDirectory(prefix="harness-recovery-") as name:
        folder = Path(name)
        wanted = commands(system, ranks, fault, folder, pythons)
        began = time.time()
        with launched.launched(wanted, folder) as started:
            while time.time() - began < LIMIT and not enough(read(folder), system):
                if over(system, started):
                    break
                time.sleep(0.1)
            return measured(folder, system, began)


def over(system: str, started: Sequence["subprocess.Popen[bytes]"]) -> bool:
    """Whether all that train have ended; torchft's lighthouse and DLRover's master stay."""
    train = started[1:] if system in ("torchft", "dlrover") else started
    return all(process.poll() is not None for process in train)


def enough(events: Sequence[Event], system: str) -> bool:
    """Whether what follows can no longer change the times. Ours is let run to its end: reading
    its books meanwhile would take its time."""
    steps = [step for what, at, step, _, _ in after_fault(events, system) if what == "step"]
    struck = [step for what, _, step, _, _ in events if what == "fault"]
    return bool(struck) and max(steps, default=-1) >= struck[0] + _AFTER


def after_fault(events: Sequence[Event], system: str) -> list[Event]:
    """What the ranks of the mended training told. Of torchft all that are left belong to it, and
    tell of the step before a little late."""
    struck = next((event for event in events if event[0] == "fault"), None)
    if struck is None:
        return []
    later = [event for event in events if event[1] > struck[1]]
    if system == "torchft":
        return [event for event in later if event[2] >= struck[2]]
    return [event for event in later if event[4] > struck[4]]


def read(folder: Path) -> list[Event]:
    with contextlib.suppress(OSError):
        lines = (folder / "events").read_text(encoding="ascii").splitlines()
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]
    return []


def measured(folder: Path, system: str, began: float) -> Recovery:
    events = read(folder)
    steps = [at for what, at, _, _, _ in events if what == "step"]
    cold = min(steps) - began if steps else None
    fault = next((event for event in events if event[0] == "fault"), None)
    if fault is None:
        return Recovery(cold=cold, verdict=None, resumed=None, new=None)
    later = [event for event in after_fault(events, system) if event[0] == "step"]
    beyond = [at for _, at, step, _, _ in later if step >= fault[2]]
    resumed = min(at for _, at, _, _, _ in later) - fault[1] if later else None
    return Recovery(
        cold=cold,
        verdict=verdict(folder, fault[1]) if system == "harness" else None,
        resumed=resumed,
        new=min(beyond) - fault[1] if beyond else None,
    )


def verdict(folder: Path, fault: float) -> float | None:
    """When the right verdict was given, from `harness report`; None for a wrong one."""
    report = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "report", "--json", "--runs-dir"),
            *(str(folder / "runs"), "it"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    incidents = json.loads(report.stdout)["incidents"] if report.stdout else []
    if len(incidents) != 1 or incidents[0]["first_failing"] != [2]:
        return None
    told = incidents[0]["detected"].replace("Z", "+00:00")
    return datetime.fromisoformat(told).timestamp() - fault


def quantile(values: Sequence[float | None], share: float) -> float | None:
    """The value that `share` of all are not above; a launch without one counts as the worst."""
    order = sorted(float("inf") if value is None else value for value in values)
    if not order:
        return None
    chosen = order[min(len(order) - 1, int(share * len(order)))]
    return None if chosen == float("inf") else chosen


def show(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(seen: Mapping[tuple[str, str], list[Recovery]], unit: float) -> list[str]:
    lines = [
        "| fault | system | n | recovered | verdict p50 | p95 | next step p50 | p95 | new step p50 "
        "| next step p50 / cold start |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (fault, system), all_of in seen.items():
        told = [one.verdict for one in all_of if system == "harness"]
        resumed = [one.resumed for one in all_of]
        middle = quantile(resumed, 0.5)
        cells = [
            FAULTS[fault],
            SYSTEMS[system],
            len(all_of),
            sum(one.resumed is not None for one in all_of),
            show(quantile(told, 0.5)),
            show(quantile(told, 0.95)),
            show(middle),
            show(quantile(resumed, 0.95)),
            show(quantile([one.new for one in all_of], 0.5)),
            show(None if middle is None else middle / unit),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=10, help="launches of each system and fault")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, with commas between")
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".peers")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    launched.end_on_sigterm()
    pythons: dict[str, Path] = {}
    missing: list[str] = []
    systems = options.only.split(",")
    for name in [name for name in systems if name in peer_envs.PEERS]:
        pythons[name], why = peer_envs.python_of(name, options.peers)
        if why:
            systems.remove(name)
            missing.append(f"{SYSTEMS[name]} could not be installed here: {why}")
    faults = options.faults.split(",")
    seen: dict[tuple[str, str], list[Recovery]] = {(f, s): [] for f in faults for s in systems}
    for number in range(options.times):
        for (fault, system), so_far in seen.items():
            so_far.append(launch(system, options.ranks, fault, pythons))
            print(number, fault, system, so_far[-1], file=sys.stderr, flush=True)
    text = "\n".join(report(options, seen, missing))
    if not options.no_results:
        (HERE / "results" / f"recovery-{options.ranks}.md").write_text(text, encoding="utf-8")
    print(text)


def report(
    options: argparse.Namespace,
    seen: Mapping[tuple[str, str], list[Recovery]],
    missing: Sequence[str],
) -> list[str]:
    cold: dict[str, float] = {}
    for system in dict.fromkeys(system for _, system in seen):
        all_of = [one.cold for (_, s), many in seen.items() if s == system for one in many]
        if times := [one for one in all_of if one is not None]:
            cold[system] = statistics.median(times)
    unit = cold.get("torchrun", float("nan"))
    starts = ", ".join(f"{SYSTEMS[system]} {value:.2f} s" for system, value in cold.items())
    return [
        "# From a fault to the next step",
        "",
        f"`bench/recovery.py --times {options.times} --ranks {options.ranks} --faults "
        f"{options.faults}`, {os.cpu_count()} cores. One script, one fault a launch, on rank 2 in "
        "step 55, launches interleaved; a checkpoint every 10 steps, a step of 20 ms and more.",
        "",
        f"Cold starts, launch to first step, medians: {starts}. The unit of the last column is "
        f"torchrun's. {running.load_text()}",
        *missing,
        "",
        *table(seen, unit),
        "",
        "Next step: seconds from the fault to the end of the first step after it. New step: to the "
        "first that had not been done before (torchft goes on there, without the lost rank; the "
        "others do the steps since the checkpoint again).",
        "",
    ]


if __name__ == "__main__":
    main()

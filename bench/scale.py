"""Ten thousand ranks on one controller: what does it cost, and does it keep up?

    .venv/bin/python bench/scale.py [--agents 8,64,512,2048] [--hz 1] [--seconds 10] [--times 2]

A real controller on one core, agents over real gRPC from another process (bench/scale_agents.py):
each has a connection of its own and reports 8 ranks HZ times a second. After a while one rank hangs
and all others come to wait; the verdict must name it. In another run of as many, one rank raises an
exception. Prints Markdown, writes bench/results/scale.md; exits 1 when a verdict was missing or
wrong.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import running
from scale_world import RUN, World
from tui_world import PER_NODE

from harness import events as e
from harness import journal
from harness.config import Job
from harness.policy import Policy

HERE = Path(__file__).resolve().parent
_START_SECONDS, _SETTLE_SECONDS, _VERDICT_SECONDS = 900.0, 5.0, 120.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of so many ranks. CPU in parts of a core, times in seconds, memory in bytes."""

    ranks: int
    started: float
    """From the first join until every rank has told of itself: CPU of the controller."""
    cpu: float
    reports: float
    """Of agents, a second."""
    median: float
    p99: float
    late: float
    """Share of reports that the simulated agents themselves sent late."""
    memory: int
    growth: float
    """Of the journal, bytes a second."""
    verdict: float
    looked: float
    """Of it, from the order to look until all evidence was in the journal."""
    verdict_cpu: float
    """Of the controller, from the hang to the verdict."""
    look_bytes: int
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """What came of a rank that raised, in another run of so many."""

    verdict: float
    """Seconds from its exception."""
    cpu: float
    """Of the controller until then, in seconds."""
    right: bool


class Controller:
    """A controller process of a run with `agents` nodes, on the first core of this process."""

    def __init__(self, folder: Path, agents: int, hz: float, profile: str) -> None:
        run_dir = folder / RUN
        run_dir.mkdir(parents=True)
        self.journal = run_dir / journal.FILE_NAME
        job = Job(
            run=RUN, runs_dir=str(folder), script="train.py", python=sys.executable,
            nnodes=agents, nproc_per_node=PER_NODE, cwd=str(folder),
            policy=Policy(pulse_interval=1 / hz, agent_timeout=300.0),
        )  # fmt: skip
        job.write(run_dir / "job.json")
        read_end, write_end = os.pipe()
        program = ["-m", "harness.controller"]
        if profile:
            program = ["-m", "cProfile", "-o", profile, *program]
        program += ["--run-dir", str(run_dir), "--bind", "127.0.0.1:0", "--ready-fd"]
        core = min(os.sched_getaffinity(0))
        self.process = subprocess.Popen(
            [sys.executable, *program, str(write_end)],
            pass_fds=[write_end],
            stdin=subprocess.PIPE,
        )
        os.sched_setaffinity(self.process.pid, {core})
        os.close(write_end)
        with os.fdopen(read_end, "rb") as file:
            self.address = str(json.loads(file.read())["address"])

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> int:
        """Resident, without pages of files."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("RssAnon:")[2].split()[0]) << 10

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # to it, its launcher is gone
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def agents_of(address: str, agents: int, hz: float, harm: str) -> Iterator["subprocess.Popen[str]"]:
    simulated = subprocess.Popen(
        [sys.executable, str(HERE / "scale_agents.py"), address, str(agents), str(hz), harm],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield simulated
    finally:
        assert simulated.stdin is not None
        simulated.stdin.close()
        simulated.wait(30)


def ask(simulated: "subprocess.Popen[str]", line: str) -> dict[str, Any]:
    assert simulated.stdin is not None
    assert simulated.stdout is not None
    simulated.stdin.write(f"{line}\n")
    simulated.stdin.flush()
    told: dict[str, Any] = json.loads(simulated.stdout.readline())
    return told


def grown_by(path: Path, word: bytes, count: int, seconds: float) -> None:
    """Wait until the journal has `count` lines with `word`."""
    deadline, seen = time.monotonic() + seconds, 0
    with path.open("rb") as file:
        rest = b""
        while seen < count and time.monotonic() < deadline:
            chunk = rest + file.read()
            lines, _, rest = chunk.rpartition(b"\n")
            seen += lines.count(word)
            time.sleep(0.05)
    if seen < count:
        raise RuntimeError(f"{seen} of {count} {word.decode()} within {seconds:g} s")


@contextmanager
def running_job(
    agents: int, hz: float, harm: str, folder: Path, profile: str = ""
) -> Iterator[tuple[Controller, "subprocess.Popen[str]", float]]:
    """A controller and its agents once all ranks train; and what the start took of its CPU."""
    controller = Controller(folder, agents, hz, profile)
    try:
        began = controller.cpu_seconds()
        with agents_of(controller.address, agents, hz, harm) as simulated:
            started = b'"type":"WorkerStarted"'
            grown_by(controller.journal, started, agents * PER_NODE, _START_SECONDS)
            started_cpu = controller.cpu_seconds() - began
            time.sleep(_SETTLE_SECONDS)
            ask(simulated, "told")
            yield controller, simulated, started_cpu
    finally:
        controller.end()


def broken(controller: Controller, simulated: "subprocess.Popen[str]") -> tuple[int, float]:
    """Break the job: when that was, and what its controller took of the CPU until it judged."""
    at_ns, cpu = ask(simulated, "break")["at_ns"], controller.cpu_seconds()
    grown_by(controller.journal, b'"type":"IncidentOpened"', 1, _VERDICT_SECONDS)
    return at_ns, controller.cpu_seconds() - cpu


def measure(agents: int, hz: float, seconds: float, folder: Path, profile: str) -> Measured:
    with running_job(agents, hz, "hang", folder, profile) as (controller, simulated, started):
        cpu, size = controller.cpu_seconds(), controller.journal.stat().st_size
        began = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        told = ask(simulated, "told")
        cpu = controller.cpu_seconds() - cpu
        size = controller.journal.stat().st_size - size
        memory = controller.memory()
        hung_ns, verdict_cpu = broken(controller, simulated)
    opened, looked, look_bytes = judged(controller.journal)
    verdict = opened.event.incident.verdict
    return Measured(
        ranks=agents * PER_NODE, started=started, cpu=cpu / passed,
        reports=told["reports"] / passed, median=told["median"], p99=told["p99"],
        late=told["late"] / max(1, told["reports"]), memory=memory, growth=size / passed,
        verdict=(opened.stamp.wall_ns - hung_ns) / 1e9, looked=looked,
        look_bytes=look_bytes, verdict_cpu=verdict_cpu,
        right=verdict.first_failing == (World(agents).stuck,),
    )  # fmt: skip


def crash(agents: int, hz: float, folder: Path) -> Crashed:
    with running_job(agents, hz, "crash", folder) as (controller, simulated, _):
        raised_ns, cpu = broken(controller, simulated)
    opened, _, _ = judged(controller.journal)
    verdict = opened.event.incident.verdict
    return Crashed(
        verdict=(opened.stamp.wall_ns - raised_ns) / 1e9, cpu=cpu,
        right=verdict.verdict == "exception" and verdict.first_failing == (World(agents).stuck,),
    )  # fmt: skip


def judged(path: Path) -> tuple[Any, float, int]:
    """The record of the incident; how long the look took that led to it, and its bytes."""
    asked_ns = done_ns = size = 0
    with path.open("rb") as file:
        for line in file:
            size += len(line) if b'"type":"Evidence' in line[:300] else 0
    for record in journal.read(path):
        if (
            isinstance(record.event, e.OrderGiven)
            and b"CollectEvidence" in repr(record.event.order).encode()
        ):
            asked_ns = asked_ns or record.stamp.wall_ns
        if isinstance(record.event, e.IncidentOpened):
            done_ns = record.stamp.wall_ns
            return record, (done_ns - asked_ns) / 1e9, size
    raise RuntimeError("no incident in the journal")


def row(of: list[Measured], crashes: list[Crashed], first: Measured) -> str:
    """One line of the table: medians over `of`, cost of a rank beside that of `first`."""

    def middle(name: str) -> float:
        return statistics.median(getattr(it, name) for it in of)

    ranks = of[0].ranks
    share = (middle("cpu") / ranks) / (first.cpu / first.ranks)
    verdicts = [it.verdict for it in of]
    cells = [
        f"{ranks:,}",
        f"{middle('reports'):,.0f}",
        f"{middle('cpu'):.1%}",
        f"{middle('cpu') / ranks * 1e6:.0f}",
        f"{share:.2f}",
        f"{middle('started') / ranks * 1e3:.2f}",
        f"{middle('median') * 1e3:.1f} / {middle('p99') * 1e3:.0f}",
        f"{middle('memory') / 2**20:.0f}",
        f"{middle('growth') / ranks:.0f}",
        f"{statistics.median(verdicts):.2f} / {max(verdicts):.2f}",
        f"{middle('looked'):.2f}",
        f"{middle('verdict_cpu'):.2f}",
        f"{middle('look_bytes') / ranks:,.0f}",
        f"{statistics.median(it.verdict for it in crashes):.2f}",
        f"{statistics.median(it.cpu for it in crashes):.2f}",
        f"{sum(it.right for it in [*of, *crashes])} of {len(of) + len(crashes)}",
        f"{middle('late'):.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


COLUMNS = (
    "ranks", "reports a second", "controller, of a core", "µs of CPU a second and rank",
    "beside the first row", "start, ms of CPU a rank", "message to answer, median / p99 ms",
    "memory, MiB", "journal, bytes a second and rank", "hang to verdict, median / worst s",
    "of it looking, s", "controller's CPU meanwhile, s", "evidence, bytes a rank",
    "crash to verdict, s", "controller's CPU meanwhile, s", "right", "late",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--agents", default="8,64,512,2048")
    parser.add_argument("--hz", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--profile", default="", help="file for cProfile of the last controller")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows, good, first = [HEAD], True, None
    for agents in map(int, options.agents.split(",")):
        done, crashes = [], []
        try:
            for _ in range(options.times):
                with tempfile.TemporaryDirectory(prefix="harness-scale-") as name:
                    folder = Path(name)
                    one = measure(agents, options.hz, options.seconds, folder, options.profile)
                print(one, file=sys.stderr, flush=True)
                done.append(one)
                with tempfile.TemporaryDirectory(prefix="harness-scale-") as name:
                    crashes.append(crash(agents, options.hz, Path(name)))
                print(crashes[-1], file=sys.stderr, flush=True)
        except RuntimeError as error:
            good = False
            rows.append(f"| {agents * PER_NODE:,} | {error} |" + " |" * (len(COLUMNS) - 2))
            continue
        first = first or done[0]
        good = good and all(it.right for it in [*done, *crashes])
        rows.append(row(done, crashes, first))
    text = "\n".join(
        [
            "# Ten thousand ranks on one controller",
            "",
            f"`bench/scale.py --agents {options.agents} --hz {options.hz:g} --times "
            f"{options.times}`, {os.cpu_count()} cores; the controller has one of them, its agents "
            f"the rest. {PER_NODE} ranks an agent, one connection an agent, {options.hz:g} reports "
            "a second. `late`: reports that the simulated agents could not send in time. "
            f"{running.load_text()}",
            "",
            "The cost of a rank is CPU, and holds on a busy machine; times are those of the clock "
            "and do not. Of more than 1,000 ranks those of 64 nodes are looked at: evidence is "
            "theirs, per rank of all.",
            "",
            *rows,
            "",
        ]
    )
    if not options.no_results:
        (HERE / "results" / "scale.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""What records of many ranks cost the controller's core, without a wire: decoded, folded, planned
for, and a hang judged, from 64 to 16,384 ranks.

    .venv/bin/python bench/scale_core.py [--agents 8,64,512,2048] [--no-results]

The records are those of bench/scale.py. CPU time of one process, which holds on a busy machine as
well. Prints Markdown, writes bench/results/scale_core.md; exits 1 when a verdict was wrong.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scale_world import RUN, World
from tui_world import PER_NODE

from harness import codec, recovery
from harness import events as e
from harness import orders as o
from harness.diagnosis.hang import judge_look
from harness.garbage import collect_seldom
from harness.incidents import Verdict
from harness.policy import Policy
from harness.recovery.watching import in_thousands, most_entries
from harness.state import RunState, fold

HERE = Path(__file__).resolve().parent


class Core:
    """The state of a run of `nodes` nodes, made of lines as agents send them."""

    def __init__(self, nodes: int) -> None:
        self.world, self.nodes = World(nodes), nodes
        self.state = RunState()
        self._seqs: dict[str, int] = {}
        run = e.RunStarted(
            run=RUN, command=("train.py",), nnodes=nodes, policy=Policy(pulse_interval=1.0),
            chaos_allowed=False, harness_version="0",
        )  # fmt: skip
        self.say(run)

    def say(self, event: e.Event) -> None:
        self.take("controller", type(event).__name__, codec.encode(self._record(event)))

    def _record(self, event: e.Event) -> e.Record:
        stamp = e.Stamp(
            run=RUN, attempt=0, source="controller", seq=self._next("controller"),
            wall_ns=time.time_ns(), mono_ns=time.monotonic_ns(),
        )  # fmt: skip
        return e.Record(stamp=stamp, event=event)

    def _next(self, source: str) -> int:
        self._seqs[source] = self._seqs.get(source, -1) + 1
        return self._seqs[source]

    def take(self, source: str, name: str, line: bytes) -> None:
        fold(self.state, codec.decode(line))

    def report(self, node: int, name: str, event: bytes) -> None:
        source = f"agent:{node}"
        self.take(source, name, self.world.record(source, self._next(source), name, event))

    def settle(self) -> None:
        while decisions := recovery.plan(self.state, time.time_ns()):
            for decision in decisions:
                self.say(decision)
        recovery.next_wake_ns(self.state, time.time_ns())

    # --- what is measured ----------------------------------------------------------------------

    def join(self) -> None:
        for node in range(self.nodes):
            joined = e.AgentJoined(
                node_rank=node, host=f"host-{node}", pid=node + 9, local_world_size=PER_NODE
            )
            self.say(joined)
            self.settle()
        ready = e.StoreReady(attempt=0, address="127.0.0.1", port=4000)
        self.report(0, "StoreReady", self.world.encode(ready))
        self.settle()
        for node in range(self.nodes):
            for name, event in self.world.start(node):
                self.report(node, name, event)
        self.settle()

    def pulses(self) -> None:
        for node in range(self.nodes):
            self.report(node, "PulsesRead", self.world.pulses(node))
            self.settle()

    def look(self) -> None:
        """All are asked, and all answer."""
        ask = o.CollectEvidence(
            collection=0, attempt=0, why="no progress is seen", incident=1, suspicion=True
        )
        for node in range(self.nodes):
            self.say(e.OrderGiven(node_rank=node, order=ask))
        most, together = most_entries(self.world.size), in_thousands(self.world.size)
        for node in range(self.nodes):
            for name, event in self.world.evidence(node, 0, most, together=together):
                self.report(node, name, event)

    def judge(self) -> Verdict | e.StallLooked:
        return judge_look(self.state, self.state.collections[-1], time.time_ns())


def cpu(work: Callable[[], object]) -> float:
    """Processor seconds of `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(agents: int) -> tuple[list[float], bool]:
    """CPU seconds for start, a report of all, evidence of all, a verdict; whether it is right."""
    core = Core(agents)
    started = cpu(core.join)
    core.pulses()
    time.sleep(0.5)
    reported = cpu(core.pulses)
    core.world.prepare("hang")
    core.world.hang()
    time.sleep(1.0)
    looked = cpu(core.look)
    found: list[Verdict | e.StallLooked] = []
    judged = cpu(lambda: found.append(core.judge()))
    right = isinstance(found[0], Verdict) and found[0].first_failing == (core.world.stuck,)
    return [started, reported, looked, judged], right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--agents", default="8,64,512,2048")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    collect_seldom()
    rows, good, first = [], True, []
    for agents in map(int, options.agents.split(",")):
        times, right = measure(agents)
        ranks = agents * PER_NODE
        each = [seconds / ranks * 1e6 for seconds in times]
        first = first or each
        good = good and right
        cells = [f"{micro:.0f} ({micro / one:.2f})" for micro, one in zip(each, first, strict=True)]
        rows.append(
            f"| {ranks:,} | {' | '.join(cells)} | {times[2] + times[3]:.2f} |"
            f" {'yes' if right else '**no**'} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    text = "\n".join(
        [
            "# Ten thousand ranks in the controller's core",
            "",
            f"`bench/scale_core.py --agents {options.agents}`: records decoded, folded and planned "
            "for after each report, without a wire. µs of CPU a rank, and beside the first row.",
            "",
            "| ranks | start | a report of every rank | evidence of every rank | verdict | "
            "evidence and verdict, s of CPU in all | right |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    if not options.no_results:
        (HERE / "results" / "scale_core.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""What the recorder costs: point-to-point operations, collectives, program marks and heartbeats, on
and off in one run.

`python bench/recorder.py [--rounds N] [--calls N] [--write]`: two Gloo ranks on this machine. Both
switch the hooks between blocks of calls, in the order on, empty, off, off, empty, on, so that drift
hits all alike; the figure is the median of the paired differences. Empty hooks are Python functions
that only pass the call on: no recorder written in Python costs less. A second part times the hook
alone, on a group of one rank that has nobody to wait for. `--write` puts the table into
bench/results/recorder.md.
"""

import argparse
import functools
import json
import mmap
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "recorder.md"
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--only", default="", help="operations with this in their name")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        be_rank(options.rank, options.port, options.rounds, options.calls, options.only)
        return
    figures = measure(options.rounds, options.calls, options.only)
    text = table(figures, options.rounds, options.calls)
    print(text)
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text + "\n", encoding="utf-8")


def measure(rounds: int, calls: int, only: str) -> dict[str, Any]:
    """Start both ranks; the figures of rank 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    sizes = ["--rounds", str(rounds), "--calls", str(calls), "--port", str(port), "--only", only]
    with tempfile.TemporaryFile() as out:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, *sizes, "--rank", str(rank)],
                env=environ,
                stdout=out if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(2)
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            sys.exit(f"a rank failed: exit codes {codes}")
        out.seek(0)
        figures: dict[str, Any] = json.loads(out.read())
        return figures


def be_rank(rank: int, port: int, rounds: int, calls: int, only: str) -> None:
    import torch
    import torch.distributed as dist

    from harness.worker import layout, marklog, marks, p2p, sites

    memory = mmap.mmap(-1, layout.BYTES)
    recorder = p2p.make(memory, layout.GROUPS_AT, layout.P2P_AT)
    lines = sites.SiteWriter(memory, layout.SITES_AT)
    marker = marks.Marker(marklog.MarkWriter(memory, layout.MARKS_AT), lines, recorder)
    binding = sys.modules["torch._C._distributed_c10d"]
    off = Methods()
    recorder.watch(binding)
    recorder.watch_calls(binding, lines)
    marks.watch_backward(torch.autograd, lambda: marker)
    marks.watch_forward(torch.nn.parallel.distributed, "DistributedDataParallel", lambda: marker)
    on = Methods()
    empty = off.wrapped()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    recorder.made(dist.group.WORLD, 1, [0, 1])
    alone = dist.new_group([rank], use_local_synchronization=True)
    recorder.made(alone, 2, [rank])
    pair = dist.new_group([0, 1])  # marks leave out groups with point-to-point operations
    recorder.made(pair, 3, [0, 1])
    figures: dict[str, Any] = {}
    for name, (call, operations) in cases_of(rank, alone, pair).items():
        if only not in name:
            continue
        count = calls if "64 B" in name else max(1, calls // 10)
        figures[name] = paired(call, operations, rounds, count, (on, empty, off), dist.barrier)
    figures["hook alone"] = hook_alone(recorder)
    figures["mark"] = mark_alone(marker)
    figures["heartbeat"] = timed(recorder.operations, 2000)
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(figures))


def cases_of(rank: int, alone: Any, pair: Any) -> dict[str, tuple[Callable[[], object], int]]:
    """By name: what is measured, and how many operations it is. `alone` has this rank as its only
    member, `pair` both."""
    import torch
    import torch.distributed as dist

    small, large = torch.ones(16), torch.ones(1 << 18)

    def ping(tensor: Any) -> Callable[[], object]:
        if rank == 0:
            return lambda: (dist.send(tensor, 1), dist.recv(tensor, 1))
        return lambda: (dist.recv(tensor, 0), dist.send(tensor, 0))

    def batch() -> None:
        peer = 1 - rank
        operations = [dist.P2POp(dist.isend, small, peer), dist.P2POp(dist.irecv, small, peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    layer = torch.nn.Linear(1024, 1024)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512), process_group=pair)
    wide = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
    large_ddp = torch.nn.parallel.DistributedDataParallel(wide, process_group=pair)
    rows = torch.ones(64, 1024)

    def ddp_step() -> None:
        ddp(rows[:, :512]).sum().backward()

    def large_ddp_step() -> None:
        large_ddp(rows).sum().backward()

    def pipeline_step() -> None:
        """Two stages, four microbatches: activations there, gradients back."""
        for _ in range(4):
            if rank == 0:
                dist.send(layer(rows).detach(), 1)
            else:
                dist.recv(rows, 0)
                layer(rows).sum().backward()
        for _ in range(4):
            if rank == 0:
                dist.recv(rows, 1)
                layer(rows).sum().backward()
            else:
                dist.send(rows, 0)

    return {
        "send + recv, 64 B": (ping(small), 2),
        "send + recv, 1 MiB": (ping(large), 2),
        "batch_isend_irecv, 64 B": (batch, 2),
        "all_reduce, 64 B": (lambda: dist.all_reduce(small), 1),
        "all_reduce, 1 MiB": (lambda: dist.all_reduce(large), 1),
        "all_reduce of one rank alone, 64 B": (lambda: dist.all_reduce(small, group=alone), 1),
        "DDP step, 0.26 M parameters": (ddp_step, 1),
        "DDP step, 4.2 M parameters": (large_ddp_step, 1),
        "pipeline step, 8 messages of 256 KiB": (pipeline_step, 1),
    }


class Methods:
    """The hooked attributes of torch's classes as they are at this moment."""

    def __init__(self) -> None:
        import torch

        from harness.worker.sites import METHODS

        binding = sys.modules["torch._C._distributed_c10d"]
        names = {
            binding.ProcessGroup: ("send", "recv", "recv_anysource", *METHODS),
            binding.Work: ("wait",),
            torch.autograd: ("backward",),
            torch.nn.parallel.DistributedDataParallel: ("forward",),
        }
        self._kept = [
            (owner, name, vars(owner)[name])
            for owner in names
            for name in names[owner]
            if name in vars(owner)
        ]

    def put(self) -> None:
        for cls, name, method in self._kept:
            setattr(cls, name, method)

    def wrapped(self) -> "Methods":
        """The same in hooks that do nothing."""
        made = Methods()
        made._kept = [(owner, name, passed_on(method)) for owner, name, method in self._kept]
        return made


def passed_on(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def hook(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return hook


def paired(
    call: Callable[[], object],
    operations: int,
    rounds: int,
    calls: int,
    states: tuple[Methods, Methods, Methods],
    barrier: Callable[[], object],
) -> dict[str, float]:
    """Microseconds per operation: wall time off, and the medians of (on - off) and (empty - off).
    `states` are on, empty, off."""
    for _ in range(calls):
        call()
    per = 1e6 / (calls * operations)
    off: list[float] = []
    extra: list[tuple[float, ...]] = []  # wall and CPU, on; the same, empty
    for _ in range(rounds):
        sums = [[0.0, 0.0] for _ in states]
        for at in (0, 1, 2, 2, 1, 0):
            states[at].put()
            barrier()
            wall, cpu = time.perf_counter(), time.thread_time()
            for _ in range(calls):
                call()
            sums[at][0] += (time.perf_counter() - wall) * per / 2
            sums[at][1] += (time.thread_time() - cpu) * per / 2
        *hooked, base = sums
        off.append(base[0])
        extra.append(
            tuple(value - plain for pair in hooked for value, plain in zip(pair, base, strict=True))
        )
    states[0].put()
    names = ("extra", "extra_cpu", "empty", "empty_cpu")
    medians = map(statistics.median, zip(*extra, strict=True))
    return {"off": statistics.median(off), **dict(zip(names, medians, strict=True))}


def hook_alone(recorder: Any) -> dict[str, float]:
    """Microseconds of begin, wait and end of one operation whose torch part costs nothing."""
    import torch

    class Work:
        def wait(self) -> bool:
            return True

    class Group:
        work = Work()

        def send(self, tensors: Any, peer: int, tag: int) -> Work:
            return self.work

        recv = send

        def recv_anysource(self, tensors: Any, tag: int) -> Work:
            return self.work

    group, tensors = Group(), [torch.ones(4, 4)]

    def call() -> None:
        group.send(tensors, 0, 0).wait()

    bare = timed(call, 20000)

    recorder.made(group, 4, [0])
    recorder.watch(types.SimpleNamespace(ProcessGroup=Group, Work=Work))
    return {"bare": bare, "hooked": timed(call, 20000)}


def mark_alone(marker: Any) -> float:
    """Microseconds of a mark four functions deep, with a counter of the program and one group."""
    from harness.worker import marklog

    def first(step: int) -> None:
        second(step, [1, 2], "x")

    def second(step: int, a: object, b: object) -> None:
        marker.mark(marklog.STEP, sys._getframe(0))

    step = 0

    def call() -> None:
        nonlocal step
        step += 1
        first(step)

    return timed(call, 5000)


def timed(call: Callable[[], object], calls: int) -> float:
    """Microseconds of CPU per call, the least of nine."""
    best = float("inf")
    for _ in range(9):
        began = time.thread_time()
        for _ in range(calls):
            call()
        best = min(best, time.thread_time() - began)
    return best / calls * 1e6


def table(figures: dict[str, Any], rounds: int, calls: int) -> str:
    import torch

    alone, heartbeat = figures.pop("hook alone"), figures.pop("heartbeat")
    mark = figures.pop("mark")
    lines = [
        "# Overhead of the recorder",
        "",
        f"`python bench/recorder.py --rounds {rounds} --calls {calls}`: Python "
        f"{platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, two Gloo "
        "ranks on one machine,",
        "hooks on, empty and off in turns within one run. Times are microseconds per operation; "
        "extra is the median",
        "of the paired differences to off of rank 0, wall and CPU of the calling thread. An empty "
        "hook only passes",
        "the call on: no recorder in Python costs less.",
        "",
        "| operation | off, wall | extra, wall | extra, CPU | CPU / off | empty hooks, wall | CPU "
        "| CPU / off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, case in figures.items():
        lines.append(
            f"| {name} | {case['off']:.1f} | {case['extra']:+.2f} | {case['extra_cpu']:+.2f} "
            f"| {100 * case['extra_cpu'] / case['off']:+.1f} % | {case['empty']:+.2f} "
            f"| {case['empty_cpu']:+.2f} | {100 * case['empty_cpu'] / case['off']:+.1f} % |"
        )
    extra = alone["hooked"] - alone["bare"]
    lines += [
        "",
        f"The hook by itself, around an operation that does nothing: {extra:.2f} µs for post, wait "
        "and end together",
        "(least of nine). The counter that the heartbeat reads four times a second: "
        f"{heartbeat:.2f} µs for three groups.",
        f"A program mark by itself, four functions deep, one group to ask: {mark:.2f} µs.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

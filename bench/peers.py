"""The same faults under Harness, torchrun, NVRx, torchft and DLRover, in one run: who says so, whom
they name, and whether training goes on.

    .venv/bin/python bench/peers.py [--times 1] [--faults kill,raise] [--only harness,torchrun]
        [--peers DIR] [--no-results]

bench/scripts/recovering.py on 4 ranks; rank 2 meets one fault in step 55. Launches of all systems
are interleaved. A system has LIMIT seconds from the fault on to say that something is wrong and
to make a step again. What cannot be installed is said and left out. Prints Markdown, and puts the
table into docs/benchmarks.md between its marks.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peer_envs
import recovery
import running

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench/peers.py: begin -->", "<!-- bench/peers.py: end -->"
RANKS, ODD, LIMIT, COLD_SECONDS = 4, 2, 45.0, 240.0
FAULTS = {
    "exit": "leaves with code 3",
    "raise": "raises",
    "kill": "SIGKILL",
    "mismatch": "1000 elements too many",
    "skip": "leaves a collective out, the next one has another size",
    "skip_silent": "leaves a collective out, all have one size",
    "stop": "SIGSTOP",
    "sleep": "never returns",
    "slow": "five times slower",
}
SAYS = {
    "torchrun": r"failed \(exitcode",
    "nvrx": r"affecting ranks",
    "torchft": r"got exception|should_commit=False",
    "nvrx_ft": r"Did not get|failed \(exitcode",
    "dlrover": r"The worker fails|failed \(exitcode",
}
SYSTEMS = {**recovery.SYSTEMS, **recovery.OTHERS}
"""What a system's own supervisor prints, not a rank that dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Seconds from the fault on; None: not within LIMIT. `named` in words."""

    declared: float | None
    named: str
    right: bool
    resumed: float | None


def launch(system: str, fault: str, pythons: Mapping[str, Path]) -> Seen | None:
    """One launch with one fault; None when it never came to the fault."""
    with tempfile.TemporaryDirectory(prefix="harness-peers-") as name:
        folder, tag = Path(name), uuid.uuid4().hex
        (folder / "tmp").mkdir()
        own = {recovery._TAG: tag, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
        started = []
        with open(folder / "output", "wb") as output:
            for command, more in recovery.commands(system, RANKS, fault, folder, pythons):
                started.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env={**os.environ, **own, **more},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        try:
            return watch(system, folder, started)
        finally:
            recovery.end(started, tag)


def watch(system: str, folder: Path, started: Sequence["subprocess.Popen[bytes]"]) -> Seen | None:
    """Look on until it has recovered, or its time is over."""
    struck = None
    deadline = time.time() + COLD_SECONDS
    while struck is None and time.time() < deadline:
        struck = next((event for event in recovery.read(folder) if event[0] == "fault"), None)
        time.sleep(0.05)
    if struck is None:
        return None
    declared: float | None = None
    before = (folder / "output").stat().st_size
    while time.time() < struck[1] + LIMIT:
        if declared is None and system != "harness" and said(system, folder, before):
            declared = time.time() - struck[1]
        over = all(process.poll() is not None for process in started)
        done = recovery.enough(recovery.read(folder), system) and system != "torchft"
        if over or (done and (declared is not None or fault_is_over(folder, struck))):
            break
        time.sleep(0.05)
    later = [e for e in recovery.after_fault(recovery.read(folder), system) if e[0] == "step"]
    resumed = min((at for _, at, _, _, _ in later), default=None)
    named, right = "nobody", False
    if system == "harness":
        declared, named, right = ours(folder, struck[1])
    elif declared is not None:
        named, right = theirs(system, said(system, folder, before))
    return Seen(
        declared=declared, named=named, right=right,
        resumed=None if resumed is None else resumed - struck[1],
    )  # fmt: skip


def fault_is_over(folder: Path, struck: recovery.Event) -> bool:
    """Whether another attempt has gone beyond the fault."""
    return any(e[4] > struck[4] and e[2] > struck[2] + 3 for e in recovery.read(folder))


def said(system: str, folder: Path, since: int) -> str:
    """From the line on by which the supervisor tells of it; empty: there is none so far."""
    with open(folder / "output", "rb") as file:
        file.seek(since)
        text = file.read().decode("utf-8", "replace")
    found = re.search(SAYS[system], text)
    return "" if found is None else text[text.rfind("\n", 0, found.start()) + 1 :]


def theirs(system: str, text: str) -> tuple[str, bool]:
    """Whom the peer names, and whether it is the odd rank alone."""
    if system in ("torchrun", "nvrx_ft", "dlrover"):
        found = re.search(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", text)
        named = [] if found is None else [int(found[2])]
        code = "" if found is None else f", exit code {found[1]}"
        return (f"rank {named[0]}{code}" if named else "nobody"), named == [ODD]
    if system == "nvrx":
        line = text.splitlines()[0]
        ranks = re.findall(r"affecting ranks \{([^}]*)\}", line)
        words = "; ".join(f"ranks {each}" for each in ranks)
        return words or "nobody", ranks == [str(ODD)]
    return "nobody", False


def ours(folder: Path, fault: float) -> tuple[float | None, str, bool]:
    """Of the first incident: when, class and ranks, and whether it is the odd rank alone."""
    report = subprocess.run(
        [sys.executable, "-m", "harness", "report", "--json", "--runs-dir", str(folder / "runs"),
         "it"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    incidents: list[dict[str, Any]] = (
        json.loads(report.stdout)["incidents"] if report.stdout else []
    )
    if not incidents:
        return None, "nobody", False
    first = incidents[0]
    told = recovery.datetime.fromisoformat(first["detected"].replace("Z", "+00:00")).timestamp()
    ranks = ", ".join(map(str, first["first_failing"]))
    where = first.get("where") or {}
    line = f", line {where['line']}" if where.get("line") else ""
    stops = ", stopped on purpose" if first["action"] == "stop" else ""
    return (
        told - fault,
        f"rank {ranks}: {first['class']}{line}{stops}",
        first["first_failing"] == [ODD],
    )


def kept(path: Path | None) -> list[tuple[str, str, dict[str, Any]]]:
    """Earlier launches: fault, system, what was seen."""
    if path is None or not path.exists():
        return []
    return [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def keep(path: Path | None, fault: str, system: str, one: Seen) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([fault, system, asdict(one)]) + "\n")


def cell(many: Sequence[Seen]) -> str:
    """Median of declared and resumed, and whom it named how often rightly."""
    if not many:
        return "not run"

    def middle(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):.1f}" if len(known) * 2 > len(values) else "-"

    named = max((one.named for one in many), key=[one.named for one in many].count)
    right = sum(one.right for one in many)
    mark = "" if right == len(many) else f" ({right} of {len(many)} right)"
    declared = middle([one.declared for one in many])
    return f"{declared} / {middle([one.resumed for one in many])} s; {named}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=1, help="launches of each system and fault")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".peers")
    parser.add_argument("--log", type=Path, help="keeps each launch; those in it are not repeated")
    parser.add_argument("--minutes", type=float, default=1e9, help="launch nothing after that")
    parser.add_argument("--no-results", action="store_true", help="print only")
    options = parser.parse_args()
    systems, faults = options.only.split(","), options.faults.split(",")
    pythons: dict[str, Path] = {}
    missing = []
    for name in [name for name in systems if name in peer_envs.PEERS]:
        pythons[name], why = peer_envs.python_of(name, options.peers)
        if why:
            systems.remove(name)
            missing.append(f"{SYSTEMS[name]} could not be installed here: {why}")
    seen: dict[tuple[str, str], list[Seen]] = {(f, s): [] for f in faults for s in systems}
    for fault, system, fields in kept(options.log):
        if (fault, system) in seen:
            seen[fault, system].append(Seen(**fields))
    until = time.monotonic() + 60 * options.minutes
    for number in range(options.times):
        for (fault, system), many in seen.items():
            if len(many) > number or time.monotonic() > until:
                continue
            one = launch(system, fault, pythons)
            print(fault, system, one, file=sys.stderr, flush=True)
            if one is not None:
                many.append(one)
                keep(options.log, fault, system, one)
    rows = [
        f"| rank 2 … | {' | '.join(SYSTEMS[system] for system in systems)} |",
        "|---" * (len(systems) + 1) + "|",
        *(
            f"| {FAULTS[fault]} | {' | '.join(cell(seen[fault, system]) for system in systems)} |"
            for fault in faults
        ),
    ]
    text = "\n".join(
        [
            *rows,
            "",
            f"`bench/peers.py --times {options.times}`, {os.cpu_count()} cores, 4 ranks, Gloo. In "
            "a cell: seconds from the fault until the supervisor says so / until the next step; "
            f"`-`: not within {LIMIT:g} s. Then whom it names. Time limits of the peers are the "
            "stock ones, except where it says otherwise: torchft has nothing to do before its own "
            "run out, and ft_launcher has none by itself. "
            f"{running.load_text()}",
            *missing,
        ]
    )
    if not options.no_results:
        head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        _, _, tail = rest.partition(END)
        DOCUMENT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

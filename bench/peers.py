"""The same faults under Harness, torchrun, NVRx, torchft and DLRover, in one run: who says so, whom
they name, whether training goes on, and what each costs while nothing is wrong.

    .venv/bin/python bench/peers.py [--times 1] [--faults kill,raise] [--only harness,torchrun]
        [--log FILE] [--minutes M] [--peers DIR] [--no-results]

bench/scripts/recovering.py on 4 ranks; rank 2 meets one fault in step 55. One launch at a time, of
all systems in turn. With --log each launch is kept in FILE and not made again: an interrupted run,
or one of some --minutes, goes on where it was, and with all launches kept it only makes the tables.
A launch that never came to its fault is tried once more; then its reason stands for its figure.
What cannot be installed is said and left out. Prints Markdown, and puts it into
docs/benchmarks.md between its marks.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import launched
import peer_envs
import peer_words
import recovery
from peer_table import Pairs, Seen, keep, kept, tables

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench/peers.py: begin -->", "<!-- bench/peers.py: end -->"
RANKS, ODD = 4, 2
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
SYSTEMS = {**recovery.SYSTEMS, **recovery.OTHERS}
START_SECONDS = 600.0
"""For launch and 55 steps; a busy machine has needed four minutes for some."""
NOTICE_SECONDS = {"nvrx": 100.0}
"""Its own limits: 60 s without progress are told of, 90 s end the rank."""
NOTICE_SECONDS_ELSE, LOOK_SECONDS = 60.0, 0.1
RESUME_SECONDS, RESUME_STARTS = 90.0, 4.0
"""From then on to go on, and as many launches of this system in this run: who restarts takes what a
launch takes, and a busy machine has needed a minute for one."""
STARTED_IN_STEPS = 10


def launch(system: str, fault: str, pythons: Mapping[str, Path]) -> Seen:
    """One launch with one fault."""
    with tempfile.TemporaryDirectory(prefix="harness-peers-") as name:
        folder = Path(name)
        wanted = recovery.commands(system, RANKS, fault, folder, pythons)
        began = time.time()
        with launched.launched(wanted, folder) as started:
            values = watch(system, folder, started, began)
        events = recovery.read(folder)
        steps = [at for what, at, _, _, _ in events if what == "step"]
        return Seen(
            cold=min(steps) - began if steps else None,
            step=healthy_step(events),
            load=round(os.getloadavg()[0], 1),
            **values,
        )


def healthy_step(events: list[recovery.Event]) -> float | None:
    """Median time between two steps of rank 0, from STARTED_IN_STEPS to the fault."""
    until = next((at for what, at, _, _, _ in events if what == "fault"), 0.0)
    ends = [
        at
        for what, at, step, rank, _ in events
        if what == "step" and rank == 0 and step >= STARTED_IN_STEPS and at < until
    ]
    between = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return statistics.median(between) if between else None


def watch(system: str, folder: Path, started: Any, began: float) -> dict[str, Any]:
    """Look on until it has recovered, or its time is over: what Seen says from the fault on."""
    output = folder / "output"
    deadline, before = time.time() + START_SECONDS, 0
    while True:
        over, printed = recovery.over(system, started), output.stat().st_size
        struck = next((event for event in recovery.read(folder) if event[0] == "fault"), None)
        if struck is not None:
            break  # `before` is from the look before this one: some have told of it by now
        if over or time.time() > deadline:
            return {"why": why_not(system, folder, started)}
        before = printed
        time.sleep(LOOK_SECONDS)
    told = None if system == "harness" else peer_words.Output(system, output, before)
    cold = min(e[1] for e in recovery.read(folder) if e[0] == "step") - began
    patience = max(RESUME_SECONDS, RESUME_STARTS * cold)
    declared = look_on(system, folder, started, struck, told, patience)
    events = recovery.read(folder)
    resumed = resumed_at(events, system, struck)
    if told is None:
        at, named, right = peer_words.report(folder, ODD)
        declared = None if at is None else at - struck[1]
    else:
        named, right = told.named(system, ODD)
    if system == "torchft" and declared is None:
        resumed = None  # its survivors never stopped
    return {
        "declared": declared,
        "named": named,
        "right": right,
        "resumed": None if resumed is None else resumed - struck[1],
        "after": "" if resumed is not None else aftermath(system, events, started, struck),
    }


def resumed_at(events: list[recovery.Event], system: str, struck: recovery.Event) -> float | None:
    """When the first step of the mended training was done. torchft's survivors may have finished
    the step of the fault all the same: theirs is the one that ends the longest standstill."""
    ends = sorted(e[1] for e in recovery.after_fault(events, system) if e[0] == "step")
    if system != "torchft" or not ends:
        return min(ends, default=None)
    return max(itertools.pairwise([struck[1], *ends]), key=lambda pair: pair[1] - pair[0])[1]


def look_on(
    system: str,
    folder: Path,
    started: Any,
    struck: recovery.Event,
    told: peer_words.Output | None,
    patience: float,
) -> float | None:
    """Until it is known how it ends; when the supervisor of a peer tells of the fault."""
    declared = None
    notice = NOTICE_SECONDS.get(system, NOTICE_SECONDS_ELSE)
    while True:
        now = time.time() - struck[1]
        if declared is None and told is not None and told.tells():
            declared = now
        if recovery.over(system, started):
            return declared
        events = recovery.read(folder)
        done = recovery.enough(events, system)
        if done and (declared is not None or is_restart(events, struck)):
            return declared
        if now > notice + (patience if declared is not None else 0.0):
            return declared
        time.sleep(LOOK_SECONDS)


def is_restart(events: list[recovery.Event], struck: recovery.Event) -> bool:
    """Whether another attempt has gone beyond the fault."""
    return any(e[0] == "step" and e[4] > struck[4] and e[2] > struck[2] + 3 for e in events)


def aftermath(
    system: str, events: list[recovery.Event], started: Any, struck: recovery.Event
) -> str:
    """What became of a training that was not resumed."""
    last = max((e[2] for e in events if e[0] == "step"), default=0)
    if last > struck[2] + 3:
        return "trains on"
    if recovery.over(system, started):
        codes = {process.poll() for process in started} - {None}
        return f"ended with {max(codes)}"
    return "stands still"


def why_not(system: str, folder: Path, started: Any) -> str:
    """In one line, why a launch never came to its fault."""
    events = recovery.read(folder)
    steps = [e[2] for e in events if e[0] == "step"]
    begun = len({e[3] for e in events if e[0] == "begin"})
    stage = f"step {max(steps)} was the last" if steps else f"{begun} of {RANKS} ranks had begun"
    ended = recovery.over(system, started)
    codes = ", ".join(str(process.poll()) for process in started if process.poll() is not None)
    how = f"it ended (exit code {codes})" if ended else f"{START_SECONDS:g} s were over"
    last = peer_words.last_line(folder / "output")
    return f"{how} before the fault, {stage}; its last line: {last or '(none)'}"


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
    if unknown := [name for name in (*systems, *faults) if name not in {**SYSTEMS, **FAULTS}]:
        parser.error(f"{unknown[0]} is none of {', '.join(SYSTEMS)}; {', '.join(FAULTS)}")
    pairs: Pairs = {(fault, system): [] for fault in faults for system in systems}
    try:
        kept(options.log, pairs)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    launched.end_on_sigterm()
    missing = collect(options, pairs)
    named = {fault: FAULTS[fault] for fault in faults}
    left = {name: SYSTEMS[name] for name in systems if name not in missing}
    text = "\n".join(
        [
            *tables({p: many for p, many in pairs.items() if p[1] in left}, named, left),
            conditions(options.times, pairs),
            *(f"{SYSTEMS[name]} could not be installed here: {missing[name]}." for name in missing),
        ]
    )
    if not options.no_results:
        head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        _, _, tail = rest.partition(END)
        DOCUMENT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")
    print(text)


def collect(options: argparse.Namespace, pairs: Pairs) -> dict[str, str]:
    """Make the launches that `pairs` lacks; which systems there are none of, and why."""
    until = time.monotonic() + 60 * options.minutes
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for number in range(options.times):
        for (fault, system), many in pairs.items():
            if len(many) > number or time.monotonic() > until:
                continue
            if system in peer_envs.PEERS and system not in pythons:
                pythons[system], missing[system] = peer_envs.python_of(system, options.peers)
            if missing.get(system):
                continue
            one = launch(system, fault, pythons)
            if one.why:
                print(fault, system, "once more:", one.why, file=sys.stderr, flush=True)
                one = launch(system, fault, pythons)
            print(fault, system, one, file=sys.stderr, flush=True)
            many.append(one)
            keep(options.log, fault, system, one)
    return {system: why for system, why in missing.items() if why}


def conditions(times: int, pairs: Pairs) -> str:
    loads = [one.load for many in pairs.values() for one in many] or [0.0]
    return (
        f"`bench/peers.py --times {times}`, {os.cpu_count()} cores, 4 ranks, Gloo, a step of 20 ms "
        "and more, a checkpoint every 10 steps; the systems took turns. Not noticed: nothing was "
        f"said for {NOTICE_SECONDS_ELSE:g} s (NVRx in-process: {NOTICE_SECONDS['nvrx']:g} s). Time "
        "limits of the peers are the stock ones, except where the name says otherwise: torchft has "
        "nothing to do before its own run out, and ft_launcher has none by itself. Load average "
        f"of a minute: median {statistics.median(loads):.1f}, at most {max(loads):.1f}."
    )


if __name__ == "__main__":
    main()

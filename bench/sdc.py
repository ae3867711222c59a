"""Which rank is named for a fault in its memory, in every layout that holds replicas:

    .venv/bin/python bench/sdc.py [--rounds 2] [--only 'ddp*'] [--seed 0] [--keep done.jsonl]

Each round plants ten faults (four to six in the larger layouts) into as many trainings of one
attempt of a real agent, one after the other, and trains two more that nothing happens to: real
processes that talk through Gloo, real steps, the digests that the agent reports, judged by the
functions that the controller calls. What a whole `harness run` does after that is not done here;
docs/chaos-results.md counts such runs. Kinds and patterns are drawn: parameters, reduced gradients
and moments; single bits, four neighbours, every 32nd element. A fault that was not seen is missed,
unless all ranks end with the bits of a clean training: a low bit of a moment, say, is rounded away.
Trainings whose verdict is not yet `proven` are then made again without a fault, as after a
rollback, which may tell more. With `--keep` what is done is kept in a file, and what the file holds
counts and is not done again (`--rounds 0`: nothing else is; more files: `--also`). Prints a
Markdown table; what the numbers prove is the lower end of a one-sided interval of 95 % (Clopper and
Pearson, 1934). Exits 1 when an innocent rank was named alone, a fault was missed, a clean training
raised an alarm, or less than 99 % are right in the end. Docs: docs/replicas.md.
"""

import argparse
import fnmatch
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.run import faulting
from tests.run.node import conftest

import injector  # isort: skip  # tests.run.faulting has found it

CLEAN = 2
STEPS = 12
KINDS = ("right", "both of two", "several", "innocent", "missed", "rounded away")
AGAIN = "right in the end"
BAD = ("innocent", "missed")
GOAL = 0.99
SURE = 0.95
"""That the share of right ranks is at least what is printed."""
SEEN = [kind for kind in KINDS if kind != "rounded away"]
POLICY = replace(faulting.ALL, audit_share=0.0, replays=0)
"""Digests alone: what a rank computes wrongly is none of this bench's faults."""
Table = Counter[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    layout: str
    world: int
    replicas: int
    where: tuple[str, ...]
    """What has a copy, or is compared with itself."""
    faulty: int = 10
    """Trainings with a fault in a round: a controller keeps so many parts of one attempt only."""


_ALL = ("parameter", "gradient", "moment")
SETTINGS = {
    "ddp, 2 replicas": Setting(layout="ddp", world=2, replicas=2, where=_ALL),
    "ddp, 4 replicas": Setting(layout="ddp", world=4, replicas=4, where=_ALL),
    "zero1, 2 replicas": Setting(
        layout="zero1", world=2, replicas=2, where=("parameter", "gradient")
    ),
    "zero1, 4 replicas": Setting(
        layout="zero1", world=4, replicas=4, where=("parameter", "gradient")
    ),
    "hsdp, 2 replicas": Setting(layout="hsdp", world=4, replicas=2, where=_ALL),
    "hsdp, 4 replicas": Setting(layout="hsdp", world=8, replicas=4, where=_ALL, faulty=5),
    "tp x dp, 2 replicas": Setting(layout="tp_dp", world=4, replicas=2, where=_ALL, faulty=6),
    "tp x dp, 4 replicas": Setting(layout="tp_dp", world=8, replicas=4, where=_ALL, faulty=4),
    "pp x dp, 2 replicas": Setting(layout="pp_dp", world=4, replicas=2, where=_ALL),
    "pp x dp, 4 replicas": Setting(layout="pp_dp", world=8, replicas=4, where=_ALL, faulty=5),
    "fsdp, no replica": Setting(layout="fsdp", world=4, replicas=1, where=("parameter", "moment")),
}


def drawn(setting: Setting, draw: random.Random) -> Any:
    return injector.Fault(
        where=draw.choice(setting.where),
        rank=draw.randrange(setting.world),
        step=draw.randrange(3, 6),
        seed=draw.randrange(1 << 30),
        pattern=draw.choice(("bit", "bit", "group", "stride")),
    )


def outcome(fault: Any, findings: list[Any], replicas: int, harmless: bool) -> str:
    """Of the claim that is believed first; `harmless`: the training has ended as a clean one."""
    if not findings:
        return "rounded away" if harmless else "missed"
    first = findings[0]
    if first.ranks == (fault.rank,):
        return "right"
    if fault.rank in first.ranks:
        return "both of two" if len(first.ranks) == 2 == replicas else "several"
    return "innocent"


def one_round(node: conftest.Node, setting: Setting, draw: random.Random) -> tuple[Table, int]:
    """What came of the faults, by where and kind, and alarms among the clean trainings."""
    planted = [drawn(setting, draw) for _ in range(setting.faulty)] + [None] * CLEAN
    draw.shuffle(planted)
    faulting.train_many(node, setting.layout, planted, ranks=setting.world, steps=STEPS)
    found = faulting.claims_of_each(node, setting.world, len(planted))
    ends = faulting.ends_of_each(node, setting.world)
    again = faulting.computed_again(
        node, setting.layout, found, ranks=setting.world, steps=STEPS, proven=False
    )
    clean = {end for fault, end in zip(planted, ends, strict=True) if fault is None}
    assert len(clean) == 1, f"clean trainings end differently: {clean}"
    table, alarms = Table(), 0
    for fault, findings, later, end in zip(planted, found, again, ends, strict=True):
        if fault is None:
            alarms += bool(findings)
            continue
        what = outcome(fault, findings, setting.replicas, end in clean)
        right = outcome(fault, later, setting.replicas, False) == "right"
        table[fault.where, what] += 1
        table[fault.where, AGAIN] += right and what != "rounded away"
        if what in BAD or (what != "rounded away" and not right):
            said = [(one.verdict, one.ranks, one.cause) for one in (*findings[:2], *later[:1])]
            print(f"{setting.layout}: {what}: {fault}: {said}", file=sys.stderr, flush=True)
    return table, alarms


def at_least(right: int, seen: int) -> float:
    """Which share of right ones is so small that as many as `right` of `seen`, or more, would come
    about in one case of twenty only."""
    low, high = 0.0, right / max(1, seen)
    for _ in range(60):
        share = (low + high) / 2
        tail = sum(
            math.comb(seen, n) * share**n * (1 - share) ** (seen - n)
            for n in range(right, seen + 1)
        )
        low, high = (share, high) if tail < 1 - SURE else (low, share)
    return low


class Kept:
    """Rounds that are done, in a file if there is one."""

    def __init__(self, path: Path | None, also: list[Path]) -> None:
        self._path = path
        self._done: dict[str, tuple[Table, int]] = {}
        files = [each for each in (path, *also) if each is not None and each.exists()]
        for one in [json.loads(line) for file in files for line in file.read_text().splitlines()]:
            self._done[one["round"]] = Table({tuple(k): n for k, n in one["table"]}), one["alarms"]

    def numbers(self, setting: str) -> set[int]:
        """Of the rounds of a setting that are done."""
        parted = [key.rpartition(" ") for key in self._done]
        return {int(number) for name, _, number in parted if name == setting}

    def get(self, key: str) -> tuple[Table, int] | None:
        return self._done.get(key)

    def add(self, key: str, table: Table, alarms: int) -> None:
        if self._path is not None:
            line = json.dumps({"round": key, "table": list(table.items()), "alarms": alarms})
            with self._path.open("a") as file:
                file.write(line + "\n")


def rounds_of(name: str, setting: Setting, asked: Any, kept: Kept) -> tuple[Table, int, int]:
    """All rounds of one setting together, their alarms, and how many they were."""
    table, alarms, node = Table(), 0, None
    numbers = {*range(asked.rounds), *kept.numbers(f"{asked.seed} {name}")}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in sorted(numbers):
                key = f"{asked.seed} {name} {number}"
                found = kept.get(key)
                if found is None:
                    node = node or conftest.Node(Path(folder), policy=POLICY)
                    found = one_round(node, setting, random.Random(key))
                    kept.add(key, *found)
                table += found[0]
                alarms += found[1]
        finally:
            if node is not None:
                node.close()
    return table, alarms, len(numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="*", help="pattern for the settings' names")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="file of rounds that are done")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more such files")
    asked = parser.parse_args()
    conftest.PATIENCE = 600.0  # the machine may be busy, and nothing here is timed
    kept, began = Kept(asked.keep, asked.also), time.monotonic()
    print(f"| setting | where | runs | {' | '.join(KINDS)} | {AGAIN} | clean runs | alarms |")
    print("|---|---|" + "---|" * (len(KINDS) + 4), flush=True)
    bad, seen, right, first = 0, Counter[int](), Counter[int](), Counter[int]()
    for name, setting in SETTINGS.items():
        if not fnmatch.fnmatch(name, asked.only):
            continue
        table, alarms, rounds = rounds_of(name, setting, asked, kept)
        for at, where in enumerate(setting.where):
            counts = [table[where, kind] for kind in (*KINDS, AGAIN)]
            clean = (rounds * CLEAN, alarms) if at == 0 else ("", "")
            cells = [name, where, sum(counts[:-1]), *counts, *clean]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            seen[setting.replicas] += sum(table[where, kind] for kind in SEEN)
            right[setting.replicas] += table[where, AGAIN]
            first[setting.replicas] += table[where, "right"]
        bad += alarms + sum(n for (_, what), n in table.items() if what in BAD)
    head = ("replicas", "changed anything", "right at first", "right in the end", "at least")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    rows = [(str(replicas), [replicas]) for replicas in sorted(seen)]
    for title, which in [*rows, ("all", sorted(seen))]:
        n, k = sum(seen[each] for each in which), sum(right[each] for each in which)
        told = sum(first[each] for each in which)
        bad += k < GOAL * n
        print(
            f"| {title} | {n} | {told} ({told / max(1, n):.1%}) | {k} ({k / max(1, n):.1%})"
            f" | {at_least(k, n):.1%} |"
        )
    took, load = (time.monotonic() - began) / 60, os.getloadavg()[0]
    print(f"\nSeed {asked.seed}; {took:.0f} minutes, load average {load:.1f} at the end.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""How often clean trainings are accused, by every check of their numbers, in each layout:

    .venv/bin/python bench/clean_checks.py [--steps 100] [--only 'ddp*']

Four processes under a real agent talk through Gloo and train the models of
bench/scripts/replicated.py, which nothing happens to. Every step is digested, every micro-batch
computed again by a neighbour, every recomputation of activations and every update compared; the
judgement is that of the functions which the controller calls. Prints a Markdown table of how many
comparisons were made and how many alarms were raised; exits 1 when there was one, or when a check
made no comparison where docs/masked.md says that it does.
"""

import argparse
import fnmatch
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.run import faulting
from tests.run.node import conftest

RANKS = 4
CHECKS = ("micro-batches", "recomputations", "updates")
MADE = {
    "ddp": {"micro-batches", "updates"},
    "ddp_checkpointed": {"micro-batches", "recomputations", "updates"},
    "zero1": {"micro-batches"},
    "fsdp": {"micro-batches", "updates"},
    "hsdp": {"micro-batches", "updates"},
    "tp_dp": {"micro-batches", "updates"},
    "pp_dp": {"micro-batches", "updates"},
    "pipelined": {"micro-batches", "updates"},
}
"""What must have been compared, by layout."""
_END = """
from harness.worker.guest import current
auditor = current().auditor
made = auditor.replays.looks, auditor.recomputes.looks, auditor.updates.looks
print("made", *made, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def one(node: conftest.Node, layout: str, steps: int) -> tuple[int, dict[str, int], list[str]]:
    """Looks at digests, what else was compared on all ranks together, and alarms."""
    training = f"done = replicated.train({layout!r}, steps={steps})\n"
    faulting.run(node, faulting.BEGIN + training + _END, RANKS)
    told = [node.log(rank).split("made ", 1)[1].split()[:3] for rank in range(RANKS)]
    each = [sum(map(int, of_ranks)) for of_ranks in zip(*told, strict=True)]
    made = dict(zip(CHECKS, each, strict=True))
    tracks = faulting.folded(node, RANKS).replicas.tracks.values()
    looks = sum(track.looks for track in tracks if track.part.how not in ("learnt", "sharded"))
    return looks, made, [found.cause for found in faulting.claims(node, RANKS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", default="*", help="pattern for the layouts' names")
    asked = parser.parse_args()
    conftest.PATIENCE = 600.0  # the machine may be busy, and nothing here is timed
    columns = ("digests", *CHECKS, "alarms")
    print(f"| layout | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}", flush=True)
    total, bad = [0] * len(columns), 0
    for layout in (each for each in MADE if fnmatch.fnmatch(each, asked.only)):
        with tempfile.TemporaryDirectory() as folder:
            node = conftest.Node(Path(folder), policy=faulting.ALL)
            try:
                looks, made, alarms = one(node, layout, asked.steps)
            finally:
                node.close()
        row = [looks, *made.values(), len(alarms)]
        total = [a + b for a, b in zip(total, row, strict=True)]
        print(f"| {layout} | {' | '.join(map(str, row))} |", flush=True)
        idle = [what for what in MADE[layout] if not made[what]]
        for said in (*alarms, *(f"no {what} compared" for what in idle)):
            print(f"{layout}: {said}", file=sys.stderr, flush=True)
            bad += 1
    print(f"| all | {' | '.join(map(str, total))} |")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

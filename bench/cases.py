"""Real failures as small scripts, each run under `harness run` and held against its right verdict.

    .venv/bin/python bench/cases.py DIR... [--only PATTERN] [--families crash,healthy]

DIR holds one folder a case: `train.py`, `case.json` (how it is launched, and under `accept` the
classes, first-failing ranks and actions that are right), and `prep.py` where something must be
there first. Prints a Markdown table; exits 1 when a verdict is wrong.
"""

import argparse
import fnmatch
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import running


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one case came to; `wrong` is empty when it was judged right."""

    name: str
    family: str
    said: str
    seconds: float
    wrong: str


def run_case(folder: Path) -> Outcome:
    """Run the case in an empty directory of its own and judge the report."""
    case = json.loads((folder / "case.json").read_text())
    told, prepare = case["launch"], folder / "prep.py"
    how = running.Launch(
        nproc=told["nproc"],
        nnodes=told["nnodes"],
        args=told["args"],
        env=told["env"],
        timeout=told["timeout_s"],
    )
    with running.run(folder / "train.py", how, prepare if prepare.exists() else None) as ran:
        said, wrong = judge(case, ran)
        return Outcome(
            name=case["id"],
            family=case["expected_family"],
            said=said,
            seconds=ran.seconds,
            wrong=wrong,
        )


def judge(case: dict[str, Any], ran: running.Ran) -> tuple[str, str]:
    """What was said in short, and what of it is wrong."""
    if case["expected_family"] == "healthy":
        said = f"{len(ran.incidents)} incidents, exit {list(ran.codes)}"
        return said, "" if ran.at_peace else "not left in peace"
    if not ran.incidents:
        return f"nothing, exit {list(ran.codes)}", "no incident"
    first, accept = ran.incidents[0], case["accept"]
    said = f"{first['class']} {first['first_failing']} {first['action']}"
    checks = {
        "class": first["class"] in accept["classes"],
        "ranks": sorted(first["first_failing"]) in accept["ranks"],
        "action": first["action"] in accept["actions"],
    }
    return said, ", ".join(name for name, right in checks.items() if not right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("dir", type=Path, nargs="+")
    parser.add_argument("--only", default="*", help="pattern for the cases' names")
    parser.add_argument("--families", default="", help="comma-separated; default all")
    options = parser.parse_args()
    wanted = set(filter(None, options.families.split(",")))
    for folder in options.dir:
        if not folder.is_dir():
            parser.error(f"no such folder: {folder}")
    print("| case | family | said | s | wrong |\n|---|---|---|---|---|", flush=True)
    right = total = 0
    files = [file for folder in options.dir for file in sorted(folder.glob("*/case.json"))]
    for folder in (file.resolve().parent for file in files):
        family = json.loads((folder / "case.json").read_text())["expected_family"]
        if not fnmatch.fnmatch(folder.name, options.only) or (wanted and family not in wanted):
            continue
        outcome = run_case(folder)
        total += 1
        right += not outcome.wrong
        print(
            f"| {outcome.name} | {outcome.family} | {outcome.said} | {outcome.seconds:.1f} "
            f"| {outcome.wrong} |",
            flush=True,
        )
    print(f"\n{right} of {total} right")
    return 0 if right == total else 1


if __name__ == "__main__":
    sys.exit(main())

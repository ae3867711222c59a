"""Real failures as small scripts, each run under `harness run` and held against its right verdict.

    .venv/bin/python bench/cases.py DIR [--only PATTERN] [--families crash,healthy]

DIR holds one folder a case: `train.py`, `case.json` (how it is launched, and under `accept` the
classes, first-failing ranks and actions that are right), and `prep.py` where something must be
there first. Prints a Markdown table; exits 1 when a verdict is wrong.
"""

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RUN = "case"


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
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        if (folder / "prep.py").exists():
            subprocess.run([sys.executable, str(folder / "prep.py")], cwd=here, check=True)
        began = time.monotonic()
        codes = launch(case["launch"], folder / "train.py", here)
        seconds = time.monotonic() - began
        report = subprocess.run(
            [sys.executable, "-m", "harness", "report", "--json", _RUN],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )
    incidents = json.loads(report.stdout).get("incidents", []) if report.stdout else []
    said, wrong = judge(case, incidents, codes)
    return Outcome(
        name=case["id"], family=case["expected_family"], said=said, seconds=seconds, wrong=wrong
    )


def launch(how: dict[str, Any], script: Path, here: Path) -> list[int | None]:
    """Exit codes of the launchers, None for one that had to be stopped."""
    nodes, port = int(how["nnodes"]), 20000 + os.getpid() % 10000
    launchers = []
    for node in range(nodes):
        command = [sys.executable, "-m", "harness", "run", "--nproc-per-node", str(how["nproc"])]
        if nodes > 1:
            command += ["--nnodes", str(nodes), "--node-rank", str(node)]
            command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        if node == 0:
            command += ["--run-name", _RUN]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **how["env"]}
        if nodes > 1:
            environ["NODE"] = str(node)
        launchers.append(
            subprocess.Popen(
                [*command, *how["args"], str(script)],
                cwd=here,
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    deadline = time.monotonic() + float(how["timeout_s"])
    return [wait(process, deadline) for process in launchers]


def wait(process: "subprocess.Popen[bytes]", deadline: float) -> int | None:
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()
        return None


def judge(
    case: dict[str, Any], incidents: list[dict[str, Any]], codes: list[int | None]
) -> tuple[str, str]:
    """What was said in short, and what of it is wrong."""
    if case["expected_family"] == "healthy":
        said = f"{len(incidents)} incidents, exit {codes}"
        return said, "" if not incidents and codes == [0] * len(codes) else "not left in peace"
    if not incidents:
        return f"nothing, exit {codes}", "no incident"
    first, accept = incidents[0], case["accept"]
    said = f"{first['class']} {first['first_failing']} {first['action']}"
    checks = {
        "class": first["class"] in accept["classes"],
        "ranks": sorted(first["first_failing"]) in accept["ranks"],
        "action": first["action"] in accept["actions"],
    }
    return said, ", ".join(name for name, right in checks.items() if not right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--only", default="*", help="pattern for the cases' names")
    parser.add_argument("--families", default="", help="comma-separated; default all")
    options = parser.parse_args()
    wanted = set(filter(None, options.families.split(",")))
    print("| case | family | said | s | wrong |\n|---|---|---|---|---|", flush=True)
    right = total = 0
    for folder in sorted(path.parent for path in options.dir.resolve().glob("*/case.json")):
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

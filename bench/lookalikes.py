"""Clean runs that look like failures: none may raise an incident, each must end with exit code 0.

    .venv/bin/python bench/lookalikes.py [--times 2] [--only PATTERN]

Runs every script of tests/lookalikes under `harness run` with three ranks. Prints a Markdown
table; exits 1 when one was not left in peace.
"""

import argparse
import fnmatch
import sys
from pathlib import Path

import running

SCRIPTS = Path(__file__).resolve().parents[1] / "tests" / "lookalikes"
HOW = running.Launch(nproc=3, timeout=90)


def run_script(script: Path) -> tuple[bool, str]:
    """Whether it was left in peace, and its row of the table."""
    with running.run(script, HOW) as ran:
        said = "; ".join(
            f"{told['class']} {told['first_failing']} {told['action']}: {told['reason']}"
            for told in ran.incidents
        )
        row = f"| {script.stem} | {ran.codes[0]} | {ran.seconds:.1f} | {said} |"
        return ran.at_peace, row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=1, help="how often each is run")
    parser.add_argument("--only", default="*", help="pattern for the scripts' names")
    options = parser.parse_args()
    scripts = [path for path in sorted(SCRIPTS.glob("*.py")) if matches(path, options.only)]
    print("| script | exit code | s | incidents |\n|---|---|---|---|", flush=True)
    peaceful = 0
    for _ in range(options.times):
        for script in scripts:
            at_peace, row = run_script(script)
            peaceful += at_peace
            print(row, flush=True)
    total = len(scripts) * options.times
    print(f"\n{peaceful} of {total} left in peace")
    return 0 if peaceful == total else 1


def matches(script: Path, pattern: str) -> bool:
    return fnmatch.fnmatch(script.stem, pattern)


if __name__ == "__main__":
    sys.exit(main())

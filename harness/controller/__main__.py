"""`python -m harness.controller`: started by the launcher on the head node, not by people."""

import argparse
import signal
import sys
from pathlib import Path

from harness import recovery, report
from harness.controller.process import Options, run_controller


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.controller", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--bind", required=True, metavar="ADDR:PORT")
    parser.add_argument("--ready-fd", type=int, default=-1)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = Options(run_dir=given.run_dir, bind=given.bind, ready_fd=given.ready_fd)
    return run_controller(options, recovery, report)


if __name__ == "__main__":
    sys.exit(main())

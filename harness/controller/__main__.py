"""`python -m harness.controller`: started by the launcher on the head node, not by people."""

import sys

from harness import recovery, report
from harness.controller.process import read_options, run_controller

if __name__ == "__main__":
    sys.exit(run_controller(read_options(), recovery, report))

"""Becomes any other program (`--no-python`): bound to the agent, in its own session."""

import os
import sys

from harness.worker import process


def main() -> None:
    """`argv`: pid of the agent, program, arguments."""
    agent, *command = sys.argv[1:]
    if not process.bind_to_parent(int(agent)):
        sys.exit("harness: the agent that started this worker is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"harness: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)

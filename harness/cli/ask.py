"""Asking a run's controller for something, and its answer in its own words."""

import getpass
import json
import os
from pathlib import Path

from harness import runs
from harness.config import Job
from harness.errors import PlatformError, UsageError
from harness.orders import Command
from harness.wire import observer


def ask(run: str | None, runs_dir: str | None, command: Command) -> str:
    """Do `command` on `run` (None: the newest); returns what the controller says to it.

    Raises UsageError when there is no such run, when it has ended, or when it refuses.
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    address, token = door(found)
    accepted, why = observer.do_blocking(address, command, by=f"cli:{user()}", token=token)
    if not accepted:
        raise UsageError(f"refused: {why}")
    return why


def door(found: runs.RunFolder | runs.Endpoint) -> tuple[str, str]:
    """Address and token of the controller."""
    if isinstance(found, runs.Endpoint):
        return found.address, runs.token()
    try:
        raw = json.loads((found.path / "controller.json").read_text(encoding="utf-8"))
        address = str(raw["address"])
    except (OSError, ValueError, TypeError, KeyError):
        raise UsageError(
            f"run {found.name} has no controller", help="it is just starting, or never started"
        ) from None
    state = runs.read(found).state
    if state.ended is not None:
        raise UsageError(f"run {found.name} is over: it {state.ended.outcome}")
    return address, runs.token() or _token_of(found.path)


def _token_of(run_dir: Path) -> str:
    try:
        return Job.read(run_dir / "job.json").token
    except PlatformError:
        return ""


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, in containers
        return str(os.getuid())

"""Asking a run's controller for something, and its answer in its own words."""

import getpass
import json
import os
from dataclasses import dataclass

import click

from harness import runs
from harness.cli.reading import SCHEMA, print_json
from harness.config import Job
from harness.errors import Elsewhere, PlatformError, Refused, TooEarly
from harness.orders import Command
from harness.wire import observer
from harness.wire.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A controller's port and how to get in."""

    address: str
    token: str
    tls: Tls


def ask(found: runs.RunFolder | runs.Endpoint, command: Command) -> str:
    """Do `command` on the run; returns what the controller says to it.

    Raises UsageError when it has ended, cannot be reached from here, or refuses.
    """
    door = door_of(found)
    accepted, why = observer.do_blocking(
        door.address, command, f"cli:{user()}", door.token, door.tls
    )
    if not accepted:
        raise Refused(f"refused: {why}")
    return why


def tell(answer: str, *, done: bool, as_json: bool) -> None:
    """Show what the controller says. `done`: it was asked to do it, not only whether it would."""
    if as_json:
        print_json({"schema": SCHEMA, "done": done, "says": answer})
    elif done:
        click.echo(answer, err=True)
    else:
        click.echo(f"would be done: {answer}")


def door_of(found: runs.RunFolder | runs.Endpoint) -> Door:
    """Where the controller of a run is, and what it wants to see. Raises UsageError."""
    if isinstance(found, runs.Endpoint):
        return Door(address=found.address, token=runs.token(), tls=runs.tls())
    if found.packed:
        raise Elsewhere(
            "a bundle is how a run was; the run is not reached through it",
            help="give the run's name or directory on its own machine, or HOST:PORT",
        )
    try:
        raw = json.loads((found.path / "controller.json").read_text(encoding="utf-8"))
        address = str(raw["address"])
    except (OSError, ValueError, TypeError, KeyError):
        raise TooEarly(
            f"run {found.name} has no controller", help="it is just starting, or never started"
        ) from None
    state = runs.read(found).state
    if state.ended is not None:
        raise TooEarly(f"run {found.name} is over: it {state.ended.outcome}")
    try:
        job = Job.read(found.path / "job.json")
    except PlatformError:
        return Door(address=address, token=runs.token(), tls=runs.tls())
    return Door(address=address, token=runs.token() or job.token, tls=Tls.of_job(job))


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, in containers
        return str(os.getuid())

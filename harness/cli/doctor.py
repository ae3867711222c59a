"""`harness doctor`: is this machine fit, and do all ranks of a run have the same footing?"""

import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from harness import config as configuration
from harness import runs
from harness.cli.numbers import Whole
from harness.cli.output import note, with_colour
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json, reading_options
from harness.doctor import checks, cores, launched, limits, network, software, storage
from harness.doctor import ranks as of_run
from harness.doctor.checks import Check, Checker
from harness.errors import UsageError
from harness.placement import count_workers
from harness.settings import BY_NAME, parse

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "white"}
_WORDS: tuple[tuple[checks.Level, str], ...] = (
    ("ok", "well"),
    ("warn", "may do harm"),
    ("fail", "will do harm"),
)
_INDENT = 24


@click.command("doctor", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option(
    "--nproc-per-node",
    "--nproc_per_node",
    "nproc_per_node",
    metavar="N|auto|cpu|gpu",
    help="Ranks that this machine is to hold.  [default: of the run, or of harness.toml]",
)
@click.option(
    "--ranks",
    type=Whole(1, 512),
    metavar="N",
    help="Start N ranks that meet, measure and tell, and compare those.",
)
@click.option("--quiet", "-q", is_flag=True, help="Only what is not well.")
def command(
    run: str | None,
    runs_dir: str | None,
    as_json: bool,
    nproc_per_node: str | None,
    ranks: int | None,
    quiet: bool,
) -> int:
    """Check this machine, and whether the ranks of RUN run the same code, packages, arguments and
    environment, with as many parameters. Without RUN the newest run is looked at, if there is one.

    \b
      harness doctor
      harness doctor --ranks 8
      harness doctor swift-otter-12 --json | jq '.checks[] | select(.level != "ok")'

    Exit code: 0 all is well, 1 something may do harm, 2 something will.
    """
    config = _configure(runs_dir)
    if ranks is not None and (run is not None or nproc_per_node is not None):
        raise UsageError(
            "--ranks starts ranks of its own", help="leave out RUN and --nproc-per-node with it"
        )
    reading = None if ranks is not None else _reading(run, Path(config.runs_dir))
    count = ranks or _count(nproc_per_node, reading, config)
    found: list[Check] = []
    for check in _all(config, count, reading, own_ranks=ranks is not None):
        found.append(check)
        if not as_json and not (quiet and check.level in ("ok", "skip")):
            click.echo("\n".join(_lines(check)), color=with_colour())
    level = checks.worst(found)
    if as_json:
        print_json(_json(found, level, count, reading))
    else:
        click.echo(_summary(found, count, reading))
    return checks.EXIT_CODES[level]


def _configure(runs_dir: str | None) -> configuration.Config:
    return configuration.resolve({"runs_dir": runs_dir} if runs_dir else {})


def _reading(run: str | None, root: Path) -> runs.Reading | None:
    """None where there is no run yet; one that was named must be there."""
    try:
        reading = runs.read(runs.find(run, root))
    except runs.RunNotFound:
        if run is not None:
            raise
        return None
    for text in reading.notes:
        note(text)
    return reading


def _count(given: str | None, reading: runs.Reading | None, config: configuration.Config) -> int:
    """Ranks of this machine."""
    if given is not None:
        origin = "--nproc-per-node"
        value = parse(BY_NAME["nproc_per_node"], given, origin)
        told = configuration.Origin(value=value, origin=origin)
        config = configuration.Config({**config.values, "nproc_per_node": told})
    elif not config.given("nproc_per_node") and reading is not None:
        sizes = [node.local_world_size for node in reading.state.nodes.values()]
        if sizes:
            return max(sizes)
    return count_workers(config, sys.executable)


def _all(
    config: configuration.Config, count: int, reading: runs.Reading | None, *, own_ranks: bool
) -> Iterator[Check]:
    several = config.given("nnodes") or (reading is not None and len(reading.state.nodes) > 1)
    machine: list[tuple[str, Checker]] = [
        ("versions", software.versions),
        ("ptrace", software.ptrace),
        ("shared memory", lambda: storage.shared_memory(count)),
        ("disk", lambda: storage.disk(Path(config.runs_dir))),
        ("temporary files", storage.temporary),
        ("memory", lambda: storage.memory(count)),
        ("open files", lambda: limits.open_files(count)),
        ("processes", lambda: limits.tasks(count)),
        ("ports", network.ports),
        ("host name", network.host_name),
        ("clock", lambda: network.clock(several=several)),
        ("cores", lambda: cores.count(count)),
        ("core speed", cores.speed),
        ("settings", _settings),
    ]
    yield from checks.run(machine)
    if own_ranks:
        yield from checks.run([("ranks", lambda: launched.compare(count))])
    if reading is not None:
        state = reading.state
        yield from checks.run([("ranks", lambda: of_run.side_by_side(state))])


def _settings() -> Iterable[Check]:
    """Files of settings were read on the way here; what is left are variables without effect."""
    import os

    odd = configuration.unknown_variables(os.environ)
    files = [str(path) for path, _ in configuration.config_files(os.environ, Path.cwd())]
    if odd:
        help = "correct or unset them; harness config show tells what counts"
        return [Check(name="settings", level="warn", says="; ".join(odd), help=help)]
    says = f"from {', '.join(files)}" if files else "no file of settings; all are defaults"
    return [Check(name="settings", level="ok", says=says, facts={"files": files})]


def _lines(check: Check) -> list[str]:
    word = click.style(f"{check.level:<5}", fg=_COLOURS[check.level], bold=check.level != "skip")
    lines = [f"{word} {check.name:<17} {check.says}"]
    if check.help and check.level in ("warn", "fail"):
        lines.append(f"{'':{_INDENT - 1}} help: {check.help}")
    return lines


def _summary(found: list[Check], count: int, reading: runs.Reading | None) -> str:
    levels = [check.level for check in found]
    parts = [f"{levels.count(level)} {word}" for level, word in _WORDS if levels.count(level)]
    who = f"{socket.gethostname()}, {count} rank{'' if count == 1 else 's'}"
    run = "" if reading is None or reading.state.run is None else f", run {reading.state.run.run}"
    return f"{who}{run}: {', '.join(parts) or 'nothing could be looked at'}"


def _json(
    found: list[Check], level: checks.Level, count: int, reading: runs.Reading | None
) -> dict[str, Any]:
    """By harness/schemas/doctor.schema.json."""
    run = None if reading is None or reading.state.run is None else reading.state.run.run
    return {
        "schema": SCHEMA,
        "host": socket.gethostname(),
        "ranks": count,
        "run": run,
        "level": level,
        "checks": [
            {
                "name": check.name,
                "level": check.level,
                "says": check.says,
                "help": check.help or None,
                "facts": dict(check.facts),
                "seconds": check.seconds,
            }
            for check in found
        ],
    }

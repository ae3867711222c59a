"""`harness bundle`: a run in one file that can be given away, and opened elsewhere."""

import getpass
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from harness import bundles, journal, runs
from harness.bundles import BundleError, Packed, Source
from harness.cli.completing import complete_files
from harness.cli.output import note
from harness.cli.reading import (
    SCHEMA,
    SETTINGS,
    ReadingCommand,
    on_this_machine,
    print_json,
    reading_options,
)
from harness.ranklogs import attempts, rank_files
from harness.redact import Redactor
from harness.sizes import size_text
from harness.state import RunState
from harness.version import version

_TAIL = 256 << 10
_LOGS = 64 << 20


@click.command("bundle", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    shell_complete=complete_files,
    help="Where to.  [default: NAME.bundle.tar.gz]",
)
@click.option(
    "--logs",
    type=click.Choice(["tail", "all", "none"]),
    default="tail",
    metavar="tail|all|none",
    help="What ranks printed: the last 256 KiB of each, 64 MiB in all.  [default: tail]",
)
@click.option("--names", is_flag=True, help="Leave names of hosts, users and addresses in it.")
def command(
    run: str | None, runs_dir: str | None, as_json: bool, out: str | None, logs: str, names: bool
) -> None:
    """Pack RUN (a name or directory; default: the newest) into one file that can be given away:
    journal, incidents with their evidence, settings and logs. Secrets are taken out.

    \b
      harness bundle
      harness bundle swift-otter-12 --logs none -o for-support.tar.gz
      harness report for-support.tar.gz

    Everything that takes a RUN takes the file: report, status, logs, trace, replay, tui.
    """
    found = on_this_machine(runs.find(run, runs.runs_dir(runs_dir)))
    if found.packed:
        raise BundleError(f"{run} is a bundle already", help="give the run that it was made of")
    reading = runs.read(found)
    for text in reading.notes:
        note(text)
    target = Path(out or f"{found.name}{bundles.SUFFIX}")
    redactor = _redactor(reading.state, names)
    sources = [*_files(found.path), *_logs(found.path, reading.state, logs)]
    packed = bundles.pack(target, sources, redactor, run=found.name, harness=version())
    if as_json:
        print_json(_json(target, found.name, packed, redactor))
        return
    click.echo(_text(target, packed, redactor), err=True)
    for left in packed.left_out:
        note(f"left out: {left}")


def _redactor(state: RunState, names: bool) -> Redactor:
    if names:
        return Redactor()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, in containers
        user = ""
    hosts = [node.host for node in state.nodes.values()]
    return Redactor(home=os.path.expanduser("~"), user=user, hosts=hosts)


def _files(run: Path) -> Iterator[Source]:
    """All but logs, sockets' addresses, and job.json: that one holds the token."""
    for name in (journal.FILE_NAME, journal.TORN_NAME, "config.json", "controller.log"):
        if (run / name).is_file():
            yield Source(path=run / name, name=name)
    for path in sorted((run / "incidents").rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield Source(path=path, name=path.relative_to(run).as_posix())


def _logs(run: Path, state: RunState, which: str) -> Iterator[Source]:
    """Those of ranks that failed first come first, then rank 0, while there is room."""
    if which == "none":
        return
    failed = {rank for each in state.incidents for rank in each.verdict.first_failing}
    left = _LOGS
    for index in attempts(run):
        files = rank_files(run, index)
        for rank in sorted(files, key=lambda rank: (rank not in failed, rank)):
            path = files[rank]
            most = None if which == "all" else min(_TAIL, left)
            if most == 0:
                return
            left -= min(path.stat().st_size, _TAIL)
            left = max(0, left)
            yield Source(path=path, name=path.relative_to(run).as_posix(), most=most)


def _text(target: Path, packed: Packed, redactor: Redactor) -> str:
    counts = ", ".join(f"{count} x {what}" for what, count in sorted(redactor.counts.items()))
    cut = sum(not each["whole"] for each in packed.files)
    lines = [
        f"{target}: {len(packed.files)} files, {size_text(packed.bytes)}",
        f"taken out: {counts or 'nothing'}; look at it before you give it away",
    ]
    if cut:
        logs = "1 log" if cut == 1 else f"{cut} logs"
        lines.append(f"of {logs} only the end is in it; --logs all takes them whole")
    lines.append(f"open it with: harness report {target}")
    return "\n".join(lines)


def _json(target: Path, run: str, packed: Packed, redactor: Redactor) -> dict[str, Any]:
    """By harness/schemas/bundle.schema.json."""
    return {
        "schema": SCHEMA,
        "run": run,
        "file": str(target),
        "bytes": packed.bytes,
        "redacted": dict(sorted(redactor.counts.items())),
        "files": [
            {"name": each["name"], "bytes": each["bytes"], "whole": each["whole"]}
            for each in packed.files
        ],
        "left_out": packed.left_out,
    }

"""`harness tui`: watch a run on a full screen, live, once more, or in a browser."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness import config, runs
from harness.cli.completing import complete_runs, runs_dir_option
from harness.cli.numbers import Number, Whole
from harness.cli.output import without_colour
from harness.cli.reading import SETTINGS
from harness.errors import (
    Elsewhere,
    ExitCode,
    HarnessError,
    NodeFailure,
    ScreenError,
    SettingsError,
    UsageError,
)
from harness.faults import Fault
from harness.orders import Command

if TYPE_CHECKING:
    from harness.tui.feed import Feed
    from harness.tui.pages.listing import FaultKind
    from harness.tui.shell import Options

_CONNECT_SECONDS = 3.0
_WITHOUT_TITLE = ("vt100", "vt102", "vt220", "linux", "ansi")
"""Terminals that would print what they are told to be called."""
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_NUMBERS = ("flops-per-token", "peak-tflops")


@click.command("tui", context_settings=SETTINGS)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--replay", is_flag=True, help="Play the run once more, from its beginning.")
@click.option("--readonly", is_flag=True, help="Take away the keys that change the run.")
@click.option("--serve", is_flag=True, help="Show it in a browser, read-only, on this machine.")
@click.option(
    "--port", type=Whole(0, 65535), default=8000, metavar="PORT",
    help="Where --serve listens; 0: any free one.  [default: 8000]",
)  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Let browsers change the run too.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@click.option(
    "--flops-per-token", type=Number(), metavar="N", help="Of the model, for MFU: 6 x size."
)
@click.option("--peak-tflops", type=Number(), metavar="N", help="Of one device, for MFU.")
@runs_dir_option
def command(
    run: str | None,
    runs_dir: str | None,
    replay: bool,
    readonly: bool,
    serve: bool,
    port: int,
    allow_changes: bool,
    ascii_only: bool,
    flops_per_token: float | None,
    peak_tflops: float | None,
) -> int:
    """Watch RUN (a name, a directory or HOST:PORT; default: the newest), live or finished.

    \b
      harness tui
      harness tui swift-otter-12 --replay
      harness tui 10.0.0.7:4711 --readonly
      harness tui --serve                     # then open http://127.0.0.1:8000

    q or Ctrl-C leaves; the run goes on. ? shows all keys. Keys of your own stand in [tui.keys] of
    harness.toml, the numbers for MFU in [tui].
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    if replay and isinstance(found, runs.Endpoint):
        raise Elsewhere(
            "--replay needs the run's journal, which is not here",
            help="give the run's name or directory on its own machine",
        )
    if serve:
        where = found.address if isinstance(found, runs.Endpoint) else str(found.path)
        if run and isinstance(found, runs.RunFolder) and found.packed:
            where = str(Path(run).resolve())
        flags = [
            *(["--replay"] if replay else []),
            *([] if allow_changes and not readonly else ["--readonly"]),
            *(["--ascii"] if ascii_only else []),
            *_given("--flops-per-token", flops_per_token),
            *_given("--peak-tflops", peak_tflops),
        ]
        return _serve([where, *flags], port)
    if allow_changes:
        raise UsageError("--allow-changes is about browsers", help="give it together with --serve")
    options = _options(
        found, run, readonly, ascii_only,
        {"flops-per-token": flops_per_token, "peak-tflops": peak_tflops},
    )  # fmt: skip
    _check_terminal()
    if isinstance(found, runs.Endpoint):
        _check_answers(found.address)
    return _run_app(found, options, replay)


def _given(name: str, value: float | None) -> list[str]:
    return [] if value is None else [name, f"{value:g}"]


def in_browser() -> bool:
    """Whether this process is the one behind a browser's page: no terminal, a socket of the
    server's."""
    return "WebDriver" in os.environ.get("TEXTUAL_DRIVER", "")


def _check_terminal() -> None:
    if in_browser():
        return
    if os.environ.get("TERM", "dumb") == "dumb" or not all(
        stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    ):
        raise ScreenError(
            "harness tui needs a terminal on stdin, stdout and stderr",
            help="without one, use harness status, logs -f or report",
        )


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise NodeFailure(
            f"no controller answers at {address}: {why}",
            help="the address stands in controller.json of the run",
        ) from None


def _options(
    found: runs.RunFolder | runs.Endpoint,
    run: str | None,
    readonly: bool,
    ascii_only: bool,
    given: dict[str, float | None],
) -> "Options":
    from harness.cli.inject import read_line
    from harness.tui.keymap import keymap
    from harness.tui.shell import Options

    table, origin = config.other_table("tui")
    known = {"keys", *_NUMBERS}
    for name in table:
        if name.replace("_", "-") not in known:
            raise SettingsError(
                f"{origin}: unknown key 'tui.{name}'", help=f"there are {', '.join(sorted(known))}"
            )
    keys = table.get("keys", {})
    if not isinstance(keys, dict):
        raise SettingsError(f"{origin}: tui.keys is not a table")

    def read_fault(line: str) -> Fault:
        return read_line(line, found)

    return Options(
        run_argument=run or "",
        ascii_only=ascii_only,
        readonly=readonly,
        title=not in_browser() and os.environ["TERM"] not in _WITHOUT_TITLE,
        files=not in_browser(),
        keys=keymap(keys, origin),
        kinds=_kinds,
        read_fault=read_fault,
        flops_per_token=_number("flops-per-token", given, table),
        peak_tflops=_number("peak-tflops", given, table),
    )


def _number(name: str, given: dict[str, float | None], table: dict[str, Any]) -> float:
    value = given[name]
    if value is None:
        value = table.get(name, table.get(name.replace("-", "_"), 0.0))
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise SettingsError(f"{name} is a number above zero, not {value!r}")
    return float(value)


def _kinds() -> Sequence["FaultKind"]:
    """All kinds of fault in words: the screens do not know the code that does them."""
    from harness.chaos import kinds
    from harness.tui.pages.listing import FaultKind, Parameter

    return [
        FaultKind(
            name=kind.name,
            area=kind.area,
            summary=kind.summary,
            said=kinds.said(kind),
            on_node=kind.on_node,
            needs=kind.needs,
            note=kind.note,
            parameters=tuple(
                Parameter(name=each.name, default=str(each.default), help=each.help)
                for each in kind.parameters
            ),
        )
        for kind in kinds.everything()
    ]


def _run_app(found: runs.RunFolder | runs.Endpoint, options: "Options", replay: bool) -> int:
    # A log line or a message of gRPC's C core on stderr would be drawn over the screen.
    logging.getLogger("harness").addHandler(logging.NullHandler())
    logging.getLogger("harness").propagate = False
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if not in_browser():
        for name in ("COLUMNS", "LINES"):
            # Exported by some shells and by readline, and stale as soon as the window changes.
            os.environ.pop(name, None)
    if without_colour():
        os.environ["NO_COLOR"] = "1"  # the app looks for it when it is made
    from harness.garbage import collect_seldom
    from harness.tui.app import HarnessApp
    from harness.tui.logwatch import LogWatch

    collect_seldom()
    feed = _feed(found, replay)
    logs = None if isinstance(found, runs.Endpoint) else LogWatch(found.path)
    packed = isinstance(found, runs.RunFolder) and found.packed
    app = HarnessApp(
        feed,
        options,
        logs=logs,
        do=None if replay or packed else _doer(found),
        clock=(lambda: feed.model.state.last_ns) if packed and not replay else None,
    )
    feed.start()
    if logs is not None:
        logs.start()
    try:
        _say_to_terminal(_SAVE_TITLE, options)
        app.run()
    finally:
        _say_to_terminal(_RESTORE_TITLE, options)
        feed.stop()
        if logs is not None:
            logs.stop()
    if app.bug is not None:
        raise app.bug
    return app.return_code if app.return_code is not None else ExitCode.INTERNAL


def _say_to_terminal(text: str, options: "Options") -> None:
    if options.title:
        with suppress(OSError):  # it is gone
            print(text, end="", file=sys.stderr, flush=True)


def _feed(found: runs.RunFolder | runs.Endpoint, replay: bool) -> "Feed":
    from harness.tui.feed import controller_feed, journal_feed
    from harness.tui.replay import ReplayFeed

    if isinstance(found, runs.Endpoint):
        return controller_feed(found.address, runs.token(), runs.tls())
    if replay:
        return ReplayFeed(found.journal)
    return journal_feed(found.journal, label="BUNDLE" if found.packed else "LIVE")


def _doer(found: runs.RunFolder | runs.Endpoint) -> Callable[[Command], tuple[bool, str]]:
    """What carries out a command, in the words of `harness stop` and `harness inject`."""

    def do(command: Command) -> tuple[bool, str]:
        from harness.cli.ask import ask

        try:
            return True, ask(found, command)
        except HarnessError as error:
            return False, error.message

    return do


def _serve(arguments: list[str], port: int) -> int:
    try:
        from harness.tui.web import serve
    except ModuleNotFoundError as error:
        raise ScreenError(
            f"--serve needs {error.name}, which is not installed",
            help='pip install "train-harness[web]"',
        ) from None
    serve([sys.executable, "-m", "harness", "tui", *arguments], port)
    return ExitCode.OK

"""`harness tui`: watch a run on a full screen."""

import logging
import os
import socket
import sys
from collections.abc import Callable

import click

from harness import runs
from harness.cli.reading import SETTINGS
from harness.errors import ExitCode, HarnessError, UsageError
from harness.orders import Command

_CONNECT_SECONDS = 3.0


@click.command("tui", context_settings=SETTINGS)
@click.argument("run", required=False)
@click.option("--runs-dir", metavar="DIR", help="Where runs are.  [default: runs]")
@click.option("--readonly", is_flag=True, help="Take away the keys that change the run.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
def command(run: str | None, runs_dir: str | None, readonly: bool, ascii_only: bool) -> int:
    """Watch RUN (a name, a directory or HOST:PORT; default: the newest), live or finished.

    \b
      harness tui
      harness tui swift-otter-12
      harness tui 10.0.0.7:4711 --readonly

    q or Ctrl-C leaves; the run goes on. ? shows all keys.
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    _check_terminal()
    if isinstance(found, runs.Endpoint):
        _check_answers(found.address)
    return _run_app(found, run, readonly, ascii_only)


def _check_terminal() -> None:
    if os.environ.get("TERM", "dumb") == "dumb" or not all(
        stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    ):
        raise UsageError(
            "harness tui needs a terminal on stdin, stdout and stderr",
            help="without one, use harness status, logs -f or report",
        )


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise UsageError(
            f"no controller answers at {address}: {why}",
            help="the address stands in controller.json of the run",
        ) from None


def _run_app(
    found: runs.RunFolder | runs.Endpoint, run: str | None, readonly: bool, ascii_only: bool
) -> int:
    # A log line or a message of gRPC's C core on stderr would be drawn over the screen.
    logging.getLogger("harness").addHandler(logging.NullHandler())
    logging.getLogger("harness").propagate = False
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for name in ("COLUMNS", "LINES"):
        # Exported by some shells and by readline, and stale as soon as the window changes.
        os.environ.pop(name, None)
    from harness.tui.app import HarnessApp
    from harness.tui.feed import controller_feed, journal_feed
    from harness.tui.logwatch import LogWatch

    if isinstance(found, runs.Endpoint):
        feed, logs = controller_feed(found.address, runs.token()), None
    else:
        feed, logs = journal_feed(found.journal), LogWatch(found.path)
    app = HarnessApp(
        feed,
        logs=logs,
        do=None if readonly else _doer(found),
        run_argument=run or "",
        ascii_only=ascii_only,
    )
    feed.start()
    if logs is not None:
        logs.start()
    try:
        app.run()
    finally:
        feed.stop()
        if logs is not None:
            logs.stop()
    if app.bug is not None:
        raise app.bug
    return app.return_code if app.return_code is not None else ExitCode.INTERNAL


def _doer(found: runs.RunFolder | runs.Endpoint) -> Callable[[Command], tuple[bool, str]]:
    """What carries out a command, in the words of `harness stop` and `harness inject`."""

    def do(command: Command) -> tuple[bool, str]:
        from harness.cli.ask import ask

        where = found.address if isinstance(found, runs.Endpoint) else str(found.path)
        try:
            return True, ask(where, None, command)
        except HarnessError as error:
            return False, error.message

    return do

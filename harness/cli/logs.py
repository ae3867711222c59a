"""`harness logs`: what the ranks printed, equal lines of several ranks folded into one."""

import contextlib
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from harness import runs
from harness.cli.choosing import ranks_where, where_option
from harness.cli.numbers import Whole
from harness.cli.output import note, with_colour
from harness.cli.reading import SETTINGS, ReadingCommand, print_json, reading_options
from harness.errors import Elsewhere, FilterError, TooEarly, UsageError
from harness.ranklogs import (
    LogLine,
    LogTail,
    attempts,
    interleave,
    offset_of_last,
    rank_files,
    read_lines,
)
from harness.runfollow import RunFollow
from harness.topology import ranks_text

FOLLOW_LINES = 10
_INTERVAL = 0.2


@click.command("logs", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks, such as 0-3,7.")
@where_option
@click.option("--attempt", metavar="N", help="Attempt N, or all.  [default: the newest]")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends, over restarts.")
@click.option("--grep", metavar="RE", help="Only lines in which this expression is found.")
@click.option("--unfold", is_flag=True, help="One line per rank, equal lines too.")
@click.option(
    "--lines",
    "-n",
    type=Whole(least=0),
    metavar="N",
    help=f"Only the last N lines.  [default: all; with -f: {FOLLOW_LINES}]",
)
def command(
    run: str | None,
    runs_dir: str | None,
    as_json: bool,
    ranks: str | None,
    where: str | None,
    attempt: str | None,
    follow: bool,
    grep: str | None,
    unfold: bool,
    lines: int | None,
) -> None:
    """Show what the ranks of RUN printed (a name or directory; default: the newest).

    \b
      harness logs -f
      harness logs --rank 0-3,7 --grep 'loss|error'
      harness logs swift-otter-12 --attempt 0 --lines 50

    The files are under RUN/logs. They hold no times: lines of one rank keep their order, equal
    lines of several ranks meet. With --json, one object a line: attempt, ranks, text.
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    if isinstance(found, runs.Endpoint):
        raise Elsewhere(
            f"the logs of {found.address} lie on its own machines",
            help="give the run's name or directory there",
        )
    chosen = parse_ranks(ranks) if ranks is not None else None
    if where is not None:
        there = ranks_where(runs.read(found).state, where)
        chosen = there if chosen is None or there is None else chosen & there
    matches = _compiled(grep)
    write = _Writer(found, as_json=as_json, unfold=unfold)
    if follow:
        if attempt is not None:
            raise UsageError("--attempt and --follow exclude each other")
        try:
            _follow(found, write, chosen, matches, FOLLOW_LINES if lines is None else lines)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        return
    wanted = _attempts(found, attempt)
    for index in wanted:
        files = rank_files(found.path, index)
        missing = sorted(chosen - files.keys()) if chosen is not None else []
        if missing:
            raise FilterError(
                f"no log of rank {ranks_text(missing)} in attempt {index}",
                help=f"it has logs of ranks {ranks_text(list(files))}",
            )
        if len(wanted) > 1 and not as_json:
            note(f"attempt {index}")
        write(_lines_of(files, index, chosen, matches, lines))
    if not (write.wrote or as_json or lines == 0):
        note("no line is like that" if matches is not None else "nothing was printed so far")


def parse_ranks(text: str) -> frozenset[int]:
    """`0-3,7` as a set. Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise FilterError(f"--rank {text}: {part!r} is not a rank or a range such as 0-3")
        if int(match[2] or match[1]) - int(match[1]) > 1_000_000:
            raise FilterError(f"--rank {text}: more than a million ranks")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def _compiled(grep: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(grep) if grep is not None else None
    except re.error as error:
        raise FilterError(f"--grep {grep}: not a regular expression: {error}") from None


def _attempts(found: runs.RunFolder, asked: str | None) -> list[int]:
    known = attempts(found.path)
    if not known:
        raise TooEarly(
            f"run {found.name} has no logs yet", help="wait until its ranks are started, or use -f"
        )
    if asked is None:
        return known[-1:]
    if asked == "all":
        return known
    if not asked.isdecimal():
        raise FilterError(f"--attempt {asked}: give a number, or all")
    if int(asked) not in known:
        raise TooEarly(
            f"run {found.name} has no attempt {asked}",
            help=f"it has logs of attempt{'s' * (len(known) > 1)} {ranks_text(known)}",
        )
    return [int(asked)]


def _lines_of(
    files: dict[int, Path],
    attempt: int,
    chosen: frozenset[int] | None,
    matches: re.Pattern[str] | None,
    last: int | None,
) -> Iterable[LogLine]:
    """The folded lines of one attempt, read as a stream."""
    streams: dict[int, Iterator[str]] = {}
    for rank, path in files.items():
        if chosen is not None and rank not in chosen:
            continue
        # The last N folded lines lie within the last N of each file, unless lines are left out.
        start = offset_of_last(path, last) if last is not None and matches is None else 0
        texts = read_lines(path, start)
        streams[rank] = (
            texts if matches is None else (text for text in texts if matches.search(text))
        )
    woven = interleave(streams, attempt)
    return woven if last is None else deque(woven, maxlen=last)


class _Writer:
    """Prints log lines; a run of one rank needs no prefix."""

    def __init__(self, found: runs.RunFolder, *, as_json: bool, unfold: bool) -> None:
        self.found = found
        self.as_json = as_json
        self.unfold = unfold
        self.colour = with_colour()
        self._alone: dict[int, bool] = {}
        self.wrote = False

    def __call__(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self.wrote = True
            if self.unfold:
                for rank in line.ranks:
                    self._write(line, (rank,))
            else:
                self._write(line, line.ranks)

    def _write(self, line: LogLine, ranks: tuple[int, ...]) -> None:
        if self.as_json:
            print_json({"attempt": line.attempt, "ranks": list(ranks), "text": line.text})
            return
        if line.attempt not in self._alone:
            self._alone[line.attempt] = len(rank_files(self.found.path, line.attempt)) == 1
        prefix = "" if self._alone[line.attempt] else f"[r{ranks_text(ranks)}] "
        click.echo(prefix + line.text, color=self.colour)


def _follow(
    found: runs.RunFolder,
    write: _Writer,
    chosen: frozenset[int] | None,
    matches: re.Pattern[str] | None,
    last: int,
) -> None:
    """Prints new lines, attempt after attempt, until the run has ended or is gone."""
    with contextlib.closing(RunFollow(found)) as run:
        _follow_run(run, write, chosen, matches, last)


def _follow_run(
    run: RunFollow,
    write: _Writer,
    chosen: frozenset[int] | None,
    matches: re.Pattern[str] | None,
    last: int,
) -> None:
    found = run.found
    tail: LogTail | None = None
    while True:
        over = run.is_over()
        known = attempts(found.path)
        if tail is None and known:
            tail = LogTail(found.path, known[-1], chosen=chosen, matches=matches, last=last)
            first = tail.poll(final=True)
            write(first[len(first) - last :] if last else ())
        while tail is not None and tail.attempt < known[-1]:
            write(tail.poll(final=True))
            following = min(index for index in known if index > tail.attempt)
            tail = LogTail(found.path, following, chosen=chosen, matches=matches)
            if not write.as_json:
                note(f"attempt {following}")
        if tail is not None:
            write(tail.poll(final=over))
        if over:
            if run.gone:
                note("the run is gone without an end: no process of it is left")
            return
        time.sleep(_INTERVAL)

"""The log files of the ranks as one stream, equal lines of several ranks folded into one.

The files carry no times, so the order is made of two rules. Lines of one rank keep their order.
Between ranks, a line waits while another rank has the same line still ahead of it (within a
window of 256 lines), so that equal lines meet and are folded; lines that nobody else has ahead go
out in rank order, one of each rank per round. While following, a line waits no longer than one
round of reading for the other ranks.
"""

import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WINDOW = 256
MOST_BYTES = 1 << 20
"""A line longer than this is shown in pieces."""
_CHUNK = 1 << 16
_ATTEMPT = re.compile(r"attempt(\d+)")
_RANK = re.compile(r"rank(\d+)\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line, said by all of `ranks` (ascending)."""

    attempt: int
    ranks: tuple[int, ...]
    text: str


def attempts(run_dir: Path) -> list[int]:
    """Attempts that have logs, ascending."""
    return sorted(_numbered(run_dir / "logs", _ATTEMPT))


def rank_files(run_dir: Path, attempt: int) -> dict[int, Path]:
    """The log file of each rank of `attempt`, by rank, ascending."""
    return dict(sorted(_numbered(run_dir / "logs" / f"attempt{attempt}", _RANK).items()))


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = ((pattern.fullmatch(name), name) for name in names)
    return {int(match[1]): folder / name for match, name in found if match}


def shown(text: str) -> str:
    """A line as a terminal would leave it: of what carriage returns overwrote, the last part."""
    return text.rstrip("\r").rpartition("\r")[2]


class Weaver:
    """Merges the lines of several ranks; `feed` gives it lines, `take` draws folded ones."""

    def __init__(self, ranks: Iterable[int], attempt: int) -> None:
        self.attempt = attempt
        self._waiting: dict[int, deque[tuple[str, int]]] = {rank: deque() for rank in ranks}
        self._texts: dict[int, Counter[str]] = {rank: Counter() for rank in self._waiting}
        self._holders: Counter[str] = Counter()
        self.round = 0

    @property
    def ranks(self) -> list[int]:
        return list(self._waiting)

    def add_rank(self, rank: int) -> None:
        if rank not in self._waiting:
            self._waiting[rank] = deque()
            self._texts[rank] = Counter()

    def room(self, rank: int) -> int:
        """Lines that `rank` can be fed before its window is full."""
        return WINDOW - len(self._waiting[rank])

    def feed(self, rank: int, lines: Iterable[str]) -> None:
        texts = self._texts[rank]
        for text in lines:
            self._waiting[rank].append((text, self.round))
            texts[text] += 1
            if texts[text] == 1:
                self._holders[text] += 1

    def take(self, *, held_since: int | None = None) -> Iterator[LogLine]:
        """One round: the folded lines that can go now.

        With `held_since`, only lines that all ranks have, or that were fed in that round or
        before. Yields nothing when no line can go.
        """
        heads: dict[str, list[int]] = {}
        for rank, waiting in self._waiting.items():
            if waiting:
                heads.setdefault(waiting[0][0], []).append(rank)
        if held_since is not None:
            heads = {t: r for t, r in heads.items() if self._ripe(r, held_since)}
        free = [text for text, ranks in heads.items() if self._holders[text] == len(ranks)]
        if not free and heads:
            free = [max(heads, key=lambda text: (len(heads[text]), -min(heads[text])))]
        for text in sorted(free, key=lambda text: min(heads[text])):
            ranks = sorted(heads[text])
            for rank in ranks:
                self._drop_head(rank)
            yield LogLine(attempt=self.attempt, ranks=tuple(ranks), text=text)

    def _ripe(self, ranks: Sequence[int], held_since: int) -> bool:
        if len(ranks) == len(self._waiting):
            return True
        return any(self._waiting[rank][0][1] <= held_since for rank in ranks)

    def _drop_head(self, rank: int) -> None:
        text, _ = self._waiting[rank].popleft()
        texts = self._texts[rank]
        texts[text] -= 1
        if texts[text] == 0:
            del texts[text]
            self._holders[text] -= 1
            if self._holders[text] == 0:
                del self._holders[text]


def interleave(streams: Mapping[int, Iterator[str]], attempt: int) -> Iterator[LogLine]:
    """All lines of `streams`, folded; holds at most a window of lines per rank in memory."""
    weaver = Weaver(streams, attempt)
    open_streams = dict(streams)
    while True:
        for rank, stream in list(open_streams.items()):
            # Refilled by halves: topping up after every round would cost a call per line.
            if weaver.room(rank) < WINDOW // 2:
                continue
            lines = [line for _, line in zip(range(weaver.room(rank)), stream, strict=False)]
            weaver.feed(rank, lines)
            if not lines:
                del open_streams[rank]
        taken = list(weaver.take())
        if not taken and not open_streams:
            return
        yield from taken


def read_lines(path: Path, start: int = 0) -> Iterator[str]:
    """The lines of a log from byte `start` on, the last one also without its line end."""
    with path.open("rb") as file:
        file.seek(start)
        while line := file.readline(MOST_BYTES):
            yield shown(line.rstrip(b"\n").decode("utf-8", "replace"))


def offset_of_last(path: Path, count: int) -> int:
    """The byte at which the last `count` lines of a file begin, found from its end."""
    if count <= 0:
        return path.stat().st_size
    with path.open("rb") as file:
        size = end = file.seek(0, os.SEEK_END)
        seen = 0
        while end > 0:
            start = max(0, end - _CHUNK)
            file.seek(start)
            block = file.read(end - start)
            at = len(block)
            if end == size and block.endswith(b"\n"):
                at -= 1
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                seen += 1
                if seen == count:
                    return start + at + 1
            end = start
    return 0


class LogTail:
    """Follows the logs of one attempt: each `poll` is one round of reading.

    Files that appear later are taken up. `chosen` limits the ranks; `last` is how many lines of
    each file that is there at the start are given, None for all.
    """

    def __init__(
        self,
        run_dir: Path,
        attempt: int,
        *,
        chosen: frozenset[int] | None = None,
        last: int | None = None,
        matches: re.Pattern[str] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.attempt = attempt
        self.chosen = chosen
        self.matches = matches
        self._weaver = Weaver((), attempt)
        self._offsets: dict[int, int] = {}
        self._paths: dict[int, Path] = {}
        self._rests: dict[int, bytes] = {}
        self._look_for_files()
        if last is not None:
            for rank, path in self._paths.items():
                self._offsets[rank] = offset_of_last(path, last)

    def poll(self, *, final: bool = False) -> list[LogLine]:
        """Folded lines that have become due; with `final`, all that is left, torn lines too."""
        self._look_for_files()
        lines: list[LogLine] = []
        more = True
        while more:
            more = False
            for rank in self._paths:
                more |= self._read(rank, final)
            held_since = None if final else self._weaver.round - 1
            while taken := list(self._weaver.take(held_since=held_since)):
                lines += taken
        self._weaver.round += 1
        return lines

    def _look_for_files(self) -> None:
        for rank, path in rank_files(self.run_dir, self.attempt).items():
            if rank not in self._paths and (self.chosen is None or rank in self.chosen):
                self._paths[rank] = path
                self._offsets[rank] = 0
                self._rests[rank] = b""
                self._weaver.add_rank(rank)

    def _read(self, rank: int, final: bool) -> bool:
        """Read a piece of a rank's new bytes; whether there may be more at once."""
        try:
            with self._paths[rank].open("rb") as file:
                file.seek(self._offsets[rank])
                block = file.read(_CHUNK)
        except FileNotFoundError:
            return False
        self._offsets[rank] += len(block)
        *lines, rest = (self._rests[rank] + block).split(b"\n")
        ended = final and len(block) < _CHUNK
        if rest and (ended or len(rest) > MOST_BYTES):
            lines.append(rest)
            rest = b""
        self._rests[rank] = rest
        texts = [shown(line.decode("utf-8", "replace")) for line in lines]
        if self.matches is not None:
            texts = [text for text in texts if self.matches.search(text)]
        self._weaver.feed(rank, texts)
        return len(block) == _CHUNK

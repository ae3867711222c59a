"""Log bytes to console lines: cutting, carriage returns, and folding equal lines over ranks."""

from dataclasses import dataclass

from harness.topology import ranks_text

PARTIAL_LIMIT = 64 * 1024
"""Bytes of a line without an end that are kept; then it is shown in pieces."""


class LineCutter:
    """Whole lines out of one rank's byte stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *whole, rest = (self._rest + data).split(b"\n")
        lines = [_as_shown(line) for line in whole]
        if b"\r" in rest[:-1]:
            # A progress bar: only its newest state is worth keeping.
            rest = rest[rest.rindex(b"\r", 0, len(rest) - 1) :]
        while len(rest) > PARTIAL_LIMIT:
            cut = _character_start(rest, PARTIAL_LIMIT)
            lines.append(_as_shown(rest[:cut]))
            rest = rest[cut:]
        self._rest = rest
        return lines

    @property
    def has_rest(self) -> bool:
        return bool(self._rest.strip(b"\r"))

    def take_rest(self) -> list[str]:
        """What stands after the last line end, as a line."""
        rest, self._rest = self._rest, b""
        shown = _as_shown(rest)
        return [shown] if shown else []


def _as_shown(line: bytes) -> str:
    """The line as a terminal would leave it: what follows the last carriage return counts."""
    pieces = [piece for piece in line.split(b"\r") if piece]
    return pieces[-1].decode("utf-8", "replace") if pieces else ""


def _character_start(data: bytes, at: int) -> int:
    """The nearest position at or before `at` where no UTF-8 character is cut."""
    for back in range(4):
        if data[at - back] & 0xC0 != 0x80:
            return at - back
    return at


@dataclass(slots=True)
class _Entry:
    text: str
    ranks: set[int]
    since: float


class Folder:
    """Holds lines for a moment so that equal ones of several ranks become one.

    Every rank's own lines keep their order. Times are in seconds of any monotonic clock.
    """

    def __init__(self, voices: int, *, prefixed: bool, hold: float = 0.1, most: int = 2000) -> None:
        """`voices`: how many ranks speak here; a line that all have said need not wait."""
        self._voices = voices
        self._prefixed = prefixed
        self._hold = hold
        self._most = most
        self._entries: dict[int, _Entry] = {}
        self._first = 0
        self._next = 0
        self._last_of_rank: dict[int, int] = {}
        self._by_text: dict[str, list[int]] = {}

    def add(self, rank: int, text: str, now: float) -> None:
        if self._prefixed:
            # PyTorch says whose traceback it is, which would keep equal ones apart.
            text = text.removeprefix(f"[rank{rank}]: ")
        after = self._last_of_rank.get(rank, -1)
        for number in self._by_text.get(text, ()):
            if number > after:
                self._entries[number].ranks.add(rank)
                self._last_of_rank[rank] = number
                return
        number = self._next
        self._next += 1
        self._entries[number] = _Entry(text, {rank}, now)
        self._by_text.setdefault(text, []).append(number)
        self._last_of_rank[rank] = number

    def due(self, now: float, *, everything: bool = False) -> list[str]:
        """The lines that have waited long enough, or that all ranks have said, in order."""
        lines: list[str] = []
        while self._first < self._next:
            entry = self._entries[self._first]
            ready = (
                everything
                or now - entry.since >= self._hold
                or len(entry.ranks) >= self._voices
                or self._next - self._first > self._most
            )
            if not ready:
                break
            lines.append(self._shown(entry))
            del self._entries[self._first]
            same = self._by_text[entry.text]
            same.remove(self._first)
            if not same:
                del self._by_text[entry.text]
            self._first += 1
        return lines

    def _shown(self, entry: _Entry) -> str:
        if not self._prefixed:
            return entry.text
        return f"[r{ranks_text(sorted(entry.ranks))}] {entry.text}"

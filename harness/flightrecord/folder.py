"""A directory of dumps: which file is whose, what is there and what is not."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.diagnosis.waits.record import Group, RankWait, Waits
from harness.errors import DumpError
from harness.flightrecord.digest import Digest
from harness.flightrecord.readers import Answer, read_all
from harness.flightrecord.untrusted import is_newer
from harness.flightrecord.waits import Translator
from harness.topology import MOST_RANKS

_SUFFIX = re.compile(r"\.(?:json|pickle|pkl|pt|bin|trace|dump|txt|log)$", re.IGNORECASE)
_RANK_WORD = re.compile(r"rank[_.-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A file that was not used, or not as it is. `rank` is whose it says it is."""

    file: str
    rank: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    waits: Waits
    notes: tuple[Note, ...]


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name states: the number after the last `rank`, else the number at
    its end, an extension left aside. `_dump_12`, `rank12.json`, `nccl_trace_rank_12` are 12."""
    stem = _SUFFIX.sub("", name)
    words = _RANK_WORD.findall(stem)
    number = words[-1] if words else next(iter(_NUMBER.findall(stem)), None)
    if number is None or len(number) > 9 or int(number) >= MOST_RANKS:
        return None
    return int(number)


def read(folder: Path) -> Reading:
    """All dumps directly in `folder`. Raises UsageError when there are none to read."""
    reading = collect(read_all(_files(folder)))
    if not reading.waits.ranks:
        notes = "; ".join(f"{note.file}: {note.why}" for note in reading.notes[:3])
        more = f" and {len(reading.notes) - 3} more" if len(reading.notes) > 3 else ""
        raise DumpError(
            f"no flight record in {folder} can be read: {notes}{more}",
            help="give the directory with one dump per rank, pickles or JSON",
        )
    return reading


def collect(answers: Iterable[Answer]) -> Reading:
    """What the readers' answers amount to."""
    ranks = _Ranks()
    for path, digest, why in answers:
        ranks.take(path, digest, why)
    return ranks.reading()


def _files(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        raise DumpError(f"no such directory: {folder}", help="give a directory of dumps") from None
    except NotADirectoryError:
        raise DumpError(f"{folder} is not a directory", help="give the one it is in") from None
    except OSError as error:
        raise DumpError(f"{folder} cannot be read: {error.strerror}") from None
    files = [path for path in found if path.is_file()]
    if not files:
        inside = next((path for path in found if path.is_dir()), None)
        raise DumpError(
            f"{folder} holds no files",
            help=f"did you mean {inside}?" if inside else "give a directory with dumps in it",
        )
    return files


class _Ranks:
    """Whose dump each file is. Two files of one rank: the newer one counts."""

    def __init__(self) -> None:
        self.waits: dict[int, RankWait] = {}
        self.notes: list[Note] = []
        self._translator = Translator()
        self._newest: dict[int, tuple[int, str]] = {}
        self._unreadable: set[int] = set()

    def take(self, path: Path, digest: Digest | None, why: str) -> None:
        named = rank_in_name(path.name)
        if digest is None:
            self._note(path, named, why)
            if named is not None and not why.startswith("not a flight record"):
                self._unreadable.add(named)
            return
        groups = self._translator.groups(digest)
        rank, why = whose(named, groups)
        if why:
            self._note(path, named, why)
        if rank is None:
            return
        if digest["skipped"]:
            self._note(path, rank, f"{digest['skipped']} of its entries make no sense, left out")
        if is_newer(digest["version"]):
            self._note(path, rank, f"schema {digest['version']} is newer than any known; tried")
        self._keep(path, rank, digest)

    def _keep(self, path: Path, rank: int, digest: Digest) -> None:
        newest, other = self._newest.get(rank, (-1, ""))
        if other:
            kept, dropped = (path.name, other), (other, path.name)
            used, left = kept if (digest["newest_ns"], other) > (newest, path.name) else dropped
            self.notes.append(
                Note(file=left, rank=rank, why=f"not used: {used} claims the same rank {rank}")
            )
            if used == other:
                return
        self._newest[rank] = (digest["newest_ns"], path.name)
        self.waits[rank] = self._translator.rank_wait(rank, digest, path.name)

    def _note(self, path: Path, rank: int | None, why: str) -> None:
        self.notes.append(Note(file=path.name, rank=rank, why=why))

    def reading(self) -> Reading:
        return Reading(
            waits=Waits(
                world_size=world_size(self.waits, self._unreadable),
                ranks=dict(sorted(self.waits.items())),
                unreadable=frozenset(self._unreadable - self.waits.keys()),
            ),
            notes=tuple(sorted(self.notes, key=lambda note: (note.file, note.why))),
        )


def whose(named: int | None, groups: Sequence[Group]) -> tuple[int | None, str]:
    """The rank of a dump, and what is odd about that. A rank is in all the groups that it knows."""
    known = _distinct([group.ranks for group in groups if group.ranks is not None])
    if named is not None and all(named in ranks for ranks in known):
        return named, ""
    common = set.intersection(*(set(ranks) for ranks in known)) if known else set()
    if len(common) == 1:
        rank = common.pop()
        return rank, "" if named is None else f"its groups show rank {rank}, whatever its name says"
    if named is None:
        return None, "its name holds no rank, and its groups do not tell"
    if any(named in ranks for ranks in known):
        return named, ""
    return None, f"its name says rank {named}, which is in none of its groups"


def _distinct(known: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list({id(ranks): ranks for ranks in known}.values())


def world_size(waits: Mapping[int, RankWait], unreadable: set[int]) -> int:
    """One more than the largest rank that a group names; without groups, that a file names."""
    groups = _distinct(
        [group.ranks for wait in waits.values() for group in wait.tracks if group.ranks is not None]
    )
    largest = max((max(ranks) for ranks in groups), default=-1)
    return max(largest, *waits, *([] if groups else unreadable), -1) + 1

"""What the ranks of this node run with, equal ones together, with digests of their files."""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from harness.agent.workers import Worker
from harness.setups import Setup, SetupsRead
from harness.topology import runs_of

_LARGEST_FILE = 4 << 20


def setup_of(fact: dict[str, Any]) -> Setup:
    """A fact as a setup; `code` has the files, not their contents yet. Raises ValidationError."""
    files = msgspec.convert(fact.pop("files", []), list[str])
    return msgspec.convert({**fact, "code": dict.fromkeys(files, "")}, Setup)


class Setups:
    """Reads each file once, however many ranks run it."""

    def __init__(self) -> None:
        self._digests: dict[str, tuple[int, int, str]] = {}
        """By path: modification time and size, by which it is known, and its digest."""
        self._said: dict[int, Setup] = {}
        """By process: what was reported."""

    def unread(self, workers: Iterable[Worker]) -> list[Worker]:
        """Those that have told what they run with since they were last read."""
        return [
            worker
            for worker in workers
            if worker.setup is not None and self._said.get(worker.pid) is not worker.setup
        ]

    def read(self, node_rank: int, workers: Iterable[Worker]) -> tuple[int, SetupsRead] | None:
        """The attempt and what is new since the last call, or None. Blocks on files."""
        fresh = self.unread(workers)
        if not fresh:
            return None
        groups: dict[bytes, tuple[Setup, list[int]]] = {}
        for worker in fresh:
            assert worker.setup is not None
            self._said[worker.pid] = worker.setup
            setup = replace(worker.setup, code=self._code(worker.setup.code))
            groups.setdefault(msgspec.json.encode(setup), (setup, []))[1].append(worker.rank)
        setups = tuple(
            replace(setup, ranks=runs_of(sorted(ranks))) for setup, ranks in groups.values()
        )
        return fresh[0].attempt, SetupsRead(node_rank=node_rank, setups=setups)

    def forget(self) -> None:
        """The processes of the attempt are gone."""
        self._said.clear()

    def _code(self, files: Iterable[str]) -> dict[str, str]:
        return {path: digest for path in files if (digest := self._digest(path))}

    def _digest(self, path: str) -> str:
        """Eight hexadecimal digits; nothing when the file cannot be read."""
        with contextlib.suppress(OSError):
            seen = os.stat(path)
            known = self._digests.get(path)
            if known is not None and known[:2] == (seen.st_mtime_ns, seen.st_size):
                return known[2]
            if seen.st_size > _LARGEST_FILE:
                return ""
            with open(path, "rb") as file:
                digest = hashlib.blake2b(file.read(), digest_size=4).hexdigest()
            self._digests[path] = (seen.st_mtime_ns, seen.st_size, digest)
            return digest
        return ""

"""Strikes that outlive a run: `strikes.json` in the folder of all runs."""

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.controller.incident_files import replace_file
from harness.membership import Strike

log = logging.getLogger("harness.controller")

FILE_NAME = "strikes.json"
SCHEMA = 1


class StrikeFile:
    """`{"schema": 1, "strikes": [{host, run, incident, why, at_ns, local_ranks}, ...]}`, oldest
    first, readable by its owner alone.

    `window` is how many seconds a strike counts, corruptions apart. What cannot be read counts as
    nothing, is said through `say` once, and is kept beside as `strikes.json.bad`.
    """

    def __init__(self, runs_dir: Path, window: float, say: Callable[[str], None]) -> None:
        self._path = runs_dir / FILE_NAME
        self._window = window
        self._say = say

    def read(self) -> tuple[Strike, ...]:
        """The strikes that still count."""
        try:
            raw: Any = json.loads(self._path.read_text(encoding="utf-8"))
            if raw["schema"] != SCHEMA:
                raise ValueError(f"schema {raw['schema']} is not {SCHEMA}")
            found = [_strike(one) for one in raw["strikes"]]
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, KeyError) as error:
            bad = self._path.with_name(f"{FILE_NAME}.bad")
            self._say(
                f"{self._path}: no list of strikes in it ({error or type(error).__name__});"
                f" failures of hosts in earlier runs do not count, it is kept as {bad.name}"
            )
            try:
                os.replace(self._path, bad)
            except OSError as failure:
                log.error("cannot rename %s: %s", self._path, failure.strerror)
            return ()
        now_ns = time.time_ns()
        return tuple(strike for strike in found if strike.counts(now_ns, self._window))

    def add(self, *strikes: Strike) -> None:
        """Add those that are not in it, and drop what is too old."""
        if strikes:
            with self._alone():
                self._add(strikes)

    def settle(self, run: str, incident: int, strikes: Sequence[Strike]) -> None:
        """Of that incident of that run, keep these alone: they cleared somebody else."""
        with self._alone():
            known = self.read()
            others = [s for s in known if (s.run, s.incident) != (run, incident)]
            if {*others, *strikes} != set(known):
                self._write([*others, *strikes])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Other runs have controllers that write it too."""
        try:
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield
            return
        try:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _add(self, strikes: Sequence[Strike]) -> None:
        known = self.read()
        keys = {(strike.host, strike.run, strike.incident) for strike in known}
        fresh = [s for s in strikes if (s.host, s.run, s.incident) not in keys]
        if fresh:
            self._write([*known, *fresh])

    def _write(self, strikes: Sequence[Strike]) -> None:
        raw = {"schema": SCHEMA, "strikes": [asdict(strike) for strike in strikes]}
        try:
            replace_file(self._path, json.dumps(raw, indent=1) + "\n", mode=0o600)
        except OSError as error:
            log.error("cannot write %s: %s", self._path, error.strerror)


def _strike(raw: Any) -> Strike:
    strike = Strike(**{**raw, "local_ranks": tuple(raw.get("local_ranks", ()))})
    texts = (strike.host, strike.run, strike.why)
    numbers = (strike.incident, strike.at_ns, *strike.local_ranks)
    if not all(isinstance(x, str) for x in texts) or not all(type(x) is int for x in numbers):
        raise ValueError("a strike of the wrong types")
    return strike

"""Whether a run is over, asked again and again while its journal grows."""

import time

from harness import journal, runs
from harness.codec import CodecError, decode
from harness.events import AgentJoined, RunEnded
from harness.state import RunState, fold

GONE_SECONDS = 3.0
"""A run without controller and agents for this long is gone: a launcher restarts them sooner."""


class RunFollow:
    """Reads what is new in a run's journal at every question."""

    def __init__(self, found: runs.RunFolder) -> None:
        self.found = found
        self.gone = False
        self._state = RunState()
        self._reader: journal.LineReader | None = None
        self._missing_since: float | None = None
        self._ended = False

    def is_over(self) -> bool:
        """True when the run has ended, or when nobody of it lives here any more (`gone`)."""
        if self._reader is None and runs.has_header(self.found.journal):
            self._reader = journal.LineReader(self.found.journal, offset=0, skip=1)
        while self._reader is not None and (lines := self._reader.read()):
            for line in lines:
                self._take(line)
        if self._ended or self.found.packed:
            return True
        if not runs.is_gone(self.found, self._state):
            self._missing_since = None
            return False
        now = time.monotonic()
        self._missing_since = now if self._missing_since is None else self._missing_since
        self.gone = now - self._missing_since > GONE_SECONDS
        return self.gone

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _take(self, line: bytes) -> None:
        # Only who is there and the end matter; most lines are pulses and need no decoding.
        if b'"AgentJoined"' not in line and b'"RunEnded"' not in line:
            return
        try:
            record = decode(line)
        except CodecError:
            return
        if isinstance(record.event, AgentJoined):
            fold(self._state, record)
        elif isinstance(record.event, RunEnded):
            self._ended = True

"""The exception that the main thread is handling, seen from the heartbeat thread.

An exception whose clean-up waits for other ranks (a barrier in a `finally`) never reaches the top
of the script: this is the only place where it shows.
"""

import _thread
import sys
import time
from typing import Any

from harness.worker import exceptions
from harness.worker.link import Link

_LOOKS = 2
"""An exception that is still in hand at the next heartbeat is worth telling."""
_MESSAGE_LIMIT = 1000


class InHand:
    """Tells the agent when such an exception appears, and when it is gone.

    Keeps no reference: an exception holds the frames it came through, and all their tensors.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._main = _thread.get_ident()
        self._seen = 0
        self._looks = 0
        self._told = False
        self._since_ns = 0

    def look(self) -> None:
        """Once a heartbeat. Never raises."""
        try:
            error = self._current()
            seen = 0 if error is None else id(error)
            if seen != self._seen:
                self._seen, self._looks, self._since_ns = seen, 1, time.time_ns()
                if self._told:
                    self._told = not self._link.say("Handling", error=None)
            elif error is not None and not self._told:
                self._looks += 1
                if self._looks >= _LOOKS:
                    self._told = self._link.say("Handling", error=self._facts(error))
        except Exception:  # a __str__ of the user's that raises
            self._told = True

    def _current(self) -> BaseException | None:
        found: Any = sys._current_exceptions().get(self._main)
        error = found[1] if isinstance(found, tuple) else found  # 3.10 and 3.11: a triple
        return error if isinstance(error, BaseException) else None

    def _facts(self, error: BaseException) -> dict[str, Any]:
        return {
            "exc_type": exceptions.type_name(error),
            "message": exceptions.shorten(exceptions.message(error), _MESSAGE_LIMIT),
            "where": exceptions.where(error, error.__traceback__),
            "seen_ns": self._since_ns,
        }

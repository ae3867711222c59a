"""What is told of an exception that reached the top of the script."""

import time
import traceback
from types import TracebackType
from typing import Any

from harness.worker import recorder
from harness.worker.exceptions import innermost_cause, message, shorten, type_name, where
from harness.worker.guest import Guest

_TEXT_LIMIT = 24_000
_MESSAGE_LIMIT = 4_000


def tell(guest: Guest, error: BaseException, tb: TracebackType | None) -> None:
    """Send WorkerRaised. `tb` is the traceback without Harness's own frames. Never raises."""
    raised_ns = time.time_ns()
    try:
        try:
            facts = _facts(guest, error, tb)
        except Exception as interruption:
            # Often a signal handler's, such as that of a data loader whose worker died: what it
            # says may be the reason for `error`, and it does not come twice.
            facts = _facts(guest, error, tb)
            said = f"{type_name(interruption)}: {shorten(message(interruption), 500)}"
            facts["cause"] = facts["cause"] or said
        guest.link.say("WorkerRaised", raised_ns=raised_ns, **facts)
    except Exception as failure:  # a __str__ of the user's that raises, no memory left, ...
        guest.link.say(
            "WorkerRaised",
            raised_ns=raised_ns,
            exc_type=type(error).__qualname__,
            message=f"(no text: {type(failure).__name__} while it was read)",
            where=None,
            traceback="",
            collectives=0,
            step=guest.step,
            cause="",
        )


def _facts(guest: Guest, error: BaseException, tb: TracebackType | None) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, tb))
    cause = innermost_cause(error)
    return {
        "exc_type": type_name(error),
        "message": shorten(message(error), _MESSAGE_LIMIT),
        "where": where(error, tb),
        "traceback": shorten(text, _TEXT_LIMIT),
        "collectives": recorder.keep_last_record(guest.assignment.last_record),
        "step": guest.step,
        "cause": "" if cause is None else f"{type_name(cause)}: {shorten(message(cause), 500)}",
    }

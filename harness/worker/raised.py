"""What is told of an exception that reached the top of the script."""

import os
import time
import traceback
from types import TracebackType
from typing import Any

from harness.worker import frames, recorder
from harness.worker.guest import Guest

_TEXT_LIMIT = 24_000
_MESSAGE_LIMIT = 4_000
_CHAIN_LIMIT = 50


def tell(guest: Guest, error: BaseException, tb: TracebackType | None) -> None:
    """Send WorkerRaised. `tb` is the traceback without Harness's own frames. Never raises."""
    raised_ns = time.time_ns()
    try:
        guest.link.say("WorkerRaised", raised_ns=raised_ns, **_facts(guest, error, tb))
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
    cause = _innermost_cause(error)
    return {
        "exc_type": type_name(error),
        "message": _shorten(_message(error), _MESSAGE_LIMIT),
        "where": _where(error, tb),
        "traceback": _shorten(text, _TEXT_LIMIT),
        "collectives": recorder.keep_last_record(guest.assignment.last_record),
        "step": guest.step,
        "cause": "" if cause is None else f"{type_name(cause)}: {_shorten(_message(cause), 500)}",
    }


def type_name(error: BaseException) -> str:
    """As a traceback writes it: built-in ones bare, others with their module."""
    cls = type(error)
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return str(error.msg)
    return str(error)


def _shorten(text: str, limit: int) -> str:
    """Begin and end of a text: the reason stands in one of them."""
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]}\n... {len(text) - limit} characters left out ...\n{text[head - limit :]}"


def _innermost_cause(error: BaseException) -> BaseException | None:
    found: BaseException | None = None
    here = error
    for _ in range(_CHAIN_LIMIT):
        below = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
        if below is None or below is error:
            break
        found = here = below
    return found


def _where(error: BaseException, tb: TracebackType | None) -> dict[str, Any] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return {
            "file": os.path.abspath(error.filename),
            "line": error.lineno,
            "function": "<module>",
        }
    summaries: list[tuple[str, dict[str, Any]]] = []
    for frame, line in traceback.walk_tb(tb):
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names
        place = {"file": os.path.abspath(code.co_filename), "line": line, "function": name}
        summaries.append((code.co_filename, place))
    return frames.innermost_user(summaries[::-1])

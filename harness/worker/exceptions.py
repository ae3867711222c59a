"""What is told of an exception, in words and places."""

import os
import traceback
from types import TracebackType
from typing import Any

from harness.worker import frames

_CHAIN_LIMIT = 50


def type_name(error: BaseException) -> str:
    """As a traceback writes it: built-in ones bare, others with their module."""
    cls = type(error)
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def message(error: BaseException) -> str:
    """As a traceback writes it after the type."""
    if isinstance(error, SyntaxError):
        return str(error.msg)
    return str(error)


def shorten(text: str, limit: int) -> str:
    """Begin and end of a text: the reason stands in one of them."""
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]}\n... {len(text) - limit} characters left out ...\n{text[head - limit :]}"


def innermost_cause(error: BaseException) -> BaseException | None:
    """What it came of, at the end of the chain; None for one that stands alone."""
    found: BaseException | None = None
    here = error
    for _ in range(_CHAIN_LIMIT):
        below = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
        if below is None or below is error:
            break
        found = here = below
    return found


def where(error: BaseException, tb: TracebackType | None) -> dict[str, Any] | None:
    """The user's line that it was raised from; as `Where` has it."""
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

"""Exceptions of a program that asks a person: ranks have no keyboard, and never will."""

import re
from collections.abc import Mapping

_ASKS: Mapping[str, tuple[str, str]] = {
    "BdbQuit": ("", "a debugger was left in (breakpoint(), pdb.set_trace())"),
    "EOFError": (
        r"EOF when reading a line",
        "the program asks for a line (input(), a prompt, or a debugger)",
    ),
    "RuntimeError": (r"input\(\): lost sys\.stdin", "the program asks for a line (input())"),
    "StdinNotImplementedError": ("", "the program asks for a line (input())"),
}
"""By the name of the type: how the message begins, and what it means."""


def asked(exc_type: str, message: str) -> str:
    """What the program wants of a person, in words; "" where it wants nothing."""
    pattern, words = _ASKS.get(exc_type.rpartition(".")[2], ("", ""))
    return words if re.match(pattern, message) else ""

"""The door through which a fault that is done on purpose comes into a rank.

Only an agent whose run was started with `--chaos-allowed` knocks here. What does the harm is found
by name, so that nothing of it is imported where no fault was asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.worker.guest import Guest

ARM = b"arm "
"""Begins a message of the agent that is followed by faults."""
_INSIDE = "harness.chaos.inside"


def arm(host: "Guest", text: str, *, at_start: bool = False) -> None:
    """Arm the faults of `text`. Never raises."""
    try:
        importlib.import_module(_INSIDE).arm(host, text, at_start=at_start)
    except Exception as error:  # a rank must not die of what was not done to it
        host.link.say("HookFailed", module="chaos", why=repr(error))

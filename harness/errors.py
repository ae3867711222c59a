"""The exception tree and the exit codes of the command line.

    HarnessError
    ├── UsageError        the user asked for something that cannot be (exit 2)
    ├── WorkloadFailure   the training script failed (exit 1, or the class's own code)
    ├── NodeFailure       a node or the rendezvous is lost (exit 82)
    └── PlatformError     our own fault (exit 70)

Every error carries one line for the user: what is wrong and where, and `help`, what to do.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `harness` (DESIGN section 6)."""

    OK = 0
    SCRIPT_FAILED = 1
    USAGE = 2
    INTERNAL = 70
    GAVE_UP = 75
    HANG = 80
    CORRUPTION = 81
    NODE_LOST = 82
    OUT_OF_MEMORY = 83
    PREEMPTED = 84
    INTERRUPTED = 130
    TERMINATED = 143


class HarnessError(Exception):
    """Root of all errors that Harness raises on purpose.

    `message` is one line; `help`, when given, is what the user should do next.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UsageError(HarnessError):
    """The command line, the configuration or a named file is wrong."""

    exit_code = ExitCode.USAGE


class WorkloadFailure(HarnessError):
    """The user's script failed."""

    exit_code = ExitCode.SCRIPT_FAILED


class NodeFailure(HarnessError):
    """A node or the rendezvous is lost."""

    exit_code = ExitCode.NODE_LOST


class PlatformError(HarnessError):
    """A fault of Harness itself."""

    exit_code = ExitCode.INTERNAL

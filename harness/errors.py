"""The exception tree and the exit codes of the command line.

    HarnessError
    ├── UsageError        the user asked for something that cannot be (exit 2); what kind of thing,
    │                     its subclasses say
    ├── NodeFailure       a node or the rendezvous is lost (exit 82)
    └── PlatformError     our own fault (exit 70)

Every error carries one line for the user: what is wrong and where, `help`, what to do, and `code`,
by which `harness explain` tells more: see harness/cli/codes.py.
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
    code: str = "H900"

    def __init__(self, message: str, *, help: str | None = None, code: str | None = None) -> None:
        """`code`: of an error that another process has met."""
        super().__init__(message)
        self.message = message
        self.help = help
        self.code = code or self.code


class UsageError(HarnessError):
    """The command line, the configuration or a named file is wrong."""

    exit_code = ExitCode.USAGE
    code = "H001"


class SettingsError(UsageError):
    """A setting, wherever it was given, or a file of settings."""

    code = "H002"


class ScriptError(UsageError):
    """The script cannot be run."""

    code = "H003"


class FilterError(UsageError):
    """Words that choose ranks, lines or attempts."""

    code = "H004"


class FaultError(UsageError):
    """A fault, a plan of faults, or what it is done to."""

    code = "H005"


class LayoutError(UsageError):
    """A training that is planned cannot be."""

    code = "H006"


class ScreenError(UsageError):
    """The screen has nowhere to be."""

    code = "H007"


class TooEarly(UsageError):
    """The run has nothing of the kind: not yet, no more, or never had."""

    code = "H102"


class Refused(UsageError):
    """The run's controller said no."""

    code = "H103"


class Elsewhere(UsageError):
    """It lies on another machine."""

    code = "H104"


class PlacementError(UsageError):
    """Nodes, ranks or ports cannot be had as asked for."""

    code = "H201"


class AccessError(UsageError):
    """Tokens and certificates."""

    code = "H202"


class OutputError(UsageError):
    """A file cannot be written."""

    code = "H303"


class DumpError(UsageError):
    """Flight records that cannot be read."""

    code = "H304"


class CheckpointError(UsageError):
    """A checkpoint, or a folder of them."""

    code = "H305"


class ProcessError(UsageError):
    """Processes that somebody else started."""

    code = "H306"


class NodeFailure(HarnessError):
    """A node or the rendezvous is lost."""

    exit_code = ExitCode.NODE_LOST
    code = "H203"


class PlatformError(HarnessError):
    """A fault of Harness itself."""

    exit_code = ExitCode.INTERNAL

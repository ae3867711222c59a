"""What can be seen of a process from outside: its state, its stack, its signs of work."""

from dataclasses import dataclass

from harness.incidents import Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """From /proc: `state` is the letter in PID/status, `wchan` the kernel function slept in."""

    state: str
    wchan: str
    cpu_seconds: float
    rss_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTaken:
    """A Python child of a rank. `frames` is its main thread's stack, innermost first."""

    pid: int
    name: str
    process: ProcessFacts | None
    frames: tuple[Frame, ...] = ()
    user_frame: Where | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Signs of work of a rank and its children during `seconds` between two looks.

    `io_bytes` went through read and write, files, pipes and sockets alike; `log_bytes` are new
    output in its log, which was written to last `log_quiet_seconds` ago. `traced_by` is the pid
    of a debugger, 0 for none.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    children_cpu_seconds: float = 0.0
    io_bytes: int = 0
    log_bytes: int = 0
    log_quiet_seconds: float = 0.0
    traced_by: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionInHand:
    """An exception that a rank's main thread is handling: in an `except` or `finally`, or on its
    way out of a `with`. `seen_ns` is when the rank's own heartbeat first saw it."""

    exc_type: str
    message: str
    where: Where | None
    seen_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """The main thread of one rank, and of its Python children; frames innermost first.

    `missing` says why there are no frames. `variables` stand beside the frames when local
    variables were asked for. `state` is the letter in PID/status, Z also when it is gone.
    """

    rank: int
    pid: int
    state: str
    frames: tuple[Frame, ...] = ()
    frames_by: str = ""
    user_frame: Where | None = None
    missing: str = ""
    variables: tuple[tuple[str, ...], ...] = ()
    children: tuple[ChildTaken, ...] = ()

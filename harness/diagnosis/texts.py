"""What error texts say: a victim's cry, a timeout, an abort on mismatched sizes; and the
exception at the end of a log.

Texts of Gloo, NCCL, TCPStore and c10d as torch 2.11 to 2.13 write them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.incidents import Where

_COMMUNICATION = re.compile(
    r"gloo|nccl|tcpstore|processgroup|c10d|torch\.distributed|torch/distributed|Dist\w*Error"
    r"|_engine_run_backward|torch/csrc/distributed|connectFullMesh",
    re.IGNORECASE,
)
"""Says that an error came out of communication between ranks, not out of a user's socket."""

_PEER_GONE = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe"
    r"|read error|write error|socket closed|failed to (?:recv|send)|got 0 bytes"
    r"|connection was likely closed|remote process (?:has )?exited|ncclremoteerror"
    r"|communicator was aborted|connectFullMesh failed|no route to host|software caused connection"
    r"|failed to connect|unable to connect|transport endpoint is not connected"
    r"|connection (?:to .{0,60} )?(?:was )?lost|pair closure|Dist(?:Network|Backend)Error",
    re.IGNORECASE,
)

_OWN_FAULT = re.compile(
    r"ncclInvalid|duplicate gpu|EADDRINUSE|address already in use", re.IGNORECASE
)
"""Errors of communication that the rank itself is the reason of."""

_TIMED_OUT = re.compile(
    r"timed? ?out (?:waiting|after)|wait ?timeout|application timeout|operation timeout"
    r"|socket timeout|client socket has timed out|monitoredBarrier|ran for \d+ milliseconds"
    r"|exceeded timeout",
    re.IGNORECASE,
)

_NAMED_IN_BARRIER = re.compile(r"\branks? ([\d, ]+) failed to pass monitoredBarrier", re.IGNORECASE)

_SIZES_DIFFER = re.compile(
    r"enforce ?(?:fail|notmet)|op\.preamble\.length|preamble.*nbytes", re.IGNORECASE
)

_CAME_AND_ROOM = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")

_SOURCE = re.compile(r"^\[[^\]\s]+\.(?:cc|cpp|h|hpp):\d+\]\s*")

_LAST_LINE = re.compile(
    r"^(?:\[rank\d+\]:\s?)?(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?)"
    r"(?:: (?P<message>.*))?$"
)
_FRAME = re.compile(
    r'^(?:\[rank\d+\]:\s?)?\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?'
)
_TRACEBACK = re.compile(r"^(?:\[rank\d+\]:\s?)?\s*Traceback \(most recent call last\):")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")


def is_cry(text: str) -> bool:
    """Whether an error says only that another rank is gone."""
    speaks = _COMMUNICATION.search(text) and _PEER_GONE.search(text)
    return bool(speaks) and not _OWN_FAULT.search(text) and not is_timeout(text)


def is_timeout(text: str) -> bool:
    """Whether an error says that other ranks did not come in time."""
    return bool(_COMMUNICATION.search(text) and _TIMED_OUT.search(text))


def names_late_ranks(text: str) -> tuple[int, ...]:
    """Ranks that a monitored barrier says it missed."""
    found = _NAMED_IN_BARRIER.search(text)
    return () if found is None else tuple(int(rank) for rank in re.findall(r"\d+", found[1]))


_OTHER_MODEL = re.compile(
    r"DDP expects same model across all ranks"
    r"|appears not to match (?:sizes|strides) of the same param"
    r"|Expected to have finished reduction in the prior iteration"
    r"|Detected mismatch between collectives on ranks"
    r"|Error\(s\) in loading state_dict"
)


def is_size_abort(text: str) -> bool:
    """Whether Gloo aborted because more bytes came than the operation has room for."""
    return bool(_SIZES_DIFFER.search(text))


def needs_other_code(message: str) -> bool:
    """Whether torch says by itself that the model, or a checkpoint's, is not the one that it has to
    be: no other attempt would find another."""
    return bool(_OTHER_MODEL.search(message))


def headline(text: str) -> str:
    """First line of a message, without the place in a C++ source that Gloo puts before it."""
    return _SOURCE.sub("", text.strip().partition("\n")[0].strip())


def came_and_room(text: str) -> tuple[int, int] | None:
    """Bytes that came, and bytes there was room for, as Gloo's abort says; None where it does not.

    Gloo compares pieces of the tensors, not the tensors.
    """
    found = _CAME_AND_ROOM.search(text)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedException:
    """The last traceback of a log."""

    exc_type: str
    message: str
    where: Where | None
    text: str


def last_exception(lines: Sequence[str]) -> LoggedException | None:
    """The exception whose traceback ends `lines`' last one; None when there is no traceback."""
    starts = [at for at, line in enumerate(lines) if _TRACEBACK.match(line)]
    # The head of a long traceback may have scrolled out of the lines that were kept.
    starts = starts or [at for at, line in enumerate(lines) if _FRAME.match(line)][:1]
    if not starts:
        return None
    where: Where | None = None
    for at in range(starts[-1], len(lines)):
        frame = _FRAME.match(lines[at])
        if frame is not None:
            if where is None or not _LIBRARY.search(frame["file"]):
                where = Where(
                    file=frame["file"],
                    line=int(frame["line"]),
                    function=frame["function"] or "<module>",
                )
            continue
        last = _LAST_LINE.match(lines[at])
        if last is not None:
            return LoggedException(
                exc_type=last["type"],
                message=last["message"] or "",
                where=where,
                text="\n".join(lines[starts[-1] : at + 1]),
            )
    return None

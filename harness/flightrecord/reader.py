"""A process that reads dumps for another one: foreign bytes come no nearer than this.

Gets the paths as one marshalled list on stdin. Answers on stdout with one frame per path, in
order: eight bytes of length, then a marshalled `["digest", ...]` or `["why", text]`. Its memory
and time are limited, and whatever a file does to it, the one who asked lives on and knows which
file it was. Only the standard library is imported.
"""

import marshal
import os
import resource
import sys
from typing import Any, BinaryIO

from harness.flightrecord.scan import digest
from harness.flightrecord.skim import skim
from harness.flightrecord.untrusted import LARGEST, Unreadable, parse

_ROOM = 256 << 20
_ROOM_PER_BYTE = 64
_SECONDS = 60
_SECONDS_PER_MB = 2


def main() -> None:
    """Read what stdin asks for, answer on stdout."""
    paths: list[str] = marshal.loads(sys.stdin.buffer.read())
    limit(paths)
    serve(paths, sys.stdout.buffer)


def limit(paths: list[str]) -> None:
    """Allow this process what dumps of these sizes can need, and not more."""
    sizes = [os.path.getsize(path) for path in paths if os.path.exists(path)]
    largest = min(max(sizes, default=0), LARGEST)
    with open("/proc/self/statm", "rb") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    _set(resource.RLIMIT_AS, now + _ROOM + _ROOM_PER_BYTE * largest)
    _set(resource.RLIMIT_CPU, _SECONDS + _SECONDS_PER_MB * (sum(sizes) >> 20))
    _set(resource.RLIMIT_CORE, 0)


def _set(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(kind, (soft, hard))


def serve(paths: list[str], out: BinaryIO) -> None:
    """One frame per path."""
    import gc

    gc.disable()  # a dump is one tree of plain values, freed as a whole
    for path in paths:
        frame = marshal.dumps(answer(path))
        out.write(len(frame).to_bytes(8, "little"))
        out.write(frame)
        out.flush()


def answer(path: str) -> list[Any]:
    """The digest of one file, or why there is none."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise Unreadable(f"larger than {LARGEST >> 20} MB")
            data = file.read()
        return ["digest", skim(data) or digest(parse(data))]
    except Unreadable as why:
        return ["why", str(why)]
    except OSError as error:
        return ["why", error.strerror or type(error).__name__]
    except MemoryError:
        return ["why", "refused: it asks for more memory than a dump needs"]
    except Exception as error:  # the border of the process: a foreign file decides what fails
        return ["why", f"cannot be read: {type(error).__name__}"]


if __name__ == "__main__":
    main()

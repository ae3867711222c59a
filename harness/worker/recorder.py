"""torch's C++ worker server on a unix socket, and the rank's own last flight record.

The server answers `ping`, `fr_trace_json` and `dump_traceback` while the main thread is stuck; the
first two even when a C call holds the interpreter lock.
"""

import contextlib
import ctypes
import json
import os
from collections.abc import Iterator

_serving = False


def serve(path: str) -> bool:
    """Start the server on `path`; False when this torch has none or it cannot listen."""
    global _serving  # noqa: PLW0603
    if _serving or not path:
        return _serving
    try:
        from torch._C._distributed_c10d import _WorkerServer

        with _silent_stderr():
            server = _WorkerServer(path, -1)
    except (ImportError, RuntimeError, TypeError, OSError):
        return False
    # One reference too many, on purpose: it lives as long as the process. Its destructor talks on
    # the user's stderr and could wait for a thread that waits for the interpreter lock we hold.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    _serving = True
    return True


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """For a moment nothing reaches descriptor 2: the server greets there, and has no switch."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def keep_last_record(path: str) -> int:
    """Write this rank's flight record to `path`; returns how many collectives it has recorded.

    0 when torch.distributed was never loaded. Costs some ten milliseconds for a full buffer.
    """
    import sys

    binding = sys.modules.get("torch._C._distributed_c10d")
    if binding is None:
        return 0
    try:
        data: bytes | str = binding._dump_fr_trace_json(includeCollectives=True, onlyActive=False)
        if isinstance(data, str):
            data = data.encode()
        entries = json.loads(data).get("entries") or []
        if entries and path:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        return max((int(entry.get("record_id", 0)) for entry in entries), default=-1) + 1
    except (AttributeError, TypeError, ValueError, RuntimeError, OSError):
        return 0

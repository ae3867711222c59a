"""torch's C++ worker server on a unix socket, and the rank's own last flight record.

The server answers `ping`, `fr_trace_json` and `dump_traceback` while the main thread is stuck; the
first two even when a C call holds the interpreter lock.
"""

import contextlib
import ctypes
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

_server: Any = None
_path = ""


def serve(path: str) -> bool:
    """Start the server on `path`; False when this torch has none or it cannot listen."""
    global _server, _path
    if _server is not None or not path:
        return _server is not None
    try:
        from torch._C._distributed_c10d import _WorkerServer

        with _silent_stderr():
            server = _WorkerServer(path, -1)
    except (ImportError, RuntimeError, TypeError, OSError):
        return False
    # One reference too many, on purpose: it lives as long as the process. Its destructor talks on
    # the user's stderr and could wait for a thread that waits for the interpreter lock we hold.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    _server, _path = server, path
    return True


def stop_serving() -> None:
    """Answer what was asked and take no more: before the interpreter is taken down.

    A thread that then asks for the interpreter lock, as `dump_traceback` does, is ended by a
    forced unwinding, and C++ that catches everything turns that into an abort of the process.
    """
    global _server
    server, _server = _server, None
    # Its stop is lost on a server that does not listen yet, and then waited for without end.
    if server is not None and _answers(_path):
        with _silent_stderr():
            server.shutdown()


def _answers(path: str) -> bool:
    """Whether the server on `path` answers a ping within a second."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(path)
            client.sendall(
                b"POST /handler/ping HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
            return client.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


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
            # A rank that may open no more files still knows what it has recorded.
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
        return max((int(entry.get("record_id", 0)) for entry in entries), default=-1) + 1
    except (AttributeError, TypeError, ValueError, RuntimeError, OSError):
        return 0

"""The flight record of a rank: asking its worker server, and reading what it answers."""

import asyncio
import contextlib
import json
import selectors
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.collectives import Collective

MOST_ENTRIES = 256
"""Of a rank: a step of a parallel program has some fifty, and a habit takes several steps."""
_ANSWER_LIMIT = 64 << 20
_PIECE = 1 << 18
_GATHER_SECONDS = 0.003
"""What comes from all ranks meanwhile is read in one turn: to wake up for every piece of every
answer costs more than to read it."""
_HEAD_END = b"\r\n\r\n"
_ENTRIES = b'"entries":['
_ENTRY = b'{"collective_seq_id":'


class Unanswered(Exception):
    """The worker server did not answer; the text says in words why."""


async def ask(server: Path, handler: str, seconds: float) -> bytes:
    """What `handler` of the worker server on unix socket `server` answers. Raises Unanswered."""
    try:
        return await asyncio.wait_for(_post(server, handler), seconds)
    except asyncio.TimeoutError:
        raise Unanswered(f"no answer to {handler} within {seconds:.1f} s") from None
    except FileNotFoundError:
        raise Unanswered("its worker server was not up (torch.distributed not loaded)") from None
    except (OSError, EOFError) as error:
        raise Unanswered(f"its worker server is gone ({error})") from None


def ask_all(servers: Sequence[Path], handler: str, seconds: float) -> list[tuple[bytes, float]]:
    """What `handler` of each of `servers` answers within `seconds`, empty for no answer, and the
    seconds that it took. Blocks."""
    began = time.monotonic()
    answers = [(b"", 0.0)] * len(servers)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        for at, server in enumerate(servers):
            end = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            end.setblocking(False)
            with contextlib.suppress(OSError):  # it is not there, or has too much to do
                end.connect(str(server))
                end.sendall(_request(handler))
                selector.register(end, selectors.EVENT_READ, (at, _Coming()))
        while selector.get_map() and (left := began + seconds - time.monotonic()) > 0:
            selector.select(left)
            time.sleep(min(_GATHER_SECONDS, left))
            for key, _ in selector.select(0):
                at, coming = key.data
                whole = coming.read_on(key.fileobj)
                if whole is not None:
                    selector.unregister(key.fileobj)
                    answers[at] = (whole, time.monotonic() - began)
    return answers


class _Coming:
    """An answer as far as it has come. What has been read is not looked at again: it may be a
    mebibyte, in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._begin = -1
        """Where the body begins, once the head is whole."""
        self._size: int | None = None
        self._good = False

    def read_on(self, end: Any) -> bytes | None:
        """Read what has come; the body once it is whole, empty where it is none."""
        try:
            piece = end.recv(_PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self._data += piece
        if self._begin < 0 and (found := self._data.find(_HEAD_END)) >= 0:
            head = self._data[:found].decode("latin-1").split("\r\n")
            self._begin, self._size = found + len(_HEAD_END), _size(head)
            self._good = " 200" in head[0]
        missing = self._begin < 0 or self._size is None or self._come() < self._size
        if piece and missing and len(self._data) < _ANSWER_LIMIT:
            return None
        whole = self._begin >= 0 and (self._size is None or self._come() >= self._size)
        return bytes(memoryview(self._data)[self._begin :]) if self._good and whole else b""

    def _come(self) -> int:
        return len(self._data) - self._begin


def _request(handler: str) -> bytes:
    return (
        f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    ).encode()


def _size(head: Sequence[str]) -> int | None:
    """Bytes of the body, where the lines of `head` tell."""
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    length = headers.get("content-length", "")
    return int(length) if length.isdigit() else None


async def _post(server: Path, handler: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(server), limit=_ANSWER_LIMIT)
    try:
        writer.write(_request(handler))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        size = _size(head)
        body = await (reader.read() if size is None else reader.readexactly(size))
    finally:
        writer.close()
    if " 200" not in head[0]:
        raise Unanswered(f"{handler}: {head[0]}")
    return body


def parse(data: bytes) -> tuple[Collective, ...]:
    """The entries of a JSON flight record, oldest first. Raises ValueError when it is none.

    The JSON form writes the process group as a list [name, description].
    """
    raw = json.loads(data)
    if not isinstance(raw, dict):
        raise ValueError("not a flight record")
    entries = [entry for entry in raw.get("entries") or () if isinstance(entry, dict)]
    entries.sort(key=lambda entry: int(entry.get("record_id", 0)))
    return tuple(_collective(entry) for entry in entries)


def newest_entries(data: bytes, most: int = MOST_ENTRIES) -> bytes:
    """A flight record with its newest `most` entries only, without parsing it.

    torch writes the entries oldest first, each beginning with the same key. What looks different
    is returned whole.
    """
    first = data.find(_ENTRIES)
    if first < 0:
        return data
    first += len(_ENTRIES)
    begin = len(data)
    for _ in range(most):
        earlier = data.rfind(_ENTRY, first, begin)
        if earlier < 0:
            return data
        begin = earlier
    return data[:first] + data[begin:]


def _collective(entry: dict[str, Any]) -> Collective:
    group = entry.get("process_group") or ("", "")
    return Collective(
        record_id=int(entry.get("record_id", 0)),
        pg=str(group[0]),
        pg_desc=str(group[1]) if len(group) > 1 else "",
        seq_id=int(entry.get("collective_seq_id", 0)),
        op=str(entry.get("profiling_name", "")),
        sizes=tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ()),
        dtypes=tuple(str(dtype) for dtype in entry.get("input_dtypes") or ()),
        state=str(entry.get("state", "")),
        retired=bool(entry.get("retired", False)),
        created_ns=int(entry.get("time_created_ns", 0)),
    )

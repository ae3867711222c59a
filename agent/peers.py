"""Memory on its way between agents: one connection, both ends proven to know the run's token, then
requests as JSON and the bytes of slots as they are. What arrives is stored, never interpreted.

A sender waits for the socket, and so for the receiver: nothing is buffered beyond that. Requests:

    give    rank, attempt, step...  ->  go, or no: why;  the bytes;  done
    fetch   rank, attempt, step     ->  go with what comes, or no: why;  the bytes
    part    of a micro-batch (harness/agent/batches.py), bytes; the bytes  ->  nothing
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from harness.wire.waiting import within
from harness.worker.memoryfile import SPAN, MemoryFile, Slot

CHUNK = 1 << 20
_IDLE_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_NONCE = 16
_PROOF = 32
_MOST_WORDS = 1 << 16

Taken = Callable[[dict[str, Any]], tuple[MemoryFile, int] | str]
"""Where to put what is given, or why it is not wanted."""
Found = Callable[[int, int, int], tuple[MemoryFile, Slot] | None]
"""What is held of (rank, attempt, step)."""
Landed = Callable[[dict[str, Any], bytes], None]
"""Takes a part of a micro-batch, and what was said of it."""


class PeerLost(Exception):
    """The other agent is away, refuses, or is none of this run; in words."""


def secret(run: str, token: str) -> bytes:
    """What both ends prove to know."""
    return hashlib.sha256(
        f"harness memory {run}\0{token}".encode("utf-8", "surrogateescape")
    ).digest()


def facts(slot: Slot) -> dict[str, int]:
    return {
        "attempt": slot.attempt,
        "step": slot.step,
        "shard": slot.shard,
        "data": slot.data_bytes,
        "index": slot.index_bytes,
    }


class Wire:
    """One end of a connection."""

    def __init__(self, end: socket.socket, key: bytes) -> None:
        self._end, self._key = end, key
        end.setblocking(False)
        with contextlib.suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._end.close()

    async def prove(self, *, server: bool) -> None:
        """Both ends show that they know the secret, without telling it. Raises PeerLost."""
        mine = os.urandom(_NONCE)
        await self._send(mine)
        theirs = await self._receive(_NONCE)
        both = theirs + mine if server else mine + theirs

        def proof(of_server: bool) -> bytes:
            side = b"server" if of_server else b"client"
            return hmac.new(self._key, side + both, hashlib.sha256).digest()

        if not server:
            await self._send(proof(False))
        if not hmac.compare_digest(await self._receive(_PROOF), proof(not server)):
            raise PeerLost("it does not know the run's token")
        if server:
            await self._send(proof(True))

    async def say(self, **words: Any) -> None:
        text = json.dumps(words).encode()
        await self._send(len(text).to_bytes(4, "big") + text)

    async def hear(self) -> dict[str, Any]:
        """Raises PeerLost."""
        length = int.from_bytes(await self._receive(4), "big")
        if length > _MOST_WORDS:
            raise PeerLost("it says what nobody understands")
        try:
            words = json.loads(await self._receive(length))
        except ValueError:
            words = None
        if not isinstance(words, dict):
            raise PeerLost("it says what nobody understands")
        return words

    async def send_slot(self, file: MemoryFile, slot: Slot) -> None:
        with memoryview(file.view(slot.number, slot.bytes)) as view:
            for at in range(0, slot.bytes, CHUNK):
                with view[at : min(at + CHUNK, slot.bytes)] as chunk:
                    await self._send(chunk)

    async def receive_slot(
        self,
        file: MemoryFile,
        number: int,
        words: dict[str, Any],
        *,
        brought: bool = False,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take in what was announced in `words`; it counts once all of it is there, if it is
        `still` wanted then. Raises PeerLost."""
        attempt, step, shard, data, index = _numbers(words)
        try:
            whole = file.view(number, data + index)
        except (ValueError, OSError) as error:
            raise PeerLost(f"no room for it: {error}") from None
        file.begin(number)
        with memoryview(whole) as view:
            at = 0
            while at < data + index:
                with view[at : min(at + CHUNK, data + index)] as chunk:
                    at += await self._receive_some(chunk)
        if not still():
            raise PeerLost("it came too late")
        file.commit(
            number,
            attempt=attempt,
            step=step,
            shard=shard,
            data_bytes=data,
            index_bytes=index,
            brought=brought,
        )

    async def give_part(self, chunk: bytes, **words: Any) -> None:
        """A part of a micro-batch, CHUNK bytes at most. Raises PeerLost."""
        await self.say(do="part", bytes=len(chunk), **words)
        await self._send(chunk)

    async def take_part(self, words: dict[str, Any], landed: Landed) -> None:
        """Take in what was announced in `words`. Raises PeerLost."""
        length = words.get("bytes")
        if not isinstance(length, int) or not 0 < length <= CHUNK:
            raise PeerLost("it offers what cannot be")
        landed(words, await self._receive(length))

    async def _send(self, data: bytes | memoryview) -> None:
        loop = asyncio.get_running_loop()
        try:
            await within(_IDLE_SECONDS, loop.sock_sendall(self._end, data))
        except (OSError, asyncio.TimeoutError) as error:
            raise PeerLost(_words(error)) from None

    async def _receive_some(self, into: memoryview) -> int:
        loop = asyncio.get_running_loop()
        try:
            got = await within(_IDLE_SECONDS, loop.sock_recv_into(self._end, into))
        except (OSError, asyncio.TimeoutError) as error:
            raise PeerLost(_words(error)) from None
        if not got:
            raise PeerLost("it has hung up")
        return got

    async def _receive(self, length: int) -> bytes:
        data = bytearray(length)
        at = 0
        with memoryview(data) as view:
            while at < length:
                at += await self._receive_some(view[at:])
        return bytes(data)


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"nothing moved for {_IDLE_SECONDS:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _numbers(words: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """Attempt, step, shard, bytes of data and of index. Raises PeerLost."""
    found = [words.get(name) for name in ("attempt", "step", "shard", "data", "index")]
    numbers = [n for n in found if isinstance(n, int) and 0 <= n < 1 << 63]
    if len(numbers) < len(found) or not 0 < numbers[3] + numbers[4] <= SPAN:
        raise PeerLost("it offers what cannot be")
    attempt, step, shard, data, index = numbers
    return attempt, step, shard, data, index


async def connect(address: str, key: bytes) -> Wire:
    """A proven connection to the agent at `address`. Raises PeerLost."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        end = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    except (OSError, ValueError) as error:
        raise PeerLost(_words(error)) from None
    wire = Wire(end, key)
    try:
        await within(_CONNECT_SECONDS, loop.sock_connect(end, where))
        await wire.prove(server=False)
    except BaseException as error:
        wire.close()
        if isinstance(error, OSError | asyncio.TimeoutError):
            raise PeerLost(_words(error)) from None
        raise
    return wire


async def give(wire: Wire, rank: int, file: MemoryFile, slot: Slot) -> None:
    """Have the other agent keep a copy; it has all of it when this returns. Raises PeerLost."""
    await wire.say(do="give", rank=rank, **facts(slot))
    answer = await wire.hear()
    if "go" not in answer:
        raise PeerLost(str(answer.get("no", "it does not take copies")))
    await wire.send_slot(file, slot)
    if "done" not in await wire.hear():
        raise PeerLost("it did not keep the copy")


async def fetch(
    wire: Wire, rank: int, attempt: int, step: int, file: MemoryFile, number: int
) -> None:
    """Bring a generation of `rank` into slot `number` of `file`. Raises PeerLost."""
    await wire.say(do="fetch", rank=rank, attempt=attempt, step=step)
    answer = await wire.hear()
    if "go" not in answer:
        raise PeerLost(str(answer.get("no", "it does not have it")))
    if (answer.get("attempt"), answer.get("step")) != (attempt, step):
        raise PeerLost("it offers another generation")
    await wire.receive_slot(file, number, answer, brought=True)


async def attend(
    end: socket.socket, key: bytes, taken: Taken, found: Found, landed: Landed
) -> None:
    """Serve one connection until it ends; a stranger gets nothing."""
    wire = Wire(end, key)
    try:
        await wire.prove(server=True)
        while True:
            await _answer(wire, await wire.hear(), taken, found, landed)
    except (PeerLost, OSError, ValueError):
        pass  # the last two: the file was closed meanwhile
    finally:
        wire.close()


async def _answer(
    wire: Wire, asked: dict[str, Any], taken: Taken, found: Found, landed: Landed
) -> None:
    match asked.get("do"):
        case "give":
            _numbers(asked)
            place = taken(asked)
            if isinstance(place, str):
                await wire.say(no=place)
                return
            await wire.say(go=True)
            await wire.receive_slot(*place, asked, still=lambda: taken(asked) == place)
            await wire.say(done=True)
        case "fetch":
            which = [asked.get(name) for name in ("rank", "attempt", "step")]
            rank, attempt, step = (n if isinstance(n, int) else -1 for n in which)
            held = found(rank, attempt, step)
            if held is None:
                await wire.say(no="it does not hold that")
                return
            await wire.say(go=True, **facts(held[1]))
            await wire.send_slot(*held)
        case "part":
            await wire.take_part(asked, landed)
        case _:
            raise PeerLost("it asks for what nobody understands")

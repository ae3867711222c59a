"""Rare facts to the agent: one JSON object a message, over a socket that the worker inherits.

Nothing here ever waits. A full or broken link drops the fact and counts it; the count follows as
`FactsLost` with the next fact that gets through.
"""

import json
import os
import socket
from typing import Any

MESSAGE_LIMIT = 100_000
"""Bytes of one message; the kernel's default socket buffer holds two."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The agent's end and the worker's end, both non-blocking and keeping message borders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class Link:
    """The worker's end. Only the process that made it may speak: forked children stay silent."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._owner = os.getpid()
        self._lost = 0

    def say(self, kind: str, **fields: Any) -> bool:
        """Send one fact; False when it was dropped."""
        if os.getpid() != self._owner:
            return False
        if self._lost and self._send({"type": "FactsLost", "count": self._lost}):
            self._lost = 0
        if self._send({"type": kind, **fields}):
            return True
        self._lost += 1
        return False

    def _send(self, fact: dict[str, Any]) -> bool:
        try:
            data = json.dumps(fact, default=str).encode(errors="replace")
            if len(data) > MESSAGE_LIMIT:
                return False
            # Made anew each time: a socket object of ours must not warn when Python shuts down.
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=self._descriptor)
            try:
                end.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            finally:
                end.detach()
            return True
        except (OSError, ValueError, TypeError):
            return False


def receive(end: socket.socket) -> list[dict[str, Any]] | None:
    """All facts that wait at the agent's end; None once the worker's end is closed for good."""
    facts: list[dict[str, Any]] = []
    while True:
        try:
            data = end.recv(MESSAGE_LIMIT + 1)
        except BlockingIOError:
            return facts
        except OSError:
            return facts or None
        if not data:
            return facts or None
        try:
            fact = json.loads(data)
        except ValueError:
            continue
        if isinstance(fact, dict):
            facts.append(fact)

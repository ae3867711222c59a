"""The addresses by which Gloo's errors name a rank."""

import os
import socket

import pytest

from harness.agent import connections, listening


def test_where_a_process_listens_as_gloo_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that listened at port 39727 (0x9b2f) was named as port 12187 (0x2f9b)."""
    with socket.create_server(("127.0.0.1", 0)) as mine:
        inode = os.fstat(mine.fileno()).st_ino
        if inode not in connections.listening():
            pytest.skip("the kernel does not tell of sockets here")
        monkeypatch.setattr(listening, "listening", lambda: {inode: ("127.0.0.1", 39727)})
        assert listening._addresses([os.getpid()]) == {os.getpid(): ("[127.0.0.1]:12187",)}

"""Asking several worker servers at once: real sockets, some of which do not answer well."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agent import flight

BODY = b'{"entries":[' + b"1," * 200_000 + b"2]}"
WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Servers:
    """Each answers every request with the same bytes, or never with None."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[socket.socket] = []

    def add(self, name: str, answer: bytes | None) -> Path:
        path = self._folder / name
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        self._open.append(listening)
        if answer is not None:
            threading.Thread(target=self._serve, args=(listening, answer)).start()
        return path

    def _serve(self, listening: socket.socket, answer: bytes) -> None:
        end, _ = listening.accept()
        with end:
            assert end.recv(4096).startswith(b"POST /handler/fr HTTP/1.1")
            end.sendall(answer)

    def close(self) -> None:
        for listening in self._open:
            listening.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


def test_all_that_answer_are_heard_and_none_waits_for_another(
    servers: Servers, tmp_path: Path
) -> None:
    asked = [
        servers.add("length", WITH_LENGTH),
        servers.add("until-it-closes", b"HTTP/1.1 200 OK\r\n\r\n" + BODY),
        tmp_path / "not-there",
        servers.add("refuses", b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\n."),
        servers.add("torn", WITH_LENGTH[:-9]),
        servers.add("no-answer", b""),
    ]
    answers = flight.ask_all(asked, "fr", 200.0)  # they answer at once, on whatever machine
    assert [data for data, _ in answers] == [BODY, BODY, b"", b"", b"", b""]
    mute = [servers.add("mute", None), servers.add("late", WITH_LENGTH)]
    (silent, _), (late, _) = flight.ask_all(mute, "fr", 2.0)
    assert (silent, late) in ((b"", BODY), (b"", b""))
    assert flight.ask_all([], "fr", 5.0) == []

"""TLS of a real port: who has a certificate of the CA gets in, and wrong files are one line."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, UsageError
from harness.wire import observer
from harness.wire.server import open_server
from harness.wire.tls import PLAIN, Tls

Make = Callable[[Path], Any]


@pytest.fixture(scope="module")
def ours(authority: Make, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return authority(tmp_path_factory.mktemp("tls") / "ours")


async def _first_word(address: str, tls: Tls) -> str:
    try:
        async for _ in observer.watch(address, 0, "t", tls):
            pass
    except HarnessError as error:
        return error.message
    return ""


def test_only_who_is_signed_gets_through(ours: Any, authority: Make, tmp_path: Path) -> None:
    node = ours.issue("node")
    stranger = authority(tmp_path / "theirs").issue("stranger")

    async def run() -> None:
        server, address = open_server("127.0.0.1:0", "t", node)
        await server.start()
        # Nothing is served on it here: who gets through is told so.
        assert "is not a Harness controller" in await _first_word(address, node)
        for other in (PLAIN, Tls(ca=ours.ca), stranger):
            assert "no controller answers" in await _first_word(address, other)
        await server.stop(None)

    asyncio.run(run())


def test_wrong_files_are_one_line(ours: Any, tmp_path: Path) -> None:
    one, two = ours.issue("one"), ours.issue("two")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for tls, complaint in (
        (Tls(cert=one.cert), "--tls-cert is of no use without --tls-key"),
        (Tls(key=one.key), "--tls-key is of no use without --tls-cert"),
        (Tls(cert=one.cert, key=two.key), "is not the key of the certificate"),
        (Tls(cert=str(junk), key=one.key), "are no certificate and key in PEM form"),
        (Tls(cert="/none.pem", key=one.key), "--tls-cert: /none.pem: No such file or directory"),
        (Tls(ca=str(junk)), "holds no certificate in PEM form"),
        (Tls(ca=str(tmp_path)), "Is a directory"),
    ):
        with pytest.raises(UsageError) as caught:
            tls.check()
        assert complaint in caught.value.message
        assert "docs/security.md" in (caught.value.help or "")

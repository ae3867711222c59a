"""Certificates for the tests, made by openssl as docs/security.md says."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.wire.tls import Tls


@dataclass(frozen=True)
class Authority:
    """A CA in a folder of its own."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(self, name: str) -> Tls:
        """Key and certificate for this machine's loopback addresses, signed by the CA."""
        key, request, cert = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                 "-keyout", key, "-out", request, "-subj", f"/CN={name}")  # fmt: skip
        _openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key",
                 "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", cert)  # fmt: skip
        return Tls(cert=str(cert), key=str(key), ca=self.ca)


@pytest.fixture(scope="session")
def authority() -> Callable[[Path], Authority]:
    """Makes a new CA in a folder."""
    return _authority


def _authority(folder: Path) -> Authority:
    folder.mkdir()
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-days", "2", "-keyout", folder / "ca.key", "-out", folder / "ca.pem",
             "-subj", "/CN=run CA")  # fmt: skip
    return Authority(folder)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=240)

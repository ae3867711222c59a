"""TLS of the controller's port: which files it takes, and what is wrong with them in one line.

One set of three files serves all nodes and views. A certificate and its key make the controller
speak TLS. With the CA as well it takes only those who show a certificate that the CA has signed,
and who connects checks the controller's certificate against it.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config import Config, Job
from harness.errors import AccessError

if TYPE_CHECKING:
    import grpc  # heavy, and whoever only checks the files does without

_HELP = "see docs/security.md for how to make certificates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files; empty where there is none."""

    cert: str = ""
    key: str = ""
    ca: str = ""

    @classmethod
    def of_job(cls, job: Job) -> "Tls":
        return cls(cert=job.tls_cert, key=job.tls_key, ca=job.tls_ca)

    @classmethod
    def of_config(cls, config: Config) -> "Tls":
        """What the settings say. Raises UsageError."""
        found = cls(
            cert=config.path("tls_cert"), key=config.path("tls_key"), ca=config.path("tls_ca")
        )
        found.check()
        return found

    def __bool__(self) -> bool:
        return bool(self.cert or self.key or self.ca)

    def check(self) -> None:
        """Raise UsageError for files that are missing, no PEM, or do not belong together."""
        if bool(self.cert) != bool(self.key):
            given, missing = ("--tls-cert", "--tls-key")[:: 1 if self.cert else -1]
            raise AccessError(f"{given} is of no use without {missing}", help=_HELP)
        if self.cert:
            _read(self.cert, "--tls-cert")
            _read(self.key, "--tls-key")
            try:
                # An empty answer instead of the question on the terminal.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    self.cert, self.key, password=""
                )
            except (ssl.SSLError, OSError, ValueError) as error:
                raise AccessError(_pair_in_words(self, error), help=_HELP) from None
        if self.ca:
            _read(self.ca, "--tls-ca")
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.ca)
            except (ssl.SSLError, OSError):
                raise AccessError(
                    f"--tls-ca: {self.ca} holds no certificate in PEM form", help=_HELP
                ) from None

    def for_server(self) -> "grpc.ServerCredentials | None":
        """What the controller's port needs; None for one without TLS. Raises UsageError."""
        self.check()
        if not self.cert:
            return None
        import grpc

        pair = (_read(self.key, "--tls-key"), _read(self.cert, "--tls-cert"))
        ca = _read(self.ca, "--tls-ca") if self.ca else None
        return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)

    def for_client(self) -> "grpc.ChannelCredentials | None":
        """What a connection needs; None for one without TLS. Raises UsageError."""
        if not self:
            return None
        import grpc

        self.check()
        return grpc.ssl_channel_credentials(
            _read(self.ca, "--tls-ca") if self.ca else None,
            _read(self.key, "--tls-key") if self.key else None,
            _read(self.cert, "--tls-cert") if self.cert else None,
        )


PLAIN = Tls()


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise AccessError(f"{option}: {path}: {error.strerror}", help=_HELP) from None


def _pair_in_words(tls: Tls, error: Exception) -> str:
    reason = getattr(error, "reason", "") or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"--tls-key: {tls.key} is not the key of the certificate in {tls.cert}"
    if "DECRYPT" in reason or "PASSWORD" in reason:
        return f"--tls-key: {tls.key} is protected by a password; give one that is not"
    return f"--tls-cert, --tls-key: {tls.cert} and {tls.key} are no certificate and key in PEM form"

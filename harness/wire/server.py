"""Opening the controller's port: where it may listen, and in which words it may not."""

import errno
import hmac
import ipaddress
import socket
from typing import Any

import grpc
from grpc.aio import Server, ServerInterceptor, ServicerContext, server

from harness.errors import AccessError, PlacementError, UsageError
from harness.portholder import held_by
from harness.wire.channel import SERVER_OPTIONS, TOKEN_KEY, token_proof
from harness.wire.tls import PLAIN, Tls


def open_server(bind: str, token: str, tls: Tls = PLAIN) -> tuple[Server, str]:
    """A server that will listen on `bind` (ADDR:PORT, port 0 for any), and its address.

    Raises UsageError in one line when the port is taken, the address is not of this machine, or
    it is beyond loopback without a run token. Whoever calls has to show `token`, if there is one;
    with `tls`, connections are encrypted.
    """
    host, port = split_address(bind)
    if not token and not _is_loopback(host):
        raise AccessError(
            f"{bind} can be reached from other machines and the run has no token",
            help="give the run a token, or listen on 127.0.0.1",
        )
    _probe(host, port)
    credentials = tls.for_server()
    aio_server = server(options=SERVER_OPTIONS, interceptors=[_Gate(token)])
    where = _join_address(host, port)
    try:
        if credentials is None:
            real_port = aio_server.add_insecure_port(where)
        else:
            real_port = aio_server.add_secure_port(where, credentials)
    except RuntimeError:
        real_port = 0
    if real_port == 0:
        raise PlacementError(f"port {_join_address(host, port)} is in use", help=_HELP_IN_USE)
    return aio_server, _join_address(host, real_port)


def split_address(address: str) -> tuple[str, int]:
    """`127.0.0.1:29500` or `[::1]:29500` as host and port. Raises UsageError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"not an address: {address!r}", help="write it as HOST:PORT")
    return host, int(port)


class _Gate(ServerInterceptor):  # type: ignore[type-arg]
    """Ends every call that does not carry the run's token, before a byte of its message is read;
    any call will do when there is none."""

    def __init__(self, token: str) -> None:
        self._proof = token_proof(token).encode() if token else b""

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        given = dict(call.invocation_metadata or ()).get(TOKEN_KEY, "")
        if not self._proof or hmac.compare_digest(str(given).encode(), self._proof):
            return await continuation(call)
        return _NO_TOKEN if not given else _WRONG_TOKEN


def _refusal(what: str) -> Any:
    async def refuse(_messages: Any, context: ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, what)

    # A stream of messages is not read unless somebody asks for one, whatever the client takes the
    # method for.
    return grpc.stream_stream_rpc_method_handler(refuse)


_NO_TOKEN, _WRONG_TOKEN = _refusal("no token given"), _refusal("wrong token")


_HELP_IN_USE = "another run or program listens there; choose another port, or 0 for any free one"


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _probe(host: str, port: int) -> None:
    """Bind once with a plain socket: its errors name the cause, gRPC's do not."""
    address = _join_address(host, port)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise PlacementError(f"cannot listen on {address}: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                holder = held_by(port)
                help = f"it is {holder}; choose another port" if holder else _HELP_IN_USE
                raise PlacementError(f"port {address} is in use", help=help) from None
            raise PlacementError(f"cannot listen on {address}: {error.strerror}") from None

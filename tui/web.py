"""The screens in a browser: a page on loopback, one process of the app behind each tab.

textual-serve does the work. Of ours is what it lacks: only loopback, only pages that we have served
ourselves (any page that a browser shows may open a socket to this machine), no font from elsewhere.
"""

import asyncio
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

import click
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from textual_serve.server import Server

from harness.errors import ScreenError

HOST = "127.0.0.1"
_TEMPLATES = Path(__file__).with_name("templates")


class LoopbackServer(Server):
    """Serves `command` at http://127.0.0.1:`port` to this machine alone."""

    def __init__(self, command: str, port: int) -> None:
        super().__init__(
            command, host=HOST, port=port, title="harness tui", templates_path=_TEMPLATES
        )

        self._tabs: set[asyncio.Task[object]] = set()

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        tab = asyncio.current_task()
        assert tab is not None
        self._tabs.add(tab)
        try:
            return await super().handle_websocket(request)
        finally:
            self._tabs.discard(tab)

    async def on_shutdown(self, app: web.Application) -> None:
        """Ends the app of every open tab, or they would outlive us."""
        tabs = list(self._tabs)
        for tab in tabs:
            tab.cancel()
        await asyncio.gather(*tabs, return_exceptions=True)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(_same_origin(self.port))
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Nothing is said yet: it does not listen before this is over."""

    def serve(self, debug: bool = False) -> None:
        """Serve until SIGINT or SIGTERM. Says so once a browser can come."""
        text = f"open {self.public_url} in a browser on this machine; Ctrl-C ends it"
        web.run_app(
            self._make_app(),
            host=self.host,
            port=self.port,
            access_log=None,
            print=lambda *_: click.echo(text, err=True),
        )


def _same_origin(port: int) -> Middleware:
    """Refuses requests under other names, and sockets that other pages open."""
    hosts = {f"{HOST}:{port}", f"localhost:{port}"}
    origins = {f"http://{host}" for host in hosts}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.host not in hosts or (origin is not None and origin not in origins):
            raise web.HTTPForbidden(text="harness tui serves its own pages on this machine only\n")
        return await handler(request)

    return check


def serve(command: Sequence[str], port: int) -> None:
    """Serve until Ctrl-C. `port` 0: any free one. Raises UsageError when it cannot be had."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ScreenError(
                f"port {port} cannot be had: {error.strerror}", help="give another one with --port"
            ) from None
        port = probe.getsockname()[1]
    LoopbackServer(shlex.join(command), port).serve()

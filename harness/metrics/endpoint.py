"""The door: `/metrics` over HTTP in the text format of Prometheus, by its own client library.

The numbers are taken in the event loop's thread, all else happens in threads of its own: a slow or
hostile reader holds up nobody. Beyond loopback a reader must say the run's token.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as Overdue
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from harness.metrics.catalogue import Metric, Sample, Spread

log = logging.getLogger("harness.metrics")

FOLDER = "metrics"
"""In the run directory: files that Prometheus finds the doors by."""

_ANSWER_SECONDS = 5.0
_READER_SECONDS = 5.0
_MOST_READERS = 8
_PORTS_TRIED = 64
"""Agents that share a machine take the next free ones."""

Take = Callable[[], Sequence[Sample]]


class NotOpen(Exception):
    """Nobody can read metrics here, in words for the user."""


@contextlib.contextmanager
def open_endpoint(
    address: str, *, token: str, run: str, take: Take, found_in: Path, next_free: bool = False
) -> Iterator[str]:
    """Serve what `take` tells at `address`, HOST:PORT, port 0 for any; yields where.

    `take` is called in the thread of the running event loop. `found_in` is a file that Prometheus'
    file_sd_configs read, there as long as the door is open. `next_free`: where the port is taken,
    one of the next ones will do. Raises NotOpen.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
    except ImportError:
        raise NotOpen("no metrics: prometheus_client is not installed") from None
    registry = CollectorRegistry()
    registry.register(_Collector(asyncio.get_running_loop(), run, take))
    ProcessCollector(registry=registry)
    # Compression costs the agent more than loopback or a rack's network.
    app = _guarded(make_wsgi_app(registry, disable_compression=True), token)
    server = _listen(address, app, _PORTS_TRIED if next_free else 1)
    host, port = address.rpartition(":")[0], server.server_port
    where = f"{host}:{port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        _announce(found_in, where, run)
        yield where
    finally:
        with contextlib.suppress(OSError):
            found_in.unlink(missing_ok=True)
        # The loop must stay free: a reader may be waiting for numbers from it.
        Thread(target=_close, args=(server,), daemon=True).start()


def _close(server: WSGIServer) -> None:
    server.shutdown()
    server.server_close()


def _announce(path: Path, where: str, run: str) -> None:
    host, _, port = where.rpartition(":")
    if host in ("0.0.0.0", "[::]", ""):
        host = socket.gethostname()
    text = json.dumps([{"targets": [f"{host}:{port}"], "labels": {"job": "harness", "run": run}}])
    try:
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        log.warning("cannot write %s: %s", path, error.strerror)


# --- numbers -----------------------------------------------------------------------------------


class _Collector:
    """Asks the event loop for samples and hands them to the library, grouped by metric."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run: str, take: Take) -> None:
        self._loop = loop
        self._run = run
        self._take = take

    def describe(self) -> Iterable[Any]:
        """Nothing beforehand: the library would otherwise ask for the numbers to learn it."""
        return ()

    def collect(self) -> Iterable[Any]:
        """The library's families; none where the loop does not answer in time."""
        asked = asyncio.run_coroutine_threadsafe(self._taken(), self._loop)
        return families(asked.result(_ANSWER_SECONDS), self._run)

    async def _taken(self) -> Sequence[Sample]:
        return self._take()


def families(samples: Iterable[Sample], run: str) -> list[Any]:
    """Samples as families of prometheus_client, in the order in which metrics come first."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        SummaryMetricFamily,
    )

    by_metric: dict[Metric, Any] = {}
    for sample in samples:
        metric = sample.metric
        family = by_metric.get(metric)
        if family is None:
            made = {
                "counter": CounterMetricFamily,
                "gauge": GaugeMetricFamily,
                "summary": SummaryMetricFamily,
            }[metric.kind]
            family = made(metric.name, metric.help, labels=("run", *metric.labels))
            by_metric[metric] = family
        labels = (run, *sample.labels)
        if isinstance(sample.value, Spread):
            family.add_metric(labels, sample.value.count, sample.value.sum)
        else:
            family.add_metric(labels, sample.value)
    return list(by_metric.values())


# --- the server --------------------------------------------------------------------------------


def _guarded(app: Any, token: str) -> Any:
    """`app` for GET /metrics from those who say the token; where there is none, from all."""
    wanted = f"Bearer {token}".encode()

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        said = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
        if token and not hmac.compare_digest(said, wanted):
            return _refuse(start, "401 Unauthorized", "the run's token is missing or wrong")
        if environ.get("PATH_INFO") not in ("/metrics", "/"):
            return _refuse(start, "404 Not Found", "metrics are at /metrics")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _refuse(start, "405 Method Not Allowed", "only GET")
        try:
            answered: Iterable[bytes] = app(environ, start)
            return answered
        except Overdue:
            return _refuse(start, "503 Service Unavailable", "busy; try again")
        except Exception:
            log.exception("no numbers for a reader")
            return _refuse(start, "500 Internal Server Error", "see the log of the run")

    return answer


def _refuse(start: Any, status: str, why: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{why}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = BoundedSemaphore(_MOST_READERS)
        super().__init__(*args, **kwargs)

    def server_bind(self) -> None:
        """Without the look-up of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """More readers at once than anybody needs are hung up on."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a reader at %s went away", client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _READER_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Every scrape would be a line."""


def _listen(address: str, app: Any, tries: int) -> WSGIServer:
    host, _, text = address.rpartition(":")
    host, port = host.strip("[]"), int(text)
    ports = range(port, min(port + tries, 65536)) if port else (0,)
    server_class = _Server6 if ":" in host else _Server
    why = ""
    for each in ports:
        try:
            return make_server(host, each, app, server_class=server_class, handler_class=_Handler)
        except OSError as error:
            why = error.strerror or str(error)
    raise NotOpen(f"no metrics: nothing can listen at {host}:{port} ({why})")

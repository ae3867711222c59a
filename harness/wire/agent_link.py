"""The agent's end of the wire: joins the controller, takes orders, reports events.

The link lives through breaks and through a restart of the controller: it joins again, sends again
what was not acknowledged, and hands out every order once. It decides nothing; what it cannot mend
it raises from `join` or `orders`.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from grpc.aio import AioRpcError

from harness import codec
from harness.errors import HarnessError, NodeFailure, PlatformError, Refused, UsageError
from harness.events import (
    ArrivalsRead,
    DigestsRead,
    Event,
    MarksSampled,
    PulsesRead,
    Record,
    Stamp,
    VitalsRead,
)
from harness.orders import Command, Order, Shutdown
from harness.version import version
from harness.wire import control_pb2 as pb
from harness.wire.channel import (
    BATCH_BYTES,
    HEARTBEAT,
    MESSAGE_LIMIT,
    PID_KEY,
    PROTOCOL,
    call_metadata,
    in_words,
    is_broken_link,
    open_channel,
)
from harness.wire.control_pb2_grpc import ControlStub, ObserveStub
from harness.wire.tls import PLAIN, Tls
from harness.wire.waiting import News, first_of, until_beat, within

log = logging.getLogger("harness.wire")

_CONNECT_SECONDS = 10.0
_REJOIN_PAUSES = (0.05, 0.1, 0.2, 0.4)
_FLUSH_LOOK_SECONDS = 0.002
_CLOSE_SECONDS = 2.0
_CLOCK_TICK = 0.25
_SAY_SECONDS = 5.0
"""Without a word from the controller, until the user is told."""
_MOST_BUFFERED = 200_000
"""Records kept for a controller that is away; beyond it pulses are dropped, a visible seq gap."""
_UNHURRIED = (ArrivalsRead, DigestsRead, MarksSampled, VitalsRead)
"""Regular readings, which go with the next pulses: a message costs more than what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The controller has taken the agent in."""

    run: str
    node_rank: int


@dataclass(frozen=True, slots=True)
class _Unstamped:
    attempt: int
    event: Event
    wall_ns: int
    mono_ns: int


class AgentLink:
    """One agent's link to its controller. All methods belong to the event loop's thread.

    `address` is host:port of the controller, `node_rank` -1 to be given one, `token` empty on
    loopback, `tls` the files of TLS, `controller_timeout` the seconds without a word from the
    controller after which the link gives up, `heartbeat` those of silence after which it says that
    it is there; `notice` shows the user a line, long before that.
    """

    def __init__(
        self,
        *,
        address: str,
        node_rank: int,
        local_world_size: int,
        host: str,
        pid: int,
        token: str,
        controller_timeout: float,
        tls: Tls = PLAIN,
        nnodes: str = "",
        heartbeat: float = HEARTBEAT,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._address = address
        self._node_rank = node_rank
        self._local_world_size = local_world_size
        self._host = host
        self._pid = pid
        self._token = token
        self._tls = tls
        self._nnodes = nnodes
        self._heartbeat = heartbeat
        self._controller_timeout = controller_timeout
        self._notice = notice
        self._missed = False
        """The user has been told that the controller is not heard."""

        self._welcome: Welcome | None = None
        self._joined = asyncio.Event()
        self._failure: HarnessError | None = None
        self._last_error: HarnessError | None = None
        self._unheard = 0.0
        self._tries = 0

        self._inbox: asyncio.Queue[Order | HarnessError] = asyncio.Queue()
        self._last_order = 0
        self._over = False

        self._early: list[_Unstamped] = []
        self._buffer: deque[tuple[int, bytes]] = deque()
        self._next_seq = 0
        self._in_flight = 0
        self._news = News()
        self._asks = False
        """An acknowledgement is waited for."""
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> Welcome:
        """Join the run, waiting for a controller that is not there yet.

        Raises UsageError when the controller refuses this agent (node rank taken, other version,
        wrong token), NodeFailure when none was heard for `controller_timeout` seconds.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._live())
        await self._joined.wait()
        if self._welcome is None:
            raise self._failure or PlatformError("the link to the controller closed unasked")
        return self._welcome

    async def orders(self) -> AsyncIterator[Order]:
        """The controller's orders, each exactly once; ends after Shutdown.

        Raises NodeFailure when the controller was not heard for `controller_timeout` seconds or
        has given this node up.
        """
        while True:
            item = await self._inbox.get()
            if isinstance(item, HarnessError):
                raise item
            yield item
            if isinstance(item, Shutdown):
                return

    def report(self, attempt: int, event: Event) -> None:
        """Stamp `event` and send it; kept and sent again until it is in the journal.

        Never blocks. Before `join` has returned, events are kept and stamped later with the time
        of this call.
        """
        made = _Unstamped(attempt, event, time.time_ns(), time.monotonic_ns())
        if self._welcome is None:
            self._early.append(made)
        else:
            self._stamp(self._welcome, made)

    async def command(self, command: Command, by: str) -> tuple[bool, str]:
        """Ask the controller for something; (accepted, why).

        Tries again while the controller is away, so that a request outlives its restart; raises
        NodeFailure after `controller_timeout` seconds.
        """
        request = pb.Command(body=codec.encode_command(command), by=by)
        deadline = time.monotonic() + self._controller_timeout
        while True:
            try:
                async with open_channel(self._address, self._tls) as channel:
                    stub = ObserveStub(channel)  # type: ignore[no-untyped-call]
                    reply = await stub.Do(
                        request, metadata=call_metadata(self._token), timeout=_CONNECT_SECONDS
                    )
                return reply.accepted, reply.why
            except AioRpcError as error:
                if not is_broken_link(error) or time.monotonic() > deadline:
                    raise in_words(error, self._address) from None
            await asyncio.sleep(_REJOIN_PAUSES[-1])

    async def flushed(self) -> None:
        """Wait until all that was reported is in the journal; 2 s at most."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        self._ask()
        while self._buffer and time.monotonic() < deadline:
            await asyncio.sleep(_FLUSH_LOOK_SECONDS)

    async def close(self) -> None:
        """Send what is left, wait until it is acknowledged (2 s at most), and hang up."""
        self._closing = True
        self._ask()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
        if self._buffer and self._failure is None:
            log.warning("%d records were not acknowledged by the controller", len(self._buffer))
        self._task.cancel()
        await asyncio.wait([self._task])
        self._joined.set()

    # --- records going up ----------------------------------------------------------------------

    def _ask(self) -> None:
        """For an acknowledgement of all that was sent."""
        self._asks = True
        self._news.set()

    def _stamp(self, welcome: Welcome, made: _Unstamped) -> None:
        seq = self._next_seq
        self._next_seq += 1
        if len(self._buffer) >= _MOST_BUFFERED and isinstance(made.event, PulsesRead):
            return
        stamp = Stamp(
            run=welcome.run,
            attempt=made.attempt,
            source=f"agent:{welcome.node_rank}",
            seq=seq,
            wall_ns=made.wall_ns,
            mono_ns=made.mono_ns,
        )
        line = codec.encode(Record(stamp=stamp, event=made.event))
        if len(line) > MESSAGE_LIMIT // 2:
            log.error("%s of %d bytes is too big to report", type(made.event).__name__, len(line))
            return
        self._buffer.append((seq, line))
        if not isinstance(made.event, _UNHURRIED):
            self._news.set()

    def _next_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        for _, line in islice(self._buffer, self._in_flight, None):
            if batch and size + len(line) > BATCH_BYTES:
                break
            batch.append(line)
            size += len(line)
        return batch

    async def _send_records(self, stub: Any, source: str) -> None:
        """One Report stream, until the link is closed and all is acknowledged."""
        self._in_flight = 0
        metadata = call_metadata(self._token, (PID_KEY, str(self._pid)))
        call = stub.Report(metadata=metadata)
        await first_of(self._write_batches(call, source), self._read_acks(call))

    async def _write_batches(self, call: Any, source: str) -> None:
        while True:
            self._news.clear()
            batch = self._next_batch()
            if not batch:
                if self._closing and not self._buffer:
                    await call.done_writing()
                    await asyncio.Event().wait()  # the reader sees the controller's end
                if self._asks:
                    self._asks = False
                elif await self._news.within(self._heartbeat):
                    continue
                else:
                    batch = self._next_batch()
            self._in_flight += len(batch)  # an empty batch is the heartbeat, and asks
            try:
                await call.write(pb.EventBatch(source=source, records=batch))
            except asyncio.InvalidStateError:
                return  # the stream is over, before its reader has heard of it

    async def _read_acks(self, call: Any) -> None:
        async for ack in call:
            self._heard()
            while self._buffer and self._buffer[0][0] <= ack.seq:
                self._buffer.popleft()
                self._in_flight = max(0, self._in_flight - 1)
            if self._closing:
                self._asks = bool(self._buffer)
                self._news.set()

    # --- the connection ------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            await first_of(self._stay_linked(), self._watch_clock())
        except HarnessError as error:
            self._fail(error)
        except Exception:
            log.exception(
                "the link to the controller at %s broke on a fault of ours", self._address
            )
            self._fail(PlatformError("the agent's link to the controller failed, see its log"))

    async def _stay_linked(self) -> None:
        while True:
            try:
                await self._connect_once()
            except AioRpcError as error:
                self._last_error = in_words(error, self._address)
                if not is_broken_link(error):
                    raise self._last_error from None
                if self._tries == 0:
                    log.info("link to the controller broke: %s", self._last_error.message)
            if self._closing and not self._buffer:
                return
            await asyncio.sleep(_REJOIN_PAUSES[min(self._tries, len(_REJOIN_PAUSES) - 1)])
            self._tries += 1

    async def _connect_once(self) -> None:
        """Join, then carry orders down and records up until one of the streams ends."""
        async with open_channel(self._address, self._tls) as channel:
            stub = ControlStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Join(self._hello(), metadata=call_metadata(self._token))
            messages = aiter(call)
            try:
                first = await within(_CONNECT_SECONDS, anext(messages, None))
            except asyncio.TimeoutError:
                return
            if first is None:  # the stream ended before it began
                return
            welcome = self._taken_in(first.welcome)
            await first_of(
                self._take_orders(messages),
                self._send_records(stub, f"agent:{welcome.node_rank}"),
            )

    def _hello(self) -> pb.Hello:
        welcome = self._welcome
        return pb.Hello(
            protocol=PROTOCOL,
            run="" if welcome is None else welcome.run,
            node_rank=self._node_rank if welcome is None else welcome.node_rank,
            local_world_size=self._local_world_size,
            host=self._host,
            pid=self._pid,
            last_order=self._last_order,
            nnodes=self._nnodes,
        )

    def _taken_in(self, answer: pb.Welcome) -> Welcome:
        self._heard()
        if answer.refused:
            if self._welcome is None:
                raise Refused(f"the controller at {self._address} refused: {answer.refused}")
            raise NodeFailure(f"the controller gave this node up: {answer.refused}")
        if self._welcome is None:
            self._welcome = Welcome(run=answer.run, node_rank=answer.node_rank)
            for made in self._early:
                self._stamp(self._welcome, made)
            self._early.clear()
            self._joined.set()
        else:
            log.info("joined the controller at %s again", self._address)
        return self._welcome

    async def _take_orders(self, messages: AsyncIterator[pb.Order]) -> None:
        async for message in messages:
            self._heard()
            if message.id <= self._last_order:
                continue
            try:
                order = codec.decode_order(message.body)
            except codec.CodecError as error:
                raise UsageError(
                    f"the controller at {self._address} orders what this version of Harness,"
                    f" {version()}, does not know: {error}",
                    help="use the same version of Harness on all nodes",
                ) from None
            self._last_order = message.id
            self._over = self._over or isinstance(order, Shutdown)
            self._inbox.put_nowait(order)
        if self._over:
            await asyncio.Event().wait()  # no more orders; the records go on until `close`

    async def _watch_clock(self) -> None:
        """Give up after `controller_timeout` unheard seconds that this process really lived."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(until_beat(_CLOCK_TICK))
            now = time.monotonic()
            # A pause of the whole node or of this process is not the controller's silence.
            self._unheard += min(now - last, 2 * _CLOCK_TICK)
            last = now
            self._tell_of_silence()
            if self._unheard >= self._controller_timeout and not self._over:
                because = f": {self._last_error.message}" if self._last_error else ""
                raise NodeFailure(
                    f"no word from the controller at {self._address} "
                    f"for {self._controller_timeout:g} s{because}",
                    help="node 0, without which no run goes on, is gone or cut off: see"
                    " controller.log in the run directory there; run again on all nodes, and"
                    " training goes on from its last checkpoint",
                )

    def _tell_of_silence(self) -> None:
        if self._missed or self._over or self._welcome is None or self._unheard < _SAY_SECONDS:
            return
        self._missed = True
        because = f" ({self._last_error.message})" if self._last_error else ""
        self._notice(
            f"no word from the controller at {self._address} for {self._unheard:.0f} s{because}: "
            f"the ranks of this node go on, for {self._controller_timeout:g} s at most"
        )

    def _heard(self) -> None:
        if self._missed:
            self._notice("the controller is heard again")
        self._missed = False
        self._unheard = 0.0
        self._tries = 0

    def _fail(self, error: HarnessError) -> None:
        self._failure = error
        self._joined.set()
        self._inbox.put_nowait(error)

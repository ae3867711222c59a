"""A view's end of the wire: watch a run's records, ask its controller for something."""

import asyncio
import time
from collections.abc import AsyncIterator

from grpc.aio import AioRpcError

from harness import codec
from harness.errors import HarnessError
from harness.events import Record, RunEnded
from harness.orders import Command
from harness.wire import control_pb2 as pb
from harness.wire.channel import call_metadata, in_words, is_broken_link, open_channel
from harness.wire.control_pb2_grpc import ObserveStub
from harness.wire.tls import PLAIN, Tls

_ANSWER_SECONDS = 10.0
_RETURN_SECONDS = 15.0
"""How long a watcher waits for a controller that went away; its launcher starts it again."""
_RETRY_SECONDS = 0.2


async def watch(
    address: str, from_index: int, token: str, tls: Tls = PLAIN
) -> AsyncIterator[tuple[int, Record]]:
    """Every record of the run at `address` from index `from_index` on, then live; ends with the
    run.

    Index i is line i + 2 of the journal file. Outlives a restart of the controller. Raises
    HarnessError in one line when no controller answers or it does not come back.
    """
    index = from_index
    lost_at: float | None = None
    seen = ended = False
    while True:
        try:
            async with open_channel(address, tls) as channel:
                stub = ObserveStub(channel)  # type: ignore[no-untyped-call]
                request = pb.WatchRequest(from_index=index)
                async for batch in stub.Watch(request, metadata=call_metadata(token)):
                    seen, lost_at = True, None
                    for line in batch.records:
                        record = _decoded(line, index)
                        ended = ended or isinstance(record.event, RunEnded)
                        yield index, record
                        index += 1
            return
        except AioRpcError as error:
            if ended:
                return  # a slow watcher; the controller waits only so long for it
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            away_too_long = not seen or now - lost_at > _RETURN_SECONDS
            if away_too_long or not is_broken_link(error):
                raise in_words(error, address) from None
        await asyncio.sleep(_RETRY_SECONDS)


async def do(
    address: str, command: Command, by: str, token: str, tls: Tls = PLAIN
) -> tuple[bool, str]:
    """Ask the controller at `address` for `command`, as `by`; (accepted, why).

    Raises HarnessError in one line when no controller answers.
    """
    request = pb.Command(body=codec.encode_command(command), by=by)
    try:
        async with open_channel(address, tls) as channel:
            stub = ObserveStub(channel)  # type: ignore[no-untyped-call]
            reply = await stub.Do(request, metadata=call_metadata(token), timeout=_ANSWER_SECONDS)
    except AioRpcError as error:
        raise in_words(error, address) from None
    return reply.accepted, reply.why


def do_blocking(
    address: str, command: Command, by: str, token: str, tls: Tls = PLAIN
) -> tuple[bool, str]:
    """`do` for callers without an event loop."""
    return asyncio.run(do(address, command, by, token, tls))


def _decoded(line: bytes, index: int) -> Record:
    try:
        return codec.decode(line)
    except codec.CodecError as error:
        raise HarnessError(
            f"record {index} of the run is not readable: {error}",
            help="use the version of Harness that the run uses",
        ) from None

"""An agent whose link to the controller is a socket of the test that started it.

`python agent_driver.py RUNTIME_DIR FD`: orders come in as JSON lines on FD, records and commands
go out. All else is the real agent.
"""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from harness import codec
from harness.agent.__main__ import adopt_orphans, serve
from harness.config import Job
from harness.errors import NodeFailure
from harness.events import Event, Record, Stamp
from harness.orders import Command, Order, Shutdown


@dataclass(frozen=True)
class Welcome:
    run: str
    node_rank: int


class SocketLink:
    """The interface of harness.wire.agent_link.AgentLink."""

    def __init__(self, run: str, end: socket.socket) -> None:
        self._run = run
        self._end = end
        self._seq = 0

    async def join(self) -> Welcome:
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=self._end, limit=1 << 24
        )
        return Welcome(run=self._run, node_rank=0)

    async def orders(self) -> AsyncIterator[Order]:
        while line := await self._reader.readline():
            order = codec.decode_order(line)
            yield order
            if isinstance(order, Shutdown):
                return
        raise NodeFailure("no word from the controller")

    def report(self, attempt: int, event: Event) -> None:
        stamp = Stamp(
            run=self._run,
            attempt=attempt,
            source="agent:0",
            seq=self._seq,
            wall_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
        )
        self._seq += 1
        line = codec.encode(Record(stamp=stamp, event=event)) + b"\n"
        self._end.setblocking(True)
        self._end.sendall(line)
        self._end.setblocking(False)

    async def command(self, command: Command, by: str) -> tuple[bool, str]:
        line = b'{"command":' + codec.encode_command(command) + b"}\n"
        self._end.setblocking(True)
        self._end.sendall(line)
        self._end.setblocking(False)
        return True, "taken"

    async def flushed(self) -> None:
        """A record is out when it is reported."""

    async def close(self) -> None:
        self._end.close()


def main() -> int:
    runtime_dir, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    end = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    job = Job.read(runtime_dir / "job.json")
    adopt_orphans(runtime_dir)
    return asyncio.run(serve(job, runtime_dir, SocketLink(job.run, end)))


if __name__ == "__main__":
    sys.exit(main())

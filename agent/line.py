"""What an agent needs of its line to the controller (harness.wire.agent_link.AgentLink)."""

from collections.abc import AsyncIterator
from typing import Protocol

from harness import events as e
from harness import orders as o


class Welcome(Protocol):
    """What the controller says to an agent that joins."""

    @property
    def run(self) -> str: ...
    @property
    def node_rank(self) -> int: ...


class Link(Protocol):
    """The agent's line to the controller (harness.wire.agent_link.AgentLink)."""

    async def join(self) -> Welcome: ...
    def orders(self) -> AsyncIterator[o.Order]: ...
    def report(self, attempt: int, event: e.Event) -> None: ...
    async def command(self, command: o.Command, by: str) -> tuple[bool, str]: ...
    async def flushed(self) -> None: ...
    async def close(self) -> None: ...

"""How much a peer may ask of the controller: what is more waits at its own end, or is refused in
one line. Nobody who keeps to the protocol comes near; they bound what a broken or hostile one costs
the others."""

import time
from collections.abc import Callable

from harness.wire import control_pb2 as pb

MOST_RECORDS = 20_000
"""Records of one batch; an agent puts a mebibyte into one, some 7,000 at most."""
SLICE = 256
"""Records taken in before others get their turn."""
RECORDS_PER_SECOND, RECORDS_AT_ONCE = 5_000.0, 50_000.0
BYTES_PER_SECOND, BYTES_AT_ONCE = float(16 << 20), float(128 << 20)
COMMANDS_PER_SECOND, COMMANDS_AT_ONCE = 20.0, 200.0
JOINS_PER_SECOND, JOINS_AT_ONCE = 50.0, 5_000.0
MOST_COMMAND_BYTES = 64 << 10
MOST_WATCHERS = 256
MOST_LOCAL_RANKS = 4096
_MOST_WORD = 255
_MOST_NAMES = 4096


class Allowance:
    """`per_second` of something, and up to `at_once` that was not used before."""

    def __init__(
        self, per_second: float, at_once: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._at_once, self._clock = per_second, at_once, clock
        self._left, self._at = at_once, clock()

    def spend(self, amount: float) -> float:
        """Spend `amount`; the seconds to wait until it is paid, 0 when it is already."""
        self._refill()
        self._left -= amount
        return max(0.0, -self._left / self._per_second)

    def can_spend(self, amount: float) -> bool:
        """Spend `amount` if there is as much left."""
        self._refill()
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self._per_second)
        self._at = now


class Allowances:
    """One allowance for each name; the one longest unused makes room for a new one."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._per_second, self._at_once = per_second, at_once
        self._by_name: dict[str, Allowance] = {}

    def can_spend(self, name: str) -> bool:
        """Whether `name` has one left, which is spent then."""
        known = self._by_name.pop(name, None) or Allowance(self._per_second, self._at_once)
        self._by_name[name] = known
        if len(self._by_name) > _MOST_NAMES:
            del self._by_name[next(iter(self._by_name))]
        return known.can_spend(1.0)


def host_of(peer: str) -> str:
    """`ipv4:10.0.0.1` out of gRPC's `ipv4:10.0.0.1:40512`."""
    return peer.rpartition(":")[0]


def hello_flaw(hello: pb.Hello) -> str:
    """Why `hello` is none that an agent would send; empty when it may be."""
    if hello.local_world_size > MOST_LOCAL_RANKS:
        return f"it wants to run {hello.local_world_size} ranks; {MOST_LOCAL_RANKS} at most"
    for what, word in (("host", hello.host), ("run", hello.run), ("nnodes", hello.nnodes)):
        if len(word) > _MOST_WORD or not (word.isprintable() or not word):
            return f"its {what} is no name of one"
    return ""

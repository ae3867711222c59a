"""Keeps small what an agent holds of the node's memory.

Flight records of all ranks come in at once, a mebibyte each; what held them stays with the process
otherwise, for as long as something small lies behind it. And each of a dozen threads, most of them
gRPC's, would have a heap of its own, with what it has once needed. Both are glibc's: other C
libraries have no such call, nor need one.
"""

import asyncio
import ctypes

from harness.wire.waiting import until_beat

_SECONDS = 30.0
_ARENA_MAX = -8  # M_ARENA_MAX, malloc.h


def share_one_heap() -> None:
    """For all threads to come."""
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if limit is not None:
        limit(_ARENA_MAX, 1)


async def trim() -> None:
    """For as long as the agent lives; at once over where the C library has no way."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while give_back is not None:
        await asyncio.sleep(until_beat(_SECONDS))
        give_back(0)

"""Gives memory back to the system that was only needed for a while.

Flight records of all ranks come in at once, a mebibyte each; what held them stays with the process
otherwise, for as long as something small lies behind it.
"""

import asyncio
import ctypes

from harness.wire.waiting import until_beat

_SECONDS = 30.0


async def trim() -> None:
    """For as long as the agent lives; at once over where the C library has no way."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while give_back is not None:
        await asyncio.sleep(until_beat(_SECONDS))
        give_back(0)

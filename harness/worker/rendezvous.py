"""A store of its own for every process group that a script makes of the whole world.

The store of an attempt outlives the groups made through it, and Gloo's addresses stay in it under
the same keys: a script that destroys its group and makes another could read where the ranks of the
first one listened. torch gives the keys no prefix, expecting a new store each time.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

from harness.collectives import STORE
from harness.worker.guest import current


def separate_groups(module: Any) -> None:
    """Hook for torch.distributed.rendezvous: the second and later meetings get a prefix each."""
    original: Callable[..., Any] = module._create_c10d_store
    meetings = 0

    @functools.wraps(original)
    def _create_c10d_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        nonlocal meetings
        with _elsewhere(hostname, port):
            store = original(hostname, port, *args, **kwargs)
        ours = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
        if current() is None or (hostname, str(port)) != ours:
            return store
        meetings += 1
        if meetings == 1:
            return store
        from torch.distributed.distributed_c10d import PrefixStore

        return PrefixStore(f"harness/meeting{meetings}", store)

    module._create_c10d_store = _create_c10d_store


def _elsewhere(hostname: str, port: int) -> contextlib.AbstractContextManager[object]:
    """Note that the rank looks for the store where this run has none: its ranks open none of their
    own, they have been told that one is there."""
    guest = current()
    told = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if guest is None or guest.recorder is None or not told:
        return contextlib.nullcontext()
    if str(port) == guest.store[1]:
        return contextlib.nullcontext()  # a host has many names
    everybody = range(guest.assignment.world_size)
    return guest.recorder.creating(f"{hostname}:{port}", STORE, everybody, True)

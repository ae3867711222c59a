"""A store of its own for every process group that a script makes of the whole world.

The store of an attempt outlives the groups made through it, and Gloo's addresses stay in it under
the same keys: a script that destroys its group and makes another could read where the ranks of the
first one listened. torch gives the keys no prefix, expecting a new store each time.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from harness.worker.guest import current


def separate_groups(module: Any) -> None:
    """Hook for torch.distributed.rendezvous: the second and later meetings get a prefix each."""
    original: Callable[..., Any] = module._create_c10d_store
    meetings = 0

    @functools.wraps(original)
    def _create_c10d_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        nonlocal meetings
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

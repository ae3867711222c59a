"""The cure of torch's exit deadlock.

`~ProcessGroupGloo` joins its worker threads while it holds the interpreter lock, and a worker
thread may need that lock to free what its last operation carried along (more likely once
torch._dynamo is loaded). Letting these threads come to rest, with the lock released, before the
group can be freed takes the deadlock away. A group with operations still open hangs as it would
without us: nothing is waited for longer than `_LIMIT_SECONDS`.
"""

import atexit
import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Any

from harness.worker import recorder
from harness.worker.guest import current

_LIMIT_SECONDS = 0.25
_LOOK_SECONDS = 0.006
"""Longer than the 5 ms after which a thread that waits for the interpreter lock asks again."""
_GLOO_THREADS = ("pt_gloo",)
_CALM_LOOKS = 2


def drain() -> None:
    """Give Gloo's worker threads the interpreter lock until all of them rest."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    before: dict[str, tuple[str, str]] | None = None
    calm = 0
    while calm < _CALM_LOOKS and time.monotonic() < deadline:
        now = _gloo_threads()
        if not now:
            return
        resting = now == before and all(state == "S" for state, _ in now.values())
        calm = calm + 1 if resting else 0
        before = now
        time.sleep(_LOOK_SECONDS)


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """State and count of voluntary switches of each Gloo worker thread."""
    threads: dict[str, tuple[str, str]] = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as file:
                if not file.read().startswith(_GLOO_THREADS):
                    continue
            with open(f"/proc/self/task/{thread}/status", encoding="utf-8") as file:
                status = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            continue  # it ended meanwhile
        state = status.get("State", "S").split()[0]
        threads[thread] = (state, status.get("voluntary_ctxt_switches", "").strip())
    return threads


def drain_at_exit() -> None:
    """Drain before the interpreter is taken down, after the user's own exit handlers, and let
    nobody ask for the interpreter lock any more."""
    atexit.register(_leave)


def _leave() -> None:
    _drain_safely()
    if current() is not None:
        with contextlib.suppress(OSError, RuntimeError):
            recorder.stop_serving()


def _drain_safely() -> None:
    with contextlib.suppress(OSError, ValueError):
        drain()


def wrap_destroy(module: Any) -> None:
    """Make `destroy_process_group` of `module` drain first, and say that teardown has begun.

    The recorder lets go of the groups before: destroying the world destroys all of them.
    """
    original: Callable[..., Any] = module.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        guest = current()
        if guest is not None:
            group = args[0] if args else kwargs.get("group")
            if group is None:
                guest.enter("teardown")
            if guest.recorder is not None:
                guest.recorder.forget(group if group is not module.GroupMember.WORLD else None)
            _drain_safely()
        return original(*args, **kwargs)

    module.destroy_process_group = destroy_process_group

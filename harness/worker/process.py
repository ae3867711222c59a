"""What a process of ours does first: die with its parent, lead its own session."""

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_PTRACER_ANY = ctypes.c_ulong(-1)


def bind_to_parent(parent: int, *, wait: float = 0.0) -> bool:
    """Be killed when `parent` dies, and lead a session of our own.

    A process forked by another one waits up to `wait` seconds until it has become a child of
    `parent`. False when that parent is not ours (any more): leave at once then.
    """
    deadline = time.monotonic() + wait
    while os.getppid() != parent and time.monotonic() < deadline:
        time.sleep(0.0002)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Lets py-spy, a sibling and not an ancestor, look at us where Yama restricts ptrace.
    libc.prctl(_PR_SET_PTRACER, _PTRACER_ANY, 0, 0, 0)
    if os.getpid() != os.getsid(0):
        os.setsid()
    return os.getppid() == parent

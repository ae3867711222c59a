"""One thread for what is done here, and the user's number of threads afterwards.

The threads of OpenMP spin while they wait: on cores that ranks share, a small operation on several
threads was measured 500 times slower than on one.
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within, operations of the calling thread run on it alone; other threads are not touched."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    _set(1)
    try:
        yield
    finally:
        _set(before)


def _set(count: int) -> None:
    # torch.set_num_threads would also be what threads that start meanwhile begin with, and would
    # throw away compiled convolutions; OpenMP's own call holds for this thread alone.
    if openmp := _openmp():
        openmp(count)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


@functools.lru_cache(maxsize=1)
def _openmp() -> Callable[[int], object] | None:
    """omp_set_num_threads of the library that torch brought into the process."""
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).omp_set_num_threads
    except (AttributeError, OSError):
        return None
    return found

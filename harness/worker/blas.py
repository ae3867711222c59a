"""OpenBLAS starts its threads when numpy is imported, which would spoil the zygote for forking.

The zygote holds them back; each rank lets them go again. Only needed where no variable settles
their number, that is with one rank a node: torchrun's OMP_NUM_THREADS=1 covers the rest.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("", "scipy_")
    for suffix in ("", "64_", "_64")
)


def is_settled() -> bool:
    """Whether the environment says how many threads there shall be."""
    return any(name in os.environ for name in _VARIABLES)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within this, a library that is loaded starts no threads."""
    if is_settled():
        yield
        return
    os.environ[_VARIABLES[0]] = "1"
    try:
        yield
    finally:
        del os.environ[_VARIABLES[0]]


def let_go() -> None:
    """Give the loaded OpenBLAS libraries the number of threads they would have taken."""
    if is_settled():
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        libraries = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    for path in libraries:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _SETTERS:
            if hasattr(library, name):
                getattr(library, name)(len(os.sched_getaffinity(0)))
                break

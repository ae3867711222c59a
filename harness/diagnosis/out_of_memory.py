"""out_of_memory: said by the kernel, the cgroup, or an exception of the allocator. A SIGKILL
without such a word is never called that."""

import re

from harness.diagnosis.endings import Ending

_TYPES = frozenset({"MemoryError", "OutOfMemoryError"})
_TEXT = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|std::bad_alloc"
    r"|unable to mmap \d+ bytes|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


def explains(ending: Ending) -> str | None:
    """The cause in words, when memory is it."""
    if ending.oom is not None:
        return ending.oom
    if ending.kind not in ("raised", "code"):
        return None
    if ending.what.rpartition(".")[2] in _TYPES or _TEXT.search(ending.message):
        return ending.says
    return None

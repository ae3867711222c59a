"""Checkpoint files that are not whole, and giving them other names."""

import itertools
import os
from collections.abc import Callable, Iterable

from harness.agent import filecheck
from harness.events import FilesSetAside
from harness.orders import SetAside


def among(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of `paths` that are empty, or begin as a known format and do not end as one.

    What is of no known format is not judged.
    """
    return tuple(path for path in dict.fromkeys(paths) if is_torn(path))


def is_torn(path: str) -> bool:
    try:
        return filecheck.outline(path, steps=False).torn
    except OSError:
        return False


def carry_out(order: SetAside, node_rank: int, say: Callable[[str], None]) -> FilesSetAside:
    """Rename the files of `order`, aloud. None is deleted, none is written over."""
    moved: list[str] = []
    failed: list[str] = []
    for path in order.paths:
        target = _free_name(path + order.suffix)
        try:
            os.rename(path, target)
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
            say(f"harness: a bad checkpoint stays where it is: {failed[-1]}")
            continue
        moved.append(target)
        say(f"harness: {path} is set aside as {os.path.basename(target)}")
    return FilesSetAside(
        node_rank=node_rank, attempt=order.attempt, moved=tuple(moved), failed=tuple(failed)
    )


def _free_name(path: str) -> str:
    numbers = itertools.count(2)
    name = path
    while os.path.lexists(name):
        name = f"{path}{next(numbers)}"
    return name

"""Checkpoint files that are not whole, and giving them other names."""

import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import checkpointdir
from harness.agent import filecheck
from harness.checkpointnames import SUFFIXES, is_data, is_models, is_unfinished
from harness.checkpoints import attempt_name
from harness.events import FilesSetAside
from harness.orders import HoldCheckpoint, SetAside

_MOST_WRITTEN = 4
"""Files of a dead rank that are looked at."""


def note(written: dict[str, bool], path: str, *, saved: bool) -> None:
    """A rank has opened `path` for writing; `saved`: by torch.save, which may be given a file that
    was opened, and told of, before."""
    saved = written.pop(path, False) or saved
    written[path] = saved
    while len(written) > _MOST_WRITTEN:
        del written[next(iter(written))]


def among(written: Mapping[str, bool]) -> tuple[str, ...]:
    """The checkpoints among `written` that are empty, or begin as a known format and do not end as
    one. Its values say whether torch.save wrote the file.

    What is of no known format is not judged, nor what may be no checkpoint: data of the user's is
    the user's to repair.
    """
    return tuple(path for path, saved in written.items() if is_torn(path, saved=saved))


def is_torn(path: str, *, saved: bool = True) -> bool:
    try:
        found = filecheck.outline(path, steps=False)
    except OSError:
        return False
    return found.torn and (saved or is_models(path) or found.format == "torch")


def carry_out(order: SetAside, node_rank: int, say: Callable[[str], None]) -> FilesSetAside:
    """Rename the files of `order`, aloud. None is deleted, none is written over."""
    moved: list[str] = []
    failed: list[str] = []
    for path in dict.fromkeys(map(by_its_name_now, order.paths)):
        target = _free_name(path + order.suffix)
        try:
            os.rename(path, target)
        except FileNotFoundError:
            continue  # the script itself has deleted it: nobody can load it
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
            say(f"harness: a bad checkpoint stays where it is: {failed[-1]}")
            continue
        moved.append(target)
        say(f"harness: {path} is set aside as {os.path.basename(target)}")
    gone = tuple(path for path in order.good if not os.path.lexists(by_its_name_now(path)))
    return FilesSetAside(
        node_rank=node_rank, attempt=order.attempt, moved=tuple(moved), failed=tuple(failed),
        gone=gone,
    )  # fmt: skip


def hold(order: HoldCheckpoint, say: Callable[[str], None]) -> None:
    """Keep retention from the checkpoint of `order`; aloud where that cannot be."""
    try:
        checkpointdir.hold(Path(order.path), attempt_name(os.getpid(), order.attempt))
    except OSError as error:
        why = error.strerror or str(error)
        say(f"harness: {order.path} cannot be held, so retention may delete it: {why}")


def by_its_name_now(path: str) -> str:
    """Where a file or folder is that was written as `path`: many scripts write under a name of the
    moment (`step_5.pt.tmp`) and rename what is complete. `path` itself where nothing fits."""
    folder, name = os.path.split(path)
    if os.path.lexists(path) or not name:
        return path
    folder = by_its_name_now(folder)
    if os.path.lexists(os.path.join(folder, name)):
        return os.path.join(folder, name)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    fitting = [each for each in names if not is_unfinished(each) and _contains(name, each)]
    return os.path.join(folder, max(fitting, key=len)) if fitting else path


def _contains(name: str, part: str) -> bool:
    """Whether `part` is a whole word of `name`, and as much a file of tensors as that: step_1 is
    none of step_15.tmp, nor of step_1.pt.tmp."""
    word = rf"(?<![0-9A-Za-z]){re.escape(part)}(?![0-9A-Za-z])"
    tensors = any(f"{suffix}." in f"{name}." for suffix in SUFFIXES)
    fits = is_data(part) if tensors else is_unfinished(name)
    return fits and re.search(word, name) is not None


def _free_name(path: str) -> str:
    numbers = itertools.count(2)
    name = path
    while os.path.lexists(name):
        name = f"{path}{next(numbers)}"
    return name

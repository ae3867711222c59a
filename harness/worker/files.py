"""What a script does with checkpoint files of its own: `torch.save` and `torch.load`, and files
that it opens for writing under a checkpoint's name.

A save that fails in a background thread is never heard of otherwise, and a file that was being
written when its rank was killed cannot be told from a good one by its name. Everything else about
these calls stays as it is; what is passed on costs microseconds a file.
"""

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.checkpointnames import STEP_KEYS, is_data, may_be_ranks, part_of, series_of, step_of
from harness.worker import exceptions
from harness.worker.guest import current

_MOST_SIBLINGS = 10_000
_MESSAGE_LIMIT = 500
_MOST_OPENED = 4096
"""Names told of; a program that makes more files than this saves no checkpoints."""


def watch_serialization(module: Any) -> None:
    """Hook `save` and `load` of torch.serialization, also under the names that torch gives them."""
    for name, make in (("save", _saving), ("load", _loading)):
        original = getattr(module, name)
        hooked = make(original)
        setattr(module, name, hooked)
        torch = sys.modules.get("torch")
        if torch is not None and getattr(torch, name, None) is original:
            setattr(torch, name, hooked)


def watch_opened() -> None:
    """Tell of files with a checkpoint's name that are opened for writing, once each."""
    told: set[str] = set()

    def opened(event: str, args: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, _, flags = args
        if not isinstance(path, str) or not is_data(path):
            return
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if writes and path not in told and len(told) < _MOST_OPENED:
            told.add(path)
            _tell("opened", path)

    sys.addaudithook(opened)


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if path is None or current() is None:
            return original(obj, f, *args, **kwargs)
        began = time.monotonic()
        _tell("saving", path, step=_step(obj))
        try:
            result = original(obj, f, *args, **kwargs)
        except BaseException as error:
            _tell("save_failed", path, step=_step(obj), error=error)
            raise
        _tell("saved", path, step=_step(obj), seconds=time.monotonic() - began)
        return result

    return save


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(f)
        if path is None or current() is None:
            return original(f, *args, **kwargs)
        try:
            result = original(f, *args, **kwargs)
        except BaseException as error:
            if not isinstance(error, FileNotFoundError):
                _tell("load_failed", path, error=error)
            raise
        _tell("loaded", path, step=_step(result))
        return result

    return load


def _path(f: Any) -> str | None:
    """The path of a path, or of a file object that has one."""
    if not isinstance(f, str | os.PathLike):
        f = getattr(f, "name", None)
    try:
        return os.path.abspath(os.fsdecode(f)) if isinstance(f, str | os.PathLike) else None
    except (TypeError, ValueError, OSError):
        return None


def _step(obj: Any) -> int | None:
    """The step that a checkpoint says it is of, when it says so."""
    if not isinstance(obj, dict):
        return None
    for key in STEP_KEYS:
        value = obj.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _tell(
    what: str,
    path: str,
    *,
    step: int | None = None,
    seconds: float = 0.0,
    error: BaseException | None = None,
) -> None:
    guest = current()
    if guest is None:
        return
    try:
        path = os.path.abspath(path)
        size = os.stat(path).st_size if os.path.isfile(path) else 0
        text = "" if error is None else f"{exceptions.type_name(error)}: {error}"
        guest.link.say(
            "CheckpointFile",
            what=what,
            path=path,
            step=step,
            bytes=size,
            older=_older(path, guest.assignment.rank) if "load" in what else "",
            seconds=round(seconds, 6),
            error=exceptions.shorten(text, _MESSAGE_LIMIT),
        )
    except Exception:  # a __str__ of the user's that raises, a path that is gone
        return


def _older(path: str, rank: int) -> str:
    """The sibling of the next smaller step: `step_5.pt` of `step_10.pt`, of the same part of its
    set. A number that may be that of the rank tells no step."""
    folder, name = os.path.split(path)
    own = step_of(name)
    if own is None or may_be_ranks(name, (rank,)):
        return ""
    alike = series_of(name), part_of(name)
    found: tuple[int, str] | None = None
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_SIBLINGS):
            if (series_of(entry.name), part_of(entry.name)) != alike:
                continue
            step = step_of(entry.name)
            if step is not None and step < own and (found is None or step > found[0]):
                found = (step, entry.path)
    return "" if found is None else found[1]

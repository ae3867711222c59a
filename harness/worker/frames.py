"""Which stack frame is the user's: the innermost one outside Python, torch and Harness."""

import os
import sysconfig
from collections.abc import Sequence
from typing import TypeVar

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_GUEST = (
    *(os.path.join(_OURS, part) + os.sep for part in ("worker", "sdk")),
    os.path.join(_OURS, "chaos", "inside.py"),  # stands between a script and what it calls
)


def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    # A virtual environment's standard library lies elsewhere than its packages.
    roots |= {os.path.dirname(os.path.abspath(os.__file__))}
    return tuple(os.path.abspath(root) + os.sep for root in roots)


_LIBRARIES = _library_roots()
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

Located = TypeVar("Located")


def is_user_file(filename: str) -> bool:
    """Whether code in `filename` was written by the user rather than installed."""
    if not filename or filename.startswith("<"):
        return False
    if filename == os.path.join(_OURS, "__init__.py") or filename.startswith(_GUEST):
        return False
    if any(part in filename for part in _PACKAGES) or filename.startswith(_LIBRARIES):
        return False
    return not filename.startswith("torch/")


def is_framework_file(filename: str) -> bool:
    """Whether it is torch's, Python's or ours; an installed package of the user's is none."""
    if filename.startswith("<") or filename.startswith(_GUEST):
        return True
    if any(part in filename for part in _PACKAGES):
        return any(f"{part}torch{os.sep}" in filename for part in _PACKAGES)
    return filename.startswith(_LIBRARIES)


def innermost_user(frames: Sequence[tuple[str, Located]]) -> Located | None:
    """The user's innermost frame of `frames` (file name, frame), innermost first.

    A program that is itself an installed package has no such frame: then the first one outside
    torch and the standard library.
    """
    for check in (is_user_file, lambda name: not is_framework_file(name)):
        for filename, frame in frames:
            if check(filename):
                return frame
    return None

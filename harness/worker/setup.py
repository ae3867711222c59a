"""What this rank runs with, told twice: before the program starts, and once it has made two steps.

By then all is imported, and every optimizer has been seen. Contents of files are not read here:
the agent does that, once for all ranks of the node.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from harness.setups import SHOWN_PREFIXES, is_own
from harness.worker import frames

SETTLED_STEPS = 2
_MOST_FILES = 400
_MOST_PACKAGES = 300
_MOST_SHOWN = 120


class Telling:
    """Collects what is to be told; `say` takes a fact."""

    def __init__(self, say: Callable[..., bool], mode: str, command: tuple[str, ...]) -> None:
        self._say = say
        self._command = (*(("-m",) if mode == "module" else ()), *command)
        self._parameters: int | None = None
        self._tensors: int | None = None

    def saw(self, optimizer: Any) -> None:
        """An optimizer has made its first step; the largest one counts: some hold a part of what
        another one holds."""
        try:
            each = [p for group in optimizer.param_groups for p in group["params"]]
            count = sum(int(parameter.numel()) for parameter in each)
        except Exception:  # it only looks like one, or its parameters have no size yet
            return
        if self._parameters is None or count > self._parameters:
            self._parameters, self._tensors = count, len(each)

    def tell(self) -> None:
        """All that is known by now. The user's own calls lead here: nothing may escape."""
        try:
            told = {
                "python": f"{platform.python_implementation()} {platform.python_version()}",
                "arguments": self._command,
                "environment": _environment(),
                "packages": _packages(),
                "files": _files(),
            }
        except Exception as error:  # modules and their attributes may be anything
            self._say("HookFailed", module="setup", why=repr(error))
            return
        self._say("SetupTold", **told, parameters=self._parameters, tensors=self._tensors)


def _environment() -> dict[str, str]:
    return {name: shown(name, value) for name, value in os.environ.items() if not is_own(name)}


def shown(name: str, value: str) -> str:
    """The value itself where it is known to be harmless, or a digest of it."""
    if name.startswith(SHOWN_PREFIXES) and len(value) <= _MOST_SHOWN:
        return value
    return f"#{hashlib.blake2b(os.fsencode(value), digest_size=4).hexdigest()}"


def _packages() -> dict[str, str]:
    """Versions as imported modules say them. Looked up without their `__getattr__`, which may do
    anything."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and "." not in name and name not in sys.stdlib_module_names:
            found[name] = str(version)  # torch's is a class of its own
    return dict(list(found.items())[:_MOST_PACKAGES])


def _files() -> list[str]:
    """Source files of the user's own modules, the script among them."""
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and frames.is_user_file(file):
            found.append(os.path.abspath(file))
    return sorted(set(found))[:_MOST_FILES]

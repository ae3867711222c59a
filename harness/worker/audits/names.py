"""Names of parameters and modules, found when they are needed."""

import contextlib
import gc
import sys
from collections.abc import Sequence
from typing import Any

from harness.worker.digests.layouts import plain


def named_parameters(parameters: Sequence[Any]) -> list[tuple[str, Any]]:
    """Each with the name that its outermost module gives it, or with its place and shape."""
    names: dict[int, str] = {}
    for module in _outermost():
        with contextlib.suppress(Exception):
            for name, parameter in module.named_parameters(remove_duplicate=False):
                names.setdefault(id(parameter), plain(name))
    return [
        (names.get(id(each), f"#{at} {list(each.shape)}"), each)
        for at, each in enumerate(parameters)
    ]


def name_of(module: Any) -> str:
    """Of a module within its outermost one; its class where it stands alone."""
    for outer in _outermost():
        with contextlib.suppress(Exception):
            for name, each in outer.named_modules():
                if each is module and name and plain(name) != "module":
                    return plain(name)
    return type(module).__name__


def _outermost() -> list[Any]:
    base = sys.modules["torch.nn.modules.module"].Module
    modules = [found for found in gc.get_objects() if issubclass(type(found), base)]
    inner = {
        id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()
    }
    return [module for module in modules if id(module) not in inner]

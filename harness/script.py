"""What can be known of the user's script before anything is started: that it is there and that
it is Python."""

import importlib.util
import os
import shutil
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from harness.config import Mode
from harness.errors import ScriptError


def check(script: str, mode: Mode, *, same_python: bool) -> None:
    """Raise UsageError when `script` cannot be run as `mode`.

    Its syntax is only judged when the workers run our own Python (`same_python`).
    """
    if mode == "command":
        _check_command(script)
        return
    path = _module_file(script) if mode == "module" else _script_file(script)
    if path is not None and same_python:
        _check_syntax(path)


def _check_command(script: str) -> None:
    if shutil.which(script) is None:
        what = "is not executable" if os.path.isfile(script) else "is no program on PATH"
        raise ScriptError(f"{script} {what}", help="--no-python runs it as it is")


def _script_file(script: str) -> Path:
    path = Path(script)
    if path.is_dir():
        raise ScriptError(f"{script} is a directory, not a script", help="give the file in it")
    if not path.exists():
        raise ScriptError(f"there is no script {script}", help=_likely(path))
    if not os.access(path, os.R_OK):
        raise ScriptError(f"{script} cannot be read", help="look at its permissions")
    return path


def _likely(path: Path) -> str:
    import difflib

    folder = path.parent
    names = [entry.name for entry in folder.glob("*.py")] if folder.is_dir() else []
    found = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {folder / found[0]}?" if found else f"relative to {Path.cwd()}"


def _module_file(name: str) -> Path | None:
    """The file that `python -m NAME` runs; None when it has none we could read.

    Parents are not imported, as find_spec alone would do: that may take seconds and GPUs.
    """
    search = [os.getcwd(), *(entry for entry in sys.path if entry)]
    spec = _find(name.split("."), search)
    if spec is not None and spec.submodule_search_locations is not None:
        inner = PathFinder.find_spec(f"{name}.__main__", list(spec.submodule_search_locations))
        if inner is None:
            raise ScriptError(
                f"{name} is a package and has no __main__", help=f"name a module, {name}.something"
            )
        spec = inner
    if spec is None:
        raise ScriptError(
            f"there is no module {name}", help="-m wants a.dotted.name, importable from here"
        )
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _find(parts: list[str], search: list[str]) -> ModuleSpec | None:
    spec = PathFinder.find_spec(parts[0], search) or importlib.util.find_spec(parts[0])
    for index in range(1, len(parts)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        locations = list(spec.submodule_search_locations)
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), locations)
    return spec


def _check_syntax(path: Path) -> None:
    source = path.read_bytes()
    if source.startswith(importlib.util.MAGIC_NUMBER):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the workers say it
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise ScriptError(f"{where}: {error.msg}", help=_line(error.text)) from None
    except ValueError as error:
        raise ScriptError(f"{path}: {error}") from None


def _line(text: str | None) -> str | None:
    return f"the line is: {text.strip()[:120]}" if text and text.strip() else None

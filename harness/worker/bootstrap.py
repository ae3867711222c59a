"""Runs the user's program as the real `__main__`, with the guest installed.

`python -m harness.worker.bootstrap [-m] target args...` behaves as `python -u [-m] target args...`;
what the agent wants of it stands in the variable HARNESS_WORKER, which is taken out of the
environment. Processes forked from the zygote come in through `run`.
"""

import builtins
import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from types import CodeType, TracebackType
from typing import Any, NoReturn

from harness.worker import armed, frames, guest, hooks, process, raised, teardown
from harness.worker.assignment import ASSIGNMENT, STACK_SIGNAL, Assignment, stack_file

_HERE = os.path.abspath(__file__)


def main() -> NoReturn:
    """Entry of a fresh process."""
    raw = os.environ.pop(ASSIGNMENT, "")
    if not raw:
        mode, target, arguments = _parse(sys.argv[1:])
        _execute(mode, target, arguments, None)
    assignment = Assignment.from_json(json.loads(raw))
    if not process.bind_to_parent(assignment.agent_pid):
        sys.exit("harness: the agent that started this worker is gone")
    run(assignment)


def run(assignment: Assignment) -> NoReturn:
    """Become the worker of `assignment` and run its program. The process is already bound."""
    host = guest.become(assignment)
    teardown.drain_at_exit()
    _record_fatal_signals(assignment.fatal)
    hooks.install(host)
    host.setup.tell()
    if assignment.armed:
        armed.arm(host, assignment.armed, at_start=True)
    _execute(assignment.mode, assignment.target, assignment.arguments, host)


def _parse(words: list[str]) -> tuple[str, str, tuple[str, ...]]:
    mode = "script"
    if words[:1] == ["-m"]:
        mode, words = "module", words[1:]
    if not words:
        sys.exit("usage: python -m harness.worker.bootstrap [-m] target [argument ...]")
    return mode, words[0], tuple(words[1:])


def _record_fatal_signals(path: str) -> None:
    """Leave the Python stack in `path` on SIGSEGV and the like, unless the user asked for it; in
    `stack_file(path)` on STACK_SIGNAL."""
    if not path:
        return
    # Kept open by number: faulthandler needs no more, and no object may close it.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        asked = os.open(stack_file(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACK_SIGNAL, asked, all_threads=True)
    if faulthandler.is_enabled():
        return
    with contextlib.suppress(OSError):
        faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _execute(
    mode: str, target: str, arguments: tuple[str, ...], host: guest.Guest | None
) -> NoReturn:
    sys.argv = [target, *arguments]
    try:
        load = _load_module if mode == "module" else _load_script
        names, code = load(target)
        _step_aside()
        main_names = sys.modules["__main__"].__dict__
        main_names.clear()
        main_names.update(names)
        main_names["__builtins__"] = builtins  # exec would put the dictionary there
        exec(code, main_names)
    except SystemExit as leaving:
        if host is not None and _failed(leaving):
            raised.tell(host, leaving, _without_ours(leaving.__traceback__))
        raise
    except BaseException as error:  # the top of the user's program: all is told, then printed
        tb = _without_ours(error.__traceback__)
        if host is not None:
            raised.tell(host, error, tb)
        _print_as_python(error, tb)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = _print_nothing  # it is printed; only Python can die of it properly
            raise
        sys.exit(1)
    sys.exit(0)


def _load_script(target: str) -> tuple[dict[str, Any], CodeType]:
    path = os.path.abspath(target)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        sys.exit(2)
    names: dict[str, Any] = {
        "__name__": "__main__",
        "__file__": path,
        "__cached__": None,
        "__doc__": None,
        "__package__": None,
        "__spec__": None,
        "__loader__": importlib.machinery.SourceFileLoader("__main__", path),
        "__annotations__": {},
    }
    return names, compile(source, path, "exec", dont_inherit=True)


def _load_module(target: str) -> tuple[dict[str, Any], CodeType]:
    _set_first_path(os.getcwd())
    name = target
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{target}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_code"):
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        sys.exit(1)
    code = loader.get_code(name)
    if code is None:
        print(f"{sys.executable}: No code object available for {name}", file=sys.stderr)
        sys.exit(1)
    sys.argv[0] = spec.origin or target
    names: dict[str, Any] = {
        "__name__": "__main__",
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__doc__": None,
        "__package__": spec.parent,
        "__spec__": spec,
        "__loader__": loader,
        "__annotations__": {},
    }
    return names, code


def _set_first_path(folder: str) -> None:
    """As Python does for a script or for -m, unless it was told not to (-P, -I)."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path.insert(0, folder)


def _step_aside() -> None:
    """Give up the name `harness` when the user's own module of that name comes first.

    What of ours is loaded goes on working; the user's `import harness` finds theirs.
    """
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    found = importlib.machinery.PathFinder.find_spec("harness", sys.path[:1])
    if found is None or found.origin is None:
        return
    ours = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "__init__.py")
    if os.path.realpath(found.origin) == os.path.realpath(ours):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        del sys.modules[name]


def _failed(leaving: SystemExit) -> bool:
    return leaving.code not in (None, 0)


def _without_ours(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on."""
    while tb is not None and _is_ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return tb


def _is_ours(filename: str) -> bool:
    return filename == _HERE or (
        filename.startswith("<frozen importlib") and not frames.is_user_file(filename)
    )


def _print_as_python(error: BaseException, tb: TracebackType | None) -> None:
    """What the interpreter does with an exception that nobody caught."""
    error = error.with_traceback(tb)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = sys.excepthook
    try:
        hook(type(error), error, tb)
    except SystemExit:
        raise
    except BaseException as failure:
        if hook is not sys.__excepthook__:
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(failure), failure, failure.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, tb)


def _print_nothing(*_: object) -> None:
    pass


if __name__ == "__main__":
    # The dict of `__main__` is about to become the user's: run from the imported module.
    from harness.worker.bootstrap import main as main_of_module

    main_of_module()

"""Does the script set environment variables before it imports torch?

In a process forked from the zygote torch is imported already, so that such a variable would come
too late. Decided on the source alone and on the safe side: order of lines stands for order of
execution, and modules beside the script that it imports before torch are read as well.
"""

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.config import Job

_READ_LATE = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
)
"""Variables that torch reads when a process group is made, not when it is imported."""
_SETTERS = frozenset({"update", "setdefault", "pop", "clear", "popitem", "__setitem__"})
_SETTING_CALLS = frozenset({"putenv", "unsetenv", "load_dotenv", "setdlopenflags"})
_MOST_FILES = 50


def why_not_zygote(job: Job) -> str:
    """Why the ranks of this job must be fresh processes; empty when they may be forked."""
    if not job.zygote:
        return "--no-zygote"
    if job.mode == "command":
        return "--no-python: the program is started as it is"
    if job.python_flags:
        return f"interpreter flags were given ({' '.join(job.python_flags)})"
    if job.python and Path(job.python).absolute() != Path(sys.executable).absolute():
        return f"another interpreter was asked for ({job.python})"
    path = find_source(job)
    return "" if path is None else sets_environment_early(path, _search_folder(job, path))


def find_source(job: Job) -> Path | None:
    """The file that the job runs; nothing is imported to find it."""
    if job.mode == "script":
        return Path(job.cwd, job.script)
    folders: list[str] | None = [job.cwd, *sys.path]
    spec: importlib.machinery.ModuleSpec | None = None
    for part in (*job.script.split("."), "__main__"):
        found = importlib.machinery.PathFinder.find_spec(part, folders)
        if found is None:
            break
        spec = found
        if spec.submodule_search_locations is None:
            break
        folders = list(spec.submodule_search_locations)
    origin = None if spec is None else spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def _search_folder(job: Job, path: Path) -> Path:
    return path.parent if job.mode == "script" else Path(job.cwd)


def sets_environment_early(path: Path, folder: Path) -> str:
    """The first place, in words, where a variable is set before torch is imported; or empty."""
    return _scan(path, folder, set())


def _scan(path: Path, folder: Path, seen: set[Path]) -> str:
    if path in seen or len(seen) >= _MOST_FILES:
        return ""
    seen.add(path)
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""  # running it will say so
    for node in _in_order(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = _imported(node)
            if any(name.partition(".")[0] == "torch" for name in modules):
                return ""
            for name in modules:
                beside = _beside(name, folder)
                problem = "" if beside is None else _scan(beside, folder, seen)
                if problem:
                    return problem
        elif _sets_variable(node):
            return f"{path.name}:{node.lineno} sets the environment before torch is imported"
    return ""


def _in_order(tree: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.expr))]
    return iter(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level:
        return []
    base = node.module or ""
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


def _beside(name: str, folder: Path) -> Path | None:
    place = folder.joinpath(*name.split("."))
    for candidate in (place.with_suffix(".py"), place / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb")) or (
        isinstance(node, ast.Name) and node.id in ("environ", "environb")
    )


def _harmless(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value in _READ_LATE


def _sets_variable(node: ast.stmt | ast.expr) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return _is_environ(node.value) and not _harmless(node.slice)
    if isinstance(node, ast.AugAssign):
        return _is_environ(node.target)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr in _SETTERS and _is_environ(called.value):
        return not _harmless(node.args[0] if node.args else None)
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _SETTING_CALLS

"""Conditions on the rank that a line of the user's code stands below: `if rank == 0:` and its kin.

A collective under such a condition is called by some ranks only, and that is what most programs
do wrong that hang. Read from the source; no code of the user's is run.
"""

import ast
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.sightings import Frame
from harness.worker.frames import is_user_file

_RANKISH = re.compile(
    r"(?:^|_)(?:rank|ranks|is_main|is_master|main_process|is_first_process|is_rank_?\w*|local_rank"
    r"|global_rank|is_zero|is_lead|is_leader|is_chief|is_primary)(?:$|_)|^get_(?:\w+_)?rank$",
    re.IGNORECASE,
)
_RANK_KEYS = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}
_MOST_FRAMES = 12
_SOURCE_LIMIT = 2_000_000
_TEXT_LIMIT = 120
_PASSES = 3
"""Names that hold a comparison with the rank, and those that hold such a name."""


def above(frames: Sequence[Frame]) -> tuple[str, ...]:
    """`file:line: source` of each condition on the rank above a user's frame, innermost first."""
    found: list[str] = []
    for frame in [f for f in frames if is_user_file(f.file)][:_MOST_FRAMES]:
        for line, text in _conditions(frame.file, frame.line):
            found.append(f"{frame.file}:{line}: {text}")
    return tuple(found)


def _conditions(file: str, line: int) -> list[tuple[int, str]]:
    try:
        stamp = os.stat(file).st_mtime_ns
    except OSError:
        return []
    return [
        (start, text) for first, last, start, text in _spans(file, stamp) if first <= line <= last
    ]


@functools.lru_cache(maxsize=64)
def _spans(file: str, stamp: int) -> tuple[tuple[int, int, int, str], ...]:
    """First and last line that a condition on the rank decides about, its own line, its text;
    inner ones first. `stamp` only keeps an edited file from being taken for the old one."""
    try:
        source = Path(file).read_text(encoding="utf-8", errors="replace")[:_SOURCE_LIMIT]
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = _rank_names(tree)
    lines = source.splitlines()
    found = []
    for node, first, last in _decided(tree):
        if _asks_rank(node.test, names):
            text = lines[node.lineno - 1].strip()[:_TEXT_LIMIT]
            found.append((first, last, node.lineno, text))
    return tuple(sorted(found, key=lambda span: (span[1] - span[0], -span[0])))


def _decided(tree: ast.AST) -> Iterator[tuple[ast.If | ast.While | ast.IfExp, int, int]]:
    """Conditions and the lines that run or not because of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield node, node.body[0].lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.IfExp):
            yield node, node.lineno, node.end_lineno or node.lineno


def _rank_names(tree: ast.AST) -> set[str]:
    """Names that hold the rank, or what was made of it."""
    names: set[str] = set()
    assigns = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    for _ in range(_PASSES):
        for node in assigns:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name, value in _pairs(target, node.value):
                    if value is not None and _asks_rank(value, names):
                        names.add(name)
    return names


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, of in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, of)


def _asks_rank(node: ast.expr, names: set[str]) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and (part.id in names or _RANKISH.search(part.id)):
            return True
        if isinstance(part, ast.Attribute) and _RANKISH.search(part.attr):
            return True
        if isinstance(part, ast.Constant) and part.value in _RANK_KEYS:
            return True
    return False

"""Sizes and names: a module that has grown too large, or is named after nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("harness", "agent", "tui", "chaos", "trainer", "scripts", "bench")
LARGEST_MODULE = 500
LARGEST_FUNCTION = 80
NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "shared"}


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            links = ("harness/agent", "harness/tui", "harness/chaos", "harness/trainer")
            relative = path.relative_to(ROOT).as_posix()
            if not relative.startswith(links) and "_pb2" not in path.name:
                yield path


def test_no_module_is_too_large() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in modules()}
    assert {name: size for name, size in sizes.items() if size > LARGEST_MODULE} == {}


def test_no_function_is_too_long() -> None:
    long: dict[str, int] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > LARGEST_FUNCTION:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = size
    assert long == {}


def test_every_module_is_named_after_what_it_holds() -> None:
    assert [str(p.relative_to(ROOT)) for p in modules() if p.stem in NAMELESS] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []

"""Every error has a code, every code is explained, and every code is in use."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness
from harness.cli.codes import CODES, INTERNAL, USAGE
from harness.cli.group import call
from harness.errors import HarnessError


def kinds(kind: type[HarnessError] = HarnessError) -> Iterator[type[HarnessError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


def test_errors_and_their_pages_are_the_same() -> None:
    for module in ("journal", "runs", "bundles"):
        importlib.import_module(f"harness.{module}")
    own = {kind.code for kind in kinds() if kind.__module__.startswith("harness.")}
    assert own | {USAGE, INTERNAL} == CODES.keys()


def test_each_kind_of_error_is_raised_somewhere() -> None:
    sources = [path.read_text() for root in harness.__path__ for path in Path(root).rglob("*.py")]
    for kind in set(kinds()) - {HarnessError}:
        made = re.compile(rf"(raise|return) {kind.__name__}\(")
        assert any(made.search(text) for text in sources), kind


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain", code.lower()]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"# {code}\n")
    row = CODES[code]
    assert all(part.endswith(".") and part in text for part in row)


def test_codes_are_listed_and_missed_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {code} " in out for code in CODES)
    assert call(["explain", "H999"]) == 2
    assert capsys.readouterr().err.startswith("error[H001]: no verdict or error is called 'H999'")

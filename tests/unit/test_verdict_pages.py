"""Every verdict that the code can give has a page, and the page is whole."""

import json
import re
from pathlib import Path

import pytest

import harness
from harness.incidents import FAMILY_OF
from tests.analyze.programs import CASES
from tests.analyze.test_live import KINDS
from tests.replay.construct import RECORDINGS

PACKAGE = Path(harness.__file__).parent
PAGES = PACKAGE / "verdicts"
SECTIONS = ["What it means", "How it is seen", "Evidence", "What to do", "Reproduce"]


def _given() -> list[str]:
    """Classes that a detector names."""
    source = "\n".join(path.read_text() for path in (PACKAGE / "diagnosis").rglob("*.py"))
    return [name for name in FAMILY_OF if f'"{name}"' in source]


def test_there_are_verdicts() -> None:
    assert {"exception", "killed_by_signal", "shape_mismatch"} <= set(_given())


@pytest.mark.parametrize("name", _given())
def test_a_verdict_has_a_whole_page(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == f"# {name}"
    assert lines[2].endswith(".")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    reproduce = text.partition("## Reproduce\n")[2]
    assert "harness " in reproduce.partition("```sh\n")[2]


@pytest.mark.parametrize("name", _given())
def test_the_scripts_of_a_page_compile(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for script in re.findall(r"<<'PY'\n(.*?)\nPY\n", text, re.DOTALL):
        compile(script, f"{name}.md", "exec")


@pytest.mark.parametrize("name", _given())
def test_a_verdict_has_a_recording_or_a_record(name: str) -> None:
    files = RECORDINGS.glob("*/*/expected.json")
    recorded = {json.loads(file.read_text(encoding="utf-8")).get("verdict") for file in files}
    from_dumps = {case.verdict for case in CASES}
    assert name in recorded | from_dumps | KINDS.keys() | {"straggler"}


def test_no_page_is_left_over() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} <= set(FAMILY_OF)

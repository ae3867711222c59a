"""What is known of a script before it runs."""

import os
import sys
from pathlib import Path

import pytest

from harness import script
from harness.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "odd.py").write_text("import warnings\nx = 1 is 1\n")
    (tmp_path / "broken.py").write_text("x = 1\nprint(x\n")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0\n")
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported by a mere check')\n")
    (package / "train.py").write_text("x = 1\n")
    (package / "broken.py").write_text("x =\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("train.py", "script"),
        ("odd.py", "script"),
        ("mine.train", "module"),
        ("json.tool", "module"),
        ("true", "command"),
        (sys.executable, "command"),
    ],
)
def test_what_can_run_passes(name: str, mode: script.Mode) -> None:
    script.check(name, mode, same_python=True)


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("trian.py", "script", "there is no script trian.py"),
        ("mine", "script", "mine is a directory"),
        ("broken.py", "script", "broken.py:2: "),
        ("nul.py", "script", "nul.py"),
        ("mine", "module", "mine is a package and has no __main__"),
        ("mine.broken", "module", "broken.py:1: invalid syntax"),
        ("mine.nothing", "module", "there is no module mine.nothing"),
        ("nobody.has.this", "module", "there is no module nobody.has.this"),
        ("train.py", "command", "train.py is not executable"),
        ("no-such-program", "command", "no-such-program is no program on PATH"),
    ],
)
def test_what_cannot_run_is_one_line(name: str, mode: script.Mode, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        script.check(name, mode, same_python=True)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_mistyped_script_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        script.check("trian.py", "script", same_python=True)
    assert caught.value.help == "did you mean train.py?"


def test_the_syntax_of_another_python_is_not_judged() -> None:
    script.check("broken.py", "script", same_python=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_script_is_named(here: Path) -> None:
    (here / "train.py").chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        script.check("train.py", "script", same_python=True)

"""The options before the command: colours, notes, what is logged."""

import logging
from collections.abc import Iterator

import pytest

from harness.cli import output
from harness.cli.group import call

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def manner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    yield
    output.set_manner("auto", quiet=False, verbose=False)


def test_colour_is_as_asked_whatever_the_surroundings_say(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(["--color", "always", "explain", "exception"]) == 0
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert call(["--color", "never", "explain", "exception"]) == 0
    assert "\x1b[" not in capsys.readouterr().out
    assert call(["explain", "exception"]) == 0
    assert "\x1b[" in capsys.readouterr().out


def test_quiet_leaves_notes_out(capsys: Captured) -> None:
    output.note("there are two")
    output.set_manner("auto", quiet=True, verbose=False)
    output.note("there are three")
    assert capsys.readouterr().err == "note: there are two\n"


def test_verbose_shows_what_is_logged() -> None:
    logger = logging.getLogger("harness")
    before = logger.level
    try:
        output.set_manner("auto", quiet=False, verbose=True)
        assert logger.getEffectiveLevel() == logging.DEBUG
    finally:
        logger.setLevel(before)


def test_an_option_in_the_wrong_place_is_shown_where_it_belongs(capsys: Captured) -> None:
    assert call(["status", "--color", "never"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error[H001]: no such option of status: --color",
        "help: it stands before the command: harness --color … status",
    ]
    assert call(["--color", "nevr", "status"]) == 2
    assert "help: did you mean never?" in capsys.readouterr().err

"""What the pages say: links that lead somewhere, commands that exist, catalogues that are whole."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from harness.chaos import kinds
from harness.cli import COMMANDS
from harness.cli.codes import CODES
from harness.incidents import CATALOGUE
from harness.settings import REFUSED, SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MADE = {
    "reference/commands.md",
    "reference/settings.md",
    "reference/errors.md",
    "reference/faults.md",
    "verdicts/index.md",
}
"""Pages that only the site has, made by scripts/site_pages.py."""


@pytest.fixture
def site_pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("site_pages")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.M)
    words = (re.sub(r"\]\([^)]*\)", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", word).strip().replace(" ", "-") for word in words}


def test_every_link_leads_somewhere() -> None:
    astray = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
            if "://" in target:
                continue
            meant = (page.parent / target).resolve() if target else page
            made = any(meant == ROOT / "docs" / name for name in MADE)
            if not (made or meant.exists()) or (anchor and anchor not in anchors(meant)):
                astray.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert astray == []


def typed(text: str) -> Iterator[list[str]]:
    """The lines of code blocks that call harness, as words."""
    for block in re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, flags=re.M | re.S):
        for written in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*(\$|exec) ", "", written).strip()
            if line.startswith("harness ") and not line.startswith("harness | "):
                command = re.split(r" (?:\||&&?|>)(?: |$)| +# |;", line)[0]
                yield re.sub(r"[\[\]]|\.\.\.|…", " ", command).split()


def unknown(words: list[str]) -> str:
    """What the command line would not understand of `words`, or nothing."""
    name, rest = words[1], words[2:]
    if name.startswith("-"):
        return ""
    if name not in COMMANDS:
        return f"no command {name}"
    command = importlib.import_module(COMMANDS[name][0]).command
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        inner = command.get_command(click.Context(command), rest[0])
        if inner is None:
            return f"{name} has no {rest[0]}"
        command, rest = inner, rest[1:]
    known = {spelled for each in command.params for spelled in (*each.opts, *each.secondary_opts)}
    for word in rest:
        passes_on = command.context_settings.get("allow_interspersed_args") is False
        if passes_on and (word == "--" or word.endswith(".py")):
            break  # what follows is the script's own
        option = word.partition("=")[0]
        if re.match(r"--?[a-z]", word) and option not in known | {"-h", "--help"}:
            return f"{name} has no {option}"
    return ""


def test_every_command_that_a_page_tells_to_type_is_understood() -> None:
    wrong = []
    count = 0
    for page in PAGES:
        for words in typed(page.read_text(encoding="utf-8")):
            count += 1
            if why := unknown(words):
                wrong.append(f"{page.relative_to(ROOT)}: {' '.join(words)}: {why}")
    assert wrong == []
    assert count > 100


def test_every_verdict_and_fault_that_a_page_names_exists() -> None:
    known = {name for names in CATALOGUE.values() for name in names}
    wrong = []
    for page in PAGES:
        for words in typed(page.read_text(encoding="utf-8")):
            name = words[2] if len(words) > 2 else ""
            if words[1] == "explain" and name.islower() and name not in known:
                wrong.append(f"{page.name}: explain {name}")
            if words[1] == "inject" and name.islower() and name not in kinds.names():
                wrong.append(f"{page.name}: inject {name}")
    assert wrong == []


def test_the_pages_made_from_the_program_are_whole(site_pages: ModuleType) -> None:
    commands = site_pages.commands()
    assert [name for name in COMMANDS if f"## {name} {{#{name}}}" not in commands] == []
    settings = site_pages.settings()
    assert [each.name for each in SETTINGS if f"| <code>{each.name}</code> |" not in settings] == []
    torchrun = site_pages.torchrun_options()
    assert [name for name in REFUSED if f"`--{name.replace('_', '-')}`" not in torchrun] == []
    assert [each.name for each in SETTINGS if each.pet and each.option not in torchrun] == []
    faults = site_pages.faults()
    assert [name for name in kinds.names() if f"### {name} {{#{name}}}" not in faults] == []
    errors = site_pages.errors()
    assert all(f"| {code} | " in errors for code in CODES)
    verdicts = site_pages.verdicts()
    pages = {path.stem for path in (ROOT / "docs" / "verdicts").glob("*.md")}
    assert [name for name in sorted(pages) if f"[{name}]({name}.md)" not in verdicts] == []


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute of one core, of which a busy machine may give little
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("material")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "NO_MKDOCS_2_WARNING": "1",
            "http_proxy": "http://127.0.0.1:9",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "harness inject" in page
    assert (site / "verdicts" / "killed_by_signal.html").exists()

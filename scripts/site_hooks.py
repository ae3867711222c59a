"""What mkdocs is told beside mkdocs.yml: pages made from the program, and that nothing is fetched.

Texts of the repository that do not lie in docs/ (results of benchmarks, the changelog) become pages
too; other files that a page links to come along as they are.
"""

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import site_pages  # noqa: E402  (mkdocs puts this folder on the path while it loads a hook)

ELSEWHERE = {
    "CHANGELOG.md": "reference/changes.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "README.md": "index.md",
    "bench/README.md": "bench/index.md",
} | {f"bench/results/{path.name}": f"bench/{path.name}" for path in
     sorted((ROOT / "bench" / "results").glob("*.md"))}  # fmt: skip
"""A text of the repository outside docs/ -> the page that it is."""

MADE = {
    "reference/commands.md": site_pages.commands,
    "reference/settings.md": site_pages.settings,
    "reference/errors.md": site_pages.errors,
    "reference/faults.md": site_pages.faults,
    "verdicts/index.md": site_pages.verdicts,
}
MARKS = {"<!-- torchrun's options -->": site_pages.torchrun_options}
"""A line of a page -> what stands there on the site."""

_LINK = re.compile(r"(!?\]\()([^)\s#]+)(#[^)\s]*)?\)")
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["'](?:https?:)?//[^"']+"""
    r"""|<link\b(?![^>]*rel=["'](?:canonical|prev|next)["'])[^>]*\bhref=["'](?:https?:)?//[^"']+"""
    r"""|url\(["']?(?:https?:)?//[^)]+|@import\s+["'](?:https?:)?//[^"']+"""
)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in docs/."""
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=make()))
    for source, name in ELSEWHERE.items():
        path = ROOT / source
        if name != "index.md" and path.exists():
            text = _moved(path.read_text(encoding="utf-8"), source, name)
            files.append(File.generated(config, name, content=text))
    for source in _sources(files):
        content = (ROOT / source).read_bytes()
        files.append(File.generated(config, f"source/{source}", content=content))
    config["nav"] = _nav(config["nav"], [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill the marks; lead links that leave docs/ to the pages that stand for their targets."""
    for mark, make in MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    if page.file.generated_by:
        return markdown
    return _moved(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def _sources(files: Files) -> list[str]:
    """Files of the repository that pages link to and that are no pages: they come along."""
    named = {source: (ROOT / source).read_text(encoding="utf-8") for source in ELSEWHERE
             if (ROOT / source).exists()}  # fmt: skip
    named |= {
        f"docs/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
        if not file.generated_by
    }
    found = {
        _meant(match[2], page) for page, text in named.items() for match in _LINK.finditer(text)
    }
    return sorted(source for source in found if _is_source(source))


def _meant(target: str, source: str) -> str:
    """Where in the repository a link of the file `source` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _is_source(path: str) -> bool:
    outside = not path.startswith(("docs/", "../", "/")) and path not in ELSEWHERE
    return outside and "://" not in path and (ROOT / path).is_file()


def _moved(text: str, source: str, name: str) -> str:
    """`text` of the file `source` of the repository, with links as they go from page `name`."""

    def led(match: re.Match[str]) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        meant = _meant(target, source)
        if meant in ELSEWHERE:
            page = ELSEWHERE[meant]
        elif meant.startswith("docs/"):
            page = meant.removeprefix("docs/")
            if page == "verdicts":
                page = "verdicts/index.md"
        elif _is_source(meant):
            page = f"source/{meant}"
        else:
            return match[0]
        return f"{opening}{posixpath.relpath(page, posixpath.dirname(name) or '.')}{anchor})"

    return _LINK.sub(led, text)


def _nav(nav: list[Any], pages: list[str]) -> list[Any]:
    """The navigation with its stars filled in, and a section for the pages that nobody named."""
    named = set(_pages_of(nav))
    whole = _filled(nav, pages)
    folders = tuple(star.removesuffix("*") for star in named if star.endswith("/*"))
    rest = [page for page in pages if page not in named and not page.startswith(folders)]
    return [*whole, {"More": rest}] if rest else whole


def _pages_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [page for part in parts for page in _pages_of(part)]


def _filled(value: Any, pages: list[str]) -> Any:
    if isinstance(value, dict):
        return {title: _filled(inner, pages) for title, inner in value.items()}
    if isinstance(value, list):
        filled = [_filled(each, pages) for each in value]
        return [part for each in filled for part in (each if isinstance(each, list) else [each])]
    if value == "verdicts/*":
        families = [
            {family: [f"verdicts/{name}.md" for name in names]}
            for family, names in site_pages.verdict_pages()
        ]
        return ["verdicts/index.md", *families]
    if value.endswith("/*"):
        inside = sorted(page for page in pages if page.startswith(value.removesuffix("*")))
        return sorted(inside, key=lambda page: not page.endswith("/index.md"))
    return value


def on_post_build(config: Any) -> None:
    """Refuse a site that would fetch anything when it is read."""
    site = Path(config["site_dir"])
    found = []
    for folder, _, names in os.walk(site):
        for name in names:
            path = Path(folder) / name
            if path.suffix == ".svg":
                _without_fonts(path)
            if path.suffix in (".html", ".css", ".svg"):
                text = path.read_text(encoding="utf-8")
                found += [
                    f"{path.relative_to(site)}: {what[0]}" for what in _FETCHED.finditer(text)
                ]
    if found:
        raise PluginError("the site would fetch\n  " + "\n  ".join(found[:20]))


def _without_fonts(path: Path) -> None:
    """Pictures of the screen name a font elsewhere; the system's own will do."""
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"@font-face\s*\{[^}]*\}", "", text), encoding="utf-8")

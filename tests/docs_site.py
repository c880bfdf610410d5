"""What the documentation site adds to mkdocs: a hook of mkdocs.yml.

The navigation is the table of docs/README.md, whose first column names the section. Pages outside of docs/
(ARCHITECTURE.md, CHANGELOG.md, …) are in the site, and links to them lead there. Links to other files of a checkout
(sources, a compose file) are shown as the file's name: they lead nowhere in a site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {"learn": "Tutorial", "do": "How-to", "look up": "Reference", "understand": "Explanation"}
PROJECT = ("CHANGELOG.md", "benchmarks/README.md", "CONTRIBUTING.md", "RELEASE.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
OUTSIDE = ("ARCHITECTURE.md", "deploy/README.md", *PROJECT)
"""Pages of the checkout that are not below docs/."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| *([\w ]*?) *\| *(\[.*?) *\|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation."""
    sections: dict[str, list[Any]] = {}
    listed: list[str] = []
    title = ""
    for section, cell in _ROW.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")):
        title = SECTIONS[section] if section else title
        for _, _, target in _LINK.findall(cell):
            for page in _pages(posixpath.normpath(posixpath.join("docs", target))):
                if page not in listed:
                    listed.append(page)
                    sections.setdefault(title, []).append(page)
    nav: list[Any] = [{"Overview": "README.md"}]
    nav += [{name: [_in_site(page) for page in pages]} for name, pages in sections.items()]
    config.nav = [*nav, {"Project": [_in_site(page) for page in PROJECT]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, _in_site(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their pages are in the site."""
    source = Path(page.file.abs_src_path or "").resolve().relative_to(ROOT).as_posix()

    def moved(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path == "README.md":
            path = "docs/README.md"
        if (ROOT / path).is_dir():
            path = f"{path}/README.md"
        if path.startswith("docs/") or path in OUTSIDE:
            here = posixpath.dirname(page.file.src_uri)
            return f"{mark}[{text}]({posixpath.relpath(_in_site(path), here or '.')}{hash_}{anchor})"
        if (ROOT / path).exists():
            return text if "`" in text else f"`{text}`"
        return link[0]  # The strict build reports it.

    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(moved, markdown[at:])])


def _pages(path: str) -> Iterator[str]:
    """A page, and what is beside it where it is the index of a directory."""
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    yield path
    if path.startswith("docs/") and path.endswith("/README.md"):
        yield from (each.relative_to(ROOT).as_posix() for each in sorted((ROOT / path).parent.glob("[!R]*.md")))


def _in_site(path: str) -> str:
    """Where a page of the checkout is in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"

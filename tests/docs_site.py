"""What the documentation site adds to mkdocs: a hook of mkdocs.yml.

The navigation is the table of docs/README.md, whose first column names the section. Pages outside of docs/
(ARCHITECTURE.md, CHANGELOG.md, …) are in the site, and links to them lead there. Links to other files of a checkout
(sources, a compose file) are shown as the file's name: they lead nowhere in a site. The page of the last campaign gets
a picture of its table.
"""

from __future__ import annotations

import math
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
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_PART = re.compile(
    r"^\| .*?\(`([\w-]+)`[^|]*\) \| [\d,]+ \| [\d.]+ \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE
)
LABEL, BAR, LINE = 185, 620, 26
"""Of the campaign's picture, in its own units: width of names, of the longest bar, height of a line."""
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
    made = "".join([*parts, _LINK.sub(moved, markdown[at:])])
    if source == "docs/campaign/last.md":
        made = made.replace("\n| part |", f"\n{campaign_picture(made)}\n\n| part |", 1)
    return made


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A bar in the code of a cell is escaped for GitHub's tables; Python's Markdown keeps the backslash."""
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def campaign_picture(markdown: str) -> str:
    """Faults and attacks, and messages checked, of each part: two bars, by the logarithm."""
    rows = [(name, [int(each.replace(",", "")) for each in counts]) for name, *counts in _PART.findall(markdown)]
    parts = [(name, attacks, checked, broken) for name, (attacks, checked, broken) in rows]
    most = math.log10(1 + max(max(attacks, checked) for _, attacks, checked, _ in parts))
    lines = []
    for number, (name, attacks, checked, broken) in enumerate(parts):
        top = number * LINE
        lines.append(f'<text x="{LABEL - 8}" y="{top + 15}" text-anchor="end">{name}</text>')
        for offset, count, kind in ((3, attacks, "#d98c00"), (12, checked, "#2a78d6")):
            width = BAR * math.log10(1 + count) / most
            lines.append(f'<rect x="{LABEL}" y="{top + offset}" width="{width:.1f}" height="8" fill="{kind}"/>')
            lines.append(f'<text x="{LABEL + width + 4:.1f}" y="{top + offset + 8}" class="n">{count:,}</text>')
        if broken:
            lines.append(f'<text x="{LABEL + BAR + 80}" y="{top + 15}" fill="#d03030">{broken} broken</text>')
    return (
        '<div style="overflow-x:auto"><svg role="img" aria-label="Faults and messages checked of each part" '
        f'viewBox="0 0 {LABEL + BAR + 150} {len(parts) * LINE}" style="min-width:28rem" fill="currentColor" '
        'font-size="13"><style>.n{font-size:9px;opacity:.7}</style>' + "".join(lines) + "</svg></div>\n"
        '<p>Above, of each part: <span style="color:#d98c00">faults and attacks</span>, '
        '<span style="color:#2a78d6">messages checked</span>; bars by the logarithm.</p>'
    )


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

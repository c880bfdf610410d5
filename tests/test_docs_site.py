"""The documentation site: built strictly, complete, and without a request to any other machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).resolve().parent.parent
ASKING = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "srcset", "object": "data"}
"""By element, the attribute that a browser fetches by itself. Links to pages elsewhere are for people."""

pytestmark = pytest.mark.xdist_group("docs site")


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get("rel") not in ("canonical", "next", "prev") and ASKING.get(tag) in values:
            self.fetched.append(values[ASKING[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    return {path: _Page(path) for path in site.rglob("*.html")}


def test_every_page_is_in_it_and_in_its_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").as_posix()
        address = name.removesuffix("README.md") if name.endswith("README.md") else name.removesuffix(".md") + "/"
        assert (site / address / "index.html").is_file(), name
        assert f'href="{address or "."}"' in index, name
    for section in ("Tutorial", "How-to", "Reference", "Explanation", "Project"):
        assert re.search(rf'class="md-tabs__link">\s*{section}\s*<', index), section


def test_each_link_leads_to_a_page_and_a_heading_that_are_there(site: Path, pages: dict[Path, _Page]) -> None:
    checked, broken = 0, []
    for path, page in pages.items():
        if path.name == "404.html":  # Its links are of the place where the site will be.
            continue
        for link in page.links:
            address, anchor = urldefrag(unquote(link))
            if "://" in address or address.startswith("mailto:"):
                continue
            target = (path.parent / address).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            checked += 1
            is_page = target in pages
            if not target.is_file() or (anchor and is_page and anchor not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert checked > 5_000


def test_a_reader_s_browser_asks_no_other_machine(site: Path, pages: dict[Path, _Page]) -> None:
    assert sum(len(page.fetched) for page in pages.values()) > 200
    assert {url for page in pages.values() for url in page.fetched if "//" in url} == set()
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    styles += re.findall(r"<style.*?</style>", "".join(path.read_text(encoding="utf-8") for path in pages), re.DOTALL)
    asked = r"(?:url\(|@import )[\"']?((?:https?:)?//[^)\"']+)"
    assert [url for style in styles for url in re.findall(asked, style)] == []


def test_the_search_finds_words_of_pages_and_of_docstrings(site: Path) -> None:
    rows = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    for address, word in [("glossary/", "consume queue"), ("api/", "TieredStore"), ("campaign/last/", "faults")]:
        assert any(row["location"].startswith(address) and word in row["text"] + row["title"] for row in rows), word


def test_signatures_in_tables_have_no_escapes(site: Path) -> None:
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert "str | os.PathLike[str]" in text
    assert [
        path for path in site.rglob("*.html") if "\\|" in "".join(re.findall(r"<td.*?</td>", path.read_text()))
    ] == []


def test_the_last_campaign_has_a_picture_with_each_part_of_its_table(site: Path) -> None:
    text = (site / "campaign" / "last" / "index.html").read_text(encoding="utf-8")
    [picture] = re.findall(r'<svg role="img".*?</svg>', text, re.DOTALL)
    named = re.findall(r'text-anchor="end">([\w-]+)<', picture)
    reported = json.loads((ROOT / "docs" / "campaign" / "last.json").read_text(encoding="utf-8"))
    assert named == [part["name"] for part in reported["parts"]]
    assert picture.count("<rect") == 2 * len(named)


def test_pictures_of_measurements_and_of_the_console_are_in_it(site: Path, pages: dict[Path, _Page]) -> None:
    compare = pages[site / "benchmarks" / "compare" / "index.html"]
    assert len([url for url in compare.fetched if url.endswith(".png") and "favicon" not in url]) > 5
    for path, page in pages.items():
        for url in page.fetched:
            assert path.name == "404.html" or (path.parent / unquote(url.partition("?")[0])).is_file(), (path, url)

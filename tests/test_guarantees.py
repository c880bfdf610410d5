"""Every promise of docs/guarantees.md, and every defect that a campaign found, names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WHOLE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
FIGURES = re.compile(r"<!-- campaign: begin -->.*<!-- campaign: end -->", re.DOTALL)
TEXT = FIGURES.sub("", WHOLE)
"""Without the figures of the last campaign, which are no promises."""
FOUND = (ROOT / "docs" / "campaign" / "found.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT + FOUND)))
HEADS = ("| promise", "| found by", "|---")
ROWS = [line for line in TEXT.splitlines() if line.startswith("|") and not line.startswith(HEADS)]
DEFECTS = [line for line in FOUND.splitlines() if line.startswith("|") and not line.startswith(HEADS)]


pytestmark = pytest.mark.xdist_group("reads-all-sources")


@cache
def definitions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_there_are_promises() -> None:
    assert len(ROWS) > 15


def test_the_figures_of_the_last_campaign_stand_there_once() -> None:
    (figures,) = FIGURES.findall(WHOLE)
    assert "rounds" in figures


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_each_promise_names_a_test(row: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py::\w+`", row.split("|")[2])


@pytest.mark.parametrize("row", DEFECTS, ids=lambda row: row[2:60])
def test_each_defect_that_was_found_is_held_by_a_test(row: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py::\w+`", row.split("|")[3])


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_each_test_that_a_promise_names_exists(path: str, name: str) -> None:
    assert name in definitions(path)


def test_every_test_of_the_crash_lane_stands_behind_a_promise() -> None:
    """A crash test whose promise is not written down is a promise without a reader."""
    named = {path for path, _ in NAMED}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "crash").glob("test_*.py")}
    assert files <= named

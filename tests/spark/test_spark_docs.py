"""docs/spark.md keeps its word: its Python runs from top to bottom, its tables are the program's, its commands run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tiermq.history.arrow_schema import ALIASES, COLUMNS, spark_schema_ddl
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.option_table import SINK_OPTIONS, SOURCE_OPTIONS, Option, Use
from tiermq.spark.source.data_source import SINK_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "spark.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")


def fences(language: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with the line that it begins at."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [(TEXT[: match.start(1)].count("\n"), match[1]) for match in found]


def rows_below(heading: str) -> dict[str, str]:
    """The names and the second column of the first table below a heading; a row may name several things."""
    table = TEXT.split(f"\n{heading}\n", 1)[1].split("|---|", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.MULTILINE)
    return {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}


def markdown(table: Sequence[Option]) -> str:
    """The table for a document."""
    lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
    for option in table:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = "" if option.default in (None, ()) else f"`{_shown_default(option.default)}`"
        note = "" if len(option.uses) != 1 or option.uses == {Use.WRITE} else f" Only {next(iter(option.uses))}."
        lines.append(f"| {names} | {option.kind} | {default} | {option.doc}{note} |")
    return "\n".join(lines) + "\n"


def _shown_default(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_the_tables_of_options_are_those_of_the_program() -> None:
    assert markdown(SOURCE_OPTIONS) in TEXT
    assert markdown(SINK_OPTIONS) in TEXT


def test_the_tables_of_columns_and_counters_are_those_of_the_program() -> None:
    assert rows_below("### Columns") == {name: spark_schema_ddl([name]).partition(" ")[2] for name in COLUMNS}
    assert all(f"`{name}`" in TEXT for name in ALIASES)
    assert list(rows_below("## Scan cost")) == list(ScanCounters.__slots__)
    written = rows_below("## Sink")
    assert written.keys() == SINK_COLUMNS.keys()
    for name, kinds in SINK_COLUMNS.items():
        reported = written[name].replace(" ", "").lower()
        assert all(kind in reported for kind in kinds), name


def test_the_tour_runs_from_top_to_bottom_and_then_its_commands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark is not None
    monkeypatch.chdir(tmp_path)
    pieces = fences("python")
    assert len(pieces) >= 10
    names: dict[str, Any] = {"__name__": "tour"}
    try:
        for line, piece in pieces:
            # Blank lines before it, so that an error names the line of the document.
            exec(compile("\n" * line + piece, str(DOCUMENT), "exec"), names)
    finally:
        spark.catalog.dropTempView("orders")  # The session is that of other tests, too.
    commands = [each.removeprefix("$ ") for _, piece in fences("console") for each in piece.splitlines()]
    assert len(commands) >= 3
    for command in commands:
        words = shlex.split(command.replace("$TIER", names["tier"]).replace("$PWD", str(tmp_path)))
        done = subprocess.run(
            [sys.executable, "-m", "tiermq.cli", *words[1:]], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        assert done.stdout


def test_modules_and_files_that_the_document_names_exist() -> None:
    links = re.findall(r"\]\(((?:\.\./)?[\w/.]+\.md)\)", TEXT) + re.findall(r"`(tests/[\w/]+\.py)`", TEXT)
    places = [(ROOT if each.startswith("tests/") else ROOT / "docs") / each for each in links]
    assert places
    assert [str(place) for place in places if not place.is_file()] == []

"""All of docs/tutorial.md can be gone as it is written: each piece in its order, in one empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOUR = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
NEEDS_SPARK = ("tiermq pipeline sql", "from tiermq.spark")


class Piece(NamedTuple):
    """A command of the tour, or a piece of Python."""

    is_python: bool
    text: str

    @property
    def needs_spark(self) -> bool:
        return any(mark in self.text for mark in NEEDS_SPARK)


def pieces() -> list[Piece]:
    found = []
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TOUR, re.MULTILINE | re.DOTALL):
        is_python = language in ("python", "py")
        found += [Piece(is_python, each) for each in ([text] if is_python else text.splitlines())]
    return found


def go(piece: Piece, directory: Path) -> None:
    """Run a piece as a reader would who has `tiermq` on the path."""
    program = directory.parent / "bin" / "tiermq"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tiermq.cli "$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-c", piece.text] if piece.is_python else ["sh", "-c", piece.text]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{piece.text}\n{done.stdout}{done.stderr}"
    assert done.stdout or piece.is_python or piece.text.startswith("rm "), piece.text


def test_the_tour_has_a_store_a_tier_spark_and_a_lost_disk() -> None:
    texts = "\n".join(piece.text for piece in pieces())
    parts = (
        "LocalStore.open",
        "pipeline offload",
        "tier stat",
        "pipeline sql",
        "get_spark",
        "rm -r store",
        "flush_to_tier",
    )
    for part in parts:
        assert part in texts


def test_the_tour_without_spark(tmp_path: Path) -> None:
    directory = tmp_path / "tour"
    directory.mkdir()
    for piece in pieces():
        if not piece.needs_spark:
            job = not piece.is_python and piece.text.startswith("tiermq pipeline")
            go(piece._replace(text=f"{piece.text} --master here") if job else piece, directory)
    assert list((directory / "lake" / "orders").glob("*.parquet"))
    assert list((directory / "another-tier").rglob("COMMIT_LOG"))  # Of automatic tiering, the last part.


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_whole_tour(tmp_path: Path) -> None:
    directory = tmp_path / "tour"
    directory.mkdir()
    for piece in pieces():
        go(piece, directory)

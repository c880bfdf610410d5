"""A tier with a fetcher on it, closed at the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tier.fetch.fetch_world import FetchWorld, IdlePool, quick_pace
from tiermq.tier.flat.flat_file import FlatAppendFile


@pytest.fixture(autouse=True)
def _without_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests count reads to the byte and damage single records: as in a tier whose blocks have no checksums.

    `test_checked_reads.py` is about those that have.
    """
    monkeypatch.setattr(
        FlatAppendFile, "_read_segment", lambda file, segment, *span: file._driver.read(segment.key, *span)
    )


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., FetchWorld]]:
    made: list[FetchWorld] = []

    def make(**settings: Any) -> FetchWorld:
        path = tmp_path / str(len(made))
        path.mkdir()
        made.append(FetchWorld(path, **settings))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., FetchWorld]) -> FetchWorld:
    return make_world()


@pytest.fixture
def quick(make_world: Callable[..., FetchWorld]) -> FetchWorld:
    """A tier that answers at once, and reads ahead only when a test lets it."""
    return make_world(pace=quick_pace(), pool=IdlePool())

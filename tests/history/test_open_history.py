"""A history is opened when it is needed, once for each place and process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiermq.errors import BadHistory, StoreDamaged
from tiermq.history.open_history import open_history, worker_history
from tiermq.history.scan_values import HistoryPlace, StorePlace


def test_a_history_of_nothing_is_refused() -> None:
    with pytest.raises(BadHistory, match="found neither"):
        open_history(HistoryPlace())


def test_nothing_is_opened_before_it_is_asked_for(tmp_path: Path) -> None:
    place = HistoryPlace("s3://bucket/that-is-not-there", (StorePlace(str(tmp_path / "none")),))
    with open_history(place) as history:
        assert history.has_tier
        with pytest.raises(StoreDamaged):
            history.store(str(tmp_path / "none"))


def test_a_store_alone_has_no_tier(tmp_path: Path) -> None:
    with open_history(HistoryPlace(None, (StorePlace(str(tmp_path)),))) as history:
        assert not history.has_tier
        with pytest.raises(BadHistory, match="name its tier"):
            _ = history.tier


@pytest.mark.parametrize(
    ("url", "expected"),
    [("memory://a", False), ("file:///tmp/a", False), ("memory://a?driver=object", True)],
)
def test_only_what_is_far_is_read_ahead(url: str, expected: bool) -> None:
    with open_history(HistoryPlace(url)) as history:
        assert history.reads_ahead is expected


def test_a_worker_has_one_history_of_each_place_and_a_child_process_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = HistoryPlace("memory://here"), HistoryPlace("memory://there")
    first = worker_history(here)
    assert worker_history(HistoryPlace("memory://here")) is first
    assert worker_history(there) is not first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert worker_history(here) is not first

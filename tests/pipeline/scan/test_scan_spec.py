"""What to scan, of Python values: what it holds, how it is written down, what it refuses."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from spark.source_world import SourceWorld
from tiermq.errors import BadHistory, BadOption
from tiermq.history.open_history import open_history
from tiermq.history.scan_pruning import ScanPruning
from tiermq.history.scan_values import HistoryPlace, StorePlace
from tiermq.pipeline.scan.queue_offsets import EveryQueue, QueueNumber
from tiermq.pipeline.scan.scan_request import base_request, open_catalog, require_queues
from tiermq.pipeline.scan.scan_spec import ScanSpec, scan_spec


def test_values_become_a_spec_and_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = scan_spec(
        tier="s3://b", store=["a", Path("/b")], topic="a,b", keys=["x", "y,z", "x"], tags="t || u", queues=range(3),
        until=1767225600123, offsets=(5, None), broker=["x", "y"],
    )  # fmt: skip
    assert spec == ScanSpec(
        place=HistoryPlace("s3://b", (StorePlace(os.path.join(tmp_path, "a"), "", "x"), StorePlace("/b", "", "y"))),
        topics=("a,b",),
        keys=("x", "y,z"),
        tags=("t", "u"),
        queue_ids=(0, 1, 2),
        ending_ms=1767225600123,
        starting_offsets=EveryQueue(5),
    )
    assert spec.as_texts() == {
        "tier": "s3://b",
        "store": f'["{tmp_path}/a", "/b"]',
        "subscribe": '["a,b"]',
        "keys": '["x", "y,z"]',
        "tags": '["t", "u"]',
        "queueIds": "0,1,2",
        "endingTimestamp": "1767225600123",
        "startingOffsets": "5",
        "brokerName": '["x", "y"]',
    }


def test_a_store_of_a_named_cluster_keeps_it() -> None:
    spec = scan_spec(store="/a=east/b1")
    assert spec.place.stores == (StorePlace("/a", "east", "b1"),)
    assert spec.as_texts() == {"store": '["/a=east/b1"]'}
    assert scan_spec(tier="s3://b", broker="b1").brokers == ("b1",)


def test_offsets_by_queue_are_split_into_both_ends() -> None:
    spec = scan_spec(tier="s3://b", offsets={"orders": {0: (1, 2), 1: (None, 5)}, "x": {"b": {0: (3, None)}}})
    assert spec.starting_offsets == (QueueNumber("orders", "", 0, 1), QueueNumber("x", "b", 0, 3))
    assert spec.ending_offsets == (QueueNumber("orders", "", 0, 2), QueueNumber("orders", "", 1, 5))
    assert spec.as_texts()["startingOffsets"] == '{"orders": {"0": 1}, "x": {"b": {"0": 3}}}'
    assert spec.as_texts()["endingOffsets"] == '{"orders": {"0": 2, "1": 5}}'


def test_times_without_a_zone_are_of_the_given_one() -> None:
    zone = ZoneInfo("Europe/Paris")
    for since in ("2026-01-01T01:00:00", dt.datetime(2026, 1, 1, 1)):  # noqa: DTZ001
        assert scan_spec(since=since, zone=zone).starting_ms == 1767225600000
    assert scan_spec(since="2026-01-01T00:00:00Z", zone=zone).starting_ms == 1767225600000
    assert scan_spec(topic=re.compile("a.*")).topic_pattern == "a.*"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"since": "yesterday"}, "since and until: expected milliseconds"),
        ({"offsets": 5}, "expected .from, to."),
        ({"offsets": (7, 3)}, "from before to"),
        ({"offsets": {"orders": {"x": (1, 2)}}}, "offsets: expected queue ids"),
        ({"keys": ""}, "keys: expected texts that are not empty"),
        ({"since": 5, "offsets": (1, None)}, "where to begin in one way"),
        ({"since": 5, "until": 4}, "found 4 and 5"),
        ({"store": ["/a", "/b", "/c"], "broker": ["x", "y"]}, "one for each of the 3 stores, found 2"),
        ({"topic": re.compile("a"), "tier": "/some/dir"}, "is file:///some/dir"),
        ({}, "the location of messages"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadOption, match=expected):
        scan_spec(**given).require_place()


def require_some(**given: Any) -> None:
    spec = scan_spec(**given)
    with open_history(spec.place) as history:
        require_queues(open_catalog(history, spec, base_request(spec, ())), spec)


def test_only_a_tier_alone_must_have_something(tmp_path: Path) -> None:
    world = SourceWorld(tmp_path)
    with pytest.raises(BadHistory, match="expected the history of a broker, found none"):
        require_some(tier=world.url)
    require_some(tier=world.url, store=world.disk, broker="broker-a")
    require_some(store=world.disk)
    world.put(1, "orders", 0)
    world.flush_to_tier()
    require_some(tier=world.url)
    world.bury()


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "orders"}, {"topic": re.compile("o.*")}, {"keys": "k"}, {"tags": "t"}, {"queues": 0},
        {"since": 1}, {"until": 1}, {"broker": "b"}, {"offsets": {"orders": {0: (1, 2)}}},
    ],
)  # fmt: skip
def test_a_scan_with_a_restriction_is_not_of_everything(given: dict[str, Any]) -> None:
    assert not scan_spec(tier="file:///t", **given).is_of_everything


def test_a_scan_with_only_a_place_is_of_everything() -> None:
    assert scan_spec(tier="file:///t").is_of_everything
    pruned = ScanSpec(pruning=ScanPruning(topics=frozenset({"orders"})))
    assert not pruned.is_of_everything

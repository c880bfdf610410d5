"""Unmodified RocketMQ brokers copied over the wire: what the official client wrote is in the tier, offset by offset."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from history.history_world import read_all
from interop.peer import Described
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Cluster, Unavailable, fetch
from pipeline.offload.offload_world import TIER
from pipeline.offload.wire_world import segments_of
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace, ScanRequest
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.verify.verify import verify_tier

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

VERSIONS = ("5.3.3", "5.5.0")
QUEUES = 3


def send(cluster: Cluster, count: int, seed: int) -> list[tuple[Described, Described]]:
    """Messages of many kinds, by the official client, and its answers."""
    chance, peer, sent = random.Random(seed), cluster.peer(), []
    for number in range(count):
        body = chance.randbytes(chance.choice([1, 50, 3_000]))
        message: Described = {
            "topic": "orders", "queue": chance.randrange(QUEUES), "body": body,
            "keys": [f"key-{seed}-{number}"], "tags": chance.choice(["a", "paid", "\u00fcber"]),
            "properties": {"number": str(number)},
        }  # fmt: skip
        sent.append((message, peer.send(message)))
    return sent


def copy(cluster: Cluster, tier: str, **options: Any) -> JobReport:
    fleet = FleetScope(cluster.name_server, CLUSTER_NAME, settle_s=options.pop("settle_s", 2.0))
    return offload([], tier, fleet=fleet, config=TIER, index="later", **options)


def expected_of(sent: list[tuple[Described, Described]]) -> dict[int, dict[int, Any]]:
    """By queue and offset, as the broker acknowledged them."""
    rows: dict[int, dict[int, Any]] = {queue_id: {} for queue_id in range(QUEUES)}
    for message, answer in sent:
        row = (message["body"], message["keys"], message["tags"])
        assert rows[answer["queue"]].setdefault(answer["offset"], row) is row
    return rows


def in_tier(tier: str) -> dict[int, dict[int, Any]]:
    """What a reader of the tier gets, by queue and offset: body, keys and tag."""
    if not list(open_driver(tier).list_segments()):
        return {}
    with open_history(HistoryPlace(tier)) as history:
        found = read_all(read_catalog(history), ScanRequest(topics=frozenset({"orders"})))
    rows: dict[int, dict[int, Any]] = {}
    for (_, queue_id), messages in found.items():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        rows[queue_id] = {each.queue_offset: (each.decompressed_body(), each.keys, each.tags) for each in messages}
    return rows


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_of_the_official_client_is_in_the_tier_at_its_offset(tmp_path: Path, version: str) -> None:
    try:
        distribution = fetch(version)
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ {version} here: {reason}")
    tier = (tmp_path / "t").as_uri()
    with Cluster(distribution, tmp_path / "store", tmp_path / "home", SMALL_FILES) as cluster:
        cluster.peer().create_topic("orders", QUEUES)
        sent = send(cluster, 200, 1)
        first = copy(cluster, tier)
        assert (first.problems, first.done["messages"]) == ([], 200)
        assert first.took_s >= 2.0  # ASYNC_FLUSH, RocketMQ's default: seen there for the settle time.
        assert copy(cluster, tier).done["messages"] == 0
        sent += send(cluster, 100, 2)
        assert copy(cluster, tier).done["messages"] == 100
        assert in_tier(tier) == expected_of(sent)
        assert verify_tier(open_driver(tier)).problems == []
    # The store directory, which its broker has closed, gives the same bytes.
    by_directory = (tmp_path / "other").as_uri()
    place = f"{tmp_path / 'store'}={CLUSTER_NAME}/{BROKER_NAME}"
    report = offload([place], by_directory, topics=["orders"], config=TIER, index="later")
    assert (report.problems, report.done["messages"]) == ([], 300)
    assert segments_of(by_directory) == segments_of(tier)


def test_a_broker_that_is_killed_while_it_is_copied_loses_and_doubles_nothing(tmp_path: Path) -> None:
    try:
        distribution = fetch()
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ here: {reason}")
    tier, stop = (tmp_path / "t").as_uri(), threading.Event()
    with (
        Cluster(distribution, tmp_path / "store", tmp_path / "home", SMALL_FILES) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        cluster.peer().create_topic("orders", QUEUES)
        job = pool.submit(copy, cluster, tier, trigger_s=0.5, stop=stop, settle_s=1.0)
        try:
            sent = send(cluster, 100, 1)
            while not sum(map(len, in_tier(tier).values())):
                time.sleep(0.2)
            sent += send(cluster, 100, 2)
            cluster.kill_broker()
            cluster.start_broker()
            sent += send(cluster, 100, 3)
            while sum(map(len, in_tier(tier).values())) < len(sent):
                assert not job.done(), job.result()
                time.sleep(0.2)
        finally:
            stop.set()
        report = job.result()
    assert (report.problems, report.details["gaps"], report.details["refused"]) == ([], [], [])
    assert in_tier(tier) == expected_of(sent)
    assert verify_tier(open_driver(tier)).problems == []

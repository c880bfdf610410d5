"""Ten thousand topics and a thousand groups: a page costs what it shows, not what there is."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from console.console_world import console
from console.web_driver import person
from servers.chromium import chromium
from servers.debian import Unavailable
from tiermq.client.cluster_client import Access
from tiermq.console.sources import SourcePlace
from tiermq.testing import LocalBroker

TOPICS, GROUPS, QUEUES = 10_000, 1_000, 4
PATHS = ("/", "/topics", "/topics?page=100", "/topics?search=t-0777", "/groups", "/groups?page=20", "/messages", "/sql",
         "/waiting", "/settings", "/topics/t-00042", "/groups/g-0042")  # fmt: skip
REQUESTS_MAX = 1_200
"""The overview asks for the lags of a hundred groups, at most every 15 s; every other page for less than that."""


def tables(directory: Path) -> None:
    """The files of a broker that has them."""
    config = directory / "store" / "config"
    config.mkdir(parents=True)
    topics = {
        f"t-{number:05}": {"topicName": f"t-{number:05}", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
                           "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {}}
        for number in range(TOPICS)
    }  # fmt: skip
    groups = {f"g-{number:04}": {"groupName": f"g-{number:04}"} for number in range(GROUPS)}
    offsets = {f"t-{number:05}@g-{number % GROUPS:04}": {"0": 0} for number in range(TOPICS)}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups}))
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))


def requests_of(broker: LocalBroker) -> int:
    lines = broker.broker.render_metrics().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("rocketmq_rpc_latency_count"))


@pytest.mark.slow
def test_a_page_asks_for_what_it_shows_of_ten_thousand_topics(tmp_path: Path) -> None:
    tables(tmp_path)
    with LocalBroker(tmp_path / "store") as broker, console(SourcePlace(Access(broker.name_server))) as at:
        broker.send("t-00042", b"x")
        assert at.api("topic.list")["total"] == TOPICS
        assert at.api("group.list")["total"] >= GROUPS
        for path in ("/", *PATHS):
            before, began = requests_of(broker), time.perf_counter()
            answer = at.get(path)
            took_s, asked = time.perf_counter() - began, requests_of(broker) - before
            assert answer.status == 200, (path, answer.text[:500])
            assert asked <= REQUESTS_MAX, f"{path} asked {asked} times"
            assert asked <= 600 or path == "/", f"{path} asked {asked} times"
            assert len(answer.text) < 300_000, f"{path} has {len(answer.text):,} bytes"
            print(f"{path:28} {took_s * 1000:6.0f} ms {asked:5} requests {len(answer.text):9,} bytes")


@pytest.mark.slow
def test_a_browser_shows_each_page_of_ten_thousand_topics(tmp_path: Path) -> None:
    """Prints how long from the click to the load event, with styles, script and what they draw."""
    try:
        browser = chromium()
    except Unavailable as reason:
        pytest.skip(str(reason))
    tables(tmp_path)
    with (
        LocalBroker(tmp_path / "store") as broker,
        console(SourcePlace(Access(broker.name_server))) as at,
        person(browser, f"http://127.0.0.1:{at.port}", tmp_path) as someone,
    ):
        broker.send("t-00042", b"x")
        for path in ("/", *PATHS):
            someone.open(path)
            took_ms = someone.run("return performance.getEntriesByType('navigation')[0].duration")
            assert someone.complaints() == [], path
            assert someone.run("return document.querySelectorAll('tbody tr').length") <= 400, path
            print(f"{path:28} {took_ms:6.0f} ms in Chromium")

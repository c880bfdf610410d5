"""Time travel, a replay from there, the life of a message, transactions: over HTTP, with a real broker and its tier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from broker.consuming import Peer
from console.console_world import ORDERS, QUEUES, Browser, console, orders_broker, place_of, send_order
from tiermq.console.sources import SourcePlace
from tiermq.pipeline.export.job import export
from tiermq.remoting.codes import RequestCode
from tiermq.testing import LocalBroker
from waiting import until

ANYBODY = "Basic eDp4"


def life(at: Browser, **place: Any) -> dict[str, str]:
    return {each["event"]: each["text"] for each in at.api("message.show", topic="orders", **place)["life"]}


def give_back(broker: LocalBroker, offset: int, level: int) -> None:
    message = broker.messages("orders", 0)[offset]
    fields: dict[str, Any] = {"offset": message.physical_offset, "group": "audit", "delayLevel": level}
    with Peer(broker.broker) as peer:
        assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, originTopic="orders", **fields).code == 0
    broker.broker.parts.local.dispatch_now()


def test_topics_and_groups_are_shown_as_they_were(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", tier=f"file://{tmp_path}/tier") as broker:
        broker.create_topic("orders", queues=QUEUES)
        moments = []
        for committed in (2, 7):
            for number in range(10):
                send_order(broker, number)
            broker.broker.parts.offsets.commit("audit", "orders", 0, committed)
            moments.append(broker.messages("orders")[-1].store_timestamp_ms + 1)
            broker.restart()  # The end of a broker writes its tables into the tier.
            broker.advance(minutes=20)
        send_order(broker, 0)
        assert broker.broker.parts.tiered is not None
        assert broker.broker.parts.tiered.flush_to_tier()
    for place in (place_of(tmp_path), place_of(tmp_path, store=False)):
        with console(place) as at:
            seen = []
            for moment in (moments[0] - 60_000, moments[0] + 600_000, moments[1] + 600_000):
                [row] = at.api("history.show", topic="orders", at=moment)["topics"]
                groups = {group["group"]: group["behind"] for group in row["groups"]}
                seen.append((row["messages"], row["since"], groups))
            assert seen == [(0, 21, {}), (10, 11, {"audit": 8}), (20, 1, {"audit": 13})]
            listed = at.api("history.show", at=moments[1] + 600_000)
            assert (listed["isExact"], [row["topic"] for row in listed["topics"]]) == (False, ["orders"])
            text = at.get(f"/history?topic=orders&at={moments[1] + 600_000}").text
            assert 'type="range"' in text
            assert "preview a reset to this time" in text
            assert "tiermq pipeline replay" in text


def test_a_range_of_time_is_replayed_into_another_topic(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        broker.create_topic("again", queues=QUEUES)
        refused = at.submit("/do/history.replay", token=at.token(), topic="orders", to="orders", begin="1h")
        assert (refused.status, "no end" in refused.text) == (400, True)
        asked = json.dumps({"topic": "orders", "to": "again", "begin": "1h", "limit": 39}).encode()
        done = at.ask("POST", "/api/history.replay", asked, Content_Type="application/json", Authorization=ANYBODY)
        assert (done.json["sent"], done.json["isCut"]) == (39, True), done.text
        for queue in range(QUEUES):
            copies = [message.body for message in broker.messages("again", queue)]
            assert copies == [message.body for message in broker.messages("orders", queue)][: len(copies)]
            assert len(copies) == 20 - queue, "the earliest 39 of both queues"
        ids = {message.unique_key for message in broker.messages("again")}
        assert len(ids) == 39, "a replayed message is a new one"
    with orders_broker(tmp_path / "b") as broker, console(place_of(tmp_path / "b", broker)) as at:
        done = at.submit("/do/history.replay", token=at.token(), topic="orders", to="again", begin="1h")
        assert done.status == 403


def test_a_message_shows_its_retries_and_dead_letters_and_tables(tmp_path: Path) -> None:
    table = f"parquet:{tmp_path}/lake"
    with orders_broker(tmp_path) as broker:
        broker.send("orders", b"given back", queue_id=0, properties={"UNIQ_KEY": "7F00000100002A9F0000000000000123"})
        assert broker.broker.parts.tiered is not None
        assert broker.broker.parts.tiered.flush_to_tier()
        for level in (1, -1):
            give_back(broker, 21, level)
        broker.advance(minutes=1)
        until(lambda: bool(broker.messages("%RETRY%audit")))
        broker.broker.parts.local.dispatch_now()
        export(None, to=table, tier=f"file://{tmp_path}/tier", topic="orders")
        send_order(broker, ORDERS + 2)
        wire = place_of(tmp_path, broker)
        with console(SourcePlace(wire.access, wire.tier, wire.stores, (table,))) as at:
            shown = life(at, queue=0, offset=21)
            assert shown["retried"] == "given back by audit, try 1"
            assert shown["dead letter"].startswith("given up by audit after")
            assert shown["waiting"] == "for audit, 16 messages before it"
            assert life(at, queue=0, offset=3)["delivered"].startswith("to audit, whose offset is 5")
            assert "no replica" in shown["not replicated"]
            assert shown["exported"] == f"in {table}"
            newest = life(at, queue=0, offset=22)
            assert {"waiting", "not exported"} <= newest.keys()
            assert "retried" not in newest
        with console(place_of(tmp_path)) as at:  # From files alone.
            assert {"retried", "dead letter"} <= life(at, queue=0, offset=21).keys()


@pytest.mark.slow
def test_a_query_runs_on_spark_from_the_page_of_sql(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    with orders_broker(tmp_path), console(SourcePlace(None, place.tier, place.stores, (), "local[1]")) as at:
        query = "SELECT tags, count(*) AS messages FROM orders GROUP BY tags ORDER BY tags"
        shown = at.get("/sql?" + urlencode({"query": query, "only": "estimate"})).text
        assert "It would read at most <b>41</b> messages" in shown
        assert "Run on Spark" in shown
        done = at.submit("/sql", token=at.token("/sql?" + urlencode({"query": query, "only": "estimate"})), query=query)
        assert (done.status, "read on Spark" in done.text) == (200, True), done.text
        body = json.dumps({"query": query}).encode()
        found = at.ask("POST", "/api/sql.spark", body, Content_Type="application/json", Authorization=ANYBODY).json
        assert (found["columns"], found["rows"]) == (["tags", "messages"], [["open", 11], ["paid", 30]]), found
        assert at.submit("/sql", token="0" * 64, query=query).status == 403


def test_why_a_group_is_behind_is_said_in_words(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        found = at.api("group.show", group="audit")
        assert found["reasons"][0] == "No member is connected: nothing is consumed."
        assert "No member is connected" in at.get("/groups/audit").text
        broker.broker.parts.offsets.commit("audit", "orders", 0, 21)
        broker.broker.parts.offsets.commit("audit", "orders", 1, 20)
        assert at.api("group.show", group="audit")["reasons"] == []

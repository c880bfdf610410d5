"""A Java consumer that always fails: its messages end as dead letters like RocketMQ's, and `dlq resend` revives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interop.conftest import StartBroker
from interop.java_client import JavaClient, bodies, received
from interop.rocketmq import SMALL_FILES, Distribution
from interop.two_brokers import await_registered
from servers.serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]

QUICK = "1s 1s 1s 1s 1s 1s"
FAILING = {"group": "G-dead", "failures": 1_000_000, "tries": 2}
EXPECTED = ["order 0", "order 1"]
VARYING = frozenset({"UNIQ_KEY", "ORIGIN_MESSAGE_ID", "CLUSTER", "MSG_REGION", "TRACE_ON", "CONSUME_START_TIME"})
"""Properties that name a machine or a moment, or that only some releases send."""


def tiermq(name_server: str, *words: str) -> str:
    command = [sys.executable, "-m", "tiermq.cli", *words]
    done = subprocess.run(
        command, env={**os.environ, "NAMESRV_ADDR": name_server}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def dead(name_server: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tiermq(name_server, "dlq", "ls", "G-dead", "--json").splitlines()]


def fail_all(client: JavaClient, name_server: str, topic: str) -> list[dict[str, Any]]:
    """Let a consumer fail with two messages until both are dead; what `dlq ls` tells of them."""
    host, _, port = name_server.partition(":")
    await_registered(host, int(port))
    tiermq(name_server, "topic", "create", topic)
    job = {"tag": "paid", "key": "order-42", "properties": {"x": "y"}, "awaitRoute": True}
    client.run(topic=topic, group="P", bodies=EXPECTED, **job)
    with client.standing(topic=topic, receive=6, **FAILING) as events:
        got = [event["received"] for event in events if "received" in event]
        # Each is seen at first, and twice more.
        assert sorted((each["body"], each["times"]) for each in got) == sorted(
            (body, times) for body in EXPECTED for times in range(3)
        )
        assert {each["topic"] for each in got} == {topic}
        while len(letters := dead(name_server)) < 2:
            continue
    return letters


def records(name_server: str) -> list[dict[str, Any]]:
    lines = tiermq(name_server, "consume", "%DLQ%G-dead", "--json").splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda each: each["body"])


def reported(record: dict[str, Any]) -> dict[str, Any]:
    properties = {name: value for name, value in record["properties"].items() if name not in VARYING}
    return {"body": record["body"], "times": record["reconsumeTimes"], "flag": record["flag"], **properties}


def test_a_java_consumer_that_always_fails_ends_in_dead_letters_and_resend_brings_them_back(
    distribution: Distribution, tmp_path: Path
) -> None:
    with Serving(tmp_path / "store", message_delay_level=QUICK) as broker:
        client = JavaClient(distribution, broker.name_server, tmp_path)
        letters = fail_all(client, broker.name_server, "DeadOrders")
        assert {(each["originTopic"], each["tries"], each["key"]) for each in letters} == {
            ("DeadOrders", 3, "order-42")
        }
        for _ in range(2):  # A second time sends nothing.
            done = json.loads(tiermq(broker.name_server, "dlq", "resend", "G-dead", "--json"))
        assert (done["found"], done["resent"], done["already"]) == (2, 0, 2)
        again = client.run(topic="DeadOrders", group="G-dead", receive=2)
        assert sorted(bodies(again)) == EXPECTED
        assert {(each["times"], each["tag"], each["key"]) for each in received(again)} == {(0, "paid", "order-42")}


def test_dead_letters_are_stored_as_the_real_broker_stores_them(
    distribution: Distribution, start_broker: StartBroker, tmp_path: Path
) -> None:
    with Serving(tmp_path / "ours", message_delay_level=QUICK) as broker:
        fail_all(JavaClient(distribution, broker.name_server, tmp_path), broker.name_server, "DeadOrders")
        ours = [reported(each) for each in records(broker.name_server)]
    cluster = start_broker(tmp_path / "theirs", {**SMALL_FILES, "messageDelayLevel": QUICK})
    name_server = f"127.0.0.1:{cluster._name_server_port}"
    letters = fail_all(JavaClient(distribution, name_server, tmp_path), name_server, "DeadOrders")
    theirs = [reported(each) for each in records(name_server)]
    assert ours == theirs
    assert len(letters) == 2
    for count in (2, 0):  # The command serves RocketMQ's own brokers too.
        assert json.loads(tiermq(name_server, "dlq", "resend", "G-dead", "--json"))["resent"] == count

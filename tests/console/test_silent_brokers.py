"""A broker that is registered and does not answer, and one that went: every page shows what the others have."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console.console_world import ORDERS, Browser, console, orders_broker, place_of
from tiermq.console.sources import SourcePlace
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, encode_register_body
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import LocalBroker

ANSWER_S = 0.2
"""Not a limit of a test: how long the console waits for the broker that never answers."""
PATHS = (
    "/", "/topics", "/topics/orders", "/groups", "/groups/audit", "/messages?topic=orders",
    "/messages?topic=orders&key=order-40", "/message?topic=orders&queue=0&offset=20&broker={broker}", "/waiting",
    "/waiting?group=audit", "/settings", "/history", "/sql?query=SELECT+count(*)+FROM+orders",
)  # fmt: skip


@contextmanager
def silent_broker(broker: LocalBroker) -> Iterator[str]:
    """The address of one more broker of the name server, which takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        named = {"brokerName": "broker-z", "brokerAddr": address, "clusterName": "C", "brokerId": "0"}
        host, _, port = broker.name_server.rpartition(":")
        body = encode_register_body([TopicConfig("TBW102", 8, 8, 7), TopicConfig("orders", 2, 2)], DataVersion(1, 1))
        with BlockingClient(host, int(port)) as client:
            answer = client.request(RemotingCommand(RequestCode.REGISTER_BROKER, ext=named, body=body))
            assert answer.code == 0, answer.remark
            yield address


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.console.sources.ANSWER_S", ANSWER_S)
    monkeypatch.setattr("tiermq.console.operations.overview.ANSWER_S", ANSWER_S)


def of_brokers(directory: Path, broker: LocalBroker) -> SourcePlace:
    return place_of(directory, broker, store=False, tier=False)


def test_pages_show_what_the_other_brokers_have_and_name_the_one_that_is_silent(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(of_brokers(tmp_path, broker)) as at:
        name = at.api("topic.show", topic="orders")["queues"][0]["broker"]
        with silent_broker(broker) as address:
            for path in PATHS:
                answer = at.get(path.format(broker=name))
                assert answer.status == 200, (path, answer.text[-800:])
                assert address in answer.text, path
                assert "does not answer" in answer.text, path
            [row] = at.api("topic.list")["topics"]
            assert (row["topic"], row["messages"], row["queues"]) == ("orders", ORDERS + 1, 2)
            assert [address in each for each in at.api("topic.list")["problems"]] == [True]
            assert len(at.api("message.find", topic="orders")["messages"]) == 32
            assert at.api("sql.run", query="SELECT count(*) FROM orders")["rows"] == [[ORDERS + 1]]


def test_a_broker_that_went_is_named_until_it_is_back(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(of_brokers(tmp_path, broker)) as at:
        assert at.api("overview")["goneBrokers"] == []
        with silent_broker(broker) as address:
            assert len(at.api("overview")["brokers"]) == 2
        found = wait_for_gone(at)
        assert [(row["broker"], row["role"], row["address"]) for row in found["goneBrokers"]] == [
            ("broker-z", "master", address)
        ]
        assert any("broker-z" in text and "is not registered any more" in text for text in found["warnings"])


def wait_for_gone(at: Browser) -> dict[str, list[dict[str, str]]]:
    """The overview once the name server has seen that the connection ended."""
    while True:
        found: dict[str, list[dict[str, str]]] = at.api("overview")
        if found["goneBrokers"]:
            return found

"""What two brokers have in common, a topic with the same queues and offsets, is told apart by the broker's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

from console.console_world import console
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.client.cluster_client import Access
from tiermq.console.sources import SourcePlace
from tiermq.history.scan_values import StorePlace
from tiermq.testing import LocalBroker
from tiermq.testing.local_broker import SMALL
from waiting import until

LETTERS = "%DLQ%audit"


@contextmanager
def two_brokers(directory: Path) -> Iterator[LocalBroker]:
    """Each has one message of the topic `orders` and one dead letter, at the same queues and offsets."""
    with LocalBroker(directory / "a") as first:
        config = BrokerConfig(
            bind_address="127.0.0.1", listen_port=0, broker_name="broker-b", namesrv_addr=first.name_server
        )
        second = Broker.open(str(directory / "b"), config=config, **SMALL)
        second.start()
        try:
            for broker in (first.broker, second):
                for topic in ("orders", LETTERS):
                    broker.parts.topics.make(topic, 1, 1)
                    name = broker.config.broker_name
                    assert broker.parts.local.put(Message(topic, f"of {name}".encode(), 0)).ok
                broker.parts.local.dispatch_now()
            access = Access(first.name_server)
            for topic in ("orders", LETTERS):

                def is_known(name: str = topic) -> bool:
                    route = access.run(lambda cluster: cluster.find_route(name))
                    return route is not None and len(route.addresses) == 2

                until(is_known)
            yield first
        finally:
            second.stop()


def test_the_link_of_a_dead_letter_leads_to_its_broker(tmp_path: Path) -> None:
    with two_brokers(tmp_path) as broker, console(SourcePlace(Access(broker.name_server))) as at:
        shown = at.get("/waiting?group=audit").text
        links = {name: unescape(href) for href, name in re.findall(r'<a href="(/message\?[^"]+)">([^<]+)</a>', shown)}
        assert links.keys() == {"broker-a-0-0", "broker-b-0-0"}
        for name, href in links.items():
            assert f"of {name.removesuffix('-0-0')}" in at.get(href).text, href


def test_strips_of_the_map_name_their_brokers(tmp_path: Path) -> None:
    stores = tuple(StorePlace(str(tmp_path / name), broker=f"broker-{name}") for name in "ab")
    with two_brokers(tmp_path), console(SourcePlace(stores=stores)) as at:
        shown = at.get("/topics/orders").text
        titles = re.findall(r"<title>(\w+: queue 0 of broker-[ab]), 1 messages", shown)
        assert sorted(titles) == ["local: queue 0 of broker-a", "local: queue 0 of broker-b"]
        assert re.findall(r'<text class="tick"[^>]*>(broker-[ab])</text>', shown) == ["broker-a", "broker-b"]

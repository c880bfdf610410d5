"""A shop with a year behind it: the broker, the tier and the console of `test_in_a_browser`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.consuming import Peer
from broker.delivery.transaction_peer import TransactionPeer
from tiermq.client.cluster_client import Access
from tiermq.clock import SystemClock
from tiermq.console.catalogue import run
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.console.web.server import ConsoleServer
from tiermq.history.scan_values import StorePlace
from tiermq.remoting.codes import RequestCode
from tiermq.testing import LocalBroker
from tiermq.testing.local_broker import MovableClock
from waiting import until

YEAR_DAYS = 365
TOPICS = ("orders", "payments", "returns", "shipments", "emails")


class LastYear(SystemClock):
    """The time of a year ago."""

    def now_ms(self) -> int:
        return super().now_ms() - YEAR_DAYS * 86_400_000


def send_order(broker: LocalBroker, number: int, topic: str = "orders") -> None:
    body = {"order": number, "customer": f"c-{number % 17}", "price": 10 + number % 90, "status": "paid"}
    tags = "paid" if number % 4 else "open"
    broker.send(topic, json.dumps(body).encode(), queue_id=number % 4, keys=[f"order-{number}"], tags=tags)


def dead_letter(broker: LocalBroker, queue: int, offset: int) -> None:
    message = broker.messages("orders", queue)[offset]
    fields: dict[str, Any] = {"offset": message.physical_offset, "group": "audit", "delayLevel": -1}
    with Peer(broker.broker) as peer:
        assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, originTopic="orders", **fields).code == 0
    broker.broker.parts.local.dispatch_now()


@contextmanager
def shop(directory: Path, **options: Any) -> Iterator[tuple[LocalBroker, str]]:
    """The broker and the console's address. 200 orders of last year are in the tier; some of today are not yet."""
    broker = LocalBroker(directory / "store", tier=f"file://{directory}/tier", message_delay_level="1s 2h")
    broker.clock = MovableClock(LastYear())
    with broker:
        for topic in TOPICS:
            broker.create_topic(topic, queues=4)
        for number in range(200):
            send_order(broker, number)
        tiered = broker.broker.parts.tiered
        assert tiered is not None
        assert tiered.flush_to_tier()
        broker.advance(days=YEAR_DAYS)
        for number in range(200, 260):
            send_order(broker, number)
        for number in range(40):
            send_order(broker, number, "payments")
        assert tiered.flush_to_tier()
        for number in range(260, 275):
            send_order(broker, number)
        offsets = broker.broker.parts.offsets
        for queue, offset in enumerate((60, 61, 55, 9)):
            offsets.commit("audit", "orders", queue, offset)
        for queue in range(4):
            offsets.commit("mail", "payments", queue, 10)
        offsets.flush()
        for offset in (3, 5):
            dead_letter(broker, 0, offset)
        due_ms = broker.clock.now_ms() + 86_400_000
        broker.send("emails", b"remind", properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "7F00ABCD"})
        address = ("127.0.0.1", broker.broker.port)
        with TransactionPeer(address, "payments-tx", now_ms=broker.clock.now_ms) as peer:
            assert peer.prepare("half", topic="payments").code == 0
        broker.broker.parts.local.dispatch_now()
        access = Access(broker.name_server)
        place = SourcePlace(access, f"file://{directory}/tier", (StorePlace(str(directory / "store")),))
        until(lambda: access.run(lambda cluster: cluster.find_route("%DLQ%audit")) is not None)
        sources = Sources(place)
        for group in ("audit", "mail"):
            run("group.create", Visit(sources, may_change=True), {"group": group})
        server = ConsoleServer(sources, port=0, **options)
        server.start()
        try:
            yield broker, server.url
        finally:
            server.stop()

"""A broker begins no queue that its next start could not map into memory; those that it has go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import Producer, running, stored
from tiermq.broker.broker import Broker
from tiermq.consumequeue.queue_table import OWN_MAPS
from tiermq.files import os_errors
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode

MAPS_MAX = 1_216
CLIENTS_MAX = MAPS_MAX * 7 // 8 - OWN_MAPS
"""Maps of queues, log and index that clients may bring about: 40."""
UNCOUNTED = 4
"""Files of log and index that came after the count."""
REFUSED = ResponseCode.SYSTEM_ERROR
PLAIN = "UNIQ_KEY\x01{}\x02WAIT\x01true\x02"


@pytest.fixture(autouse=True)
def _few_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "max_map_count"
    limit.write_text(f"{MAPS_MAX}\n")
    monkeypatch.setattr(os_errors, "_MAPS_MAX", str(limit))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as made:
        made.parts.topics.put(TopicConfig("T", 100, 100))
        yield made


def fill(producer: Producer) -> int:
    """Send to one queue after the other until one is refused; how many were not."""
    for queue_id in range(CLIENTS_MAX + 1):
        answer = producer.send(queue=queue_id)
        if answer.code:
            assert (answer.code, "vm.max_map_count" in (answer.remark or "")) == (REFUSED, True)
            return queue_id
    raise AssertionError("no queue was refused")


def mapped(path: Path) -> int:
    return sum(each.is_file() for kind in ("consumequeue", "commitlog", "index") for each in (path / kind).rglob("*"))


def test_what_the_next_start_could_not_map_is_refused_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        broker.parts.topics.put(TopicConfig("T", 100, 100))
        count = fill(producer)
        assert count >= CLIENTS_MAX - 8
        batch = encode_client_batch([BatchElement(0, b"x", b"")])
        later = "DELAY\x011\x02" + PLAIN.format("later")
        assert producer.send(queue=count + 1).code == REFUSED
        assert producer.send(queue=count + 1, body=batch, code=320, batch=True).code == REFUSED
        assert producer.send(queue=count + 1, properties=later).code == REFUSED
        assert producer.send("new").code == REFUSED
        for queue_id in range(count):
            assert producer.send(queue=queue_id, body=b"again").code == 0
        assert producer.send(queue=0, body=batch, code=320, batch=True).code == 0
        assert [each.body for each in stored(broker, "T", count - 1)] == [b"hello", b"again"]
        assert mapped(tmp_path / "store") <= CLIENTS_MAX + UNCOUNTED
        assert "tiermq_store_queues_refused_total 5" in broker.render_metrics()
        assert len([line for line in caplog.messages if "is not begun" in line]) == 1, "one line a minute"
    with running(tmp_path) as again, Producer(again) as producer:
        assert producer.send(queue=0).code == 0
        assert producer.send(queue=count + 1).code == REFUSED


def test_a_deleted_topic_makes_room_for_others(broker: Broker) -> None:
    with Producer(broker) as producer:
        count = fill(producer)
        broker.parts.local.dispatch_now()
        broker.parts.local.delete_topics(["T"])
        broker.parts.topics.put(TopicConfig("U", 100, 100))
        assert [producer.send("U", queue=queue_id).code for queue_id in range(count - 1)] == [0] * (count - 1)


def test_light_queues_are_queues_as_well(tmp_path: Path, broker: Broker) -> None:
    with Producer(broker) as producer:
        codes = []
        for number in range(20):
            names = ",".join(f"%LMQ%{number}-{each}" for each in range(5))
            codes.append(producer.send(properties=f"INNER_MULTI_DISPATCH\x01{names}\x02" + PLAIN.format(number)).code)
        taken = codes.index(REFUSED)
        assert set(codes[:taken]) == {0}
        assert set(codes[taken:]) == {int(REFUSED)}
        assert producer.send(queue=0).code == 0
        assert len(stored(broker, "T", 0)) == taken + 1, "a message that is refused is in no queue"
        assert mapped(tmp_path / "store") <= CLIENTS_MAX + UNCOUNTED


def test_light_queues_leave_half_of_the_maps_to_topics(tmp_path: Path) -> None:
    light = "INNER_MULTI_DISPATCH\x01%LMQ%{}\x02"
    settings: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    with running(tmp_path, **settings) as broker, Producer(broker) as producer:
        broker.parts.topics.put(TopicConfig("T", 100, 100))
        answers = [producer.send(properties=light.format(each) + PLAIN.format(each)) for each in range(CLIENTS_MAX)]
        codes = [each.code for each in answers]
        assert codes.count(0) == codes.index(REFUSED) == CLIENTS_MAX // 2
        assert "light queues have half" in (answers[-1].remark or "")
        assert producer.send(properties=light.format(0) + PLAIN.format("again")).code == 0
        broker.parts.local.dispatch_now()
        assert [producer.send(queue=each).code for each in range(10)] == [0] * 10
    with running(tmp_path, **settings) as again, Producer(again) as producer:
        assert producer.send(properties=light.format("new") + PLAIN.format("new")).code == REFUSED
        assert producer.send(queue=11).code == 0
        again.parts.local.dispatch_now()
        again.parts.local.delete_topics(["%LMQ%0"])
        assert producer.send(properties=light.format("new") + PLAIN.format("new")).code == 0


def test_what_the_broker_delivers_itself_may_begin_a_queue_when_clients_may_not(broker: Broker) -> None:
    with Producer(broker) as producer:
        fill(producer)
        store = broker.parts.local
        assert store.may_begin_queue("%RETRY%G", 0) is False
        assert store.queue("%RETRY%G", 0) is not None

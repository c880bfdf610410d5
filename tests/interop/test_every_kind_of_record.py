"""Records of every kind that `LocalStore` can write, served by the real broker to its own consumer.

IPv6 hosts, version 2 records, whole-record checksums, inner batches, delayed messages: one store directory holds them
all, and the broker finds an abort file in it, so that it checks every record before it serves anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.conftest import StartBroker
from interop.peer import Described, Peer
from interop.rocketmq import SMALL_FILES, python_names
from interop.topics_file import write_topics
from tiermq import Message
from tiermq.message import BatchElement, encode_client_batch, encode_properties
from tiermq.message.system_flag import INNER_BATCH, NEED_UNWRAP
from tiermq.message.topic_name import SCHEDULE_TOPIC
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.interop

LONG_TOPIC = "%RETRY%" + "g" * 200
TOPICS = [("orders", 2), ("later", 1), (LONG_TOPIC, 1)]
BATCH_TOPIC = "bulk"
BROKER_SETTINGS = {**SMALL_FILES, "enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
SETTINGS = python_names(BROKER_SETTINGS)
COUNT = 50


def write_every_kind(store: Path) -> None:
    with LocalStore.open(store, batch_topics=[BATCH_TOPIC], store_host="[::1]:10911", **SETTINGS) as local:
        for number in range(COUNT):
            messages = [
                Message("orders", b"plain %d" % number, number % 2, keys=[f"plain-{number}"], tags="plain"),
                Message("orders", b"born v6 %d" % number, 0, born_host="[fe80::1]:1234", keys=[f"v6-{number}"]),
                Message(LONG_TOPIC, b"long topic %d" % number, reconsume_times=3),
                delayed(number),
                inner_batch(number),
            ]
            for message in messages:
                assert local.put(message).status is PutStatus.PUT_OK


def delayed(number: int) -> Message:
    properties = {"DELAY": "1", "REAL_TOPIC": "later", "REAL_QID": "0", "UNIQ_KEY": f"{number:032X}"}
    return Message(SCHEDULE_TOPIC, b"delayed %d" % number, 0, properties=properties)


def inner_batch(number: int) -> Message:
    count = number % 5 + 1
    elements = [
        BatchElement(index, b"inner %d of %d" % (index, number), encode_properties({"TAGS": f"tag-{index}"}))
        for index in range(count)
    ]
    return Message(
        BATCH_TOPIC,
        encode_client_batch(elements),
        properties={"INNER_NUM": str(count), "UNIQ_KEY": f"{number:032X}"},
        sys_flag=NEED_UNWRAP | INNER_BATCH,
    )


def bodies(messages: list[Described]) -> list[bytes]:
    return [message["body"] for message in messages]


def test_rocketmq_serves_every_kind_of_record_that_we_write(tmp_path: Path, start_broker: StartBroker) -> None:
    store = tmp_path / "store"
    write_every_kind(store)
    write_topics(store, TOPICS, batch_topics=[(BATCH_TOPIC, 1)])
    (store / "abort").write_text("1")

    peer = start_broker(store, BROKER_SETTINGS).peer()

    plain = peer.read("orders", 0) + peer.read("orders", 1)
    assert sorted(bodies(plain)) == sorted(
        text % number for number in range(COUNT) for text in (b"plain %d", b"born v6 %d")
    )
    assert {message["store_host"] for message in plain} == {"0:0:0:0:0:0:0:1:10911"}
    born_v6 = [message for message in plain if message["body"].startswith(b"born v6")]
    assert {message["born_host"] for message in born_v6} == {"fe80:0:0:0:0:0:0:1:1234"}
    assert bodies(peer.query("orders", "v6-17")) == [b"born v6 17"]
    long_topic = peer.read(LONG_TOPIC, 0)
    assert bodies(long_topic) == [b"long topic %d" % number for number in range(COUNT)]
    assert {message["reconsume_times"] for message in long_topic} == {3}
    assert bodies(delivered_late(peer)) == [b"delayed %d" % number for number in range(COUNT)]
    check_inner_batches(peer)


def delivered_late(peer: Peer) -> list[Described]:
    """Their time has come long ago, but the broker moves them only after its start; reading again shows when."""
    while len(messages := peer.read("later", 0)) < COUNT:
        pass
    return messages


def check_inner_batches(peer: Peer) -> None:
    served = peer.read(BATCH_TOPIC, 0)
    expected = [(index, number) for number in range(COUNT) for index in range(number % 5 + 1)]
    assert bodies(served) == [b"inner %d of %d" % pair for pair in expected]
    assert [message["offset"] for message in served] == list(range(len(expected)))
    assert [message["properties"]["TAGS"] for message in served] == [f"tag-{index}" for index, _ in expected]

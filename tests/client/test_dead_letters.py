"""Dead letters over the wire: found again by a key that follows from their place, and sent as they were."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from message.unique_keys import decode_unique_key
from tiermq import Message
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.dead_letters import (
    DeadLetter,
    Resending,
    Resent,
    Wanted,
    dead_letters,
    outgoing,
    resent_key,
)
from tiermq.client.producer import Outgoing, Producer
from tiermq.errors import CorruptRecord, RemotingError
from tiermq.message.compression import compress
from tiermq.message.ids import month_start_ms
from tiermq.message.properties import decode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import CompressionType
from tiermq.testing import LocalBroker

PLACE = QueuePlace("broker-a", "127.0.0.1:1", 0)


def dead(broker: LocalBroker, body: bytes = b"x", **more: Any) -> StoredMessage:
    properties = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "first", **more.pop("properties", {})}
    return broker.send("%DLQ%audit", body, properties=properties, **more)


def found(broker: LocalBroker, wanted: Wanted | None = None) -> list[DeadLetter]:
    async def listed() -> list[DeadLetter]:
        async with ClusterClient(broker.name_server) as client:
            return [letter async for letter in dead_letters(client, "audit", wanted)]

    return asyncio.run(listed())


def resent(broker: LocalBroker, letters: list[DeadLetter], **more: Any) -> Resent:
    async def sent() -> Resent:
        async with ClusterClient(broker.name_server) as client:
            return await Resending(client, "audit").resend(letters, **more)

    return asyncio.run(sent())


def test_all_letters_are_found_also_more_than_a_pull_gives(tiermq_broker: LocalBroker) -> None:
    for number in range(600):
        dead(tiermq_broker, f"{number}".encode())
    letters = found(tiermq_broker)
    assert [letter.message.body for letter in letters] == [f"{number}".encode() for number in range(600)]
    assert {letter.name for letter in letters} == {f"{letters[0].place.broker_name}-0-{n}" for n in range(600)}


def test_a_letter_shows_its_origin_and_filters_hold_for_it(tiermq_broker: LocalBroker) -> None:
    dead(tiermq_broker, keys=["k1", "k2"])
    [letter] = found(tiermq_broker)
    assert (letter.origin_topic, letter.origin_id, letter.tries) == ("orders", "first", 0)
    for wanted in (Wanted("orders"), Wanted(key="k2"), Wanted(key="first"), Wanted(since_ms=1)):
        assert found(tiermq_broker, wanted) == [letter]
    later_ms = letter.message.store_timestamp_ms + 1
    for wanted in (Wanted("bills"), Wanted(key="k"), Wanted(since_ms=later_ms)):
        assert found(tiermq_broker, wanted) == []


def test_the_key_of_a_letter_follows_from_its_place_and_shows_when_it_died(tiermq_broker: LocalBroker) -> None:
    one, two = dead(tiermq_broker), dead(tiermq_broker)
    letters = [DeadLetter(PLACE, one), DeadLetter(PLACE, two)]
    keys = [resent_key("audit", letter) for letter in letters]
    assert keys == [resent_key("audit", letter) for letter in letters]
    others = [resent_key("bills", letters[0]), resent_key("audit", DeadLetter(replace(PLACE, broker_name="b"), one))]
    assert len({*keys, *others}) == 4
    died_ms = month_start_ms(one.store_timestamp_ms, UTC) + decode_unique_key(keys[0]).since_month_start_ms
    assert died_ms == one.store_timestamp_ms


def put_dead(broker: LocalBroker, body: bytes, **fields: Any) -> None:
    """One with flags, as no client's send has them."""
    parts = broker.broker.parts
    parts.topics.make("%DLQ%audit", 1, 1)
    properties = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "first", **fields.pop("properties", {})}
    assert parts.store.put(Message("%DLQ%audit", body, properties=properties, **fields)).ok
    parts.local.dispatch_now()


def test_what_is_sent_again_is_the_body_that_was_sent_with_the_users_own_properties(tiermq_broker: LocalBroker) -> None:
    dead(tiermq_broker)
    packed = compress(b"hello" * 100, CompressionType.ZLIB)
    properties = {"x": "y", "DELAY": "3", "POP_CK": "1 2 3", "REAL_TOPIC": "z", "UNIQ_KEY": "old"}
    flags = 0x1 | CompressionType.ZLIB << 8
    for body in (packed, b"no zlib"):
        put_dead(tiermq_broker, body, tags="paid", keys=["k"], properties=properties, sys_flag=flags, flag=7)
    _, letter, damaged = found(tiermq_broker)
    sent = outgoing("audit", letter, "orders", PLACE)
    assert (sent.body, sent.flag, sent.born_ms) == (b"hello" * 100, 7, letter.message.born_timestamp_ms)
    kept = {"x": "y", "TAGS": "paid", "KEYS": "k", "WAIT": "true", "UNIQ_KEY": resent_key("audit", letter)}
    kept |= {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "first"}
    assert decode_properties(sent.encoded_properties) == kept
    with pytest.raises(CorruptRecord):
        outgoing("audit", damaged, "orders", PLACE)


def test_a_letter_that_cannot_be_sent_is_reported_and_the_others_are_sent(tiermq_broker: LocalBroker) -> None:
    dead(tiermq_broker, b"good")
    put_dead(tiermq_broker, b"bad", sys_flag=0x1)
    good, bad = found(tiermq_broker)
    answer = resent(tiermq_broker, [bad, good])
    assert ([each.name for each in answer.unreadable], answer.sent) == ([bad.name], [good])
    assert [message.body for message in tiermq_broker.messages("orders")] == [b"good"]


def test_flags_of_users_survive_a_batch_and_a_single_send(tiermq_broker: LocalBroker) -> None:
    tiermq_broker.create_topic("orders", queues=1)
    dead(tiermq_broker)
    for number in range(3):
        put_dead(tiermq_broker, f"{number}".encode(), flag=40 + number)
    letters = found(tiermq_broker)[1:]
    resent(tiermq_broker, letters[:1])
    resent(tiermq_broker, letters)
    assert [message.flag for message in tiermq_broker.messages("orders")] == [40, 41, 42]


def test_letters_stay_when_nobody_takes_them(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", auto_create_topic_enable=False) as broker:
        broker.create_topic("%DLQ%audit", queues=1)
        dead(broker)
        with pytest.raises(RemotingError, match="orders"):
            resent(broker, found(broker))
        broker.create_topic("orders", queues=1)
        assert len(resent(broker, found(broker)).sent) == 1


def test_nothing_is_sent_to_a_broker_that_cannot_show_what_it_has(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", message_index_enable=False) as broker:
        broker.create_topic("orders", queues=1)
        dead(broker)
        with pytest.raises(RemotingError, match="StoreError"):
            resent(broker, found(broker))
        assert broker.messages("orders") == []


def test_keys_that_are_never_found_leave_sends_unconfirmed(
    tiermq_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_never_stored(_producer: Producer, _message: Outgoing, *, is_strict: bool) -> None:
        """RocketMQ without a key index answers so."""

    monkeypatch.setattr("tiermq.client.dead_letters.LAST_REST_S", 0.1)
    monkeypatch.setattr(Producer, "find_stored", is_never_stored)
    dead(tiermq_broker)
    answer = resent(tiermq_broker, found(tiermq_broker))
    assert (len(answer.sent), answer.unconfirmed) == (1, 1)

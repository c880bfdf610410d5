"""A classic batch put here becomes the records that the real RocketMQ made of it, byte for byte."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from golden.reading import NAMES, golden
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.message import BatchElement, StoredMessage, decode_record, encode_client_batch
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

BATCH_TOPIC = "parcels"
FIRST_BATCH_PROPERTY = b"MSG_REGION\x01"
"""RocketMQ's broker puts this one first among the properties of a whole batch; no element of ours has it."""


def test_a_classic_batch_gives_rocketmqs_bytes_with_the_batchs_properties_in_every_record(tmp_path: Path) -> None:
    store = golden(next(name for name in NAMES if name.endswith("-batches")))
    records = [decode_record(data) for data in store.records.values()]
    # These batches were the first that the broker got, so they lie where an empty store puts them.
    parcels = records[: sum(record.topic == BATCH_TOPIC for record in records)]
    assert {record.topic for record in parcels} == {BATCH_TOPIC}

    clock = ManualClock()
    with LocalStore.open(tmp_path, clock=clock, store_host=parcels[0].store_host, **store.python_settings) as local:
        for batch_id, batch in groupby(parcels, key=lambda record: record.unique_key):
            members = list(batch)
            clock.set_ms(members[0].store_timestamp_ms)
            results = local.put_batch(as_client_sent_it(members))
            assert [result.status for result in results] == [PutStatus.PUT_OK] * len(members), batch_id
        stored = [local.message_at(record.physical_offset) for record in parcels]
    assert stored == parcels


def as_client_sent_it(members: list[StoredMessage]) -> Message:
    first = members[0]
    split_at = first.encoded_properties.index(FIRST_BATCH_PROPERTY)
    batch_properties = first.encoded_properties[split_at:]
    elements = [
        BatchElement(member.flag, member.body, member.encoded_properties.removesuffix(batch_properties))
        for member in members
    ]
    return Message(
        topic=first.topic,
        queue_id=first.queue_id,
        body=encode_client_batch(elements),
        encoded_properties=batch_properties,
        born_timestamp_ms=first.born_timestamp_ms,
        born_host=first.born_host,
    )


@pytest.mark.parametrize("ending", [b"\x02", b""], ids=["separator at the end", "no separator at the end"])
def test_an_elements_properties_are_separated_from_the_batchs(ending: bytes, tmp_path: Path) -> None:
    element = BatchElement(0, b"body", b"KEYS\x01one" + ending)
    envelope = Message("orders", encode_client_batch([element]), encoded_properties=b"UNIQ_KEY\x01batch-id\x02")
    with LocalStore.open(tmp_path, mapped_file_size_commit_log=65536) as local:
        (result,) = local.put_batch(envelope)
        message = local.message_at(result.physical_offset)
    assert message is not None
    assert message.encoded_properties == b"KEYS\x01one\x02UNIQ_KEY\x01batch-id\x02"

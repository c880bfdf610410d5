"""Transactions of a directory that the real RocketMQ wrote: what is open, what became of others, the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.reading import NAMES, Golden, golden
from tiermq.delivery.transactions.half_messages import committed, half_properties, read_half
from tiermq.delivery.transactions.op_messages import encode_op, outcomes_of
from tiermq.delivery.transactions.open_halves import open_halves
from tiermq.delivery.transactions.transaction_fate import Fate, transaction_fate
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace, StorePlace
from tiermq.message.properties import decode_properties, encode_properties
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, OPERATION_HALF_TOPIC

FATES = [Fate.COMMITTED, Fate.ENDED, Fate.OPEN, Fate.COMMITTED, Fate.ENDED, Fate.OPEN]
"""Committed, rolled back and left open, twice: in this order they were sent."""


@pytest.fixture(scope="module")
def batches() -> Golden:
    return golden(next(name for name in NAMES if name.endswith("-batches")))


def records(batches: Golden, topic: str) -> list[StoredMessage]:
    return [each for each in map(decode_record, batches.records.values()) if each.topic == topic]


def test_rocketmqs_open_transactions_are_open_here(batches: Golden, tmp_path: Path) -> None:
    halves = records(batches, HALF_TOPIC)
    store = batches.copy_store(tmp_path / "store")
    assert [each.transaction_id for each in open_halves(store)] == [halves[2].unique_key, halves[5].unique_key]


def test_rocketmqs_transactions_tell_what_became_of_them(batches: Golden, tmp_path: Path) -> None:
    store = batches.copy_store(tmp_path / "store")
    with open_history(HistoryPlace(stores=(StorePlace(str(store)),))) as history:
        reported = [transaction_fate(history, half.unique_key or "") for half in records(batches, HALF_TOPIC)]
    assert [each.fate for each in reported if each is not None] == FATES


def test_a_commit_makes_the_record_that_rocketmq_made(batches: Golden) -> None:
    made = {half.unique_key: committed(read_half(half)) for half in records(batches, HALF_TOPIC)}
    found = records(batches, "ledger")
    assert len(found) == 2
    for real in found:
        ours = made[real.unique_key]
        assert (ours.body, ours.queue_id, ours.flag, ours.sys_flag) == (
            real.body,
            real.queue_id,
            real.flag,
            real.sys_flag,
        )
        assert ours.prepared_transaction_offset == real.prepared_transaction_offset
        assert ours.born_timestamp_ms == real.born_timestamp_ms
        assert ours.properties == real.properties


def test_a_half_message_has_the_properties_that_rocketmq_gave_it(batches: Golden) -> None:
    added = {"REAL_TOPIC", "REAL_QID", "__transactionId__"}
    for half in records(batches, HALF_TOPIC):
        sent = {name: value for name, value in half.properties.items() if name not in added}
        ours = half_properties(encode_properties(sent), half.properties["REAL_TOPIC"], int(half.properties["REAL_QID"]))
        assert decode_properties(ours) == half.properties


def test_rocketmqs_op_is_read_and_written_in_the_same_bytes(batches: Golden) -> None:
    (op,) = records(batches, OPERATION_HALF_TOPIC)
    assert outcomes_of(op) == dict.fromkeys([0, 1, 3, 4])
    assert encode_op([0, 1, 3, 4]) == op.body

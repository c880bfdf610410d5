"""Tasks over the wire: each message once and in order, or told as a loss."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.wire_world import EACH, fill, filled
from tiermq.client.wire_history import WireHistory, WirePlace, read_placed_task, split_records
from tiermq.errors import CorruptRecord, DataLoss
from tiermq.history.arrow_batch import OnCorrupt, decode_run
from tiermq.history.scan_values import Loss, LossReason, ScanCounters, ScanRequest, ScanTask, Side
from tiermq.message.record import encode_record
from tiermq.tier.names import QueueKey

KEY = QueueKey("DefaultCluster", "broker-a", "orders", 1)


def read(
    place: WirePlace, begin: int, end: int, losses: list[Loss] | None = None, tags: frozenset[str] = frozenset()
) -> list[tuple[int, bytes]]:
    """Offsets and bodies; losses are errors unless there is a list for them."""
    request = ScanRequest(tags=tags)
    task = ScanTask(place, KEY, Side.HOT, begin, end, request, loss_is_error=losses is None)
    with WireHistory(place) as history:
        reported = losses.append if losses is not None else None
        return [
            (row["queueOffset"], row["body"])
            for run in read_placed_task(history, task, ScanCounters(), reported)
            for batch in decode_run(run, ["queueOffset", "body", "tier"], request, on_corrupt=OnCorrupt.RAISE)
            for row in batch.to_pylist()
        ]


def test_a_range_is_read_to_the_message(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, _):
        place = WirePlace(name_servers=broker.name_server)
        assert read(place, 3, EACH - 5) == [(n, b"1/%d" % n) for n in range(3, EACH - 5)]
        assert read(place, 0, EACH, tags=frozenset({"odd"})) == [(n, b"1/%d" % n) for n in range(1, EACH, 2)]


def test_cold_messages_come_over_the_wire_too(tmp_path: Path) -> None:
    with filled(tmp_path / "store", tier=(tmp_path / "tier").as_uri()) as (broker, _):
        broker.broker.parts.store.flush_to_tier()  # type: ignore[union-attr] # It has a tier.
        fill(broker, each=20, first=EACH)
        place = WirePlace(name_servers=broker.name_server)
        assert read(place, 0, EACH + 20) == [(n, b"1/%d" % n) for n in range(EACH + 20)]


def test_what_the_queue_does_not_have_is_a_loss(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, _):
        place = WirePlace(name_servers=broker.name_server)
        losses: list[Loss] = []
        assert len(read(place, EACH - 2, EACH + 7, losses)) == 2
        assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in losses] == [
            (EACH, EACH + 7, LossReason.BEYOND_END)
        ]
        with pytest.raises(DataLoss, match="beyond the end"):
            read(place, EACH - 2, EACH + 7)


def record(number: int, body: bytes) -> bytes:
    return encode_record(
        topic="orders", queue_id=1, body=body, queue_offset=number, physical_offset=number, born_timestamp_ms=1,
        store_timestamp_ms=1, born_host="1.2.3.4:5", store_host="1.2.3.4:6",
    )  # fmt: skip


@given(st.lists(st.binary(max_size=40), max_size=5), st.data())
def test_records_end_to_end_are_split_and_damage_is_reported(bodies: list[bytes], data: st.DataObject) -> None:
    records = [record(number, body) for number, body in enumerate(bodies)]
    whole = b"".join(records)
    assert split_records(whole) == records
    if records:
        cut = data.draw(st.integers(1, len(records[-1]) - 1))
        with pytest.raises(CorruptRecord):
            split_records(whole[:-cut])
        with pytest.raises(CorruptRecord):
            split_records(struct.pack(">i", -data.draw(st.integers(0, 2**31 - 1))) + whole[4:])

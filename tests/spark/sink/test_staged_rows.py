"""Rows become whole messages where they are staged."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from spark.sink.sink_world import NOW_MS, QUERY, bodies, sink_options, staged
from tiermq.errors import IllegalMessage, StagingLost
from tiermq.message.hosts import encode_host
from tiermq.message.properties import decode_properties
from tiermq.spark.sink.staged_rows import MARK, message_of, read_staged


def rows_of(path: Path, rows: list[dict[str, Any]], **more: str) -> list[dict[str, Any]]:
    (file,) = staged(sink_options(path, **more), QUERY, rows)
    return [row for batch in read_staged(file) for row in batch]


def test_every_column_finds_its_place_in_the_message(tmp_path: Path) -> None:
    row = {
        "topic": "orders",
        "body": "text",
        "tags": "paid",
        "keys": ["a", "b"],
        "properties": {"colour": "red"},
        "queueId": 3,
        "shardingKey": "customer",
        "deliverTime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "delayLevel": 4,
    }
    (found,) = rows_of(tmp_path, [row])
    assert (found["topic"], found["queueId"], found["body"], found["bornMs"]) == ("orders", 3, b"text", NOW_MS)
    properties = decode_properties(found["properties"])
    assert len(properties.pop("UNIQ_KEY")) == 32
    assert properties == {
        "KEYS": "a b",
        "TAGS": "paid",
        "__SHARDINGKEY": "customer",
        "TIMER_DELIVER_MS": "1767225600000",
        "DELAY": "4",
        "colour": "red",
        MARK: "query/0/0/0",
    }
    message = message_of(found)
    assert (message.topic, message.queue_id, message.born_timestamp_ms) == ("orders", 3, NOW_MS)
    (again,) = rows_of(tmp_path, [{"topic": "orders", "body": b"x", "properties": {"KEYS": "a b"}}])
    assert decode_properties(again["properties"])["KEYS"] == "a b", "as messages that were read have it"


def test_born_time_host_flag_and_unique_key_can_be_written_and_else_each_row_gets_a_key(tmp_path: Path) -> None:
    born = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    given = {"body": b"x", "uniqKey": "KEY", "bornTimestamp": born, "bornHost": "1.2.3.4:5", "flag": 7}
    first, second, third = rows_of(tmp_path, [given, {"body": b"x"}, {"body": b"x"}])
    message = message_of(first)
    assert (message.born_timestamp_ms, message.flag) == (1767225600000, 7)
    assert message.born_host == encode_host("1.2.3.4:5")
    keys = [decode_properties(row["properties"])["UNIQ_KEY"] for row in (first, second, third)]
    assert keys[0] == "KEY"
    assert len(set(keys)) == 3
    with pytest.raises(IllegalMessage, match="a damaged one"):
        rows_of(tmp_path, [{"body": b"x", "_corrupt": "bad CRC"}])


def test_rows_without_a_queue_take_turns_and_those_of_one_sharding_key_stay_together(tmp_path: Path) -> None:
    found = rows_of(tmp_path, bodies("a", "b", "c", "d"), queueCount="3")
    assert [row["queueId"] for row in found] == [0, 1, 2, 0]
    keyed = [{"body": b"x", "shardingKey": key} for key in ("p", "q", "p", "r", "p")]
    queues = [row["queueId"] for row in rows_of(tmp_path, keyed, queueCount="3")]
    assert queues[0] == queues[2] == queues[4]
    assert all(0 <= queue < 3 for queue in queues)


@pytest.mark.parametrize("row", [{"body": None}, {"body": b"x", "queueId": -1}, {"body": b"x", "tags": "a\x01b"}])
def test_a_row_that_cannot_be_a_message_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(IllegalMessage):
        rows_of(tmp_path, [row])


def test_a_partition_without_rows_leaves_no_file(tmp_path: Path) -> None:
    (file,) = staged(sink_options(tmp_path), QUERY, [])
    assert (file.path, file.rows) == ("", 0)
    assert not (tmp_path / "store.staging").exists()


def test_two_attempts_never_share_a_file(tmp_path: Path) -> None:
    options = sink_options(tmp_path)
    first, second = (staged(options, QUERY, bodies("a"))[0] for _ in range(2))
    assert first.path != second.path
    assert first.crc == second.crc


def test_a_staged_file_that_was_changed_or_lost_is_noticed(tmp_path: Path) -> None:
    (file,) = staged(sink_options(tmp_path), QUERY, bodies("a"))
    data = bytearray(Path(file.path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(file.path).write_bytes(data)
    with pytest.raises(StagingLost, match="option staging"):
        list(read_staged(file))
    Path(file.path).unlink()
    with pytest.raises(StagingLost, match="found 0"):
        list(read_staged(file))

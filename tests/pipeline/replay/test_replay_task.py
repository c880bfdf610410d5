"""One task of a replay: what it stages, and what of a staged file is believed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiermq.errors import StagingLost
from tiermq.history.arrow_schema import arrow_schema
from tiermq.history.scan_values import ScanRequest
from tiermq.message.properties import get_property
from tiermq.pipeline.replay.message import MARK, ROW_COLUMNS, ReplayMapping
from tiermq.pipeline.replay.task import ReplayTask, TableFile, read_staged_replay, stage_replay
from tiermq.tables.data_place import DataPlace


def file_task(tmp_path: Path, count: int = 10, **more: Any) -> ReplayTask:
    """A table's file of one queue; message n was stored at second n."""
    rows = [
        {
            "topic": "orders", "brokerName": "b", "queueId": 0, "queueOffset": number, "body": b"%d" % number,
            "tags": "odd" if number % 2 else None, "keys": [f"k{number}"], "properties": [("UNIQ_KEY", f"u{number}")],
            "flag": number, "bornTimestamp": dt.datetime.fromtimestamp(number, dt.UTC),
            "storeTimestamp": dt.datetime.fromtimestamp(number, dt.UTC),
        }
        for number in range(count)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=pa.schema(arrow_schema(ROW_COLUMNS)))
    pq.write_table(table, tmp_path / "part.parquet")
    place = TableFile(DataPlace.of(str(tmp_path)), "part.parquet")
    return ReplayTask("replay-1", str(tmp_path / "staging"), "000000", ReplayMapping(), file=place, **more)


def offsets(task: ReplayTask) -> list[int]:
    staged = stage_replay(task)
    return [each.source.queue_offset for some in read_staged_replay(staged) for each in some]


def test_a_staged_message_is_the_row_with_a_mark(tmp_path: Path) -> None:
    staged = stage_replay(file_task(tmp_path))
    assert (staged.rows, staged.read_rows, staged.problems) == (10, 10, ())
    first, second = next(iter(read_staged_replay(staged)))[:2]
    assert (second.message.topic, second.message.body, second.message.flag) == ("orders", b"1", 1)
    assert second.message.born_timestamp_ms == 1000
    assert get_property(first.message.encoded_properties, MARK.encode()) == b"replay-1:b/orders/0/0"


@pytest.mark.parametrize(
    ("request_of", "wanted"),
    [
        ({"topics": frozenset({"returns"})}, []),
        ({"brokers": frozenset({"a"})}, []),
        ({"queue_ids": frozenset({1})}, []),
        ({"tags": frozenset({"odd"})}, [1, 3, 5, 7, 9]),
        ({"keys": frozenset({"k3", "u4", "k99"})}, [3, 4]),
        ({"begin_ms": 2000, "end_ms": 4999}, [2, 3, 4]),
    ],
)
def test_rows_of_a_table_are_chosen_as_messages_of_a_history_are(
    tmp_path: Path, request_of: dict[str, Any], wanted: list[int]
) -> None:
    assert offsets(file_task(tmp_path, request=ScanRequest(**request_of))) == wanted
    assert offsets(file_task(tmp_path, from_offset=7, to_offset=9)) == [7, 8]


def test_a_task_may_run_twice_and_nothing_is_staged_when_nothing_is_wanted(tmp_path: Path) -> None:
    task = file_task(tmp_path)
    assert stage_replay(task).path != stage_replay(task).path
    nothing = stage_replay(file_task(tmp_path, from_offset=100))
    assert (nothing.path, nothing.rows, list(read_staged_replay(nothing))) == ("", 0, [])


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda _data: None])
def test_a_staged_file_that_is_not_what_was_staged_is_not_put(tmp_path: Path, damage: Any) -> None:
    staged = stage_replay(file_task(tmp_path))
    path = Path(staged.path)
    changed = damage(path.read_bytes())
    path.unlink() if changed is None else path.write_bytes(changed)
    with pytest.raises(StagingLost, match="share"):
        list(read_staged_replay(staged))

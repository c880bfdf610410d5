"""The record of a replay: what it remembers, and what a crash may do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq import Message
from tiermq.errors import ForeignCheckpoint
from tiermq.pipeline.replay.message import MARK, SourcePosition
from tiermq.pipeline.replay.record import OffsetSet, Replayed, ReplayRecord, differences
from tiermq.store.local_store import LocalStore
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tier.names import QueueKey

ASKED = {"tier": "file:///t", "mapping": {"topic": None}}
QUEUE = QueueKey("c", "b", "orders", 0)


def line(offset: int, now: int | None = None) -> Replayed:
    return Replayed(SourcePosition("b", "orders", 0, offset), "again", 1, offset if now is None else now)


def begun(path: Path) -> ReplayRecord:
    return ReplayRecord.begin(path, ASKED, ExportedRanges({QUEUE: [(0, 9)]}), {("again", 1): 0}, ["part-1.parquet"])


def found(path: Path) -> ReplayRecord:
    record = ReplayRecord.find(path, ASKED)
    assert record is not None
    return record


def test_a_record_that_is_found_again_knows_what_it_was_notified(tmp_path: Path) -> None:
    assert ReplayRecord.find(tmp_path, ASKED) is None
    made = begun(tmp_path)
    made.add([line(0), line(2)])
    made.tell(["offset 1 is damaged", "offset 1 is damaged"])
    made.tell(["offset 1 is damaged"])
    again = found(tmp_path)
    assert (again.name, again.count, again.ranges, again.files) == (made.name, 2, made.ranges, ["part-1.parquet"])
    assert [again.is_done(line(number).source) for number in range(4)] == [True, False, True, False]
    assert (again.next_offset(QUEUE), again.next_offset(QueueKey("c", "b", "orders", 1))) == (3, 0)
    assert again.problems == ["offset 1 is damaged"]
    assert not again.is_finished
    again.finish()
    assert found(tmp_path).is_finished


def test_a_torn_line_is_cut_off_and_written_again(tmp_path: Path) -> None:
    begun(tmp_path).add([line(0), line(1)])
    path = tmp_path / "offsets.csv"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        record = found(tmp_path)
        assert record.count == max(0, whole[:cut].count(b"\n") - 1)
        record.add([each for each in (line(0), line(1)) if not record.is_done(each.source)])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"name": "x"}', b"\xff\xfe"])
def test_something_else_is_no_record(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "replay.json").write_bytes(data)
    with pytest.raises(ForeignCheckpoint, match="expected the record of a replay"):
        ReplayRecord.find(tmp_path, ASKED)


def test_a_record_of_another_replay_reports_what_differs(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(ForeignCheckpoint, match="--tier was file:///t and is file:///u"):
        ReplayRecord.find(tmp_path, {**ASKED, "tier": "file:///u"})


def test_what_differs_is_named_by_the_options_of_the_command() -> None:
    def mapping(**changed: Any) -> dict[str, Any]:
        return {"mapping": {"topic": "again", "queue_count": None, "properties": [], "function": None, **changed}}

    assert differences(mapping(), mapping()) == ""
    assert differences(mapping(), mapping(topic="other")) == "--to-topic was again and is other"
    assert differences(mapping(), mapping(properties=(("a", "1"),))) == "--property was none and is a=1"
    assert differences({"topic": "a"}, {"topic": ""}) == "--topic was a and is none"


def test_messages_that_no_line_shows_of_are_found_by_their_mark(tmp_path: Path) -> None:
    record = begun(tmp_path / "record")
    with LocalStore.open(tmp_path / "store", background=False) as store:
        for number in range(300):
            mark = f"{record.name}:b/orders/0/{number}" if number % 3 else "another:b/orders/0/7"
            store.put(Message("again", b"x", 1, properties={MARK: mark}))
        store.put(Message("again", b"of somebody else", 1))
        store.dispatch_now()
        record.add([line(number, number) for number in range(100) if number % 3])
        left = sum(bool(number % 3) for number in range(100, 300))
        assert found(tmp_path / "record").recover(store) == left
        again = found(tmp_path / "record")
        assert again.recover(store) == 0
        assert again.count == 200


@given(st.sets(st.integers(0, 1 << 40), max_size=50), st.sets(st.integers(0, 1 << 40), max_size=50))
def test_a_set_of_offsets_has_what_was_added_and_nothing_else(added: set[int], others: set[int]) -> None:
    offsets = OffsetSet()
    for each in added:
        offsets.add(each)
    assert {each for each in added | others if each in offsets} == added

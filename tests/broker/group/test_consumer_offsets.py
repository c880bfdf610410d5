"""Consumer offsets: committed, reset, cloned, forgotten, and kept in RocketMQ's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tiermq.broker.group.consumer_offsets import FILE, ConsumerOffsets, decode_offsets, encode_offsets
from tiermq.errors import StoreDamaged
from tiermq.namesrv.topic_config import DataVersion
from tiermq.remoting.json_dialect import decode_object

NAMES = st.text(alphabet="abcXYZ019_-%|", min_size=1, max_size=20)


def offsets_in(path: Path) -> ConsumerOffsets:
    return ConsumerOffsets(str(path), ManualClock())


@given(
    st.dictionaries(
        st.tuples(NAMES, NAMES).map("@".join),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=4),
        max_size=5,
    )
)
def test_offsets_survive_their_file(table: dict[str, dict[int, int]]) -> None:
    version = DataVersion(1, 2, 3)
    assert decode_offsets(encode_offsets(table, version)) == (table, version, None)
    assert decode_offsets(encode_offsets(table, version, [3, 0])) == (table, version, [3, 0])


def test_the_file_is_written_as_the_real_broker_writes_it() -> None:
    data = encode_offsets({"T@G": {1: 7, 0: 12}, "U@G": {}}, DataVersion(9, 3, 0))
    assert data == (
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":9},"groupTopicMap":{"G":["T","U"]},'
        b'"offsetTable":{"T@G":{0:12,1:7},"U@G":{}}}'
    )


def test_fields_that_rocketmq_does_not_know_are_standard_json() -> None:
    """RocketMQ 5.5.0 refused the whole file for a bare queue number in one of them, and went on with the `.bak`."""
    version = DataVersion(9, 3, 0)
    known = encode_offsets({"T@G": {0: 12}}, version).removesuffix(b"}")
    data = encode_offsets({"T@G": {0: 12}}, version, [3, 0], {"T@G": {0: 9, 1: 4}})
    own = json.loads(b"{" + data.removeprefix(known + b","))
    assert own == {"popLogEnds": [3, 0], "popOpen": {"T@G": {"0": 9, "1": 4}}}


def test_a_flush_makes_commits_survive_and_says_whether_there_were_any(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path / "config")
    assert not offsets.flush()
    assert offsets.commit("g", "t", 0, 5)
    assert offsets.changed
    assert offsets.flush()
    assert not offsets.flush()
    offsets.commit("g", "t", 1, 6)
    again = offsets_in(tmp_path / "config")
    assert (again.query("g", "t", 0), again.query("g", "t", 1)) == (5, -1)
    assert again.data_version.counter == 1
    assert again.queues("g", "t") == {0: 5}


def test_a_flush_that_fails_leaves_everything_to_the_next(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path / "config" / "deeper")
    (tmp_path / "config").write_text("a file where a directory should be")
    offsets.commit("g", "t", 0, 5)
    with pytest.raises(StoreDamaged, match="config"):
        offsets.flush()
    assert offsets.changed
    (tmp_path / "config").unlink()
    assert offsets.flush()
    assert offsets_in(tmp_path / "config" / "deeper").query("g", "t", 0) == 5


def test_a_reset_is_committed_holds_back_commits_and_is_taken_once(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    told: list[tuple[str, str, int]] = []
    offsets.on_reset.append(lambda *which: told.append(which))
    offsets.commit("g", "t", 0, 50)
    offsets.reset("g", "t", 0, 10)
    assert told == [("g", "t", 0)]
    had_resets = offsets.has_resets
    assert not offsets.commit("g", "t", 0, 60)
    assert offsets.commit("g", "t", 1, 60)
    assert offsets.query("g", "t", 0) == 10
    assert (offsets.take_reset("g", "t", 0), offsets.take_reset("g", "t", 0)) == (10, None)
    assert (had_resets, offsets.has_resets) == (True, False)
    assert offsets.query("g", "t", 0) == 10
    assert offsets.commit("g", "t", 0, 11)
    assert offsets.query("g", "t", 0) == 11


def test_who_consumes_what_is_known_from_the_offsets(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_of("g") == ["t", "u"]
    assert offsets.groups_of("t") == ["g", "h"]
    assert offsets.remove_topic("t") == 2
    assert offsets.topics_of("g") == ["u"]
    assert offsets.remove_group("g") == 1
    assert offsets.snapshot() == {}
    assert not offsets.remove("g", "u")


def test_a_removed_group_has_neither_pull_offsets_nor_resets(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.pulled("g", "t", 0, 9)
    offsets.reset("g", "t", 0, 1)
    assert offsets.query_pulled("g", "t", 0) == 9
    assert offsets.remove("g", "t")
    assert offsets.query_pulled("g", "t", 0) == -1
    assert not offsets.has_resets


def test_a_clone_goes_its_own_way(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", 0, 5)
    assert offsets.clone("g", "h", "t")
    assert not offsets.clone("x", "h", "t")
    offsets.commit("h", "t", 0, 9)
    assert (offsets.query("g", "t", 0), offsets.query("h", "t", 0)) == (5, 9)


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"offsetTable":{"T@G":{"x":1}}}', b'{"offsetTable":{"T@G":5}}', b"{"])
def test_what_is_no_offset_table_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(StoreDamaged, match=FILE):
        offsets_in(tmp_path)


def test_a_java_reader_finds_the_table_where_it_looks() -> None:
    document = decode_object(encode_offsets({"T@G": {0: 1}}, DataVersion(1, 1, 0)))
    assert document["offsetTable"] == {"T@G": {"0": 1}}

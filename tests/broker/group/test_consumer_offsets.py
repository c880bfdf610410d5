"""Consumer offsets: committed, reset, cloned, forgotten, and kept in RocketMQ's file."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tiermq.broker.group import consumer_offsets
from tiermq.broker.group.consumer_offsets import FILE, ConsumerOffsets, decode_offsets, encode_offsets
from tiermq.errors import StoreDamaged
from tiermq.namesrv.topic_config import DataVersion
from tiermq.remoting.json_dialect import decode_object
from tiermq.store.table_journal import SUFFIX

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
    reported: list[tuple[str, str, int]] = []
    offsets.on_reset.append(lambda *which: reported.append(which))
    offsets.commit("g", "t", 0, 50)
    offsets.reset("g", "t", 0, 10)
    assert reported == [("g", "t", 0)]
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


# A file that is too large to be written by each flush


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConsumerOffsets:
    """With 1,000 groups in its file."""
    monkeypatch.setattr(consumer_offsets, "WHOLE_BYTES_MAX", 10_000)
    offsets = offsets_in(tmp_path)
    for number in range(1_000):
        offsets.commit(f"g{number}", "t", 0, number)
    assert offsets.flush()
    return offsets


def test_a_flush_of_many_offsets_writes_those_that_changed(tmp_path: Path, many: ConsumerOffsets) -> None:
    file, journal = tmp_path / FILE, tmp_path / (FILE + SUFFIX)
    before = file.read_bytes()
    many.take_log_ends = lambda: [7, 8]
    many.commit("g5", "t", 3, 50)
    many.commit("new", "t", 0, 1)
    many.remove_group("g6")
    assert many.flush()
    assert file.read_bytes() == before
    assert b"g7" not in journal.read_bytes()
    assert journal.stat().st_size < 400
    many.commit("g5", "t", 3, 51)
    many.commit("g6", "u", 1, 2)
    many.remove_group("new")
    assert many.flush()
    assert not many.changed
    killed = offsets_in(tmp_path)
    assert killed.snapshot() == many.snapshot()
    assert (killed.queues("g5", "t"), killed.query("g6", "t", 0), killed.query("new", "t", 0)) == (
        {0: 5, 3: 51},
        -1,
        -1,
    )
    assert killed.log_ends == [7, 8]
    assert not journal.exists()
    assert decode_offsets(file.read_bytes())[0] == many.snapshot()


def test_a_clean_end_leaves_everything_in_the_file(tmp_path: Path, many: ConsumerOffsets) -> None:
    many.commit("g5", "t", 3, 50)
    many.flush()
    assert decode_offsets((tmp_path / FILE).read_bytes())[0]["t@g5"] == {0: 5}
    assert many.flush(is_last=True)
    assert not many.flush(is_last=True)
    assert decode_offsets((tmp_path / FILE).read_bytes())[0] == many.snapshot()
    assert not (tmp_path / (FILE + SUFFIX)).exists()


def test_the_file_follows_the_journal_after_a_minute_or_when_that_is_as_large(
    tmp_path: Path, many: ConsumerOffsets
) -> None:
    many.commit("g5", "t", 3, 50)
    many.flush()
    assert not many.flush()
    assert isinstance(many.clock, ManualClock)
    many.clock.advance_ms(consumer_offsets.WHOLE_PERIOD_MS)
    assert many.changed
    assert many.flush()
    assert decode_offsets((tmp_path / FILE).read_bytes())[0] == many.snapshot()
    journal, flushes = tmp_path / (FILE + SUFFIX), 0
    while flushes == 0 or journal.exists():
        for number in range(100):
            many.commit(f"g{number}", "t", 0, flushes)
        many.flush()
        flushes += 1
    assert 5 < flushes < 40
    assert decode_offsets((tmp_path / FILE).read_bytes())[0] == many.snapshot()


@pytest.mark.parametrize("counter", [0, 500])
def test_what_another_program_wrote_since_counts_more_than_the_journal(
    tmp_path: Path, many: ConsumerOffsets, counter: int
) -> None:
    """RocketMQ counts a version each 500 commits: it may have written the file under the version that it found."""
    many.commit("g5", "t", 0, 50)
    many.commit("new", "t", 0, 1)
    many.flush()
    table, version, _ = decode_offsets((tmp_path / FILE).read_bytes())
    table["t@g5"] = {0: 3}
    version = DataVersion(version.timestamp, version.counter + counter, version.state_version)
    (tmp_path / FILE).write_bytes(encode_offsets(table, version))
    found = offsets_in(tmp_path)
    assert (found.query("g5", "t", 0), found.query("new", "t", 0), found.query("g6", "t", 0)) == (3, 1, 6)


def test_the_journal_completes_the_backup_of_a_damaged_file(tmp_path: Path, many: ConsumerOffsets) -> None:
    many.commit("g5", "t", 0, 50)
    many.flush(is_last=True)
    many.commit("g5", "t", 0, 60)
    many.commit("g7", "t", 0, 70)
    many.flush()
    (tmp_path / FILE).write_bytes(b'{"offsetTable":')
    found = offsets_in(tmp_path)
    assert (found.query("g5", "t", 0), found.query("g7", "t", 0), found.query("g8", "t", 0)) == (60, 70, 8)


def test_a_flush_of_a_change_that_fails_leaves_it_to_the_next(tmp_path: Path, many: ConsumerOffsets) -> None:
    many.commit("g5", "t", 0, 50)
    failures = [OSError("no space")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    many.before_write.append(fail)
    with pytest.raises(OSError, match="no space"):
        many.flush()
    assert many.flush()
    assert offsets_in(tmp_path).query("g5", "t", 0) == 50


@pytest.mark.parametrize("put", [{"no separator": {"0": 1}}, {"t@g": {"0": "x"}}, {"t@g": {"x": 1}}])
def test_a_journal_that_no_broker_writes_is_refused(
    tmp_path: Path, many: ConsumerOffsets, put: dict[str, object]
) -> None:
    many.commit("g5", "t", 0, 50)
    many.flush()
    journal = tmp_path / (FILE + SUFFIX)
    text = json.dumps({"v": [9, 99, 0], "put": put}).encode()
    journal.write_bytes(journal.read_bytes() + b"%08x %b\n" % (zlib.crc32(text), text))
    with pytest.raises(StoreDamaged, match="journal, line 3"):
        offsets_in(tmp_path)

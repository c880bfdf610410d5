"""The index as a whole: rolling, querying, dispatching again, loading after good and bad stops, cleaning."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import DiskFull, StoreClosed, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_file import HEADER_BYTES, IndexFile
from tiermq.index.index_service import IndexService

EVER = (0, 2**63 - 1)
NOW_MS = 1_700_000_000_000
SLOTS, ENTRIES = 16, 11  # Ten entries per file.


class Index:
    """An index service whose background work runs at once, and which remembers its checkpoints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(NOW_MS)
        self.checkpoints: list[int] = []
        self.service = self.new_service()

    def new_service(self) -> IndexService:
        return IndexService(
            OsFileAccess(), str(self.directory), SLOTS, ENTRIES, self.clock, self.checkpoints.append,
            background=lambda task: task(),
        )  # fmt: skip

    def put(self, offset: int, *keys: str, ms: int = NOW_MS) -> int:
        return self.service.put("T", keys, offset, ms)

    def offsets(self, key: str, begin_ms: int = 0, end_ms: int = EVER[1]) -> list[int]:
        return self.service.query("T", key, 64, begin_ms, end_ms).offsets

    def reopen(self, *, clean: bool, safe_ms: int = 0) -> int | None:
        if clean:
            self.service.close()
        else:
            for file in self.service.files:
                file.close()
        self.service = self.new_service()
        return self.service.load(clean, safe_ms)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index")
    yield index
    index.service.close()


def test_a_key_is_found_by_topic_and_key(index: Index) -> None:
    index.put(0, "k")
    index.service.put("U", ("k",), 100, NOW_MS)
    result = index.service.query("T", "k", 10, *EVER)
    assert result.offsets == [0]
    assert (result.last_update_timestamp_ms, result.last_update_physical_offset) == (NOW_MS, 100)


def test_an_empty_index_answers_with_nothing(index: Index) -> None:
    result = index.service.query("T", "k", 10, *EVER)
    assert (result.offsets, result.last_update_timestamp_ms, result.last_update_physical_offset) == ([], 0, 0)


def test_a_record_without_keys_makes_no_file(index: Index) -> None:
    assert index.put(0) == 0
    assert index.service.files == ()


def test_entries_go_on_in_a_new_file_when_one_is_full(index: Index) -> None:
    for offset in range(25):
        index.put(offset, "k", ms=NOW_MS + offset)
    assert [file.header.entry_count for file in index.service.files] == [11, 11, 6]
    assert index.offsets("k") == list(range(24, -1, -1))
    assert index.checkpoints == [NOW_MS + 9, NOW_MS + 19], "a full file is flushed and then vouched for"


def test_a_query_never_returns_more_than_the_batch_limit(tmp_path: Path) -> None:
    service = IndexService(OsFileAccess(), str(tmp_path), 8, 200, ManualClock(), lambda _: None)
    for offset in range(100):
        service.put("T", ("k",), offset, NOW_MS)
    assert service.query("T", "k", 2**31 - 1, *EVER).offsets == list(range(99, 35, -1))
    assert service.query("T", "k", 5, *EVER).offsets == [99, 98, 97, 96, 95]
    service.close()


def test_a_query_looks_only_into_its_time_range(index: Index) -> None:
    for offset in range(30):
        index.put(offset, "k", ms=NOW_MS + offset * 10_000)
    found = index.offsets("k", NOW_MS + 50_000, NOW_MS + 120_000)
    assert found == [12, 11, 10, 9, 8, 7, 6, 5]


def test_dispatching_the_last_record_again_adds_no_second_entry(index: Index) -> None:
    """Pitfall 8: RocketMQ compares with < and indexes the last record's keys twice."""
    index.put(100, "a", "b", "a")
    assert index.put(100, "a", "b", "a") == 0
    assert index.offsets("a") == [100, 100]
    assert index.offsets("b") == [100]


def test_dispatching_older_records_again_adds_nothing(index: Index) -> None:
    for offset in range(25):
        index.put(offset, "k")
    assert sum(index.put(offset, "k") for offset in range(25)) == 0
    assert index.offsets("k") == list(range(24, -1, -1))


@pytest.mark.parametrize("before", range(12))
@pytest.mark.parametrize("cut", range(5))
def test_a_crash_between_the_keys_of_a_record_loses_and_doubles_none(index: Index, before: int, cut: int) -> None:
    """Pitfall 8, the other side; `before` moves the record across the end of a file."""
    keys = ("a", "b", "c", "b", "d")
    for offset in range(before):
        index.put(offset, "x")
    assert index.put(500, *keys[:cut]) == cut
    index.reopen(clean=False, safe_ms=NOW_MS)
    for offset in range(before):
        index.put(offset, "x")
    index.put(500, *keys)
    assert index.put(500, *keys) == 0
    assert index.offsets("x") == list(range(before - 1, -1, -1))
    assert [index.offsets(key) for key in "abcd"] == [[500], [500, 500], [500], [500]]


def test_a_full_disk_between_the_keys_of_a_record_can_be_repeated(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset in range(9):
        index.put(offset, "x")

    def no_room(*_: object, **__: object) -> IndexFile:
        raise DiskFull("expected room for an index file, found none")

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "create", no_room)
        with pytest.raises(DiskFull):
            index.put(500, "a", "b")
    assert index.put(500, "a", "b") == 1
    assert index.offsets("a") == [500]
    assert index.offsets("b") == [500]


def test_a_batch_of_rows_is_put_as_its_records_would_be(index: Index) -> None:
    assert index.service.put_keys_batch([1, 2, 3, 4], [10, 10, 20, 30], [NOW_MS] * 4) == 4
    assert index.service.put_keys_batch([1, 2, 3, 4, 5], [10, 10, 20, 30, 30], [NOW_MS] * 5) == 1
    file = index.service.files[0]
    assert [file.select(hash_, 9, *EVER) for hash_ in range(1, 6)] == [[10], [10], [20], [30], [30]]


def test_a_clean_stop_keeps_everything(index: Index) -> None:
    for offset in range(15):
        index.put(offset, "k", ms=NOW_MS + offset)
    assert index.reopen(clean=True) is None
    assert index.checkpoints == [NOW_MS + 9]
    assert index.offsets("k") == list(range(14, -1, -1))
    index.put(15, "k", ms=NOW_MS + 15)
    assert index.offsets("k") == list(range(15, -1, -1))


def test_after_a_crash_files_that_were_not_durable_are_removed_and_the_caller_learns_from_where_to_index(
    index: Index,
) -> None:
    """Pitfall 7: in RocketMQ those entries stay lost unless messageIndexSafe was set."""
    for offset in range(25):
        index.put(offset * 100, "k", ms=NOW_MS + offset)
    rebuild_from = index.reopen(clean=False, safe_ms=index.checkpoints[-1])
    assert rebuild_from == 1900
    assert index.offsets("k") == [offset * 100 for offset in range(19, -1, -1)]
    assert len(list(index.directory.iterdir())) == 2
    for offset in range(19, 25):
        index.put(offset * 100, "k", ms=NOW_MS + offset)
    assert index.offsets("k") == [offset * 100 for offset in range(24, -1, -1)]


def test_after_a_crash_without_any_durable_file_everything_is_indexed_again(index: Index) -> None:
    index.put(700, "k")
    assert index.reopen(clean=False, safe_ms=0) == 0
    assert index.service.files == ()


def test_after_a_crash_a_file_that_could_still_take_entries_is_not_trusted_whatever_its_times_say(index: Index) -> None:
    for offset in range(5):
        index.put(offset, "k")
    assert index.reopen(clean=True) is None
    index.put(5, "k", ms=NOW_MS - 3_600_000)  # The clock was set back; nothing has synced this entry.
    assert index.reopen(clean=False, safe_ms=NOW_MS) == 0
    assert index.service.files == ()


def test_after_a_crash_nothing_behind_the_file_that_the_checkpoint_speaks_of_is_trusted(index: Index) -> None:
    for offset in range(20):  # Two full files of one millisecond; the checkpoint may come from the first.
        index.put(offset, "k")
    assert index.reopen(clean=False, safe_ms=NOW_MS) == 9
    assert len(index.service.files) == 1


def test_a_file_younger_than_a_removed_one_is_removed_too(index: Index) -> None:
    """The clock may have been set back; a kept file after a hole would hide what has to be rebuilt."""
    for offset in range(15):
        index.put(offset, "k", ms=NOW_MS + (1000 if offset < 10 else 0))
    assert index.reopen(clean=False, safe_ms=NOW_MS) == 0
    assert list(index.directory.iterdir()) == []


def test_files_are_vouched_for_in_order_however_late_their_flush_runs(tmp_path: Path) -> None:
    """The checkpoint's time speaks for all older files, so a younger file's flush syncs the older ones first."""
    tasks: list[Callable[[], None]] = []
    events: list[str] = []

    class Recording(OsFileAccess):
        def create(self, path: str, size: int):  # type: ignore[no-untyped-def]
            region = super().create(path, size)

            class Recorded:
                buffer, reserve = region.buffer, region.reserve
                close, close_descriptor = region.close, region.close_descriptor

                path = region.path

                def sync(self) -> None:
                    events.append(Path(self.path).name[-3:])
                    region.sync()

            return Recorded()

    service = IndexService(
        Recording(), str(tmp_path), SLOTS, ENTRIES, ManualClock(NOW_MS), lambda ms: events.append(f"checkpoint {ms}"),
        background=tasks.append,
    )  # fmt: skip
    for offset in range(25):
        service.put("T", ("k",), offset, offset)
    assert events == ["new", "new", "new"], "each file has its header on disk before it has its name"
    events.clear()
    tasks[1]()
    assert events == ["000", "001", "checkpoint 19"]
    service.close()
    assert events[-1] == "002", "synced, but no mark vouches for a file that can still take entries"


def test_foreign_names_are_left_alone(index: Index) -> None:
    index.put(0, "k")
    index.service.close()
    for name in ("README", "2023111422132000", "２０２３１１１４２２１３２００００"):
        (index.directory / name).write_text("not an index")
    index.reopen(clean=True)
    assert len(index.service.files) == 1
    assert (index.directory / "README").exists()


def test_a_file_of_another_size_is_refused_after_a_clean_stop_and_rebuilt_after_a_crash(index: Index) -> None:
    index.put(0, "k")
    index.service.close()
    (index.directory / "20991231235959999").write_bytes(b"short")
    with pytest.raises(StoreDamaged, match="bytes"):
        index.new_service().load(True, 0)
    assert index.new_service().load(False, 2**62) == 0
    assert not (index.directory / "20991231235959999").exists()


def test_a_damaged_file_in_the_middle_is_refused_even_after_a_crash(index: Index) -> None:
    for offset in range(15):
        index.put(offset, "k")
    oldest = Path(index.service.files[0].path)
    index.service.close()
    data = bytearray(oldest.read_bytes())
    struct.pack_into(">i", data, HEADER_BYTES - 4, -5)
    struct.pack_into(">q", data, 0, -5)
    oldest.write_bytes(data)
    with pytest.raises(StoreDamaged, match="rebuild"):
        index.new_service().load(False, 2**62)


def test_expired_files_go_oldest_first_and_the_newest_stays(index: Index) -> None:
    for offset in range(25):
        index.put(offset * 100, "k")
    assert index.service.delete_expired(900) == 0
    assert index.service.delete_expired(901) == 1
    assert index.offsets("k")[-1] == 1000
    assert index.service.delete_expired(10**9) == 1
    assert len(index.service.files) == 1
    assert len(list(index.directory.iterdir())) == 1


def test_files_made_in_one_millisecond_get_different_ascending_names(index: Index) -> None:
    for offset in range(35):
        index.put(offset, "k")
    names = [file.name for file in index.service.files]
    assert len(set(names)) == 4
    assert names == sorted(names)
    assert all(len(name) == 17 and name.isascii() and name.isdigit() for name in names)


def test_destroy_leaves_no_file(index: Index) -> None:
    for offset in range(15):
        index.put(offset, "k")
    index.service.destroy()
    assert list(index.directory.iterdir()) == []
    assert index.offsets("k") == []


def test_a_closed_index_refuses_puts_and_finds_nothing(index: Index) -> None:
    index.put(0, "k")
    index.service.close()
    index.service.close()
    assert index.offsets("k") == []
    with pytest.raises(StoreClosed):
        index.service.current()


def test_full_files_are_flushed_by_threads_that_close_waits_for(tmp_path: Path) -> None:
    checkpoints: list[int] = []
    service = IndexService(OsFileAccess(), str(tmp_path), SLOTS, ENTRIES, ManualClock(NOW_MS), checkpoints.append)
    for offset in range(25):
        service.put("T", ("k",), offset, offset)
    service.close()
    assert sorted(set(checkpoints)) == [9, 19]

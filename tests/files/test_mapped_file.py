"""One mapped file: positions, reading, transient buffer, references, removal. On both file systems."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from files.conftest import SimulatedWorld, World
from present import present
from simulation.simulated_files import SimulatedFileAccess
from tiermq.errors import DiskFull, ReadOnlyStore, StoreClosed, StoreDamaged, StoreError
from tiermq.files.allocator import TransientPool
from tiermq.files.mapped_file import OFFSET_MAX, MappedFile, SelectedBuffer, is_due, name_of_offset, offset_of_path
from tiermq.kernel import Segments

SIZE = 16_384
NAME = "00000000000000016384"


def create(world: World, size: int = SIZE, **settings: Any) -> MappedFile:
    settings.setdefault("reserve_bytes", 4096)
    return MappedFile.create(world.access, f"{world.root}/{NAME}", size, clock=world.clock, **settings)


def positions(file: MappedFile) -> tuple[int, int, int]:
    return file.wrote_position, file.flushed_position, file.read_position


@pytest.mark.parametrize(
    ("start", "end", "least_pages", "full", "due"),
    [
        (0, 0, 0, False, False),
        (0, 1, 0, False, True),
        (0, 4095, 1, False, False),
        (0, 4096, 1, False, True),
        (4095, 4096, 1, False, True),  # Pages are counted by their borders, as RocketMQ does.
        (0, 4 * 4096 - 1, 4, False, False),
        (0, 4 * 4096, 4, False, True),
        (100, 200, 4, True, True),
        (200, 200, 0, True, False),
    ],
)
def test_what_is_due(start: int, end: int, least_pages: int, full: bool, due: bool) -> None:
    assert is_due(start, end, least_pages, full) is due


def test_a_new_file_is_empty_and_named_by_its_first_offset(world: World) -> None:
    file = create(world)
    assert (file.from_offset, file.size, file.tail.base, positions(file)) == (16_384, SIZE, 16_384, (0, 0, 0))
    assert file.tail is file.view
    assert not file.is_full
    file.close()


@pytest.mark.parametrize("name", ["1", "0000000000000001638x", "٠" * 20, "9" * 20])
def test_a_name_that_is_no_offset_is_refused_before_anything_is_created(world: World, name: str) -> None:
    with pytest.raises(StoreDamaged, match="expected a file name of 20 digits"):
        MappedFile.create(world.access, f"{world.root}/{name}", SIZE, clock=world.clock)
    assert world.access.list_files(world.root) == []


def test_appended_bytes_are_readable_at_once_and_blocks_are_reserved_in_chunks(world: World) -> None:
    file = create(world)
    assert file.append(b"hello")
    assert file.tail.limit == 4096
    assert file.append(bytes(5000))
    assert file.tail.limit == 8192
    assert file.read(0, 5) == b"hello"
    assert file.read(5000, 5) == bytes(5)
    assert file.read(5001, 5) is None
    assert file.read(-1, 1) is None
    assert positions(file) == (5005, 0, 5005)
    file.close()


def test_a_file_takes_exactly_its_size_and_refuses_the_byte_after(world: World) -> None:
    file = create(world, size=6000)
    assert not file.append(bytes(6001))
    assert file.append(bytes(6000))
    assert file.is_full
    assert file.tail.limit == 6000
    assert not file.append(b"x")
    assert file.append(b"")
    file.close()


def test_reserving_is_idempotent_and_never_passes_the_size(world: World) -> None:
    file = create(world, size=10_000)
    file.reserve(1)
    file.reserve(1)
    assert file.tail.limit == 4096
    file.reserve(10_000)
    assert file.tail.limit == 10_000
    with pytest.raises(ValueError, match="at most 10000"):
        file.reserve(10_001)
    file.close()


def test_a_full_disk_stops_the_append_before_a_byte_is_written() -> None:
    access = SimulatedFileAccess(capacity_bytes=3 * 4096)
    file = MappedFile.create(access, f"/s/{NAME}", SIZE, clock=access.clock, reserve_bytes=2 * 4096)
    assert file.append(bytes(8000))
    assert file.append(b"x" * 1000), "no room for two more blocks, but one is enough"
    with pytest.raises(DiskFull):
        file.append(bytes(4000))
    assert positions(file) == (9000, 0, 9000)
    access.capacity_bytes = None
    assert file.append(bytes(4000))


def test_flush_moves_the_flushed_position_only_when_enough_pages_are_due(world: World) -> None:
    file = create(world)
    file.append(bytes(4095))
    assert file.flush(1) == 0
    file.append(b"x")
    assert file.flush(1) == 4096
    file.append(b"y")
    assert file.flush(4) == 4096
    assert file.flush(0) == 4097
    file.append(bytes(SIZE - 4097))
    assert file.flush(4) == SIZE, "a full file is flushed whatever the pages"
    assert file.flush(0) == SIZE
    file.close()


def test_a_failed_flush_moves_nothing_and_later_ones_fail_too(simulated: SimulatedWorld) -> None:
    file = create(simulated)
    file.append(b"data")

    def fail(operation: str, path: str) -> None:
        if operation == "sync":
            raise OSError(5, "Input/output error")

    simulated.access.on_call = fail
    with pytest.raises(OSError, match="Input"):
        file.flush(0)
    simulated.access.on_call = None
    with pytest.raises(StoreError, match="earlier sync failed"):
        file.flush(0)
    assert file.flushed_position == 0


def test_a_loaded_file_counts_as_full_until_positions_are_set(world: World) -> None:
    file = create(world)
    file.append(b"0123456789")
    file.close()
    loaded = MappedFile.load(world.access, f"{world.root}/{NAME}", SIZE, clock=world.clock, reserve_bytes=4096)
    assert positions(loaded) == (SIZE, SIZE, SIZE)
    assert (loaded.tail.limit, loaded.is_full) == (0, True)
    loaded.set_positions(10)
    assert positions(loaded) == (10, 10, 10)
    assert loaded.tail.limit == 0
    assert loaded.append(b"abc")
    assert loaded.tail.limit == 4096
    assert loaded.read(0, 13) == b"0123456789abc"
    with pytest.raises(ValueError, match="position between 0 and"):
        loaded.set_positions(SIZE + 1)
    loaded.close()


def test_a_file_loaded_read_only_is_read_and_not_written(world: World) -> None:
    file = create(world)
    file.append(b"0123456789")
    file.close()
    loaded = MappedFile.load(world.access, f"{world.root}/{NAME}", SIZE, clock=world.clock, writable=False)
    loaded.set_positions(10)
    assert loaded.read(2, 3) == b"234"
    with pytest.raises(ReadOnlyStore):
        loaded.append(b"x")
    loaded.close()


def test_stale_bytes_after_a_truncation_can_be_erased(world: World) -> None:
    file = create(world)
    file.append(b"\xff" * SIZE)
    file.set_positions(5000)
    file.zero_from(5000)
    file.set_positions(SIZE)
    assert file.read(0, SIZE) == b"\xff" * 5000 + bytes(SIZE - 5000)
    file.set_positions(5000)
    assert file.append(b"new"), "blocks are reserved again"
    file.flush(0)
    file.close()


def test_selecting_needs_bytes_below_the_read_position(world: World) -> None:
    file = create(world)
    file.append(b"0123456789")
    with present(file.select(2, 5)) as selected:
        assert (selected.start_offset, selected.size, bytes(selected.data)) == (16_386, 5, b"23456")
        assert selected.data.readonly
        assert file.references.count == 2
    assert file.references.count == 1
    with present(file.select(4)) as rest:
        assert bytes(rest.data) == b"456789"
    with present(file.select(10, 0)) as nothing:
        assert nothing.size == 0
    assert [file.select(10), file.select(-1), file.select(5, 6), file.select(-1, 2), file.select(3, -1)] == [None] * 5
    assert file.references.count == 1
    file.close()


def test_a_second_release_of_a_selection_changes_nothing(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    assert file.hold()
    selected = file.select(0)
    assert selected is not None
    selected.release()
    selected.release()
    assert file.references.count == 2
    file.release()
    file.close()


def test_a_destroyed_file_is_unlinked_at_once_when_it_is_not_held(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    tail = file.tail
    assert file.destroy(1000) is True
    assert world.access.list_files(world.root) == []
    assert (file.available, file.hold(), file.select(0), file.read(0, 3)) == (False, False, None, None)
    assert file.wrote_position == 3
    assert not file.append(b"x")
    assert not tail.append(b"x"), "a writer that kept the tail cannot write into a file without a name"
    assert file.destroy(1000) is True
    with pytest.raises(StoreClosed):
        file.reserve(SIZE)


def test_a_held_file_is_unlinked_by_its_last_release(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    selected = file.select(0)
    assert selected is not None
    assert file.destroy(1000) is False
    assert world.access.exists(file.path)
    assert file.select(0) is None
    assert bytes(selected.data) == b"abc"
    selected.release()
    assert not world.access.exists(file.path)
    assert file.destroy(1000) is True


def test_a_held_file_is_unlinked_by_force_after_the_interval_and_its_reader_keeps_valid_bytes(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    selected = file.select(0)
    assert selected is not None
    assert file.destroy(1000) is False
    world.clock.advance_ms(999)
    assert file.destroy(1000) is False
    world.clock.advance_ms(1)
    assert file.destroy(1000) is True
    assert not world.access.exists(file.path)
    assert bytes(selected.data) == b"abc"
    replacement = create(world)
    selected.release()
    assert world.access.exists(file.path), "the last release must not unlink the new file of the same name"
    replacement.close()


def test_a_snapshot_taken_before_a_removal_still_reads(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    segments = Segments([file.view], SIZE)
    assert file.destroy(0) is True
    assert segments.read(16_384, 3) == b"abc"


def test_shutting_down_keeps_the_file_on_disk(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    selected = file.select(0)
    assert selected is not None
    file.shutdown(1000)
    assert not file.available
    selected.release()
    assert world.access.exists(file.path)
    assert file.select(0) is None


def test_flush_on_a_file_being_destroyed_still_syncs_it(simulated: SimulatedWorld) -> None:
    """RocketMQ only marks such a file as flushed."""
    file = create(simulated)
    file.append(b"abc")
    selected = file.select(0)
    assert selected is not None
    file.destroy(1000)
    assert file.flush(0) == 3
    after = simulated.access.crash(lambda path, page: False)
    assert after.read_bytes(file.path)[:3] == b"abc"
    selected.release()
    assert file.flush(0) == 3, "without a name there is nothing left to keep"


def test_closing_deletes_nothing_and_can_be_repeated(world: World) -> None:
    file = create(world)
    file.append(b"abc")
    file.close()
    file.close()
    assert world.access.exists(file.path)
    assert file.read(0, 3) is None


def test_with_a_transient_buffer_readers_see_committed_bytes_only(world: World) -> None:
    pool = TransientPool(1, SIZE, lock_memory=False)
    file = create(world)
    file.attach_transient(pool.borrow(), pool)
    assert file.tail is not file.view
    assert file.append(b"hello")
    assert positions(file) == (5, 0, 0)
    assert file.read(0, 5) is None
    assert file.select(0) is None
    assert file.flush(0) == 0
    assert file.commit(1) == 0
    assert file.commit(0) == 5
    assert file.read(0, 5) == b"hello"
    assert positions(file) == (5, 0, 5)
    assert file.flush(0) == 5
    file.destroy(0)
    assert pool.available == 1


def test_a_fully_committed_file_gives_its_buffer_back_and_becomes_a_plain_one(world: World) -> None:
    pool = TransientPool(1, SIZE, lock_memory=False)
    file = create(world)
    view = file.view
    file.attach_transient(pool.borrow(), pool)
    old_tail = file.tail
    assert file.append(b"x" * (SIZE - 1))
    assert file.commit(0) == SIZE - 1
    assert pool.available == 0
    assert file.append(b"y")
    assert file.is_full
    assert file.commit(4) == SIZE
    assert pool.available == 1
    assert file.tail is file.view is view, "snapshots that list the view stay right"
    assert not old_tail.append(b"z")
    assert file.read(0, SIZE) == b"x" * (SIZE - 1) + b"y"
    assert file.commit(0) == SIZE
    file.close()


def test_setting_positions_or_closing_commits_the_transient_buffer_first(world: World) -> None:
    pool = TransientPool(1, SIZE, lock_memory=False)
    file = create(world)
    file.attach_transient(pool.borrow(), pool)
    file.append(b"0123456789")
    file.set_positions(6)
    assert pool.available == 1
    assert file.read(0, 6) == b"012345"
    file.attach_transient(pool.borrow(), pool)
    file.append(b"abc")
    file.close()
    loaded = MappedFile.load(world.access, file.path, SIZE, clock=world.clock)
    assert loaded.read(0, 9) == b"012345abc"
    loaded.close()


def test_a_commit_never_meets_a_full_disk() -> None:
    access = SimulatedFileAccess(capacity_bytes=4096)
    pool = TransientPool(1, SIZE, lock_memory=False)
    file = MappedFile.create(access, f"/s/{NAME}", SIZE, clock=access.clock, reserve_bytes=4096)
    file.attach_transient(pool.borrow(), pool)
    assert file.append(bytes(4096))
    with pytest.raises(DiskFull):
        file.append(b"x")
    assert file.commit(0) == 4096


@pytest.mark.parametrize("pages_per_sync", [0, 1, 3])
def test_warming_reserves_the_whole_file_and_leaves_it_zero(world: World, pages_per_sync: int) -> None:
    file = create(world)
    file.warm(pages_per_sync)
    assert (file.tail.limit, file.wrote_position) == (SIZE, 0)
    file.set_positions(SIZE)
    assert file.read(0, SIZE) == bytes(SIZE)
    file.close()


def test_warming_works_where_the_kernel_cannot_populate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    file = create(world)
    monkeypatch.setattr(type(file._region), "populate", lambda *_: False)
    file.warm(1)
    assert file.append(b"x" * SIZE)
    file.close()


def test_appending_reading_and_flushing_at_the_same_time_agree(world: World) -> None:
    file = create(world, size=1 << 20, reserve_bytes=1 << 16)
    record = bytes(range(200))
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not done.is_set():
            end = file.read_position // len(record) * len(record)
            if end and file.read(end - len(record), len(record)) != record:
                wrong.append(end)
            with file.select(0) or memoryview(b""):
                file.flush(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    while file.append(record):
        pass
    done.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert file.flush(0) == file.wrote_position == (1 << 20) // 200 * 200
    assert file.references.count == 1
    file.close()


def test_a_selection_is_released_once_however_often_it_is_asked() -> None:
    released = []
    selected = SelectedBuffer(100, memoryview(b"hello"), lambda: released.append(True))
    assert (selected.start_offset, selected.size, bytes(selected.data)) == (100, 5, b"hello")
    selected.release()
    selected.release()
    assert released == [True]
    with pytest.raises(ValueError, match="released"):
        bytes(selected.data)


def test_a_selection_is_released_when_its_block_ends_also_by_an_error() -> None:
    released = []
    with pytest.raises(KeyError), SelectedBuffer(0, memoryview(b""), lambda: released.append(True)):
        raise KeyError
    assert released == [True]


def test_the_second_file_of_one_gibibyte_has_rocketmqs_name() -> None:
    assert name_of_offset(1 << 30) == "00000000001073741824"


@given(st.integers(0, OFFSET_MAX))
def test_a_name_gives_its_offset_back(offset: int) -> None:
    assert offset_of_path(f"/any/where/{name_of_offset(offset)}") == offset


@pytest.mark.parametrize(
    "name", ["", "0", "0" * 19, "0" * 21, " " + "0" * 19, "-" + "0" * 19, "\u0660" * 20, "\u00b2" * 20, "9" * 20]
)
def test_a_name_that_is_no_offset_is_refused(name: str) -> None:
    with pytest.raises(StoreDamaged, match="expected a file name of 20 digits"):
        offset_of_path(f"/store/commitlog/{name}")


@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1])
def test_an_offset_that_no_file_can_have_is_refused(offset: int) -> None:
    with pytest.raises(ValueError, match="expected an offset between"):
        name_of_offset(offset)

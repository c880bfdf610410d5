"""The contract of the file-access seam, over the real file system and the simulated one."""

from __future__ import annotations

import pytest

from files.conftest import World
from simulation.simulated_files import SimulatedFileAccess, set_modified_ms
from tiermq.errors import ReadOnlyStore, StoreClosed, StoreDamaged, StoreLocked


@pytest.mark.parametrize("how", ["create", "create_unsynced"])
def test_a_created_file_has_its_full_size_and_reads_as_zero(world: World, how: str) -> None:
    region = getattr(world.access, how)(f"{world.root}/a/b/file", 10_000)
    assert (region.size, len(region.buffer), bytes(region.buffer)) == (10_000, 10_000, bytes(10_000))
    assert [info.size for info in world.access.list_files(f"{world.root}/a/b")] == [10_000]
    region.close()


@pytest.mark.parametrize("how", ["create", "create_unsynced"])
def test_creating_a_file_that_exists_opens_it_as_it_is_or_refuses_another_size(world: World, how: str) -> None:
    path = f"{world.root}/file"
    create = getattr(world.access, how)
    first = create(path, 4096)
    first.write(10, b"kept")
    again = create(path, 4096)
    assert bytes(again.buffer[10:14]) == b"kept"
    with pytest.raises(StoreDamaged, match=r"file: expected a file of 8192 bytes, found 4096"):
        create(path, 8192)
    first.close()
    again.close()


@pytest.mark.parametrize("how", ["create", "create_unsynced"])
def test_a_file_is_not_made_below_a_file(world: World, how: str) -> None:
    world.access.write_bytes(f"{world.root}/file", b"abc")
    with pytest.raises(StoreDamaged, match="expected a directory or nothing, found a file"):
        getattr(world.access, how)(f"{world.root}/file/sub", 4096)


def test_opening_refuses_a_missing_file_and_a_wrong_size(world: World) -> None:
    world.access.write_bytes(f"{world.root}/short", b"abc")
    with pytest.raises(StoreDamaged, match="expected a file of 4096 bytes, found 3"):
        world.access.open(f"{world.root}/short", 4096)
    with pytest.raises(StoreDamaged, match="found none"):
        world.access.open(f"{world.root}/missing", 4096)


def test_bytes_written_by_call_and_by_map_are_the_same_bytes(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 8192)
    region.reserve(0, 8192)
    region.write(4090, b"by call, over a page border")
    region.buffer[0:6] = b"by map"
    region.sync()
    again = world.access.open(f"{world.root}/file", 8192)
    assert bytes(again.buffer[0:6]) == b"by map"
    assert bytes(again.buffer[4090:4117]) == b"by call, over a page border"
    region.close()
    again.close()


def test_reserving_changes_neither_content_nor_length(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 10_000)
    region.write(5000, b"x")
    region.reserve(0, 10_000)
    region.reserve(0, 0)
    assert bytes(region.buffer) == bytes(5000) + b"x" + bytes(4999)
    info = world.access.file_info(f"{world.root}/file")
    assert info is not None
    assert info.size == 10_000
    region.close()


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1), (0, 4097), (4096, 1)])
def test_a_range_outside_the_file_is_refused(world: World, start: int, length: int) -> None:
    region = world.access.create(f"{world.root}/file", 4096)
    for call in (region.reserve, region.zero, region.populate):
        with pytest.raises(ValueError, match="range"):
            call(start, length)
    region.close()


def test_a_write_that_passes_the_end_writes_nothing(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 4096)
    with pytest.raises(ValueError, match="range"):
        region.write(4090, b"1234567")
    assert bytes(region.buffer) == bytes(4096)
    region.close()


@pytest.mark.parametrize("start", [0, 1, 4096, 5000, 12_287])
def test_zeroing_clears_exactly_the_range(world: World, start: int) -> None:
    region = world.access.create(f"{world.root}/file", 12_288)
    region.write(0, b"\xff" * 12_288)
    region.zero(start, 12_288 - start)
    assert bytes(region.buffer) == b"\xff" * start + bytes(12_288 - start)
    region.close()


def test_a_region_works_after_its_descriptor_was_given_back(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 8192)
    region.close_descriptor()
    region.close_descriptor()
    region.reserve(0, 4096)
    region.write(0, b"hello")
    region.close_descriptor()
    region.sync()
    assert bytes(region.buffer[:5]) == b"hello"
    region.close()


def test_a_closed_region_refuses_work(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 4096)
    region.close()
    region.close()
    with pytest.raises(StoreClosed):
        region.reserve(0, 1)
    with pytest.raises(StoreClosed):
        region.write(0, b"x")
    with pytest.raises(StoreClosed):
        region.sync()


def test_closing_under_a_reader_leaves_the_reader_its_bytes(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 4096)
    region.write(0, b"still here")
    view = memoryview(region.buffer)
    region.close()
    assert bytes(view[:10]) == b"still here"
    view.release()


def test_a_file_opened_read_only_refuses_to_be_changed(world: World) -> None:
    world.access.create(f"{world.root}/file", 4096).close()
    region = world.access.open(f"{world.root}/file", 4096, writable=False)
    with pytest.raises(ReadOnlyStore, match="file"):
        region.reserve(0, 1)
    with pytest.raises(ReadOnlyStore, match="file"):
        region.write(0, b"x")
    with pytest.raises(ReadOnlyStore, match="file"):
        region.zero(0, 1)
    assert region.populate(0, 4096) is False
    assert region.lock_memory() is False
    region.sync()
    region.close()


def test_populating_reserved_pages_keeps_their_bytes(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 16_384)
    region.reserve(0, 16_384)
    region.write(5000, b"kept")
    assert region.populate(4097, 8000) in (True, False)
    assert bytes(region.buffer) == bytes(5000) + b"kept" + bytes(16_384 - 5004)
    region.close()


def test_pages_that_are_released_keep_their_bytes_flushed_or_not(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 32_768)
    region.reserve(0, 32_768)
    region.write(5000, b"flushed")
    region.sync()
    region.buffer[9000:9007] = b"changed"
    assert region.release_pages(100, 30_000)
    assert bytes(region.buffer[5000:5007]) == b"flushed"
    assert bytes(region.buffer[9000:9007]) == b"changed"
    region.sync()
    assert world.access.read_bytes(f"{world.root}/file")[9000:9007] == b"changed"
    with pytest.raises(ValueError, match="range within"):
        region.release_pages(0, 32_769)
    region.close()
    looked_at = world.access.open(f"{world.root}/file", 32_768, writable=False)
    assert not looked_at.release_pages(0, 32_768)
    looked_at.close()


def test_the_ranges_of_data_leave_out_nothing_that_was_written(world: World) -> None:
    region = world.access.create(f"{world.root}/file", 1 << 20)
    for position in (0, 100_000, (1 << 20) - 4):
        region.write(position, b"here")
    found = region.data_ranges()
    assert found == sorted(found)
    for position in (0, 100_000, (1 << 20) - 4):
        assert any(start <= position and position + 4 <= end for start, end in found), position
    region.close()


def test_listing_skips_directories_and_a_missing_directory_is_empty(world: World) -> None:
    world.access.write_bytes(f"{world.root}/dir/b", b"22")
    world.access.write_bytes(f"{world.root}/dir/a", b"1")
    world.access.make_directories(f"{world.root}/dir/sub/deeper")
    assert [(info.name, info.size) for info in world.access.list_files(f"{world.root}/dir")] == [("a", 1), ("b", 2)]
    assert world.access.list_directories(f"{world.root}/dir") == ["sub"]
    assert world.access.list_files(f"{world.root}/none") == []
    assert world.access.list_directories(f"{world.root}/none") == []
    assert world.access.file_info(f"{world.root}/none") is None
    assert world.access.file_info(f"{world.root}/dir") is None


def test_removing_and_renaming_show_at_once_and_removing_twice_is_no_error(world: World) -> None:
    world.access.write_bytes(f"{world.root}/a", b"a")
    world.access.write_bytes(f"{world.root}/b", b"b")
    world.access.rename(f"{world.root}/a", f"{world.root}/b")
    assert world.access.read_bytes(f"{world.root}/b") == b"a"
    assert not world.access.exists(f"{world.root}/a")
    world.access.remove(f"{world.root}/b")
    world.access.remove(f"{world.root}/b")
    assert world.access.list_files(world.root) == []
    with pytest.raises(FileNotFoundError):
        world.access.rename(f"{world.root}/a", f"{world.root}/b")
    with pytest.raises(FileNotFoundError):
        world.access.read_bytes(f"{world.root}/a")


def test_only_an_empty_directory_is_removed(world: World) -> None:
    world.access.write_bytes(f"{world.root}/full/file", b"x")
    world.access.make_directories(f"{world.root}/empty")
    assert world.access.remove_directory_if_empty(f"{world.root}/full") is False
    assert world.access.remove_directory_if_empty(f"{world.root}/empty") is True
    assert world.access.remove_directory_if_empty(f"{world.root}/never") is True
    assert world.access.list_directories(world.root) == ["full"]


def test_a_directory_cannot_be_made_where_a_file_is(world: World) -> None:
    world.access.write_bytes(f"{world.root}/taken", b"x")
    with pytest.raises(StoreDamaged, match="taken: expected a directory"):
        world.access.make_directories(f"{world.root}/taken")


def test_the_modification_time_of_a_file_is_shown(world: World) -> None:
    world.access.write_bytes(f"{world.root}/file", b"x")
    set_modified_ms(world.access, f"{world.root}/file", 1_600_000_000_123)
    info = world.access.file_info(f"{world.root}/file")
    assert info is not None
    assert (info.name, info.modified_ms) == ("file", 1_600_000_000_123)


def test_disk_facts_of_a_missing_path_are_unknown(world: World) -> None:
    assert world.access.disk_usage_ratio(f"{world.root}/none") == -1.0
    assert world.access.free_bytes(f"{world.root}/none") == -1
    assert 0.0 <= world.access.disk_usage_ratio(world.root) <= 1.0
    assert world.access.free_bytes(world.root) > 0


def test_a_store_has_one_holder_even_within_one_process(world: World) -> None:
    path = f"{world.root}/store/lock"
    held = world.access.lock(path)
    with pytest.raises(StoreLocked, match="lock: expected a free store, found that this process has it open already"):
        world.access.lock(path)
    held.release()
    held.release()
    again = world.access.lock(path)
    again.release()
    assert world.access.read_bytes(path) == b"lock"


def test_everything_below_can_be_synced_by_one_call_for_a_file_system(world: World) -> None:
    region = world.access.create_unsynced(f"{world.root}/a/file", 4096)
    region.write(0, b"written")
    region.close()
    assert world.access.sync_all([world.root, f"{world.root}/a/file"]) is True
    if isinstance(world.access, SimulatedFileAccess):
        after = world.access.crash(lambda _path, _page: False)
        assert after.read_bytes(f"{world.root}/a/file")[:7] == b"written"

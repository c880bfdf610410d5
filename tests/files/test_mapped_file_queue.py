"""A queue of mapped files: loading, growing, finding, flushing, truncating. On both file systems."""

from __future__ import annotations

from typing import Any

import pytest

from files.conftest import World
from present import present
from tiermq.errors import IllegalTransition, StoreDamaged
from tiermq.files.allocator import TransientPool
from tiermq.files.mapped_file_queue import MappedFileQueue

SIZE = 1024


def make_queue(world: World, **settings: Any) -> MappedFileQueue:
    return MappedFileQueue(world.access, f"{world.root}/queue", SIZE, clock=world.clock, **settings)


def fill(queue: MappedFileQueue, count: int, start_offset: int = 0) -> MappedFileQueue:
    for number in range(count):
        assert queue.create_next(start_offset).append(bytes([number % 251 + 1]) * SIZE)
    return queue


def names(world: World, directory: str = "queue") -> list[str]:
    return [info.name for info in world.access.list_files(f"{world.root}/{directory}")]


def offsets(queue: MappedFileQueue) -> list[int]:
    return [file.from_offset for file in queue.files]


def reload(world: World, queue: MappedFileQueue) -> MappedFileQueue:
    queue.close()
    again = make_queue(world)
    again.load()
    return again


def test_an_empty_queue_has_no_bounds(world: World) -> None:
    queue = make_queue(world)
    queue.load()
    assert (queue.files, queue.first(), queue.last(), queue.find(0), queue.find(0, return_first=True)) == (
        (), None, None, None, None,
    )  # fmt: skip
    assert (queue.min_offset, queue.max_offset, queue.max_wrote_offset, queue.total_mapped_bytes) == (-1, 0, 0, 0)
    assert queue.flush(0)
    assert queue.commit(0)


def test_files_are_created_end_to_end(world: World) -> None:
    queue = fill(make_queue(world), 3)
    assert offsets(queue) == [0, 1024, 2048]
    assert names(world) == ["00000000000000000000", "00000000000000001024", "00000000000000002048"]
    assert (queue.min_offset, queue.max_offset, queue.total_mapped_bytes) == (0, 3072, 3072)
    queue.close()


@pytest.mark.parametrize(("start", "expected"), [(0, 0), (1023, 0), (1024, 1024), (5000, 4096)])
def test_the_first_file_of_a_queue_covers_the_start_offset(world: World, start: int, expected: int) -> None:
    queue = make_queue(world)
    assert queue.last_or_create(start).from_offset == expected
    assert queue.last_or_create(start).from_offset == expected, "a file that is not full is used further"
    queue.close()


def test_a_file_is_not_created_behind_one_that_is_not_full(world: World) -> None:
    queue = make_queue(world)
    queue.create_next().append(b"x")
    with pytest.raises(IllegalTransition, match="found 1 of 1024 bytes written"):
        queue.create_next()
    queue.close()


def test_files_are_found_by_offset(world: World) -> None:
    queue = fill(make_queue(world), 4, start_offset=2048)
    assert offsets(queue) == [2048, 3072, 4096, 5120]
    for offset, expected in [(2048, 2048), (3071, 2048), (3072, 3072), (6143, 5120)]:
        assert present(queue.find(offset)).from_offset == expected
    for outside in (-1, 0, 2047, 6144, 2**62):
        assert queue.find(outside) is None
        assert present(queue.find(outside, return_first=True)).from_offset == 2048
    queue.close()


def test_files_are_found_also_when_one_vanished_from_the_middle(world: World) -> None:
    queue = fill(make_queue(world), 4)
    with queue._lock:
        queue._publish([queue.files[0], queue.files[2], queue.files[3]])
    assert present(queue.find(2048)).from_offset == 2048
    assert present(queue.find(3072)).from_offset == 3072
    assert queue.find(1024) is None
    assert queue.segments.read(3072, 1) == b"\x04"
    queue.close()


def test_segments_follow_the_files(world: World) -> None:
    queue = fill(make_queue(world), 2)
    before = queue.segments
    assert before.read(1024, 2) == b"\x02\x02"
    assert before.find(2048) is None
    queue.create_next()
    assert queue.segments.find(2048) is present(queue.last()).view
    assert before.find(2048) is None, "a snapshot does not change"
    queue.close()


def test_a_reloaded_queue_has_the_same_bytes_and_counts_as_flushed(world: World) -> None:
    queue = fill(make_queue(world), 3)
    present(queue.last()).store_timestamp_ms = 5
    queue = reload(world, queue)
    assert offsets(queue) == [0, 1024, 2048]
    assert [file.flushed_position for file in queue.files] == [SIZE] * 3
    assert queue.segments.read(2047, 1) == b"\x02"
    assert queue.create_next().from_offset == 3072
    queue.close()


def test_loading_skips_directories_and_deletes_an_empty_last_file(world: World) -> None:
    fill(make_queue(world), 2).close()
    world.access.make_directories(f"{world.root}/queue/directory")
    world.access.write_bytes(f"{world.root}/queue/00000000000000002048", b"")
    queue = make_queue(world)
    queue.load()
    assert offsets(queue) == [0, 1024]
    assert names(world) == ["00000000000000000000", "00000000000000001024"]
    queue.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("00000000000000002048", b"short", "00000000000000002048: expected a file of 1024 bytes, found 5"),
        ("00000000000000003072", bytes(1024), "expected the next file to begin at offset 2048, found 3072"),
        ("00000000000000001536", bytes(1024), "expected the next file to begin at offset 2048, found 1536"),
        ("readme.txt", bytes(1024), "readme.txt: expected a file name of 20 digits"),
        ("0000000000000000000", b"", "expected a file name of 20 digits"),
    ],
)
def test_loading_refuses_a_directory_it_does_not_understand(
    world: World, name: str, content: bytes, message: str
) -> None:
    fill(make_queue(world), 2).close()
    world.access.write_bytes(f"{world.root}/queue/{name}", content)
    with pytest.raises(StoreDamaged, match=message):
        make_queue(world).load()
    assert world.access.exists(f"{world.root}/queue/{name}")


def test_an_empty_file_before_the_last_one_is_damage(world: World) -> None:
    fill(make_queue(world), 2).close()
    world.access.write_bytes(f"{world.root}/queue/00000000000000000000", b"")
    with pytest.raises(StoreDamaged, match="00000000000000000000: expected a file of 1024 bytes, found 0"):
        make_queue(world).load()


def test_flush_advances_one_file_per_call(world: World) -> None:
    queue = fill(make_queue(world), 2)
    queue.create_next().append(b"end")
    for number, file in enumerate(queue.files):
        file.store_timestamp_ms = 100 + number
    moved = [(queue.flush(0), queue.flushed_where, queue.store_timestamp_ms) for _ in range(4)]
    assert moved == [(False, 1024, 100), (False, 2048, 101), (False, 2051, 102), (True, 2051, 102)]
    queue.close()


def test_flush_by_pages_does_not_record_the_store_timestamp(world: World) -> None:
    queue = fill(make_queue(world), 1)
    present(queue.last()).store_timestamp_ms = 100
    assert queue.flush(4) is False
    assert (queue.flushed_where, queue.store_timestamp_ms) == (1024, 0)
    queue.close()


def test_flush_goes_on_when_cleaning_overtook_it(world: World) -> None:
    """RocketMQ looks for the file of an offset that is gone, finds none, and never flushes again."""
    queue = fill(make_queue(world), 3)
    queue.flush(0)
    queue.flushed_where = 512
    assert queue.delete_expired_by_time(0, 0, 0, immediately=True, batch_max=2) == 2
    assert queue.flush(0) is False
    assert queue.flushed_where == 3072
    queue.close()


def test_commit_advances_one_file_per_call(world: World) -> None:
    pool = TransientPool(2, SIZE, lock_memory=False)
    queue = make_queue(world)
    for _ in range(2):
        file = queue.create_next()
        file.attach_transient(pool.borrow(), pool)
        file.append(b"x" * SIZE)
    assert (queue.max_offset, queue.max_wrote_offset) == (1024, 2048)
    moved = [(queue.commit(0), queue.committed_where) for _ in range(3)]
    assert moved == [(False, 1024), (False, 2048), (True, 2048)]
    assert (queue.max_offset, pool.available) == (2048, 2)
    assert queue.segments.read(1024, 3) == b"xxx"
    queue.close()


def test_truncating_sets_positions_and_removes_later_files(world: World) -> None:
    queue = fill(make_queue(world), 4)
    while not queue.flush(0):
        pass
    held = queue.files[3].select(0)
    assert held is not None
    queue.truncate_dirty(1500)
    assert offsets(queue) == [0, 1024]
    assert (queue.max_offset, queue.flushed_where, queue.committed_where) == (1500, 1500, 0)
    assert names(world) == ["00000000000000000000", "00000000000000001024"]
    assert bytes(held.data[:1]) == b"\x04"
    assert present(queue.last()).append(b"y" * 548)
    assert queue.create_next().from_offset == 2048
    held.release()
    assert names(world)[-1] == "00000000000000002048"
    queue.close()


@pytest.mark.parametrize(
    ("offset", "left"), [(0, [0]), (1023, [0]), (1024, [0, 1024]), (2048, [0, 1024, 2048]), (3072, [0, 1024, 2048])]
)
def test_truncating_at_a_border_keeps_the_file_that_begins_there(world: World, offset: int, left: list[int]) -> None:
    queue = fill(make_queue(world), 3)
    queue.truncate_dirty(offset)
    assert offsets(queue) == left
    assert queue.max_offset == offset
    queue.close()


def test_truncating_below_the_first_file_empties_the_queue(world: World) -> None:
    queue = fill(make_queue(world), 2, start_offset=2048)
    queue.truncate_dirty(100)
    assert (queue.files, names(world)) == ((), [])
    assert queue.last_or_create(100).from_offset == 0
    queue.close()


def test_the_last_file_can_be_deleted(world: World) -> None:
    queue = fill(make_queue(world), 2)
    assert queue.delete_last() is True
    assert (offsets(queue), names(world)) == ([0], ["00000000000000000000"])
    assert queue.delete_last() is True
    assert queue.delete_last() is False
    queue.close()


def test_a_closed_queue_has_deleted_nothing(world: World) -> None:
    queue = fill(make_queue(world), 2)
    queue.close()
    assert (queue.files, len(names(world))) == ((), 2)


def test_a_queue_that_shuts_down_refuses_readers_and_keeps_its_files(world: World) -> None:
    queue = fill(make_queue(world), 2)
    queue.shutdown()
    assert [file.select(0) for file in queue.files] == [None, None]
    assert (queue.total_mapped_bytes, len(names(world))) == (0, 2)
    queue.close()


def test_a_destroyed_queue_leaves_no_directory(world: World) -> None:
    queue = fill(make_queue(world), 3)
    queue.flush(0)
    queue.destroy()
    assert (queue.files, queue.flushed_where, world.access.exists(f"{world.root}/queue")) == ((), 0, False)


def test_a_file_size_must_be_positive(world: World) -> None:
    with pytest.raises(ValueError, match="positive file size"):
        MappedFileQueue(world.access, f"{world.root}/queue", 0, clock=world.clock)

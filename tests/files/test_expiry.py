"""Which files leave a queue at the front, and when. On both file systems."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from files.conftest import World
from present import present
from simulation.simulated_files import set_modified_ms
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue

SIZE = 1024
UNIT = 20
HOUR_MS = 3_600_000


def make_queue(world: World, count: int, pauses: list[float] | None = None) -> MappedFileQueue:
    queue = MappedFileQueue(
        world.access,
        f"{world.root}/queue",
        SIZE,
        clock=world.clock,
        sleep=(pauses if pauses is not None else []).append,
    )
    for number in range(count):
        file = queue.create_next()
        file.append(bytes(SIZE - UNIT) + struct.pack(">qiq", number * 100, 100, 0))
        set_modified_ms(world.access, file.path, world.clock.now_ms())
    return queue


def age(world: World, queue: MappedFileQueue, *numbers: int) -> None:
    for number in numbers:
        set_modified_ms(world.access, queue.files[number].path, world.clock.now_ms() - 72 * HOUR_MS)


def delete(queue: MappedFileQueue, **changes: Any) -> int:
    settings = {"expired_ms": 72 * HOUR_MS, "interval_ms": 0, "destroy_interval_ms": 120_000, "immediately": False}
    return queue.delete_expired_by_time(**(settings | {"batch_max": 10} | changes))


def last_unit(file: MappedFile) -> int:
    data = file.read(SIZE - UNIT, 8)
    return -1 if data is None else struct.unpack(">q", data)[0]


def test_only_the_leading_run_of_old_files_is_deleted(world: World) -> None:
    queue = make_queue(world, 50)
    age(world, queue, 0, 1, 2, 3, 4, 10, 11)
    assert delete(queue, batch_max=50) == 5
    assert (len(queue.files), queue.min_offset) == (45, 5 * SIZE)
    assert delete(queue, batch_max=50) == 0
    queue.close()


def test_a_file_expires_exactly_at_its_age(world: World) -> None:
    queue = make_queue(world, 2)
    world.clock.advance_ms(72 * HOUR_MS - 1)
    assert delete(queue) == 0
    world.clock.advance_ms(1)
    assert delete(queue) == 1
    queue.close()


def test_the_last_file_never_expires(world: World) -> None:
    queue = make_queue(world, 3)
    assert delete(queue, immediately=True) == 2
    assert delete(queue, immediately=True) == 0
    assert len(queue.files) == 1
    queue.close()


def test_a_run_deletes_at_most_a_batch_and_pauses_between_files(world: World) -> None:
    pauses: list[float] = []
    queue = make_queue(world, 15, pauses)
    assert delete(queue, immediately=True, interval_ms=100, batch_max=10) == 10
    assert pauses == [0.1] * 9
    assert delete(queue, immediately=True, interval_ms=100, batch_max=10) == 4
    queue.close()


def test_a_run_without_a_batch_is_refused_instead_of_deleting_one_file(world: World) -> None:
    """RocketMQ's shorter form passes 0 and deletes exactly one file per call."""
    queue = make_queue(world, 3)
    with pytest.raises(ValueError, match="at least one file per run"):
        delete(queue, immediately=True, batch_max=0)
    assert len(queue.files) == 3
    queue.close()


def test_a_veto_ends_the_run_whatever_the_age(world: World) -> None:
    queue = make_queue(world, 5)
    asked = []

    def not_yet(file: MappedFile) -> bool:
        asked.append(file.from_offset)
        return file.from_offset >= 2 * SIZE

    assert delete(queue, immediately=True, veto=not_yet) == 2
    assert asked == [0, SIZE, 2 * SIZE]
    assert queue.min_offset == 2 * SIZE
    queue.close()


def test_a_held_file_ends_the_run_and_is_no_longer_part_of_the_readable_queue(world: World) -> None:
    queue = make_queue(world, 4)
    held = queue.files[1].select(0)
    assert held is not None
    assert delete(queue, immediately=True) == 1
    assert len(queue.files) == 3
    assert queue.min_offset == 2 * SIZE, "a file on its way out no longer counts"
    assert queue.segments.find(SIZE) is None
    assert queue.retry_delete_first(120_000) is False
    held.release()
    assert not world.access.exists(queue.files[0].path)
    assert queue.retry_delete_first(120_000) is True
    assert [file.from_offset for file in queue.files] == [2 * SIZE, 3 * SIZE]
    queue.close()


def test_a_hanging_file_is_forced_out_after_the_interval(world: World) -> None:
    queue = make_queue(world, 3)
    held = queue.files[0].select(0)
    assert held is not None
    assert delete(queue, immediately=True) == 0
    world.clock.advance_ms(119_999)
    assert queue.retry_delete_first(120_000) is False
    world.clock.advance_ms(1)
    assert queue.retry_delete_first(120_000) is True
    assert queue.min_offset == SIZE
    assert held.size == SIZE
    assert bytes(held.data[:4]) == bytes(4)
    held.release()
    queue.close()


def test_every_hanging_file_at_the_front_is_retried(world: World) -> None:
    """RocketMQ retries the very first one only."""
    queue = make_queue(world, 4)
    held = [present(file.select(0)) for file in queue.files[:2]]
    for file in queue.files[:2]:
        assert file.destroy(1000) is False
    for selected in held:
        selected.release()
    assert queue.retry_delete_first(120_000) is True
    assert queue.min_offset == 2 * SIZE
    assert len(queue.files) == 2
    assert queue.retry_delete_first(120_000) is False
    queue.close()


def test_files_whose_last_unit_points_below_the_log_are_deleted(world: World) -> None:
    queue = make_queue(world, 5)
    assert queue.delete_expired_by_offset(0, UNIT, last_unit) == 0
    assert queue.delete_expired_by_offset(100, UNIT, last_unit) == 1
    assert queue.delete_expired_by_offset(301, UNIT, last_unit) == 3
    assert queue.delete_expired_by_offset(10_000, UNIT, last_unit) == 0, "never the last one"
    assert queue.min_offset == 4 * SIZE
    queue.close()


def test_a_referenced_file_is_not_deleted_by_offset_until_it_is_released(world: World) -> None:
    queue = make_queue(world, 3)
    held = queue.files[0].select(0)
    assert held is not None
    assert queue.delete_expired_by_offset(10_000, UNIT, last_unit) == 0
    held.release()
    assert queue.delete_expired_by_offset(10_000, UNIT, last_unit) == 2
    queue.close()


def test_a_file_whose_last_unit_is_unknown_stays(world: World) -> None:
    queue = make_queue(world, 3)
    assert queue.delete_expired_by_offset(10_000, UNIT, lambda _: -1) == 0
    queue.files[0].set_positions(SIZE - UNIT)
    assert queue.delete_expired_by_offset(10_000, UNIT, last_unit) == 0
    assert len(queue.files) == 3
    queue.close()

"""Files made in advance: order, failures, buffers, what is left behind. On both file systems."""

from __future__ import annotations

import threading

import pytest

from files.conftest import SimulatedWorld, World
from present import present
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.errors import DiskFull, StoreClosed, StoreError
from tiermq.files.allocator import FileAllocator, Preparation, TransientPool
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue

SIZE = 8192


def path_of(world: World, number: int) -> str:
    return f"{world.root}/log/{number * SIZE:020d}"


def take(world: World, allocator: FileAllocator, number: int) -> MappedFile:
    return allocator.take(path_of(world, number), path_of(world, number + 1), SIZE)


def wait_until_made(allocator: FileAllocator) -> None:
    """Wait for the background to have nothing left to do."""
    with allocator._changed:
        assert allocator._changed.wait_for(lambda: not allocator._wanted and allocator._making is None, 60)


def names(world: World) -> list[int]:
    return [int(info.name) // SIZE for info in world.access.list_files(f"{world.root}/log")]


def test_the_file_after_the_one_taken_is_made_in_advance_and_handed_out_next(world: World) -> None:
    with FileAllocator(world.access, clock=world.clock, reserve_bytes=4096) as allocator:
        first = take(world, allocator, 0)
        assert (first.from_offset, first.tail.limit, first.wrote_position) == (0, 4096, 0)
        wait_until_made(allocator)
        assert names(world) == [0, 1]
        second = take(world, allocator, 1)
        assert second.from_offset == SIZE
        wait_until_made(allocator)
        assert names(world) == [0, 1, 2]
    assert names(world) == [0, 1], "what was not taken is deleted at shutdown"
    first.close()
    second.close()


def test_a_queue_with_an_allocator_leaves_exactly_its_own_files(world: World) -> None:
    with FileAllocator(world.access, clock=world.clock) as allocator:
        queue = MappedFileQueue(world.access, f"{world.root}/log", SIZE, clock=world.clock, allocator=allocator)
        for _ in range(5):
            assert queue.create_next().append(bytes(SIZE))
        assert queue.max_offset == 5 * SIZE
    assert names(world) == [0, 1, 2, 3, 4]
    queue.close()


def test_truncating_discards_files_made_in_advance_so_that_no_hole_can_appear(world: World) -> None:
    with FileAllocator(world.access, clock=world.clock) as allocator:
        queue = MappedFileQueue(world.access, f"{world.root}/log", SIZE, clock=world.clock, allocator=allocator)
        for _ in range(3):
            queue.create_next().append(bytes(SIZE))
        wait_until_made(allocator)
        assert names(world) == [0, 1, 2, 3]
        queue.truncate_dirty(100)
        assert names(world) == [0]
        assert present(queue.last()).append(bytes(SIZE - 100))
        assert queue.create_next().from_offset == SIZE
    queue.close()


def test_a_full_disk_is_reported_to_the_taker_and_the_next_attempt_can_succeed() -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock, capacity_bytes=4096)
    world = World(access, "/s", clock)
    with FileAllocator(access, clock=clock, reserve_bytes=4096) as allocator:
        first = take(world, allocator, 0)
        wait_until_made(allocator)
        with pytest.raises(DiskFull):
            take(world, allocator, 1)
        assert names(world) == [0], "a file that could not get its blocks is removed again"
        access.capacity_bytes = None
        assert take(world, allocator, 1).from_offset == SIZE
    assert names(world) == [0, 1]
    first.close()


def test_nothing_is_made_behind_a_file_that_could_not_be_made(simulated: SimulatedWorld) -> None:
    made = []

    def fail_first(operation: str, path: str) -> None:
        if operation == "create":
            made.append(path)
            if path == path_of(simulated, 0):
                raise OSError(5, "Input/output error")

    simulated.access.on_call = fail_first
    with FileAllocator(simulated.access, clock=simulated.clock) as allocator:
        with pytest.raises(OSError, match="Input/output"):
            take(simulated, allocator, 0)
        wait_until_made(allocator)
        assert made == [path_of(simulated, 0)]
    assert names(simulated) == []


def test_a_slow_disk_ends_the_wait_and_the_late_file_is_kept_for_the_next_attempt(simulated: SimulatedWorld) -> None:
    may_go_on = threading.Event()

    def wait(operation: str, path: str) -> None:
        if operation == "create":
            assert may_go_on.wait(60)

    simulated.access.on_call = wait
    with FileAllocator(simulated.access, clock=simulated.clock, wait_ms=1) as allocator:
        with pytest.raises(StoreError, match="within 1 ms, found it unfinished"):
            take(simulated, allocator, 0)
        may_go_on.set()
        wait_until_made(allocator)
        assert take(simulated, allocator, 0).from_offset == 0


def test_an_allocator_that_does_not_run_refuses(world: World) -> None:
    allocator = FileAllocator(world.access, clock=world.clock)
    with pytest.raises(StoreClosed, match="expected a running allocator"):
        take(world, allocator, 0)
    allocator.start()
    allocator.shutdown()
    with pytest.raises(StoreClosed, match="expected a running allocator"):
        take(world, allocator, 0)
    assert names(world) == []


def test_new_files_get_a_transient_buffer_while_there_are_any(world: World) -> None:
    pool = TransientPool(2, SIZE, lock_memory=False)
    with FileAllocator(world.access, clock=world.clock, pool=pool) as allocator:
        files = [take(world, allocator, number) for number in range(3)]
        assert [file.tail is file.view for file in files] == [False, False, True]
        wait_until_made(allocator)
        assert pool.available == 0
    for file in files:
        file.close()
    assert pool.available == 2, "closing and discarding give the buffers back"


def test_with_fast_fail_an_empty_pool_refuses_the_file(world: World) -> None:
    pool = TransientPool(2, SIZE, lock_memory=False)
    with FileAllocator(world.access, clock=world.clock, pool=pool, fast_fail=True) as allocator:
        files = [take(world, allocator, number) for number in range(2)]
        wait_until_made(allocator)
        with pytest.raises(StoreError, match="expected a free buffer in the transient pool, found all 2 in use"):
            take(world, allocator, 2)
        assert names(world) == [0, 1]
        files[0].append(bytes(SIZE))
        files[0].commit(0)
        files.append(take(world, allocator, 2))
        assert files[2].tail is not files[2].view
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("preparation", "limit"),
    [
        (Preparation(warm=True, pages_per_sync=1), SIZE),
        (Preparation(warm=True, lock_memory=True), SIZE),
        (Preparation(populate_bytes=5000), SIZE),
        (Preparation(populate_bytes=10 * SIZE), SIZE),
        (Preparation(), 4096),
    ],
)
def test_a_file_made_in_advance_is_prepared_but_one_that_a_put_waits_for_is_not(
    world: World, preparation: Preparation, limit: int
) -> None:
    with FileAllocator(world.access, clock=world.clock, reserve_bytes=4096, preparation=preparation) as allocator:
        awaited = take(world, allocator, 0)
        wait_until_made(allocator)
        prepared = take(world, allocator, 1)
        assert (awaited.tail.limit, prepared.tail.limit) == (4096, limit)
        assert prepared.append(b"x" * SIZE)
    awaited.close()
    prepared.close()

"""A queue spread over several directories. On both file systems."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from files.conftest import SimulatedWorld, World
from present import present
from simulation.manual_clock import ManualClock
from tiermq.errors import BadConfig, ReadOnlyStore, StoreDamaged
from tiermq.files.allocator import FileAllocator
from tiermq.files.mapped_file_queue import MultiPathMappedFileQueue, choose_path

SIZE = 1024


def make_queue(world: World, paths: Sequence[str], **settings: Any) -> MultiPathMappedFileQueue:
    full = [f"{world.root}/{path}" for path in paths]
    read_only = [f"{world.root}/{path}" for path in settings.pop("read_only_paths", ())]
    return MultiPathMappedFileQueue(world.access, full, SIZE, clock=world.clock, read_only_paths=read_only, **settings)


def fill(queue: MultiPathMappedFileQueue, count: int) -> None:
    for _ in range(count):
        queue.create_next().append(b"x" * SIZE)


def placement(queue: MultiPathMappedFileQueue) -> list[str]:
    return [os.path.basename(os.path.dirname(file.path)) for file in queue.files]


@pytest.mark.parametrize(
    ("paths", "read_only", "full", "expected"),
    [
        ("abc", "", "", "abcabc"),
        ("cab", "", "", "abcabc"),
        ("abc", "b", "", "acacac"),
        ("abc", "", "a", "bcbcbc"),
        ("abc", "b", "ac", "acacac"),  # All writable ones are full: as if none were.
        ("a", "", "a", "aaaaaa"),
    ],
)
def test_files_go_round_robin_over_the_paths_that_may_be_written(
    paths: str, read_only: str, full: str, expected: str
) -> None:
    assert "".join(choose_path(paths, read_only, full, number) for number in range(6)) == expected


def test_read_only_paths_alone_cannot_take_a_file() -> None:
    with pytest.raises(BadConfig, match="all read-only"):
        choose_path("ab", "ab", "", 0)


def test_a_reloaded_queue_unions_all_paths(world: World) -> None:
    queue = make_queue(world, ["b", "a", "c"])
    fill(queue, 5)
    assert placement(queue) == ["a", "b", "c", "a", "b"]
    queue.close()
    again = make_queue(world, ["c"], read_only_paths=["a", "b"])
    again.load()
    assert [file.from_offset for file in again.files] == [0, 1024, 2048, 3072, 4096]
    fill(again, 2)
    assert placement(again) == ["a", "b", "c", "a", "b", "c", "c"]
    again.close()


def test_paths_can_change_and_fill_up_while_the_queue_runs(world: World) -> None:
    full: list[str] = []
    queue = make_queue(world, ["a", "b"], full_paths=lambda: full)
    fill(queue, 2)
    full.append(f"{world.root}/a")
    fill(queue, 2)
    full.clear()
    queue.paths = (f"{world.root}/a", f"{world.root}/b", f"{world.root}/c")
    fill(queue, 2)
    assert placement(queue) == ["a", "b", "b", "b", "b", "c"]
    queue.close()


def test_a_missing_path_makes_the_queue_incomplete(world: World) -> None:
    queue = make_queue(world, ["a", "b"])
    fill(queue, 4)
    queue.close()
    with pytest.raises(StoreDamaged, match="expected the next file to begin at offset"):
        make_queue(world, ["a"]).load()


def test_the_same_file_in_two_paths_is_damage(world: World) -> None:
    queue = make_queue(world, ["a"])
    fill(queue, 1)
    queue.close()
    world.access.write_bytes(f"{world.root}/b/{0:020d}", bytes(SIZE))
    with pytest.raises(StoreDamaged, match="exists twice"):
        make_queue(world, ["a", "b"]).load()


def test_files_of_a_disk_that_cannot_be_written_are_still_read(simulated: SimulatedWorld) -> None:
    queue = make_queue(simulated, ["a", "b"])
    fill(queue, 2)
    queue.close()
    refused = []

    def refuse_first_open(operation: str, path: str) -> None:
        if operation == "open" and "/a/" in path and path not in refused:
            refused.append(path)
            raise ReadOnlyStore(path)

    simulated.access.on_call = refuse_first_open
    again = make_queue(simulated, ["b"], read_only_paths=["a"])
    again.load()
    assert again.segments.read(0, 2) == b"xx"
    with pytest.raises(ReadOnlyStore):
        present(again.first()).zero_from(0)
    again.close()
    refused.clear()
    with pytest.raises(ReadOnlyStore):
        make_queue(simulated, ["a", "b"]).load()


def test_destroying_removes_every_directory(world: World) -> None:
    queue = make_queue(world, ["a", "b"])
    fill(queue, 3)
    queue.destroy()
    assert world.access.list_directories(world.root) == []


def test_a_file_made_in_advance_on_a_disk_that_filled_up_is_made_elsewhere_and_only_there(world: World) -> None:
    full: list[str] = []
    with FileAllocator(world.access, clock=ManualClock()) as allocator:
        queue = make_queue(world, ["a", "b"], full_paths=lambda: full, allocator=allocator)
        fill(queue, 1)
        full.append(f"{world.root}/b")
        fill(queue, 1)
        assert placement(queue) == ["a", "a"]
    assert [info.name for info in world.access.list_files(f"{world.root}/b")] == []
    queue.close()

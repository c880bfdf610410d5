"""Power cuts at every call: a queue always loads again, and what it said was flushed is there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from present import present
from simulation.simulated_files import SimulatedFileAccess, by_chance
from tiermq.files.mapped_file_queue import MappedFileQueue, MultiPathMappedFileQueue

SIZE = 2048

pytestmark = pytest.mark.crash


class PowerCut(BaseException):
    """Raised from inside the n-th call to the file system."""


def cut_at(access: SimulatedFileAccess, number: int, work: Callable[[], None]) -> bool:
    """Run `work` until its n-th call; True when the power went before it was through."""
    left = [number]

    def count(operation: str, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut

    access.on_call = count
    try:
        work()
    except PowerCut:
        return True
    finally:
        access.on_call = None
    return False


def queue_on(access: SimulatedFileAccess) -> MappedFileQueue:
    return MappedFileQueue(access, "/s/queue", SIZE, clock=access.clock, reserve_bytes=512, sleep=lambda _: None)


def record(number: int) -> bytes:
    return bytes([number % 255 + 1]) * (100 + number * 37 % 400)


def append_all(queue: MappedFileQueue, payloads: list[bytes], flush_every: int) -> None:
    for number, payload in enumerate(payloads):
        file = queue.last_or_create()
        if not file.append(payload):
            file.append(bytes(SIZE - file.wrote_position))
            queue.create_next().append(payload)
        if number % flush_every == 0:
            queue.flush(0)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 150), seed=st.integers(0, 2**32), flush_every=st.integers(1, 5))
def test_flushed_bytes_survive_a_power_cut_at_any_call(cut: int, seed: int, flush_every: int) -> None:
    access = SimulatedFileAccess()
    queue = queue_on(access)
    cut_at(access, cut, lambda: append_all(queue, [record(number) for number in range(30)], flush_every))
    flushed = {file.path: present(file.read(0, file.flushed_position)) for file in queue.files}
    after = access.crash(partial(by_chance, random.Random(seed), 0.5))
    again = queue_on(after)
    again.load()
    for path, expected in flushed.items():
        assert after.read_bytes(path)[: len(expected)] == expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", ["truncate", "expire", "destroy"])
def test_removals_cut_short_at_any_call_never_leave_a_hole(change: str, seed: int) -> None:
    def work(queue: MappedFileQueue) -> None:
        if change == "truncate":
            queue.truncate_dirty(SIZE + 100)
        elif change == "expire":
            queue.delete_expired_by_time(0, 0, 0, immediately=True, batch_max=10)
        else:
            queue.destroy()

    was_cut = True
    number = 0
    while was_cut:
        access = SimulatedFileAccess()
        queue = queue_on(access)
        for _ in range(6):
            queue.create_next().append(b"x" * SIZE)
        was_cut = cut_at(access, number, partial(work, queue))
        again = queue_on(access.crash(partial(by_chance, random.Random(seed * 1000 + number), 0.5)))
        again.load()
        bases = [file.from_offset for file in again.files]
        assert bases == list(range(bases[0], bases[0] + len(bases) * SIZE, SIZE)) if bases else change == "destroy"
        number += 1
    assert number > 2, "the power was cut at several places"


def test_files_over_several_paths_survive_cut_creations() -> None:
    was_cut = True
    number = 0
    while was_cut:
        access = SimulatedFileAccess()
        queue = MultiPathMappedFileQueue(access, ["/s/a", "/s/b"], SIZE, clock=access.clock)
        was_cut = cut_at(access, number, partial(append_all, queue, [b"x" * SIZE] * 5, 1))
        again = MultiPathMappedFileQueue(
            access.crash(lambda path, page: False), ["/s/a", "/s/b"], SIZE, clock=access.clock
        )
        again.load()
        number += 1
    assert len(again.files) == 5


@pytest.mark.parametrize("survives", [False, True, None])
def test_a_configuration_cut_short_at_any_call_is_the_old_or_the_new_one(survives: bool | None) -> None:
    path = "/s/config/topics.json"
    was_cut = True
    number = 0
    seen = set()
    while was_cut:
        access = SimulatedFileAccess()
        access.write_config(path, b"1")
        access.write_config(path, b"2")
        was_cut = cut_at(access, number, partial(access.write_config, path, b"3"))
        by_throw = partial(by_chance, random.Random(number), 0.5)
        after = access.crash(by_throw if survives is None else lambda _, page: survives is True)
        value = after.read_config(path, json.loads)
        assert value in (2, 3)
        assert was_cut or value == 3
        seen.add(value)
        number += 1
    assert seen == {2, 3}

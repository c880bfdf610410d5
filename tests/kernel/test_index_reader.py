"""Chains of an index file: both kernels find the same, in sound files and in damaged ones."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.kernel_world import COMPILED, KERNELS, needs_both
from present import present
from tiermq.kernel import pure
from tiermq.message.java_hash import key_hash

SLOTS, ENTRIES = 5, 40
BYTES = 40 + 4 * SLOTS + 20 * ENTRIES
TIMES = st.integers(0, 200_000) | st.integers(-(2**63), 2**63 - 1)


def filled(rows: list[tuple[int, int, int]]) -> bytearray:
    """An index file with these entries: hash, physical offset, store time."""
    buffer = bytearray(BYTES)
    tail = pure.IndexTail(buffer, SLOTS, ENTRIES)
    tail.entry_limit = ENTRIES
    for row in rows:
        tail.put(*row)
    tail.detach()
    return buffer


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2**40), st.integers(0, 100_000)), max_size=ENTRIES - 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_walk_finds_the_newest_entries_of_a_hash_first(kernel: ModuleType) -> None:
    buffer = filled([(number % 7, number * 100, 50_000 + number * 1000) for number in range(21)])
    reader = kernel.IndexReader(buffer, SLOTS, ENTRIES)
    assert reader.select(3, 32, 0, 2**63 - 1) == [1700, 1000, 300]
    assert reader.select(3, 2, 0, 2**63 - 1) == [1700, 1000]
    assert reader.select(3, 0, 0, 2**63 - 1) == []
    assert reader.select(3, 32, 60_000, 61_000) == [1000]
    assert reader.select(-3, 32, 0, 2**63 - 1) == []
    reader.detach()


@needs_both
@given(rows=ROWS, wanted=st.integers(-1, 20), most=st.integers(-1, 40), begin=TIMES, end=TIMES)
def test_both_kernels_select_the_same(
    rows: list[tuple[int, int, int]], wanted: int, most: int, begin: int, end: int
) -> None:
    buffer = filled(rows)
    answers = [
        kernel.IndexReader(buffer, SLOTS, ENTRIES).select(wanted, most, begin, end)
        for kernel in (pure, present(COMPILED))
    ]
    assert answers[0] == answers[1]


@needs_both
@given(
    rows=ROWS,
    damage=st.lists(st.tuples(st.integers(0, BYTES - 1), st.integers(0, 255)), max_size=30),
    begin=TIMES,
    end=TIMES,
)
def test_both_kernels_find_the_same_in_a_damaged_file_and_end(
    rows: list[tuple[int, int, int]], damage: list[tuple[int, int]], begin: int, end: int
) -> None:
    buffer = filled(rows)
    for at, value in damage:
        buffer[at] = value
    readers = [kernel.IndexReader(buffer, SLOTS, ENTRIES) for kernel in (pure, present(COMPILED))]
    for wanted in range(13):
        found = [reader.select(wanted, 64, begin, end) for reader in readers]
        assert found[0] == found[1]


TEXTS = st.text(max_size=12)


@needs_both
@given(
    files=st.lists(st.lists(st.tuples(TEXTS, st.integers(0, 2**40), st.integers(0, 100_000)), max_size=6), max_size=4),
    gone=st.integers(-1, 3),
    topic=TEXTS,
    most=st.integers(0, 10),
    begin=TIMES,
    end=TIMES,
)
def test_both_kernels_answer_a_query_over_all_files_alike(
    files: list[list[tuple[str, int, int]]], gone: int, topic: str, most: int, begin: int, end: int
) -> None:
    buffers = [filled([(key_hash(f"{topic}#{key}"), offset, time) for key, offset, time in rows]) for rows in files]
    keys = {key for rows in files for key, *_ in rows} | {"other"}
    answers = []
    for kernel in (pure, present(COMPILED)):
        readers = tuple(kernel.IndexReader(buffer, SLOTS, ENTRIES) for buffer in buffers)
        if 0 <= gone < len(readers):
            readers[gone].detach()
        found = [kernel.query_index(readers, topic, key, most, begin, end) for key in sorted(keys)]
        answers.append(
            [(each.offsets, each.last_update_timestamp_ms, each.last_update_physical_offset) for each in found]
        )
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_goes_on_in_older_files_until_it_has_enough_or_they_are_too_old(kernel: ModuleType) -> None:
    wanted = key_hash("T#k")
    new, old = filled([(wanted, 900, 90_000)]), filled([(wanted, 100, 10_000), (wanted, 200, 20_000)])
    readers = tuple(kernel.IndexReader(buffer, SLOTS, ENTRIES) for buffer in (new, old))

    def offsets(most: int, begin_ms: int, end_ms: int) -> list[int]:
        return list(kernel.query_index(readers, "T", "k", most, begin_ms, end_ms).offsets)

    assert offsets(10, 0, 100_000) == [900, 200, 100]
    assert offsets(2, 0, 100_000) == [900, 200]
    assert offsets(10, 95_000, 100_000) == []
    assert offsets(10, 15_000, 25_000) == [200]
    found = kernel.query_index(readers, "T", "k", 10, 0, 100_000)
    assert (found.last_update_timestamp_ms, found.last_update_physical_offset) == (90_000, 900)
    assert found == kernel.QueryOffsets([900, 200, 100], 90_000, 900)
    assert "last_update_timestamp_ms=90000" in repr(found)
    readers[0].detach()
    assert offsets(10, 0, 100_000) == [200, 100]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_reader_refuses_a_short_buffer_and_lets_go_of_it_when_detached(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="smaller than the index file"):
        kernel.IndexReader(bytearray(BYTES - 1), SLOTS, ENTRIES)
    buffer = filled([(1, 5, 1000)])
    reader = kernel.IndexReader(buffer, SLOTS, ENTRIES, threading.Lock())
    with pytest.raises(BufferError):
        buffer.extend(b"x")
    reader.detach()
    reader.detach()
    buffer.extend(b"x")
    assert reader.select(1, 5, 0, 2000) == []

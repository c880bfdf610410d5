"""Uploaded index files: two reads per question, slots by their own size, nothing believed that cannot be."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from simulation.simulated_files import SimulatedFileAccess
from tier.index.index_world import HookedDriver, index_key
from tiermq.errors import CorruptSegment, SegmentMissing, TierUnavailable
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index import compacted_index
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus

BEGIN_MS = 1_700_000_000_000
EVER = (0, 2**62)


def uploaded(*hashes: int, slots: int = 5, size: int | None = None) -> tuple[HookedDriver, CompactedIndex]:
    """A file with one item per hash, offsets counting from 0, and its reader."""
    file = IndexWriteFile.create(SimulatedFileAccess(), "/index", BEGIN_MS, slots, len(hashes) + 2)
    for offset, key_hash in enumerate(hashes):
        file.put([key_hash], 1, 2, offset, 100, BEGIN_MS + 1000 * offset)
    data = file.compact()
    driver = HookedDriver(MemoryDriver())
    driver.inner.write(index_key(), 0, [data])
    row = Segment(index_key(), len(data) if size is None else size, SegmentStatus.SEALED, 0, BEGIN_MS, BEGIN_MS + 10**6)
    return driver, CompactedIndex(driver, row)


def offsets(index: CompactedIndex, key_hash: int, max_count: int = 99, times: tuple[int, int] = EVER) -> list[int]:
    return [item.tier_offset for item in index.select(key_hash, max_count, *times).items]


def test_a_question_costs_one_slot_read_and_one_run_read_and_an_empty_slot_costs_one() -> None:
    driver, index = uploaded(3, 8, 3, 4)
    assert offsets(index, 3) == [2, 0]
    assert driver.calls["read"] == 3  # The start of the file, once in a life.
    driver.calls.clear()
    assert offsets(index, 8) == [1]
    assert dict(driver.calls) == {"read": 2}
    driver.calls.clear()
    assert offsets(index, 2) == []
    assert dict(driver.calls) == {"read": 1}


def reported(driver: HookedDriver, slots: int, item_count: int, *, begin_ms: int = BEGIN_MS) -> None:
    """Lay a companion beside the file."""
    facts = FileFacts(begin_ms, slots, item_count + 2, item_count, 1, 5, 6)
    driver.inner.put_object(companion_name(index_key()), CoverageRecord.of(Coverage(), [facts]).encode())


def test_with_its_companion_the_first_question_costs_two_reads_as_well() -> None:
    driver, index = uploaded(3, 8, 3, 4)
    reported(driver, 5, 4)
    assert offsets(index, 3) == [2, 0]
    assert dict(driver.calls) == {"get_object": 1, "read": 2}
    assert offsets(index, 8) == [1]
    assert dict(driver.calls) == {"get_object": 1, "read": 4}


def large_index(hashes: list[int], slots: int) -> tuple[HookedDriver, CompactedIndex, CompactedIndex]:
    """A file with checksums, its reader, and a reader that knows no checksums and reads each slot."""
    driver, plain = uploaded(*hashes, slots=slots)
    data = bytes(driver.inner.read(index_key(), 0, plain.segment.size))
    guessing = CompactedIndex(driver, plain.segment, slots, BlockSums.of(data))
    return driver, guessing, plain


def test_a_run_is_found_with_one_read_where_keys_are_spread_evenly() -> None:
    source = random.Random(3)
    hashes = [source.randrange(1 << 31) for _ in range(20_000)]
    driver, guessing, plain = large_index(hashes, 5_000)
    asked = [*source.sample(hashes, 300), *(source.randrange(1 << 31) for _ in range(100))]
    for wanted in asked:
        driver.calls.clear()
        found = guessing.select(wanted, 99, *EVER)
        reads, longest = driver.calls["read"], guessing.segment.size
        assert reads <= 3
        assert longest > 500_000
        assert found == plain.select(wanted, 99, *EVER)
    driver.calls.clear()
    for wanted in asked:
        guessing.select(wanted, 99, *EVER)
    assert driver.calls["read"] <= len(asked) * 1.05


@given(
    st.lists(
        st.integers(0, 40) | st.integers(0, (1 << 31) - 1) | st.sampled_from([7, 7 + 64]), min_size=1, max_size=400
    ),
    st.sampled_from([1, 3, 64, 1000]),
    st.integers(0, 300),
    st.integers(1, 20),
)
@examples(60)
def test_guessed_runs_are_those_that_slots_name_however_keys_are_spread(
    hashes: list[int], slots: int, copies: int, max_count: int
) -> None:
    """Small guesses, so that many of them miss; one key has many messages."""
    hashes = hashes + [hashes[0]] * copies
    _, guessing, plain = large_index(hashes, slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacted_index, "GUESS_DEVIATIONS", 0)
        for wanted in [*hashes[:60], 5, 99, 2**31 - 1] * 2:
            found, expected = (each.select(wanted, max_count, *EVER) for each in (guessing, plain))
            assert found.items == expected.items
            assert found.has_more or len(plain.select(wanted, 1_000, *EVER).items) <= max_count


def test_no_bad_bit_hides_a_key_of_a_file_whose_companion_reports_checksums() -> None:
    driver, index = uploaded(3, 8, 3, 4)
    data = bytes(driver.inner.read(index_key(), 0, index.segment.size))
    facts = FileFacts(BEGIN_MS, 5, 6, 4, 1, 5, 6)
    companion = CoverageRecord.of(Coverage(), [facts]).encode()
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        driver = HookedDriver(MemoryDriver())
        driver.inner.write(index_key(), 0, [bad])
        driver.inner.put_object(companion_name(index_key()), summed(companion, BlockSums.of(data)))
        with pytest.raises(CorruptSegment, match="not what was written"):
            CompactedIndex(driver, index.segment).select(3, 99, *EVER)
        assert dict(driver.calls) == {"get_object": 1, "read": 1}


@pytest.mark.parametrize(
    ("slots", "item_count", "begin_ms"), [(4, 4, BEGIN_MS), (5, 3, BEGIN_MS), (5, 4, 1), (0, 4, 1)]
)
def test_a_companion_that_does_not_fit_the_file_has_no_say(slots: int, item_count: int, begin_ms: int) -> None:
    driver, index = uploaded(3, 8, 3, 4)
    reported(driver, slots, item_count, begin_ms=begin_ms)
    assert (offsets(index, 3), index.slots()) == ([2, 0], 5)
    assert driver.calls["read"] == 3


def test_a_companion_out_of_reach_does_not_hide_a_file_that_can_be_read() -> None:
    driver, index = uploaded(3, 8, 3, 4)
    reported(driver, 5, 4)

    def refuse(when: str, name: str) -> None:
        if (when, name) == ("before", "get_object"):
            raise TierUnavailable("the test took the companion away")

    driver.hook = refuse
    assert (offsets(index, 3), index.slots()) == ([2, 0], 5)


def test_bug_18_every_file_is_read_with_its_own_number_of_slots() -> None:
    for slots in (1, 2, 5, 64, 1000):
        _, index = uploaded(3, 8, 3, 1003, slots=slots)
        assert index.slots() == slots
        assert (offsets(index, 3), offsets(index, 1003)) == ([2, 0], [3])


@pytest.mark.parametrize("size", [0, 17, 2**62])
def test_a_row_that_is_wrong_about_the_size_is_settled_by_the_object(size: int) -> None:
    _, index = uploaded(3, 8, 3, size=size)
    assert offsets(index, 3) == [2, 0]


def test_hits_are_newest_first_within_the_time_range_and_limited() -> None:
    _, index = uploaded(*[3] * 9)
    assert offsets(index, 3, 4) == [8, 7, 6, 5]
    assert index.select(3, 4, *EVER).has_more
    assert not index.select(3, 9, *EVER).has_more
    assert offsets(index, 3, times=(BEGIN_MS + 2000, BEGIN_MS + 4000)) == [4, 3, 2]


def test_a_long_run_is_read_only_as_far_as_the_question_needs() -> None:
    driver, index = uploaded(*[3] * 5000, 8, slots=5)
    assert len(offsets(index, 3, 100)) == 100
    assert driver.calls["read"] == 3
    driver.calls.clear()
    assert len(offsets(index, 3, 9999)) == 5000
    assert driver.calls["read"] == 1 + 2  # The slot, 1,024 items, the rest.


def test_a_missing_object_is_an_error() -> None:
    driver, index = uploaded(3)
    driver.inner.delete(index_key())
    with pytest.raises(SegmentMissing):
        index.select(3, 1, *EVER)


def test_bytes_that_are_no_index_are_an_error() -> None:
    driver = MemoryDriver()
    driver.write(index_key(), 0, [bytes(500)])
    with pytest.raises(CorruptSegment):
        CompactedIndex(driver, Segment(index_key(), 500)).select(3, 1, *EVER)


@pytest.mark.parametrize("size", [60, 95, 97])
def test_an_object_that_was_cut_short_is_an_error(size: int) -> None:
    driver, _ = uploaded(3)
    whole = bytes(driver.inner.read(index_key(), 0, 96))
    driver.inner.delete(index_key())
    driver.inner.write(index_key(), 0, [(whole + b"x")[:size]])
    with pytest.raises(CorruptSegment):
        CompactedIndex(driver, Segment(index_key(), size)).select(3, 1, *EVER)


@pytest.mark.parametrize(("position", "length"), [(0, 28), (68, 27), (68, -28)])
def test_a_slot_that_leads_astray_is_an_error(position: int, length: int) -> None:
    driver, index = uploaded(3)
    whole = bytearray(driver.inner.read(index_key(), 0, 96))
    struct.pack_into(">ii", whole, 28 + 8 * 3, position, length)
    driver.inner.delete(index_key())
    driver.inner.write(index_key(), 0, [whole])
    with pytest.raises(CorruptSegment):
        index.select(3, 1, *EVER)


def test_the_companion_is_asked_for_once_and_a_damaged_one_reports_nothing() -> None:
    driver, index = uploaded(3)
    assert index.facts() is None
    assert index.facts() is None
    assert driver.calls["get_object"] == 1
    driver, index = uploaded(3)
    driver.inner.put_object(companion_name(index_key()), b"{}")
    assert index.facts() is None
    with pytest.raises(CorruptSegment):
        index.companion()


def test_the_companion_reports_the_facts_of_its_file() -> None:
    driver, index = uploaded(3)
    file = IndexWriteFile.create(SimulatedFileAccess(), "/index", BEGIN_MS, 5, 20)
    file.put([3], 9, 2, 0, 100, 5)
    record = CoverageRecord.of(Coverage(), [file.facts()])
    driver.inner.put_object(companion_name(index_key()), record.encode())
    facts = index.facts()
    assert facts is not None
    assert (facts.oldest_ms, facts.topic_ids) == (5, frozenset({9}))

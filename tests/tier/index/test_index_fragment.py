"""The keys of a fragment are the items of the batches that it was made of, in both kernels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from tier.index.test_put_batch import KERNELS, NOW_MS, batch_of, batches, table_with
from tiermq.errors import DiskFull
from tiermq.tier.index import index_request, index_write_file
from tiermq.tier.index.index_request import FragmentBuilder, IndexFragment, PutOutcome
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.queue.records import RecordBatch

TOPIC_ID = 2**32 + 9


def fragment_of(topic: str, *parts: RecordBatch) -> IndexFragment:
    builder = FragmentBuilder(topic, TOPIC_ID, 3, parts[0].log_offset)
    for part in parts:
        builder.add(part)
    return builder.build()


def put_all(file: IndexWriteFile, fragment: IndexFragment) -> None:
    done = 0
    while done < fragment.count:
        done += file.put_collected(fragment.keys, done, TOPIC_ID, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=50)
@given(rows=batches, more=batches, topic=st.sampled_from(["T", "Tür"]))
def test_the_keys_of_a_fragment_are_the_items_of_its_batches(
    kernel: ModuleType, rows: list[dict[str, Any]], more: list[dict[str, Any]], topic: str
) -> None:
    first = batch_of(rows, 1_000)
    second = batch_of(more, 1_000 + len(first.data))
    table = table_with(SimulatedFileAccess(), 4_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_request, "collect_tier_keys", kernel.collect_tier_keys)
        patch.setattr(index_write_file, "put_collected_keys", kernel.put_collected_keys)
        patch.setattr(index_write_file, "RESERVE_ITEMS", 5)
        for batch in (first, second):
            assert table.put_batch(batch, topic, TOPIC_ID, 3) is PutOutcome.SUCCESS
        fragment = fragment_of(topic, first, second)
        assert (fragment.start, fragment.end) == (1_000, second.log_offset + len(second.data))
        expected = [entry.local for entry in table.entries() if entry.local is not None]
        assert bool(fragment.count) == bool(expected)
        for each in expected:
            made = IndexWriteFile.create(SimulatedFileAccess(), "x", each.begin_ms, each.slots, each.capacity)
            put_all(made, fragment)
            assert (made.compact(), made.facts()) == (each.compact(), each.facts())


def test_a_full_disk_puts_whole_records_only_and_the_rest_can_be_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_write_file, "RESERVE_ITEMS", 4)
    row = {"keys": ["a", "b"], "unique": "u", "ms": NOW_MS, "broken": False, "v6": False}
    fragment = fragment_of("T", batch_of([row] * 9, 0))
    file = IndexWriteFile.create(SimulatedFileAccess(), "x", NOW_MS, 7, 400)
    reserve = IndexWriteFile._reserve
    calls = []

    def full(self: IndexWriteFile, number: int) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise DiskFull("no room")
        reserve(self, number)

    monkeypatch.setattr(IndexWriteFile, "_reserve", full)
    with pytest.raises(DiskFull):
        put_all(file, fragment)
    done = file.header.item_count
    assert 0 < done < 27
    assert done % 3 == 0
    while done < fragment.count:
        done += file.put_collected(fragment.keys, done, TOPIC_ID, 3)
    assert file.header.item_count == 27

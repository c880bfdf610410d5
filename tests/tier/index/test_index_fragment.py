"""Putting a fragment into the index is putting the batches that it was made of, in both kernels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from tier.index.test_put_batch import KERNELS, NOW_MS, batch_of, batches, state_of, table_with
from tiermq.errors import DiskFull
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.index import index_fragment, index_write_file
from tiermq.tier.index.index_fragment import FragmentBuilder, IndexFragment
from tiermq.tier.index.put_request import PutOutcome

TOPIC_ID = 2**32 + 9


def fragment_of(topic: str, *parts: RecordBatch) -> IndexFragment:
    builder = FragmentBuilder(topic, TOPIC_ID, 3, parts[0].log_offset)
    for part in parts:
        builder.add(part)
    built = builder.build()
    assert len(built.keys) == builder.key_bytes
    return built


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=50)
@given(rows=batches, more=batches, capacity=st.sampled_from([2, 6, 70, 400]), topic=st.sampled_from(["T", "Tür"]))
def test_a_fragment_leaves_what_its_batches_leave(
    kernel: ModuleType, rows: list[dict[str, Any]], more: list[dict[str, Any]], capacity: int, topic: str
) -> None:
    rows[-1]["broken"] = more[-1]["broken"] = False  # A batch does not count a broken end as seen; a fragment does.
    rows[-1]["keys"], more[-1]["keys"] = [], []  # Nor more keys than any file takes.
    first = batch_of(rows, 1_000)
    second = batch_of(more, 1_000 + len(first.data))
    by_batch, by_fragment = SimulatedFileAccess(), SimulatedFileAccess()
    expected, table = table_with(by_batch, capacity), table_with(by_fragment, capacity)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_fragment, "collect_tier_keys", kernel.collect_tier_keys)
        patch.setattr(index_write_file, "put_collected_keys", kernel.put_collected_keys)
        patch.setattr(index_write_file, "RESERVE_ITEMS", 5)
        for batch in (first, second):
            assert expected.put_batch(batch, topic, TOPIC_ID, 3) is PutOutcome.SUCCESS
        whole = fragment_of(topic, first, second)
        for fragment in (fragment_of(topic, first), whole, whole):  # Twins and repetitions change nothing.
            assert table.put_fragment(fragment) is PutOutcome.SUCCESS
        files = [
            [row[1] for row in state_of(each, access)[1]]
            for each, access in ((expected, by_batch), (table, by_fragment))
        ]
        assert files[0] == files[1]
        assert table.coverage.queues[topic, 3].end == expected.coverage.queues[topic, 3].end


def test_a_fragment_of_records_without_keys_still_says_that_they_were_seen() -> None:
    row = {"keys": [], "unique": "", "ms": NOW_MS, "broken": False, "v6": False}
    batch = batch_of([row, row], 1_000)
    table = table_with(SimulatedFileAccess(), 10)
    assert table.put_fragment(fragment_of("T", batch)) is PutOutcome.SUCCESS
    assert table.coverage.queues["T", 3].end == 1_000 + len(batch.data)
    assert table.entries() == ()


def test_a_full_disk_puts_whole_records_only_and_the_fragment_can_be_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_write_file, "RESERVE_ITEMS", 4)
    row = {"keys": ["a", "b"], "unique": "u", "ms": NOW_MS, "broken": False, "v6": False}
    fragment = fragment_of("T", batch_of([row] * 9, 0))
    access = SimulatedFileAccess()
    table = table_with(access, 400)
    reserve = index_write_file.IndexWriteFile._reserve
    calls = []

    def full(self: index_write_file.IndexWriteFile, number: int) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise DiskFull("no room")
        reserve(self, number)

    monkeypatch.setattr(index_write_file.IndexWriteFile, "_reserve", full)
    with pytest.raises(DiskFull):
        table.put_fragment(fragment)
    assert table.put_fragment(fragment) is PutOutcome.SUCCESS
    (entry,) = table.entries()
    assert entry.local is not None
    assert entry.local.header.item_count == 27

"""Keys collected in one place and put in another, in both kernels."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiermq.kernel.pure as pure
from tier.index.test_put_batch import KERNELS, NOW_MS, SLOTS, batch_of, batches
from tiermq.tier.index.index_item import open_file_bytes

try:
    import tiermq.kernel.compiled as compiled
except ModuleNotFoundError:
    compiled = None  # type: ignore[assignment]


@pytest.mark.skipif(compiled is None, reason="there is no compiled kernel to compare with")
@given(rows=batches, start=st.integers(0, 3), capacity=st.sampled_from([1, 6, 300]), limit=st.sampled_from([0, 5, 300]))
def test_both_kernels_collect_and_put_the_same(
    rows: list[dict[str, Any]], start: int, capacity: int, limit: int
) -> None:
    batch = batch_of(rows, 50)
    collected = [kernel.collect_tier_keys(batch.units, batch.data, start, 50, "T") for kernel in (pure, compiled)]
    assert collected[0] == collected[1]
    answers = []
    for kernel in (pure, compiled):
        file = bytearray(open_file_bytes(SLOTS, capacity))
        struct.pack_into(">Iqqii", file, 0, 0xBCC50289, NOW_MS, 0, 0, 0)
        answers.append((kernel.put_collected_keys(file, SLOTS, capacity, limit, collected[0][1], start, -7, 3), file))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_that_no_record_has_and_files_that_are_too_small_are_not_touched(kernel: ModuleType) -> None:
    file = bytearray(open_file_bytes(SLOTS, 20))
    struct.pack_into(">Iqqii", file, 0, 0xBCC50289, NOW_MS, 0, 0, 0)
    before = bytes(file)
    for damaged in ((-1, 5, 100, NOW_MS), (1, -5, 100, NOW_MS), (1, 5, -100, NOW_MS), (1, 5, 100, -1)):
        key = struct.pack(">iqiq", *damaged)
        assert kernel.put_collected_keys(file, SLOTS, 20, 20, key, 0, 1, 0) == (0, 0)
    assert kernel.put_collected_keys(file, SLOTS, 20, 20, b"short", 0, 1, 0) == (0, 0)
    assert bytes(file) == before
    with pytest.raises(ValueError, match="smaller than the tier index file"):
        kernel.put_collected_keys(file[:-1], SLOTS, 20, 20, b"", 0, 1, 0)
    assert kernel.collect_tier_keys(b"", b"", 0, 0, "T") == (0, b"")

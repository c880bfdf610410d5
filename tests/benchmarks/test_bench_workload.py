"""The messages that both sides of a benchmark write."""

from __future__ import annotations

import statistics
import struct
from pathlib import Path

import pytest

from benchmarks import workload

SIZE = 1 << 20


@pytest.mark.parametrize("varied", [False, True])
def test_a_written_log_is_full_of_valid_records_and_ends_with_a_blank_one(tmp_path: Path, varied: bool) -> None:
    count = workload.write_log(tmp_path / "log", SIZE, varied)
    data = (tmp_path / "log").read_bytes()
    assert len(data) == SIZE
    end = 0
    seen: dict[tuple[str, int], int] = {}
    for number, (topic, queue_id, queue_offset, physical_offset, body) in enumerate(workload.decode_log(data, count)):
        assert (topic, queue_id) == workload.queue_of(number)
        assert queue_offset == seen.get((topic, queue_id), 0)
        assert physical_offset == end
        seen[topic, queue_id] = queue_offset + 1
        end += workload.RECORD_BYTES - workload.BODY_BYTES + len(body)
    assert struct.unpack_from(">iI", data, end) == (SIZE - end, workload.BLANK_MAGIC)
    assert SIZE - end < 8 + workload.RECORD_BYTES + 64
    assert len(seen) == workload.TOPIC_COUNT * workload.QUEUE_COUNT


def test_varied_bodies_have_the_same_mean_as_fixed_ones() -> None:
    lengths = [len(row.body) for row in workload.rows_of_log(SIZE, varied=True)]
    assert min(lengths) >= 136
    assert max(lengths) <= 264
    assert statistics.mean(lengths) == pytest.approx(workload.BODY_BYTES, rel=0.05)
    assert {len(row.body) for row in workload.rows_of_log(SIZE, varied=False)} == {200}


def test_a_damaged_record_is_noticed() -> None:
    rows = list(workload.rows_of_log(SIZE, varied=False))[:2]
    data = bytearray(b"".join(workload.encode_rows(rows, 1)))
    data[workload.RECORD_BYTES + 100] ^= 1
    with pytest.raises(ValueError, match="373 does not match its CRC"):
        list(workload.decode_log(bytes(data), 2))

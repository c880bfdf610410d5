"""What lies behind the end of a queue is looked for where the file has data, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.clock import SystemClock
from tiermq.consumequeue.queue_units import has_data_behind
from tiermq.files.mapped_file import MappedFile
from tiermq.files.os_file_access import OsFileAccess

SIZE = 1 << 20


@pytest.mark.parametrize("at", [None, 0, 4_095, 4_096, 700_001, SIZE - 1])
@pytest.mark.parametrize("start", [0, 4_096, 700_000, SIZE - 1])
def test_a_byte_in_a_file_with_holes_is_found_from_where_it_counts(tmp_path: Path, at: int | None, start: int) -> None:
    path = tmp_path / f"{0:020d}"
    with path.open("wb") as file:
        file.truncate(SIZE)
        if at is not None:
            file.seek(at)
            file.write(b"x")
    mapped = MappedFile.load(OsFileAccess(), str(path), SIZE, clock=SystemClock(), writable=False)
    try:
        assert has_data_behind(mapped, start) is (at is not None and at >= start)
        assert has_data_behind(mapped, start, 20) is (at is not None and start <= at < start + 20)
    finally:
        mapped.close()

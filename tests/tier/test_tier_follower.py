"""An index that another process writes, asked without changing a byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import StoreClosed
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.tier_follower import IndexFollower

SETTINGS = IndexSettings(slots=10, capacity=50, query_threads=0)


def hits(index: IndexFollower, key: str) -> list[int]:
    return [hit.tier_offset for hit in index.query("T", key, 10, 0, 1 << 62).hits]


def test_what_was_synced_is_found_from_open_full_and_uploaded_files(tmp_path: Path) -> None:
    driver, clock = MemoryDriver("memory://f"), ManualClock()
    with MetadataStore(":memory:") as metadata:
        place = (OsFileAccess(), str(tmp_path), driver, metadata, "c", "b")
        writer = IndexStore(*place, clock=clock, settings=SETTINGS)
        follower = IndexFollower(*place, query_threads=0)
        follower.refresh()
        assert hits(follower, "k0") == []
        writer.start(with_thread=False)
        writer.run_once()  # Learns that nothing was indexed before.
        for number in range(120):
            writer.put("T", 1, 0, [f"k{number}", "all"], number * 100, 100, clock.now_ms())
            clock.advance_ms(1_000)
            if number in (3, 30, 119):
                writer.sync()
                before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
                follower.refresh()
                assert [hits(follower, f"k{n}") for n in (0, 3, number)] == [[0], [300], [number * 100]]
                assert hits(follower, "all")[0] == number * 100
                assert follower.is_complete_for("T")
                assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        while writer.run_once() == 0.0:
            continue
        assert metadata.all_segments()
        assert hits(follower, "k0") == [0]  # Its map outlives the file, which is in the tier by now.
        follower.refresh()
        assert [hits(follower, f"k{n}") for n in (0, 60, 119)] == [[0], [6_000], [11_900]]
        writer.close()
        follower.close()
        with pytest.raises(StoreClosed):
            hits(follower, "k0")

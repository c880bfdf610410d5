"""The metadata store is what the index takes it for."""

from __future__ import annotations

from pathlib import Path

from tier.index.index_world import HOUR_MS, World, run_until_idle
from tiermq.tier.index.compacted_index import IndexRows, IndexState
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import SegmentStatus


def test_the_index_lives_on_the_real_metadata_store(tmp_path: Path) -> None:
    with MetadataStore(tmp_path / "metadata.db") as metadata:
        rows: IndexRows = metadata
        world = World(rows=rows)  # type: ignore[arg-type]
        store = world.open()
        for _ in range(11):
            world.commit_and_put(store, "T", 0, "k")
        run_until_idle(store)
        store.close()
        segments = metadata.all_segments()
        assert [segment.status for segment in segments] == [SegmentStatus.SEALED] * 2
        assert segments[1].key.base == segments[0].end
        assert all(segment.crc32 is not None and segment.size == 28 + 40 + 28 * 5 for segment in segments)
        store = world.open()
        assert world.indexed_items(store) == world.expected_items()
        world.clock.advance_ms(1000 * HOUR_MS)
        assert store.expire() == 2
        assert [state for _, state in store.states()] == [IndexState.UNSEALED]
        assert metadata.segment_count() == 0
        assert metadata.segments_being_deleted() == []

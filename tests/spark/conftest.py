"""A world for the tests of queries; those of the source have one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.source_world import SourceWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SourceWorld]:
    """195 messages of topic orders in three queues, the last ten of which are on disk only, and five of rare."""
    made = SourceWorld(tmp_path)
    for queue_id in range(3):
        made.put(60, "orders", queue_id)
    made.put(5, "rare", 0)
    made.flush_to_tier()
    made.upload_index()
    made.evict_all()
    made.put(10, "orders", 0)
    yield made
    made.bury()

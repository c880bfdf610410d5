"""What the tests of histories share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from history.history_world import HistoryWorld
from tiermq.history.scan_values import SegmentSpan
from tiermq.tier.metadata.metadata_values import Segment


@pytest.fixture
def without_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier whose manifests know no checksums of blocks, as RocketMQ's: then damage costs the message that it hits."""

    def plain(_cls: type[SegmentSpan], segment: Segment) -> SegmentSpan:
        return SegmentSpan(segment.key.base, segment.size)

    monkeypatch.setattr(SegmentSpan, "of", classmethod(plain))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HistoryWorld]:
    """A store with a tier, both empty."""
    made = HistoryWorld(tmp_path)
    made.open()
    yield made
    made.bury()

"""What the tests of histories share."""

from __future__ import annotations

import pytest

from tiermq.history.scan_values import SegmentSpan
from tiermq.tier.metadata.metadata_values import Segment


@pytest.fixture
def without_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier whose manifests know no checksums of blocks, as RocketMQ's: then damage costs the message that it hits."""

    def plain(_cls: type[SegmentSpan], segment: Segment) -> SegmentSpan:
        return SegmentSpan(segment.key.base, segment.size)

    monkeypatch.setattr(SegmentSpan, "of", classmethod(plain))

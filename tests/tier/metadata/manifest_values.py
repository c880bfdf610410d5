"""Manifests for hypothesis, and one that tests can write down."""

from __future__ import annotations

from hypothesis import strategies as st

from tier.metadata.metadata_samples import QUEUE, log_key, units_key
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
NATURALS = st.integers(0, (1 << 62) - 1)
OFFSETS = st.integers(-1, (1 << 62) - 1)
TOPIC_IDS = st.integers(-1, (1 << 31) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
QUEUE_KEYS = st.builds(QueueKey, NAMES, NAMES, NAMES, st.integers(0, 1 << 31))


@st.composite
def manifests(draw: st.DrawFn) -> QueueManifest:
    key = draw(QUEUE_KEYS)
    segments = st.builds(
        Segment,
        key=st.builds(key.segment, st.sampled_from(SegmentType), NATURALS),
        size=NATURALS, status=st.sampled_from(SegmentStatus), created_ms=I64, begin_ms=I64, end_ms=I64, sealed_ms=I64,
        crc32=st.none() | st.integers(0, (1 << 32) - 1), begin_offset=OFFSETS, end_offset=OFFSETS,
    )  # fmt: skip
    return QueueManifest(
        key, draw(TEXT), draw(NATURALS), draw(OFFSETS), draw(I64), draw(TOPIC_IDS), draw(TOPIC_IDS), draw(I64),
        draw(I64), draw(I64), draw(OFFSETS), draw(OFFSETS),
        tuple(draw(st.lists(segments, max_size=4))),
        tuple(draw(st.lists(st.builds(TimeEntry, I64, I64, I64), max_size=4))),
        tuple(draw(st.lists(st.builds(Gap, OFFSETS, OFFSETS, TEXT, I64), max_size=3))),
    )  # fmt: skip


SAMPLE = QueueManifest(
    QUEUE,
    writer="broker-a on host-1",
    epoch=3,
    sequence=9,
    written_ms=1_757_000_000_000,
    topic_id=2,
    reserve_time_hours=72,
    min_offset=100,
    max_offset=105,
    segments=(
        Segment(log_key(0), 500, SegmentStatus.SEALED, 1, 10, 20, 30, 0xFFFFFFFF, 100, 105),
        Segment(units_key(2000), 100, SegmentStatus.NEW, 1, 10, 20),
    ),
    time_index=(TimeEntry(100, 10, 0), TimeEntry(104, 19, 400)),
    gaps=(Gap(90, 100, "local files were deleted", 5),),
)

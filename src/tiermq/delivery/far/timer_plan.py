"""Which timer objects are written anew, and into what. Pure decisions; `timer_upkeep` carries them out.

    settle   flushes hold timers of any days: when there are many, they are sorted into days
    split    a bucket that comes near and does not fit into one object becomes the next finer ones
    merge    a bucket with many small objects gets larger ones

So a timer is written a few times in its life, however far away it is, and a look at the next seconds reads no more
than a few objects, however many wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from tiermq.delivery.far.timer_buckets import Bucket, Level
from tiermq.delivery.far.timer_names import TimerName


@dataclass(frozen=True, slots=True)
class TimerLimits:
    """Sizes that bound requests and memory."""

    object_bytes: int = 8 << 20
    """What an object holds at most, unless a single timer is larger."""
    run_bytes: int = 32 << 20
    """What is held in memory while objects are written anew."""
    flush_count: int = 64
    """So many flushes are sorted into buckets."""
    merge_count: int = 8
    """So many small objects of a bucket are made into larger ones; a small one is less than half full."""
    cache_bytes: int = 32 << 20
    """Objects that were read and may be needed again for the next pull."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write the timers of these objects anew, in buckets of this level or finer ones."""

    sources: tuple[TimerName, ...]
    coarsest: Level


def plan_rewrites(live: Collection[TimerName], near_ms: int, limits: TimerLimits) -> list[Rewrite]:
    """What should be written anew now, the most urgent first. Objects whose bucket begins before `near_ms` are near."""
    flushes = sorted((name for name in live if name.bucket is None), key=lambda name: name.serial)
    by_bucket: defaultdict[Bucket, list[TimerName]] = defaultdict(list)
    for name in live:
        if name.bucket is not None:
            by_bucket[name.bucket].append(name)
    splits, merges = [], []
    for bucket, names in sorted(by_bucket.items()):
        names.sort(key=lambda name: name.serial)
        if _wants_split(bucket, names, near_ms, limits):
            splits.append(Rewrite(tuple(names), Level(bucket.level + 1)))
            continue
        small = [name for name in names if name.size_bytes < limits.object_bytes // 2]
        if len(small) >= limits.merge_count:
            merges.append(Rewrite(tuple(small), bucket.level))
    settles = []
    if len(flushes) >= limits.flush_count or sum(name.size_bytes for name in flushes) >= limits.run_bytes:
        settles.append(Rewrite(tuple(flushes), Level.DAY))
    return splits + settles + merges


def _wants_split(bucket: Bucket, names: list[TimerName], near_ms: int, limits: TimerLimits) -> bool:
    size_bytes = sum(name.size_bytes for name in names)
    return (
        bucket.level < Level.SECOND
        and bucket.start_ms < near_ms
        and len(names) > 1
        and size_bytes > limits.object_bytes
    )

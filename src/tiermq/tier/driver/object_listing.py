"""From a listing of objects to segments. Pure: rows in, `SegmentInfo`s out, foreign objects passed over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.driver.object_requests import ObjectStat
from tiermq.tier.driver.part_log import PARTS_SUFFIX, part_position, sound_prefix
from tiermq.tier.names import SegmentKey, segment_at


@dataclass(slots=True)
class _Found:
    key: SegmentKey
    canonical: ObjectStat | None = None
    parts: list[tuple[int, int]] = field(default_factory=list)  # (position, length), the mark included
    modified_ms: int = 0


def segments_of(objects: Iterable[ObjectStat], prefix: str = "") -> list[SegmentInfo]:
    """Sorted by path; `prefix` is compared with the segment's path."""
    found: dict[str, _Found] = {}
    for stat in objects:
        path, separator, _ = stat.path.partition(PARTS_SUFFIX + "/")
        if not path.startswith(prefix):
            continue
        segment = found.get(path)
        if segment is None:
            key = segment_at(path)
            if key is None:
                continue
            segment = found[path] = _Found(key)
        if not separator:
            segment.canonical = stat
        else:
            position = part_position(path, stat.path)
            if position is None:
                continue
            segment.parts.append((position, stat.size))
        segment.modified_ms = max(segment.modified_ms, stat.modified_ms)
    return [_info(segment) for _, segment in sorted(found.items()) if segment.canonical or segment.parts]


def _info(segment: _Found) -> SegmentInfo:
    part_count = sum(1 for _, length in segment.parts if length)
    if segment.canonical is not None:
        return SegmentInfo(segment.key, segment.canonical.size, True, part_count, segment.modified_ms)
    sound = sound_prefix(segment.parts)
    return SegmentInfo(segment.key, sound.log.end, sound.log.marked, part_count, segment.modified_ms, sound.damage)

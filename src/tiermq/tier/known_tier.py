"""Whether a tier is the one that a store's metadata tell of, asked with a request or two; and how to forget it.

The metadata say what was committed, and a job believes them. Against another tier, or one that was emptied, it would
find everything done that is not there. So the newest committed bytes of a few queues are looked for first:

    a tail is there, as long as it was committed          the tier is known, and nothing more is asked
    not there, but a manifest says that it expired        known too
    none of the tails is there                            another tier: nothing may be believed, nothing is written
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tiermq.clock import Clock
from tiermq.errors import FutureManifest, StoreLocked, TierError
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, SegmentKey, SegmentType

TAILS_MAX = 8


def missing_tail(driver: TierDriver, metadata: MetadataStore, *, torn_is_known: bool = False) -> Segment | None:
    """A committed segment that the tier lacks, as it lacks all that were looked for; None when the tier is known.

    `torn_is_known`: so is one that has a part of a tail. Raises what the driver raises when the tier cannot be asked.
    """
    tails = list(islice(_tails(metadata), TAILS_MAX))
    if any(
        driver.size(tail.key) >= (1 if torn_is_known else tail.size) or _has_expired(driver, tail) for tail in tails
    ):
        return None
    return tails[0] if tails else None


def require_known_tier(driver: TierDriver, metadata: MetadataStore, store: str) -> None:
    """Raises TierError when the tier has nothing of what the metadata of `store` say was committed to it."""
    missing = unknown_tier(driver, metadata, store)
    if missing:
        raise TierError(missing)


def unknown_tier(driver: TierDriver, metadata: MetadataStore, store: str, *, torn_is_known: bool = False) -> str:
    """The same in words, empty when the tier is known. Raises what the driver raises."""
    tail = missing_tail(driver, metadata, torn_is_known=torn_is_known)
    if tail is None:
        return ""
    return (
        f"{driver.url}: expected the history that {store} says it has there, such as {tail.size:,} bytes of "
        f"{tail.key.path}, found {driver.size(tail.key):,}; nothing was written. It is another tier, or it was "
        "emptied: give the one that the store was copied to, or restore what there is into a fresh store "
        "(`tiermq tier restore`), or let `tiermq pipeline offload --forget-tier` copy again what the store still has"
    )


def is_listed(sizes: dict[SegmentKey, int], metadata: MetadataStore) -> bool:
    """Whether a listing, by key, has some of the newest segment of a queue; also when nothing was committed yet."""
    tails = list(_tails(metadata))
    return not tails or any(sizes.get(tail.key, 0) > 0 for tail in tails)


def forget_tier(metadata_path: Path, root: Path, clock: Clock) -> list[str]:
    """Put away what a store knows of its tier, its metadata and the key index of the tier; under which names.

    The store's tier must be this process's. Nothing is destroyed: what was known lies beside, with the time in its
    name. Raises StoreLocked when somebody reads the metadata.
    """
    MetadataStore(metadata_path, clock=clock).close()  # All of it is in one file then.
    journal = metadata_path.with_name(metadata_path.name + "-wal")
    if journal.exists():
        raise StoreLocked(f"{metadata_path}: expected nobody to read it, found it open; stop the store's broker first")
    mark = f".forgotten-{clock.now_ms()}"
    kept = []
    for path in (root / INDEX_DIRECTORY, metadata_path):  # The metadata last: a crash before leaves the tier refused.
        if path.exists():
            os.rename(path, path.with_name(path.name + mark))
            kept.append(path.name + mark)
    return kept


def _tails(metadata: MetadataStore) -> Iterator[Segment]:
    """The newest committed log segment of each queue."""
    for queue in metadata.queues():
        if queue.key.topic == INDEX_TOPIC:
            continue
        rows = metadata.segments(queue.key, SegmentType.COMMIT_LOG)
        live = [row for row in rows if row.size > 0 and row.status is not SegmentStatus.DELETED]
        if live:
            yield live[-1]


def _has_expired(driver: TierDriver, tail: Segment) -> bool:
    """Whether the tier itself tells that the queue went on behind the segment, which is not kept any more."""
    try:
        manifest = ManifestStore(driver, "a reader").read(tail.key.queue)
    except (CorruptManifest, FutureManifest):
        return True  # Somebody wrote this broker's history here. What is wrong with it is told by whoever needs it.
    if manifest is None or manifest.max_offset < tail.end_offset:
        return False
    return all(row.key != tail.key or row.status is SegmentStatus.DELETED for row in manifest.segments)

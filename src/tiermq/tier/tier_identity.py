"""Check, with a request or two, that a tier is the one that a store's metadata describe; and discard its metadata.

The metadata record what was committed, and a job trusts them. Against another tier, or one that was emptied, it would
skip uploads that are missing. So the newest committed bytes of a few queues are looked up first:

    a tail exists, with its committed length              the tier is known; no further request
    missing, but expired according to a manifest          known too
    none of the tails exists                              another tier: nothing is trusted, nothing is written

Detect, when a store is opened, that the tier is ahead of the broker's disk.

A local store reaches as far as its tier at every start: only what is durable locally is copied, and offsets that the
metadata record for the tier are never assigned again. A store behind its tier is an older copy of the disk (a backup, a
snapshot), has metadata from an older copy, or is an empty disk that replaced a lost one. It must not assign queue
offsets that other messages already have in the tier:

    tier    0 ............................ 700          local store   0 ............ 300
                                                        the next message would be 300, a second time

    tier ahead of the local queue       the tier has units behind the queue's next offset
    tier ahead of the metadata          the tier has a segment behind all that the metadata record of the queue; not
                                        used where a job writes the metadata, which it does after the segments

A store that already assigned such offsets has other messages than the tier at the same offsets, whatever its metadata
record. `may_differ` finds those queues from the disk; their messages are compared.

Costs one listing of the broker's directory: a request for each 1,000 objects.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from pathlib import Path

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptSegment, FutureManifest, StoreDamaged, StoreLocked, TierError
from tiermq.store.local_store import LocalStore
from tiermq.store.tier_continuation import NAMED_MAX
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.metadata.broker_lease import BrokerLease, Lease, LeaseHeld
from tiermq.tier.metadata.database import damage_of, is_put_away
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus, TopicStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType, broker_directory
from tiermq.tier.tier_config import TierConfig

TAILS_MAX = 8


def missing_tail(driver: TierDriver, metadata: MetadataStore, *, torn_is_known: bool = False) -> Segment | None:
    """A committed segment, when the tier lacks all that were looked up; None when the tier is known.

    `torn_is_known`: a part of a tail suffices. Raises what the driver raises.
    """
    tails = list(islice(_tails(metadata), TAILS_MAX))
    if any(_has_bytes(driver, tail, 1 if torn_is_known else tail.size) or _has_expired(driver, tail) for tail in tails):
        return None
    return tails[0] if tails else None


def _has_bytes(driver: TierDriver, tail: Segment, size: int) -> bool:
    """Also where it is damaged: then the tier has something of it."""
    try:
        return driver.size(tail.key) >= size
    except CorruptSegment:
        return True


def require_known_tier(driver: TierDriver, metadata: MetadataStore, store: str) -> None:
    """Raises TierError when the tier has nothing of what was committed according to the metadata of `store`."""
    missing = unknown_tier(driver, metadata, store)
    if missing:
        raise TierError(missing)


def unknown_tier(driver: TierDriver, metadata: MetadataStore, store: str, *, torn_is_known: bool = False) -> str:
    """The same as text, empty when the tier is known. Raises what the driver raises."""
    tail = missing_tail(driver, metadata, torn_is_known=torn_is_known)
    if tail is None:
        return ""
    return (
        f"{driver.url}: expected the history that {store} recorded there, such as {tail.size:,} bytes of "
        f"{tail.key.path}, found {driver.size(tail.key):,}; nothing was written. It is another tier, or it was "
        "emptied: give the one that the store was copied to, or restore what there is into a fresh store "
        "(`tiermq tier restore`), or let `tiermq pipeline offload --forget-tier` copy again what the store still has"
    )


def is_listed(sizes: dict[SegmentKey, int], metadata: MetadataStore) -> bool:
    """Whether a listing, by key, has some of the newest segment of a queue; also when nothing was committed yet."""
    tails = list(_tails(metadata))
    return not tails or any(sizes.get(tail.key, 0) > 0 for tail in tails)


def forget_tier(metadata_path: Path, root: Path, clock: Clock) -> list[str]:
    """Move a store's metadata and key index of its tier aside; returns their new names.

    This process must hold the lock of the store's tier. Nothing is deleted: the time becomes part of the names.
    Raises StoreLocked when another process reads the metadata.
    """
    MetadataStore(metadata_path, clock=clock).close()  # Merges the write-ahead log into the file.
    journal = metadata_path.with_name(metadata_path.name + "-wal")
    if journal.exists():
        raise StoreLocked(f"{metadata_path}: expected it to be closed, found it open; stop the store's broker first")
    mark = f".forgotten-{clock.now_ms()}"
    kept = []
    for path in (root / INDEX_DIRECTORY, metadata_path):  # Metadata last: a crash leaves the tier refused.
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
    """Whether the queue's manifest continues behind the segment, which has expired."""
    try:
        manifest = ManifestStore(driver, "a reader").read(tail.key.queue)
    except (CorruptManifest, FutureManifest):
        return True  # It is this broker's tier. Users of the manifest report what is wrong with it.
    if manifest is None or manifest.max_offset < tail.end_offset:
        return False
    return all(row.key != tail.key or row.status is SegmentStatus.DELETED for row in manifest.segments)


# A broker's metadata of its tier, opened by a command or a job. Damaged metadata are never used.
#
# Closing the file seals it (`database.seal`): without a check before, damage would be sealed as valid, and the broker
# would no longer detect it.

NOT_REPLACED = "it was damaged, and has not been read from the tier again yet"


def damaged_metadata(path: Path, damage: str) -> StoreDamaged:
    """The error for a process that may not move them aside."""
    return StoreDamaged(
        f"{path}: {damage}. It is a copy of what the tier has: move it away and run `tiermq tier restore`, or open "
        "the store once with tierDispatchEnable=true"
    )


def require_sound_metadata(root: str | PathLike[str]) -> Path:
    """Path of a store directory's metadata, which may not exist yet. Raises StoreDamaged when damaged or lost."""
    config = TierConfig(store_path_root_dir=fspath(root))
    path = config.metadata_path
    damage = damage_of(path, config.root_path / INDEX_DIRECTORY / RECORD_NAME)
    if damage or is_put_away(path):
        raise damaged_metadata(path, damage or NOT_REPLACED)
    return path


def open_known_metadata(root: str | PathLike[str], clock: Clock | None = None) -> MetadataStore:
    """Open a store directory's metadata, which must exist. Raises StoreDamaged, and what `MetadataStore` raises."""
    path = require_sound_metadata(root)
    if not path.is_file():
        raise StoreDamaged(f"{path}: expected what a broker knows of its tier, found no such file")
    return MetadataStore(path, clock=clock)


def open_new_metadata(root: str | PathLike[str]) -> MetadataStore:
    """Open a store directory's metadata, to be filled from the tier: they may be missing or moved aside. Raises
    StoreDamaged when they are damaged, and what `MetadataStore` raises."""
    path = TierConfig(store_path_root_dir=fspath(root)).metadata_path
    damage = damage_of(path, path)
    if damage:
        raise damaged_metadata(path, damage)
    path.parent.mkdir(parents=True, exist_ok=True)
    return MetadataStore(path)


_log = logging.getLogger(__name__)

_TYPES = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """A queue that is longer in the tier. Both ends are next queue offsets, of each side."""

    key: QueueKey
    tier_end: int
    local_end: int

    def __str__(self) -> str:
        return f"{self.key.topic}-{self.key.queue_id} (tier {self.tier_end}, local {self.local_end})"


def find_ahead(
    infos: Iterable[SegmentInfo],
    metadata: MetadataStore,
    local_end: Callable[[str, int], int],
    *,
    follows: bool = False,
) -> list[QueueAhead]:
    """The queues of a listing where the tier is ahead of the local queue or of the metadata."""
    by_queue: dict[QueueKey, list[SegmentInfo]] = defaultdict(list)
    for info in infos:
        if info.key.type in _TYPES:
            by_queue[info.key.queue].append(info)
    deleting = {topic.name for topic in metadata.topics() if topic.status == TopicStatus.DELETING}
    found = []
    for key, listed in sorted(by_queue.items()):
        if key.topic in deleting:
            continue
        rows = {segment_type: metadata.segments(key, segment_type) for segment_type in _TYPES}
        ends = {segment_type: max((row.end for row in own), default=0) for segment_type, own in rows.items()}
        known = {row.key for own in rows.values() for row in own}
        units = [info for info in listed if info.key.type is SegmentType.CONSUME_QUEUE]
        tier_end = max(((info.key.base + info.size) // UNIT_BYTES for info in units), default=0)
        here = max(local_end(*key.name), ends[SegmentType.CONSUME_QUEUE] // UNIT_BYTES)
        is_unknown = not follows and any(
            info.size and info.key not in known and info.key.base >= ends[info.key.type] for info in listed
        )
        if tier_end > here or is_unknown:
            found.append(QueueAhead(key, tier_end, local_end(*key.name)))
    return found


def ask_ahead(
    driver: TierDriver,
    metadata: MetadataStore,
    local_end: Callable[[str, int], int],
    cluster: str,
    broker: str,
    timeout_s: float,
    *,
    lease: BrokerLease | None,
    follows: bool,
    root: Path,
) -> list[QueueAhead] | None:
    """List the tier and `find_ahead`; None when the tier did not answer in time, so that a start is not delayed.

    Raises LeaseHeld when another process holds the `lease`, if one is given, and TierError when the tier has nothing of
    what the metadata of the store in `root` record. A job that holds it does no harm, unless the tier is ahead: it may
    have segments that the metadata do not have yet.
    """
    answers: list[list[SegmentInfo] | TierError] = []
    jobs: list[Lease] = []

    def ask() -> None:
        try:
            if lease is not None and (job := lease.require_free(beside_jobs=True)) is not None:
                jobs.append(job)
            answers.append(list(driver.list_segments(broker_directory(cluster, broker) + "/")))
        except TierError as error:
            answers.append(error)

    if timeout_s > 0:
        asking = threading.Thread(target=ask, name="tier-ahead", daemon=True)
        asking.start()
        asking.join(timeout_s)
    else:
        ask()
    answer = answers[0] if answers else TierError(f"{driver.url}: no answer within {timeout_s:g} s")
    if isinstance(answer, LeaseHeld):
        raise answer
    if isinstance(answer, TierError):
        _log.warning(
            "the store was not compared with its tier: %s. If its disk is an older copy, stop: messages would get "
            "numbers that the tier has given to others",
            str(answer).rstrip("."),
        )  # fmt: skip - as text: the log drops repeated lines about a tier
        return None
    if not is_listed({info.key: info.size for info in answer}, metadata):
        require_known_tier(driver, metadata, str(root))
    ahead = find_ahead(answer, metadata, local_end, follows=follows or bool(jobs))
    if jobs and ahead and lease is not None:
        lease.require_free()
    return ahead


def may_differ(local: LocalStore, metadata: MetadataStore, queue: QueueKey, tier_end: int) -> list[int]:
    """Offsets of messages that both sides have and that must be compared; none where they cannot differ.

    A store that wrote its tier is never behind it, unless it has no message at all, and the times in the metadata are
    those of its own messages. Costs no request.
    """
    name = queue.topic, queue.queue_id
    low, high = max(0, local.min_offset(*name)), min(tier_end, local.max_offset(*name))
    if low >= high:
        return []
    entry = metadata.last_time_entry(queue)
    at = entry.queue_offset if entry is not None and low <= entry.queue_offset < high else None
    if at is not None and entry is not None:
        known = [message for message in local.get(*name, at, 1).messages if message.queue_offset == at]
        if known and known[0].store_timestamp_ms != entry.store_ms:
            return sorted({low, at, high - 1})
    return sorted({low, high - 1}) if high < tier_end else []


def refusal(root: object, url: str, ahead: Sequence[QueueAhead], *, follows: bool) -> StoreDamaged:
    """The error for a store whose metadata lack the tier's history and may not be replaced; and what to do."""
    named = ", ".join(map(str, ahead[:NAMED_MAX])) + (f" and {len(ahead) - NAMED_MAX} more" * (len(ahead) > NAMED_MAX))
    way = (
        "Open it once with tierDispatchEnable=true, which takes the tier's history over"
        if follows
        else f"To go on with that history: `tiermq tier restore {url} --store DIR` into an empty directory, or open "
        "the store with restore=True. To begin another one: give another brokerName or another tier"
    )
    return StoreDamaged(
        f"{root}: expected a store that knows what {url} has of this broker, found one that knows less of "
        f"{len(ahead)} queue(s): {named}. New messages would get numbers that others have there. {way}"
    )

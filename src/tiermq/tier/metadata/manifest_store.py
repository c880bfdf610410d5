"""Manifests in the tier, written by one writer at a time: compare-and-set on the object, epochs between writers.

    acquire(queue)   reads the manifest and puts it back under a higher epoch, in this writer's name
    write(manifest)  replaces exactly the version that this writer saw last

Acquiring a queue fences all earlier writers: the next write of an old writer finds another version, reads it, sees a
higher epoch and fails with StaleWriter, which names the new owner. A fenced writer stays fenced.
After a put whose response was lost the object is read: if it has our epoch, name and sequence, the put succeeded.

Cost: acquire is one GET and one PUT, write is one PUT (and one GET when a lease guards it).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tiermq.clock import Clock, SystemClock
from tiermq.errors import ManifestConflict, StaleWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, encode_manifest, manifest_name
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Queue, Topic
from tiermq.tier.names import QueueKey

# The manifest of a queue as the metadata on disk has it now. Pure reading; who writes it stamps epoch and writer.


def snapshot_manifest(store: MetadataStore, key: QueueKey) -> QueueManifest:
    """All that a restore needs of the queue, read in one transaction.

    Segments whose deletion is under way are in it with that mark, so that a restore does not take them for living.
    The index has no topic and no offsets; its manifest is its segments.
    """
    with store.transaction():
        queue = store.queue(key) or Queue(key)
        topic = store.topic(key.topic) or Topic(-1, key.topic)
        segments = store.segments(key) + [row for row in store.segments_being_deleted() if row.key.queue == key]
        return QueueManifest(
            key=key,
            epoch=queue.epoch,
            topic_id=topic.id,
            topic_serial_number=store.topic_serial_number(),
            topic_status=topic.status,
            reserve_time_hours=topic.reserve_time_hours,
            max_bytes=topic.max_bytes,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            segments=tuple(sorted(segments, key=lambda segment: segment.key)),
            time_index=tuple(store.time_entries(key)),
            gaps=tuple(store.gaps(key)),
        )


def take_manifest(store: MetadataStore, manifest: QueueManifest, *, keep_topic: bool = False) -> None:
    """The reverse of `snapshot_manifest`: the metadata of the queue become those of the manifest, all or nothing.

    A topic that has the id of the manifest's topic was never named in the tier, and gets another one. `keep_topic`: a
    topic of that name and id stays as it is, since only its broker changes it.
    """
    key = manifest.key
    with store.transaction():
        known = store.topic(key.topic) if keep_topic else None
        if manifest.topic_id >= 0 and (known is None or known.id != manifest.topic_id):
            other = store.topic_of_id(manifest.topic_id)
            if other is not None and other.name != key.topic:
                last_id = max(store.topic_serial_number(), manifest.topic_serial_number)
                store.put_topic(replace(other, id=last_id + 1))
            kept = (manifest.topic_status, manifest.reserve_time_hours, manifest.max_bytes)
            store.put_topic(Topic(manifest.topic_id, key.topic, *kept, manifest.written_ms))
        store.raise_topic_serial_number(manifest.topic_serial_number)
        queue = Queue(key, manifest.min_offset, manifest.max_offset, manifest.epoch, manifest.written_ms)
        store.replace_queue(queue, manifest.segments, manifest.gaps)
        store.add_time_entries(key, manifest.time_index)


ACQUIRE_TRIES = 64
"""A busy writer may win against an acquirer a few times; after this many tries in a row two writers fight."""


class EpochBehind(StaleWriter):
    """A manifest carries `epoch`, which is newer than that of our lease.

    Either the lease was lost since, or an old version of it came back: then its holder may acquire a higher epoch.
    """

    def __init__(self, text: str, epoch: int) -> None:
        super().__init__(text)
        self.epoch = epoch


class WriterLease(Protocol):
    """The part of a broker's lease that a manifest store uses (`broker_lease.BrokerLease`)."""

    @property
    def epoch(self) -> int:
        """The epoch under which this writer holds the broker."""
        ...

    def check(self) -> None:
        """Raise StaleWriter when this writer no longer holds the broker, according to the tier."""
        ...


@dataclass(slots=True)
class _Hold:
    """What this writer knows of a queue that it acquired: the version it may replace, and what its predecessor wrote.

    Of what it wrote itself it keeps nothing more: its metadata have it, and a job holds 100,000 queues.
    """

    epoch: int
    sequence: int
    in_bundles: bool
    version: str
    taken_over: QueueManifest | None
    fenced_by: str | None = None


class ManifestStore:
    """The manifests of a tier, for one writer. `writer` names the process in errors, and must be unique.

    With a lease, its epoch is the epoch of every manifest, so that taking over a broker takes over all its queues.
    Thread-safe; calls for one queue wait for each other, as they need each other's version.
    """

    def __init__(
        self,
        driver: TierDriver,
        writer: str,
        *,
        lease: WriterLease | None = None,
        clock: Clock | None = None,
        on_change: Callable[[QueueKey], None] = lambda _queue: None,
        in_bundles: bool = False,
    ) -> None:
        """`on_change` is called after a manifest was replaced or removed. `in_bundles`: the writer uses bundles."""
        self._driver = driver
        self._on_change = on_change
        self._in_bundles = in_bundles
        self._writer = writer
        self._lease = lease
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._queue_locks: dict[QueueKey, threading.Lock] = {}
        self._holds: dict[QueueKey, _Hold] = {}

    def read(self, queue: QueueKey) -> QueueManifest | None:
        """The manifest in the tier now, or None. Raises CorruptManifest, FutureManifest."""
        found = self._load(queue)
        return None if found is None else found[0]

    def acquire(self, queue: QueueKey) -> int:
        """Become the queue's writer and fence off every other. Returns the epoch; again, it returns the same.

        Raises EpochBehind when the tier knows a newer epoch than this writer's lease, CorruptManifest or FutureManifest
        when the manifest cannot be read (it is then left alone), ManifestConflict when others acquire without end.
        """
        with self._lock_of(queue):
            held = self._holds.get(queue)
            if held is not None:
                self._require_unfenced(queue, held)
                return held.epoch
            return self._acquire(queue)

    def taken_over(self, queue: QueueKey) -> QueueManifest | None:
        """The manifest as the predecessor of this writer left it; None: not acquired, replaced or forgotten since."""
        with self._lock_of(queue):
            held = self._holds.get(queue)
            return None if held is None else held.taken_over

    def forget_taken_over(self, queue: QueueKey) -> None:
        """Keep nothing of what the predecessor of this writer left: nothing will ask for it any more."""
        with self._lock_of(queue):
            held = self._holds.get(queue)
            if held is not None:
                held.taken_over = None

    def write(self, manifest: QueueManifest) -> QueueManifest:
        """Replace the queue's manifest; epoch, writer, sequence and time are filled in. Acquires when need be.

        Raises StaleWriter when a newer epoch owns the queue: nothing was written, and nothing ever will be by this one.
        """
        with self._lock_of(manifest.key):
            if self._lease is not None:
                self._lease.check()
            held = self._holds.get(manifest.key)
            if held is None:
                self._acquire(manifest.key)
                held = self._holds[manifest.key]
            self._require_unfenced(manifest.key, held)
            in_bundles = manifest.in_bundles or held.in_bundles
            stamped = self._stamp(replace(manifest, in_bundles=in_bundles), held.epoch, held.sequence + 1)
            held.version = self._replace(stamped, held)
            held.sequence, held.in_bundles, held.taken_over = stamped.sequence, stamped.in_bundles, None
            self._on_change(manifest.key)
            return stamped

    def delete(self, queue: QueueKey) -> None:
        """Remove the manifest of a queue that this writer owns, after its segments went. Raises StaleWriter."""
        with self._lock_of(queue):
            held = self._holds.get(queue)
            if held is not None:
                self._require_unfenced(queue, held)
                found = self._load(queue)
                if found is not None and found[1] != held.version:
                    raise self._fenced(held, found[0])
            self._driver.delete_object(manifest_name(queue))
            self._holds.pop(queue, None)
            self._on_change(queue)

    def release(self, queue: QueueKey) -> None:
        """Forget the queue without a request. The epoch stays; the next writer takes a higher one."""
        with self._lock_of(queue):
            self._holds.pop(queue, None)

    def release_all(self) -> None:
        """Forget all queues, as `release`: each is acquired again before its next write."""
        with self._lock:
            self._holds.clear()

    def _acquire(self, queue: QueueKey) -> int:
        if self._lease is not None:
            self._lease.check()
        for _ in range(ACQUIRE_TRIES):
            found = self._load(queue)
            old, version = found if found is not None else (QueueManifest(queue), None)
            epoch = self._next_epoch(old)
            claimed = self._stamp(old, epoch, 0 if epoch > old.epoch else old.sequence + 1)
            try:
                version = self._driver.put_object(manifest_name(queue), encode_manifest(claimed), expected=version)
            except ManifestConflict:
                continue  # Another process acquired or wrote in between: read again.
            self._holds[queue] = _Hold(epoch, claimed.sequence, claimed.in_bundles, version, claimed)
            return epoch
        raise ManifestConflict(
            f"{manifest_name(queue)}: expected to acquire it, lost {ACQUIRE_TRIES} races in a row; "
            f"stop one of the writers of this queue"
        )

    def _next_epoch(self, old: QueueManifest) -> int:
        if self._lease is None:
            return old.epoch + 1
        if old.epoch > self._lease.epoch:
            raise EpochBehind(
                f"{manifest_name(old.key)}: {self._writer} holds epoch {self._lease.epoch}, but {old.writer} already "
                f"writes with epoch {old.epoch}; stop this writer, or acquire the broker's lease again with that epoch",
                old.epoch,
            )
        return self._lease.epoch

    def _stamp(self, manifest: QueueManifest, epoch: int, sequence: int) -> QueueManifest:
        return replace(
            manifest,
            writer=self._writer,
            epoch=epoch,
            sequence=sequence,
            written_ms=self._clock.now_ms(),
            in_bundles=manifest.in_bundles or self._in_bundles,
        )

    def _replace(self, manifest: QueueManifest, held: _Hold) -> str:
        """Put the manifest over what we hold, and settle what a conflict means."""
        name = manifest_name(manifest.key)
        try:
            return self._driver.put_object(name, encode_manifest(manifest), expected=held.version)
        except ManifestConflict:
            found = self._load(manifest.key)
            if found is None:
                self._holds.pop(manifest.key, None)
                raise
            current, version = found
            if (current.epoch, current.writer) != (manifest.epoch, manifest.writer):
                raise self._fenced(held, current) from None
            # An earlier put of ours, whose response was lost, succeeded: replace that version.
            return self._driver.put_object(name, encode_manifest(manifest), expected=version)

    def _load(self, queue: QueueKey) -> tuple[QueueManifest, str] | None:
        name = manifest_name(queue)
        stored = self._driver.get_object(name)
        return None if stored is None else (decode_manifest(stored.data, name), stored.version)

    def _fenced(self, held: _Hold, current: QueueManifest) -> StaleWriter:
        held.fenced_by = f"{current.writer} (epoch {current.epoch})"
        return self._stale(current.key, held)

    def _stale(self, queue: QueueKey, held: _Hold) -> StaleWriter:
        return StaleWriter(
            f"{manifest_name(queue)}: {self._writer} wrote with epoch {held.epoch}, but the queue now belongs "
            f"to {held.fenced_by}; nothing was written, stop this writer"
        )

    def _require_unfenced(self, queue: QueueKey, held: _Hold) -> None:
        if held.fenced_by is not None:
            raise self._stale(queue, held)

    def _lock_of(self, queue: QueueKey) -> threading.Lock:
        with self._lock:
            return self._queue_locks.setdefault(queue, threading.Lock())

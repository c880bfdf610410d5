"""IndexFollower: the key index of a broker's tier, read while another process writes it.

A job that copies a store has its index files made in the tier. A dispatcher that copied the store before may have left
files in the directory. A process that has the store open meanwhile reads both, without changing a byte:

    metadata rows          the files that are in the tier; the newest one's companion has what of each queue is indexed
    coverage.tiermq.json   which local files there are, and what of each queue was indexed at the last sync
    local files            mapped read-only; an item is whole before its slot points to it

A job commits messages before it indexes them. What was committed at the last `refresh` and not indexed then is a hole
of the coverage: a query may miss it, and the topic is not complete.
Threads: any may query; one refreshes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from tiermq.errors import StoreClosed, StoreDamaged, StoreLocked, TierError
from tiermq.files.file_access import FileAccess
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore, queue_tails
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.index.compacted_index import CompactedIndex, IndexEntry, IndexRows, IndexState, merged_bases
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueTail, either, open_sealed
from tiermq.tier.index.index_query import FetchKeys, IndexSearch, QueryAnswer, QueryPool, Question, search_again
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.index.index_store import IndexStore
from tiermq.tier.index.index_upkeep import live_segments
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, is_by_job, manifest_name, queue_of_manifest
from tiermq.tier.metadata.manifest_changes import read_changes, take_notes
from tiermq.tier.metadata.manifest_store import take_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, Queue, Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, QueueName, broker_directory, index_queue
from tiermq.tier.open_tier import HeldLock
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.restore.queue_discovery import DiscoveredQueue, discover_index
from tiermq.tier.restore.restore import DEFAULT_THREADS, Discovery, read_manifests

_log = logging.getLogger(__name__)


class IndexFollower:
    """See the module."""

    def __init__(
        self,
        access: FileAccess,
        root: str,
        driver: TierDriver,
        rows: IndexRows,
        cluster: str,
        broker: str,
        *,
        fetch_keys: FetchKeys | None = None,
        query_threads: int = 8,
    ) -> None:
        self._access = access
        self._directory = os.path.join(root, INDEX_DIRECTORY)
        self._driver = driver
        self._rows = rows
        self._queue = index_queue(cluster, broker)
        self._fetch_keys = fetch_keys
        self._pool = QueryPool(query_threads)
        self._coverage = Coverage(is_base_known=False)
        self._local: dict[int, IndexEntry] = {}
        self._uploaded: dict[int, IndexEntry] = {}
        self._entries: tuple[IndexEntry, ...] = ()
        self._newest: int | None = None  # Base of the newest file in the tier, and what its companion said.
        self._in_tier: CoverageRecord | None = None
        self._is_open = True
        self.look_again: Callable[[], object] | None = None
        """Brings the rows up to date, and calls `refresh`."""

    def refresh(self, tails: Iterable[QueueTail] = ()) -> None:
        """See what was synced since. `tails` is what was committed before. Raises StoreDamaged for a record that is
        invalid.
        """
        path = os.path.join(self._directory, RECORD_NAME)
        try:
            record = open_sealed(self._access.read_bytes(path), path)
        except FileNotFoundError:
            record = None  # Nothing was indexed yet.
        uploaded = {}
        for segment in live_segments(self._rows, self._queue):
            known = self._uploaded.get(segment.key.base)
            uploaded[segment.key.base] = known or IndexEntry(
                segment.begin_ms, IndexState.UPLOAD, remote=CompactedIndex(self._driver, segment)
            )
        in_tier = {entry.begin_ms for entry in uploaded.values()}
        local = {}
        for facts in record.files if record is not None else ():
            if facts.item_count and facts.begin_ms not in in_tier:
                entry = self._local.get(facts.begin_ms) or self._open(facts)
                if entry is not None:
                    local[facts.begin_ms] = entry
        gone = [entry for begin_ms, entry in self._local.items() if begin_ms not in local]
        self._local, self._uploaded = local, uploaded
        self._entries = tuple(sorted([*uploaded.values(), *local.values()], key=lambda entry: entry.begin_ms))
        self._coverage = self._covered(record, tuple(tails))
        for entry in gone:
            if entry.local is not None:
                entry.local.close()

    def _covered(self, record: CoverageRecord | None, tails: Sequence[QueueTail]) -> Coverage:
        """What the files in the tier and the local ones cover of what is committed."""
        newest = max(self._uploaded, default=None)
        if newest != self._newest:
            self._newest, self._in_tier = newest, None
        coverage = self._joined(record)
        coverage.expect(tails)
        if newest is not None and not coverage.is_complete():
            self._in_tier = self._read_companion(self._uploaded[newest]) or self._in_tier
            coverage = self._joined(record)
            coverage.expect(tails)
        return coverage

    def _joined(self, record: CoverageRecord | None) -> Coverage:
        in_tier = {} if self._in_tier is None else self._in_tier.coverage().queues
        if record is None:
            return Coverage(in_tier)
        local = record.coverage()
        for name, known in in_tier.items():
            local.queues[name] = either(known, local.queues.get(name))
        local.is_base_known |= self._in_tier is not None
        return local

    def _read_companion(self, newest: IndexEntry) -> CoverageRecord | None:
        """What is indexed by now: a job may write it again beside the same file."""
        assert newest.remote is not None
        try:
            return CompactedIndex(self._driver, newest.remote.segment).companion()
        except TierError as error:
            _log.info("what the index in the tier covers is not known yet: %s", error)
            return None

    def _open(self, facts: FileFacts) -> IndexEntry | None:
        try:
            return IndexEntry(
                facts.begin_ms, IndexState.UNSEALED, local=IndexWriteFile.view(self._access, self._directory, facts)
            )
        except StoreDamaged as error:  # Uploaded and removed meanwhile; the next refresh has its row.
            _log.info("index file %d is skipped: %s", facts.begin_ms, error)
            return None

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, topic_id: int | None = None
    ) -> QueryAnswer:
        """As `IndexStore.query`."""
        if not self._is_open:
            raise StoreClosed("expected an open index, found it closed; start the store first")
        question = Question(topic, key, max_count, begin_ms, end_ms, topic_id)
        return search_again(
            lambda: IndexSearch(question, self._fetch_keys, self._pool).run(self._entries), self.look_again
        )

    def is_complete_for(self, topic: str) -> bool:
        """Whether every record of the topic that was committed at the last look was indexed then."""
        return self._coverage.is_complete(topic)

    def close(self) -> None:
        self._is_open = False
        self._entries = ()
        for entry in self._local.values():
            if entry.local is not None:
                entry.local.close()
        self._pool.close()


class FollowedIndex(Protocol):
    """The key index of a store that follows: `IndexFollower`, or `IndexStore` while a job has the lease."""

    look_again: Callable[[], object] | None

    def refresh(self, tails: Iterable[QueueTail] = ..., /) -> None:
        """See which files there are now."""


class MetadataFollower:
    """Shows a store what jobs have committed to its tier.

        a job elsewhere ── manifests, changes ──► bucket ◄── GET ──┐
                                                                  this store ──► its metadata ──► files
        a job with --store ── commits rows ──► metadata ◄── look ──┘

    The metadata are this store's cache of the bucket. A look is one GET of what was published (`manifest_changes`) and
    one for each changed queue; they are stored in one transaction, under the lock of the directory: a job with
    `--store` that has the lock writes the same rows itself. What the metadata record was durable in the tier at that
    time. Before they prove that a local file may be deleted, the tier is checked once for each queue: the metadata and
    the bucket may be copies from different times.

    A store that tiers by itself and has lent its lease to a job has such a follower meanwhile (`own_epoch`): manifests
    of that epoch and before are its own, and its metadata may be newer than those. Before it writes again it takes what
    the bucket has of all other queues (`take_bucket`), also of a job that died before it published.
    Threads: any thread may call `refresh`; calls are serialized.
    """

    def __init__(
        self,
        files: FlatFileStore,
        metadata: MetadataStore,
        local: LocalStore,
        index: FollowedIndex | None,
        lock: Callable[[], HeldLock],
        *,
        own_epoch: int | None = None,
        threads: int = DEFAULT_THREADS,
    ) -> None:
        """`lock` locks the directory's metadata of its tier for writing. Raises StoreLocked."""
        self._files = files
        self._metadata = metadata
        self._local = local
        self._index = index
        self._lock_metadata = lock
        self._lock = threading.Lock()
        self._version = -1
        self._known: dict[QueueName, Queue] = {}
        self._is_unlisted = False  # The list of changes is missing or damaged, and all manifests were read since.
        self._notes: dict[str, str] = {}  # Of bundles, as far as they are in the metadata.
        self._own_epoch = own_epoch
        self._threads = threads
        if own_epoch is not None:
            self._known = {queue.key.name: queue for queue in metadata.queues() if self._is_followed(queue.key)}
        if index is not None:
            index.look_again = self.refresh

    def refresh(self, *, with_tier: bool = True) -> bool:
        """Load what was committed since the last call; whether there was anything. `with_tier=False`: no request but
        for new queues.
        """
        with self._lock:
            if with_tier:
                try:
                    self._take_changes()
                except TierError as error:
                    _log.warning("what jobs have changed in the tier is not known yet: %s", error)
            version = self._metadata.data_version()
            changed = version != self._version and self._take_rows()
            self._version = version
            if self._index is not None:
                self._index.refresh(queue_tails(self._files))
            for file in self._files:
                self._compare(file)
            return changed

    # The bucket

    def _take_changes(self) -> None:
        """Store what was published since. Raises TierError; then the next call does it."""
        driver, home = self._files.driver, (self._files.cluster, self._files.broker)
        seen = self._metadata.changes_seen()
        try:
            changes = read_changes(driver, *home)
        except CorruptManifest as error:
            changes = None
            if not self._is_unlisted:
                _log.error("all manifests are read: %s", error)
        if changes is None:  # Until a job writes it, with a higher number.
            if seen is not None and not self._is_unlisted:
                self._store(self._all_manifests(), None, seen)
            self._is_unlisted = True
            return
        self._is_unlisted = False
        if changes.serial == seen:
            return
        changed = changes.after(seen)
        names = self._all_manifests() if changed is None else {QueueKey(*home, *name) for name in changed}
        # Manifests of quiet queues lag behind their bundles.
        notes = driver.bundle_notes(broker_directory(*home)) if changes.bundles else {}
        self._store(names, changes.index, changes.serial, notes)

    def _all_manifests(self) -> set[QueueKey]:
        """The queues that have a manifest, and those that are known here."""
        home = (self._files.cluster, self._files.broker)
        listed = self._files.driver.list_objects(f"{broker_directory(*home)}/")
        known = {queue.key for queue in self._metadata.queues() if (queue.key.cluster, queue.key.broker) == home}
        return {key for name in listed if (key := queue_of_manifest(name)) is not None} | known

    def _store(
        self,
        queues: set[QueueKey],
        index: Sequence[Segment] | None,
        serial: int,
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        data = sorted(key for key in queues if key.topic != INDEX_TOPIC)
        read = read_manifests(self._files.driver, [manifest_name(key) for key in data], self._threads)
        for remark in read.remarks:
            _log.error("what the tier has of a queue is not known: %s: %s", remark.where, remark.text)
        unread = {queue_of_manifest(name) for name in read.unread}
        try:
            lock = self._lock_metadata()
        except StoreLocked as error:
            _log.info("a job writes the metadata of this store itself: %s", error)
            return
        try:
            with self._metadata.transaction():
                for key in data:
                    manifest = read.manifests.get(key)
                    if manifest is not None and self._is_news(manifest):
                        take_manifest(self._metadata, manifest, keep_topic=self._own_epoch is not None)
                    elif manifest is None and key not in unread and self._had_manifest(key):  # The queue was deleted.
                        self._metadata.replace_segments(key, ())
                        self._metadata.delete_queue(key)
                if self._own_epoch is None:
                    again = {key.logical_path for key in data}
                    new = [note for path, note in notes.items() if path in again or self._notes.get(path) != note]
                    take_notes(self._metadata, self._files.cluster, self._files.broker, new)
                if index is not None:
                    self._metadata.replace_segments(index_queue(self._files.cluster, self._files.broker), index)
                self._metadata.put_changes_seen(serial)
            self._notes = dict(notes)
        finally:
            lock.release()

    def _is_news(self, manifest: QueueManifest) -> bool:
        return self._own_epoch is None or (manifest.epoch > self._own_epoch and is_by_job(manifest.writer))

    def _had_manifest(self, key: QueueKey) -> bool:
        queue = self._metadata.queue(key)
        return self._own_epoch is None or (queue is not None and queue.epoch > 0)

    def take_bucket(self) -> None:
        """Take what jobs have made of the bucket since this store wrote it, by its listing. Raises TierError; then the
        metadata are as before.

        Cost: one listing of the broker's directory, one GET for each manifest, and reads of queues whose objects reach
        behind a job's manifest.
        """
        driver, home = self._files.driver, (self._files.cluster, self._files.broker)
        with self._lock:
            found = Discovery.of(driver, list_tier(driver, TierScope(*home)), self._threads)
            manifests = found.read.manifests
            taken = [key for key in found.queues() if key in manifests and self._is_news(manifests[key])]
            discoveries = found.discover(driver, taken, self._files.clock.now_ms(), self._threads)
            index = self._index_rows(found.infos.get(index_queue(*home), ()))
            with self._metadata.transaction():
                self._take_discovered(discoveries, manifests, keep_topic=True)
                self._metadata.replace_segments(index_queue(*home), index)
            self._take_rows()
            for key in taken:
                self._files.find_or_create(*key.name).doubt()
            if self._index is not None:
                self._index.refresh(queue_tails(self._files))

    def _take_discovered(
        self, discoveries: Iterable[DiscoveredQueue], manifests: Mapping[QueueKey, QueueManifest], *, keep_topic: bool
    ) -> None:
        for discovered in discoveries:
            key = discovered.queue.key
            if (manifest := manifests.get(key)) is not None:
                take_manifest(self._metadata, manifest, keep_topic=keep_topic)
            else:
                self._metadata.add_topic(key.topic)
            self._metadata.replace_queue(discovered.queue, discovered.segments, discovered.gaps)
            self._metadata.add_time_entries(key, discovered.time_entries)

    def _index_rows(self, infos: Sequence[SegmentInfo]) -> list[Segment]:
        """The rows of the index files that are listed; only those that are not known are looked at."""
        index = index_queue(self._files.cluster, self._files.broker)
        deleting = [row for row in self._metadata.segments_being_deleted() if row.key.queue == index]
        sizes = {info.key: info.size for info in infos}
        known = [row for row in self._metadata.segments(index) if sizes.get(row.key) == row.size]
        kept = {row.key for row in (*known, *deleting)}
        rows, remarks = discover_index(self._files.driver, [info for info in infos if info.key not in kept], None)
        for remark in remarks:
            _log.warning("the index in the tier: %s: %s", remark.where, remark.text)
        new = [row for row in rows if row.key not in kept]
        damaged = {remark.where for remark in remarks}
        whole = [row for row in (*known, *new) if row.status is SegmentStatus.SEALED and row.key.path not in damaged]
        merged = merged_bases(self._files.driver, whole) if new else set()
        return [*deleting, *(row for row in (*known, *new) if row.key.base not in merged)]

    # The metadata

    def _is_followed(self, key: QueueKey) -> bool:
        return (key.cluster, key.broker) == (self._files.cluster, self._files.broker) and key.topic != INDEX_TOPIC

    def _take_rows(self) -> bool:
        changed, gone = False, set(self._known)
        for queue in self._metadata.queues():
            key = queue.key
            name = key.name
            if not self._is_followed(key):
                continue
            gone.discard(name)
            before = self._known.get(name)
            if before == queue:
                continue
            self._known[name] = queue
            self._files.find_or_create(*name).take_rows()
            old = (UNKNOWN_OFFSET, UNKNOWN_OFFSET) if before is None else (before.min_offset, before.max_offset)
            changed |= old != (queue.min_offset, queue.max_offset)
            self._reached(name, max(0, queue.max_offset))
        for name in gone:
            del self._known[name]
            if (file := self._files.find(*name)) is not None:
                file.take_rows()
            self._gone(name)
        return changed or bool(gone)

    def _gone(self, name: QueueName) -> None:
        """The queue was deleted."""

    def _reached(self, name: QueueName, end: int) -> None:
        """The tier may have messages that the local store lost: their offsets are in use."""
        self._local.advance_queue(*name, end)

    def _compare(self, file: FlatMessageFile) -> None:
        try:
            if not file.compare() and file.initialised:
                _log.error("%s: the tier has less than its metadata record; verify it", file.queue.logical_path)
        except TierError as error:
            _log.warning("%s is not compared with the tier yet: %s", file.queue.logical_path, error)


class BucketFollower(MetadataFollower):
    """Shows a store what another broker has uploaded, by the listing of that broker's directory.

    A broker that uploads publishes nothing, and its manifests are up to `tierManifestInterval` behind; the names of
    objects show everything. The metadata are a cache of the bucket, and nothing of them is trusted at the start.

    Cost of a look: a listing (a request for each 1,000 objects, twice). Each queue whose objects have changed since the
    last look costs a GET of its manifest, and reads of what was uploaded behind it.
    Threads: those of `MetadataFollower`; `on_growth` is called by the thread that refreshes.
    """

    def __init__(
        self,
        files: FlatFileStore,
        metadata: MetadataStore,
        local: LocalStore,
        index: FollowedIndex | None,
        *,
        rest_s: float,
        threads: int = DEFAULT_THREADS,
    ) -> None:
        super().__init__(files, metadata, local, index, NoLock, threads=threads)
        self.rest_s = rest_s
        self.on_growth: list[Callable[[str, int, int], None]] = []
        """Called with the topic, the id and the new end of each queue that has more messages."""
        self._listed: dict[QueueKey, list[SegmentInfo]] = {}
        self._looked_s = float("-inf")
        self._ends: dict[QueueName, int] = {}

    def _take_changes(self) -> None:
        clock = self._files.clock
        if clock.monotonic() - self._looked_s < min(LOOK_REST_S, self.rest_s):
            return  # A query that misses something may ask for a look at any time.
        self._look()
        self._looked_s = clock.monotonic()

    def _look(self) -> None:
        driver, home = self._files.driver, (self._files.cluster, self._files.broker)
        listing = list_tier(driver, TierScope(*home))
        infos, index = listing.by_queue(), index_queue(*home)
        with_manifest = {key for name in listing.objects if (key := queue_of_manifest(name)) is not None}
        known = {queue.key for queue in self._metadata.queues() if self._is_followed(queue.key)}
        changed = {
            key
            for key in infos.keys() | self._listed.keys() | known | with_manifest
            if key != index and (infos.get(key) != self._listed.get(key) or key not in known)
        }
        read = read_manifests(driver, [manifest_name(key) for key in changed], self._threads)
        for remark in read.remarks:
            _log.error("what the tier has of a queue is not known: %s: %s", remark.where, remark.text)
        there = sorted(key for key in changed - read.newer if infos.get(key) or key in read.manifests)
        found = Discovery({key: infos.get(key, []) for key in there}, read)
        discoveries = found.discover(driver, there, self._files.clock.now_ms(), self._threads)
        rows = self._index_rows(infos.get(index, ())) if infos.get(index) != self._listed.get(index) else None
        with self._metadata.transaction():
            self._take_discovered(discoveries, read.manifests, keep_topic=False)
            for key in (changed & known) - set(there) - read.newer:  # The queue was deleted.
                self._metadata.replace_segments(key, ())
                self._metadata.delete_queue(key)
            if rows is not None:
                self._metadata.replace_segments(index, rows)
        for key in changed:
            if (before := self._known.get(key.name)) is not None:  # Also where only the objects changed, as by a seal.
                self._known[key.name] = replace(before, epoch=-1)
        self._listed = infos

    def _reached(self, name: QueueName, end: int) -> None:
        """A store that takes no messages gives no offsets: only readers that wait are called."""
        if end > self._ends.get(name, 0):
            for listener in self.on_growth:
                listener(*name, end)
        self._ends[name] = end

    def _gone(self, name: QueueName) -> None:
        self._ends.pop(name, None)
        if isinstance(self._index, IndexStore):
            self._index.forget_queue(*name)

    def _compare(self, file: FlatMessageFile) -> None:
        file.compared = True  # Its rows are what was listed.


LOOK_REST_S = 1.0


class NoLock:
    """In place of the directory's lock, where this process holds it, or no other process writes the metadata."""

    def release(self) -> None:
        """Nothing to release."""

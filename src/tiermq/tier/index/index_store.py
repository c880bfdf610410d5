"""IndexStore: the key index of a broker's tier, as one service.

    put ──► local file (UNSEALED) ──full──► SEALED ──compacted, uploaded──► UPLOAD ──every message gone──► deleted
    query ─► all files whose times overlap the question, newest first ─► candidates ─► verified by the real messages

What is promised:

* A put that answered SUCCESS is found by the next query; it survives a crash once `sync` returned, and before that is
  put again from the committed records of its queue (`rebuild`). Nothing is lost and nothing is doubled.
* The puts of one queue come in the order of its tier commit log, each record once or again, also those without keys.
* A back end that is down delays uploads and makes queries of uploaded files incomplete; it stops neither put nor start
  nor close.

Threads: any thread may put, sync and query. The upkeep runs in a separate thread, or, for tests and simulations,
in the caller of `run_once`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tiermq.clock import HOUR_MS, Clock, SystemClock
from tiermq.errors import StoreClosed, TierMQError
from tiermq.files.file_access import FileAccess
from tiermq.service import Service
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import IndexRows, IndexState
from tiermq.tier.index.index_coverage import Coverage, QueueTail
from tiermq.tier.index.index_item import CAPACITY_DEFAULT, SLOTS_DEFAULT
from tiermq.tier.index.index_query import FetchKeys, IndexSearch, QueryAnswer, QueryPool, Question, search_again
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, recover_files
from tiermq.tier.index.index_request import IndexRequest, PutOutcome
from tiermq.tier.index.index_table import IndexTable
from tiermq.tier.index.index_upkeep import (
    INDEX_WRITE_BYTES,
    IndexUpkeep,
    IndexUploader,
    IsUnneeded,
    Rebuild,
    RetentionMs,
    UpkeepCounts,
    UpkeepRules,
    UploadStopped,
    live_segments,
)
from tiermq.tier.index.index_write_file import check_shape
from tiermq.tier.names import QueueKey, index_queue
from tiermq.tier.queue.records import RecordBatch

log = logging.getLogger(__name__)

UPKEEP_INTERVAL_S = 10.0
CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """RocketMQ's: tieredStoreIndexFileMaxHashSlotNum, tieredStoreIndexFileMaxIndexNum. The other settings are ours."""

    slots: int = SLOTS_DEFAULT
    capacity: int = CAPACITY_DEFAULT
    query_threads: int = 8
    upload_chunk_bytes: int = INDEX_WRITE_BYTES
    only_reads: bool = False
    """Another process writes the tier: index here what its uploaded files do not cover, and change nothing there."""
    rules: UpkeepRules = field(default_factory=UpkeepRules)


def nothing_to_rebuild(_queue: QueueKey, _from_offset: int) -> Iterator[IndexRequest]:
    """For a tier that is not read back: what a crash kept out of the index stays out."""
    return iter(())


def three_days(_topic_ids: frozenset[int] | None) -> int:
    """RocketMQ's default of tieredStoreFileReservedTime, for every topic."""
    return 72 * HOUR_MS


class IndexStore:
    """See the module. Made closed; `start` opens it."""

    def __init__(
        self,
        access: FileAccess,
        root: str,
        driver: TierDriver,
        rows: IndexRows,
        cluster: str,
        broker: str,
        *,
        clock: Clock | None = None,
        settings: IndexSettings | None = None,
        rebuild: Rebuild = nothing_to_rebuild,
        fetch_keys: FetchKeys | None = None,
        retention_ms: RetentionMs = three_days,
        is_unneeded: IsUnneeded | None = None,
        is_delete_enabled: Callable[[], bool] = lambda: True,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`root` is the store's root directory; files are in its `tiered_index_file`.

        `is_unneeded` decides which uploaded files go; without it, the age of their newest message by `retention_ms`.
        `may_write` returns whether this process owns the broker's tier: if not, nothing is uploaded or deleted in it.
        """
        self._settings = settings or IndexSettings()
        check_shape(self._settings.slots, self._settings.capacity)
        self._access = access
        self._directory = os.path.join(root, INDEX_DIRECTORY)
        self._rows = rows
        self._queue = index_queue(cluster, broker)
        self._clock = clock or SystemClock()
        self._fetch_keys = fetch_keys
        self._stop_uploads_at: float | None = None
        self._is_abandoned = False
        self._is_held = False
        self._round = threading.Lock()
        self.look_again: Callable[[], object] | None = None
        """Brings the metadata's rows up to date while another process changes the tier, and calls `refresh`."""
        self._is_open = False
        self._may_write = may_write
        self._thread = _UpkeepThread(self)
        self._pool = QueryPool(self._settings.query_threads)
        slots, capacity = self._settings.slots, self._settings.capacity
        self._table = IndexTable(access, self._directory, slots, capacity, self._clock)
        uploader = IndexUploader(
            access, self._directory, driver, rows, self._queue, self._clock,
            should_stop=self._should_stop_upload, chunk_bytes=self._settings.upload_chunk_bytes,
        )  # fmt: skip
        self._upkeep = IndexUpkeep(
            self._table, uploader, access, self._directory, driver, rows, self._queue, self._clock,
            rebuild=rebuild, retention_ms=retention_ms, is_unneeded=is_unneeded,
            is_delete_enabled=is_delete_enabled, rules=self._settings.rules,
            only_reads=self._settings.only_reads,
        )  # fmt: skip

    # Life

    def start(
        self,
        tails: Iterable[QueueTail] = (),
        *,
        with_thread: bool = True,
        catch_up: bool = False,
        trust_foreign: bool = True,
    ) -> None:
        """Open the local files and continue where the last process ended. Sends no request.

        `tails` are the queues that have records in the tier; what of them is not indexed is read back later, by the
        upkeep, or now with `catch_up` (after a restore, which reads the tier anyway). Raises StoreDamaged, DiskFull,
        and with `catch_up` what the tier raises. `trust_foreign=False`: index files that RocketMQ uploaded do not
        count, because its topic ids are lost; everything is indexed again.
        """
        tails = tuple(tails)
        segments = live_segments(self._rows, self._queue)
        uploaded = {segment.begin_ms for segment in segments}
        settings = self._settings
        found = recover_files(self._access, self._directory, uploaded, settings.slots, settings.capacity)
        if found.record is not None:
            coverage = found.record.coverage()
            self._table.next_base = found.record.next_base
        else:
            # RocketMQ's files were its index of what it committed. Without any, the tier knows what was indexed.
            coverage = Coverage(is_base_known=found.had_files)
            if found.had_files:
                coverage.take_as_indexed(tails)
        if coverage.is_base_known:
            coverage.expect(tails)
        self._upkeep.tails = tails
        self._upkeep.trusts_foreign = trust_foreign
        self._table.load(coverage, found.files, found.sealed_records)
        self._upkeep.load_uploaded()
        self._is_open = True
        self._upkeep.sync()
        if catch_up:
            self._upkeep.settle_base()
            while self._upkeep.fill_holes():
                continue
            self._upkeep.sync()
        if with_thread:
            self._thread.start()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, upload_open: bool = False) -> bool:
        """Stop within `timeout_s`, also if the tier hangs; True when nothing is left to upload.

        What was put is durable on return. Sealed files that were not uploaded stay local and continue at the next
        start, as does the open file, unless `upload_open` seals it as RocketMQ does.
        """
        if not self._is_open:
            return True
        self._is_open = False
        self._table.refuse_puts()
        if upload_open:
            self._table.seal_current()
        self._stop_uploads_at = self._clock.monotonic() + timeout_s
        try:
            self._upkeep.sync()
            if self._thread.running:
                self._is_abandoned = not self._thread.stop_within(timeout_s)
            else:
                self._upload_all()
            if not self._is_abandoned:
                self._upkeep.sync()
            return self._table.first(IndexState.SEALED) is None
        finally:
            self._upkeep.end()
            self._pool.close()

    def _should_stop_upload(self) -> bool:
        """Between the steps of an upload: the store closes and its time is over, or the tier is to be lent."""
        if self._is_abandoned or self._is_held:
            return True
        return self._stop_uploads_at is not None and self._clock.monotonic() >= self._stop_uploads_at

    # Putting

    def put(
        self,
        topic: str,
        topic_id: int,
        queue_id: int,
        keys: Sequence[str],
        tier_offset: int,
        size: int,
        store_ms: int,
    ) -> PutOutcome:
        """Index one committed record, all of its keys or none. Raises DiskFull, and can then be tried again.

        Report records without keys too (they cost nothing): it is how the index knows that it has seen everything.
        """
        return self.put_request(IndexRequest(topic, topic_id, queue_id, keys, tier_offset, size, store_ms))

    def put_request(self, request: IndexRequest) -> PutOutcome:
        """The same, of a value."""
        outcome = self._table.put(request) if self._is_open else PutOutcome.SHUTDOWN
        if outcome is PutOutcome.ILLEGAL_REQUEST:
            log.warning("a record that no index file can take: %r", request)
        return outcome

    def put_batch(self, batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> PutOutcome:
        """The same for all records of a batch, in order, and faster: SUCCESS or SHUTDOWN. Raises DiskFull."""
        return self._table.put_batch(batch, topic, topic_id, queue_id) if self._is_open else PutOutcome.SHUTDOWN

    def sync(self) -> None:
        """Make everything put so far durable."""
        self._upkeep.sync()

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """The queue was destroyed, and its offsets begin at 0 if it comes back. Call before it does."""
        self._table.forget(topic, queue_id)

    # Asking

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, topic_id: int | None = None
    ) -> QueryAnswer:
        """Messages of a topic that have a key and were stored in [begin_ms, end_ms], newest first.

        Failures of the tier are in the answer, with what was found all the same. Raises StoreClosed.
        """
        if not self._is_open:
            raise StoreClosed("expected an open index, found it closed; start the store first")
        question = Question(topic, key, max_count, begin_ms, end_ms, topic_id)
        return search_again(
            lambda: IndexSearch(question, self._fetch_keys, self._pool).run(self._table.entries()), self.look_again
        )

    def states(self) -> list[tuple[int, IndexState]]:
        """The files, oldest first: begin time and state."""
        return [(entry.begin_ms, entry.state) for entry in self._table.entries()]

    @property
    def counts(self) -> UpkeepCounts:
        return self._upkeep.counts

    @property
    def hole_count(self) -> int:
        """How many ranges of records wait to be read back."""
        return self._table.hole_count()

    @property
    def is_complete(self) -> bool:
        """Whether it has caught up, and nothing of its content is RocketMQ's, which drops keys now and then."""
        return self._table.is_complete()

    def is_complete_for(self, topic: str) -> bool:
        """The same of one topic: whether a key that is not found has no message."""
        return self._table.is_complete(topic)

    def reindex(self) -> int:
        """Index again what RocketMQ had indexed; returns the number of queues. Raises what the tier raises.

        The upkeep reads all records of those queues back; then `is_complete` is true.
        """
        if not self._is_open:
            raise StoreClosed("expected an open index, found it closed; start the store first")
        self._upkeep.settle_base()
        count = self._table.reindex()
        self._thread.wake()
        return count

    # Upkeep

    def seal(self) -> bool:
        """End the open file now, so that the upkeep uploads it; False without an open file."""
        return self._table.seal_current()

    def hold(self, timeout_s: float) -> bool:
        """Upload and delete nothing until `go_on`; False when the step that runs takes longer than that."""
        self._is_held = True
        if not self._round.acquire(timeout=timeout_s):
            return False
        try:
            self._upkeep.sync()
        finally:
            self._round.release()
        return True

    def go_on(self) -> None:
        """Continue the upkeep after `hold`."""
        self._is_held = False
        self._thread.wake()

    def refresh(self, tails: Iterable[QueueTail] = ()) -> None:
        """Query the uploaded files that the metadata have now: another process has changed them. An index that only
        reads then looks for what they lack of `tails`, which is committed.
        """
        self._upkeep.take_uploaded()
        if self._settings.only_reads:
            with self._round:
                is_more = self._upkeep.follow(tuple(tails))
            if is_more:
                self._thread.wake()

    def learn_coverage(self, tails: Iterable[QueueTail]) -> None:
        """What another process has indexed need not be indexed here; `tails`: what is committed. Raises TierError."""
        with self._round:
            self._upkeep.learn_coverage(tuple(tails))

    def run_once(self) -> float:
        """One round of upkeep. Every step runs, also after another failed; returns how long to rest."""
        with self._round:
            return UPKEEP_INTERVAL_S if self._is_held else self._run_round()

    def _run_round(self) -> float:
        self._attempt(self._upkeep.settle_base)
        has_more = self._attempt(self._upkeep.fill_holes)
        self._attempt(self._upkeep.roll_old)
        self._attempt(self._upkeep.sync)
        uploaded = False
        if self._may_write():
            self._attempt(self._upkeep.expire)
            uploaded = self._attempt(self._upkeep.upload_next)
        self._attempt(self._upkeep.sync)
        return 0.0 if has_more or uploaded else UPKEEP_INTERVAL_S

    def expire(self) -> int:
        """Remove expired files now. Raises what the tier raises."""
        return self._upkeep.expire()

    def _upload_all(self) -> None:
        """Upload until nothing is left, the time is over, or the tier refuses."""
        self._attempt(self._upkeep.settle_base)
        while self._may_write() and not self._should_stop_upload() and self._attempt(self._upkeep.upload_next):
            continue

    def _attempt(self, step: Callable[[], object]) -> bool:
        """Run a step; its result, or False when it failed."""
        try:
            return bool(step())
        except UploadStopped:
            return False
        except (TierMQError, OSError) as error:
            self._upkeep.counts.failures += 1
            log.warning("index upkeep: %s failed and is tried again: %s", getattr(step, "__name__", step), error)
            return False


class _UpkeepThread(Service):
    """Runs the upkeep every ten seconds, and at the end what uploads the time allows."""

    def __init__(self, store: IndexStore) -> None:
        super().__init__("tier-index")
        self._store = store

    def run_once(self) -> float:
        return self._store.run_once()

    def finish(self) -> None:
        self._store._upload_all()

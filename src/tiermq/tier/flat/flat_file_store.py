"""FlatFileStore: every queue that is in the tier, by key.

Opening it reads the metadata and sends no request to the tier, so a back end that is down does not prevent a start;
each queue is compared with the tier before its first write (`recover`), or by `recover_all`. Threads: any thread may
find or create; the maps are changed under `_lock`, and a queue is opened under its `name_lock`.

With `opens_all=False` queues are opened when they are created or found by name, and their owner lets go of those that
it does not need (`release`): a job's driver has 100,000 of them, and works on a few at a time.

`rebuild_from` reads committed records back for an index that missed them: the records of the consume queue's units,
from the entry of the sparse time index that precedes the wanted log offset.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptSegment, TierError
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.index.index_coverage import QueueTail
from tiermq.tier.index.index_request import IndexRequest, index_requests
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import INDEX_TOPIC, QueueKey, QueueName
from tiermq.tier.queue.records import RecordBatch
from tiermq.tier.queue.units import log_range, runs_of_records, unit_at

_log = logging.getLogger(__name__)


class FlatFileStore:
    """See the module."""

    def __init__(
        self,
        driver: TierDriver,
        metadata: MetadataStore,
        cluster: str,
        broker: str,
        clock: Clock,
        *,
        log_segment_bytes: int = 1_073_741_824,
        queue_segment_bytes: int = 104_857_600,
        opens_all: bool = True,
    ) -> None:
        self.driver = driver
        self.metadata = metadata
        self.cluster = cluster
        self.broker = broker
        self.clock = clock
        self._log_segment_bytes = log_segment_bytes
        self._queue_segment_bytes = queue_segment_bytes
        self._lock = threading.Lock()
        self._name_locks: dict[QueueName, threading.Lock] = {}
        self._files: dict[QueueName, FlatMessageFile] = {}
        self._of_topic: dict[str, tuple[FlatMessageFile, ...]] = {}
        self.damaged: dict[QueueName, CorruptSegment] = {}
        for topic, queue_id in self.names() if opens_all else ():
            try:
                self._keep(self._open(QueueKey(cluster, broker, topic, queue_id)))
            except CorruptSegment as error:
                self._note_damage((topic, queue_id), error)

    def names(self) -> list[QueueName]:
        """The queues of the metadata."""
        keys = [queue.key for queue in self.metadata.queues()]
        return [
            key.name
            for key in keys
            if key.cluster == self.cluster and key.broker == self.broker and key.topic != INDEX_TOPIC
        ]

    def find_usable(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        """As `find_or_create`; None for a queue that is `damaged`: other queues stay usable."""
        try:
            return self.find_or_create(topic, queue_id)
        except CorruptSegment as error:
            self._note_damage((topic, queue_id), error)
            return None

    def _note_damage(self, name: QueueName, error: CorruptSegment) -> None:
        self.damaged[name] = error
        _log.error("queue %s-%d of the tier cannot be used: %s", *name, error)

    def _open(self, key: QueueKey) -> FlatMessageFile:
        return FlatMessageFile(
            self.driver,
            self.metadata,
            key,
            self.clock,
            log_segment_bytes=self._log_segment_bytes,
            queue_segment_bytes=self._queue_segment_bytes,
        )

    def find(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        return self._files.get((topic, queue_id))

    def find_or_create(self, topic: str, queue_id: int) -> FlatMessageFile:
        """The queue's file; a new one gets its rows; sends no request. Raises CorruptSegment."""
        found = self.find(topic, queue_id)
        if found is not None:
            return found
        with self.name_lock(topic, queue_id):
            found = self.find(topic, queue_id)
            if found is None:
                found = self._open(QueueKey(self.cluster, self.broker, topic, queue_id))
                with self._lock:
                    self._keep(found)
        return found

    def _keep(self, file: FlatMessageFile) -> None:
        topic = file.queue.topic
        self._files[(topic, file.queue.queue_id)] = file
        self._of_topic[topic] = (*self._of_topic.get(topic, ()), file)

    def release(self, file: FlatMessageFile) -> None:
        """Let go of a queue that no thread uses; it is opened again, from the metadata, when it is found by name."""
        topic, queue_id = file.queue.name
        with self._lock:
            del self._files[topic, queue_id]
            self._name_locks.pop((topic, queue_id), None)
            others = tuple(each for each in self._of_topic.pop(topic, ()) if each is not file)
            if others:
                self._of_topic[topic] = others

    def of_topic(self, topic: str) -> tuple[FlatMessageFile, ...]:
        """The topic's queues, at the cost of a look-up however many others there are."""
        return self._of_topic.get(topic, ())

    def name_lock(self, topic: str, queue_id: int) -> threading.Lock:
        """The lock of a queue that has no file to lock: while it is held, no thread opens one of that name."""
        with self._lock:
            return self._name_locks.setdefault((topic, queue_id), threading.Lock())

    def __iter__(self) -> Iterator[FlatMessageFile]:
        return iter(list(self._files.values()))

    def __len__(self) -> int:
        return len(self._files)

    def recover_all(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> list[FlatMessageFile]:
        """Recover every queue that is not; those that could not be, for each of which the reason is logged."""
        left = []
        files = list(self)
        for number, file in enumerate(files, 1):
            try:
                file.recover()
            except TierError as error:
                _log.warning("queue %s of the tier is not recovered yet: %s", file.queue.logical_path, error)
                left.append(file)
            progress(number, len(files))
        return left

    def destroy(self, topic: str, queue_id: int) -> bool:
        """Delete a queue from the tier; False when there is none. Raises TierError; another call continues."""
        file = self.find(topic, queue_id)
        if file is None:
            return False
        file.destroy()
        with self._lock:
            self._files.pop((topic, queue_id), None)
            self._of_topic[topic] = tuple(each for each in self.of_topic(topic) if each is not file)
        return True

    def close(self, timeout_s: float = -1) -> bool:
        """Let commits under way end, and take nothing more; False when one outlasted `timeout_s`."""
        ended = [file.close(timeout_s) for file in self]
        return all(ended)


UNITS_PER_READ = 4_096


def rebuild_from(files: FlatFileStore) -> Callable[[QueueKey, int], Iterator[IndexRequest]]:
    """The `rebuild` of an IndexStore over these queues; nothing for a queue that does not exist.

    A queue that cannot be opened is an error: it may have records to index.
    """

    def rebuild(queue: QueueKey, from_offset: int) -> Iterator[IndexRequest]:
        damage = files.damaged.get(queue.name)
        if damage is not None:
            raise damage
        file = files.find(*queue.name)
        return iter(()) if file is None else committed_requests(file, from_offset)

    return rebuild


def queue_tails(files: FlatFileStore) -> list[QueueTail]:
    """The committed end of each queue, for `IndexStore.start`. Sends no request."""
    return [
        QueueTail(file.queue.topic, file.topic.id, file.queue.queue_id, file.log.commit_offset)
        for file in files
        if file.initialised
    ]


def committed_requests(file: FlatMessageFile, from_offset: int) -> Iterator[IndexRequest]:
    """An index request for each committed record from tier offset `from_offset` on, in order. Raises TierError."""
    offset = max(_queue_offset_before(file, from_offset), file.min_offset)
    while offset < file.commit_offset:
        units = file.units.read_units(offset, UNITS_PER_READ)
        for first, run in runs_of_records(units, offset):
            yield from _requests_of_run(file, first, run, from_offset)
        offset += len(units) // UNIT_BYTES


def _queue_offset_before(file: FlatMessageFile, log_offset: int) -> int:
    entries = file.time_entries()
    at = bisect_right(entries, log_offset, key=lambda entry: entry.log_offset)
    return entries[at - 1].queue_offset if at else 0


def _requests_of_run(file: FlatMessageFile, first: int, run: memoryview, from_offset: int) -> Iterator[IndexRequest]:
    if unit_at(run, -1).log_offset < from_offset:
        return
    start, end = log_range(run)
    batch = RecordBatch.of_bytes(file.log.read(start, end - start), run, first)
    for request in index_requests(batch, file.queue.topic, file.topic.id, file.queue.queue_id):
        if request.tier_offset >= from_offset:
            yield request

"""The queues of the tier: which messages are there, which are missing for good, and when some of them were stored.

RocketMQ's metadata has minimum and maximum offsets too, but nobody ever changes them. Here the segments' rows and the
offsets change in the same transaction (`refresh_offsets`), so that both are always right.
"""

# ruff: noqa: S608 (statements are joined from constants of this module; values are always bound)

from __future__ import annotations

from collections.abc import Iterable

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.metadata.database import Database, Row
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, Gap, Queue, SegmentStatus, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType

_SELECT = "SELECT cluster, broker, topic, queue_id, min_offset, max_offset, epoch, updated_ms FROM queue"
_IN_ORDER = " ORDER BY topic, queue_id, broker, cluster"
_THIS_QUEUE = " WHERE topic = ? AND queue_id = ? AND broker = ? AND cluster = ?"

# The consume queue says which offsets there are. A message whose record has expired is gone although its unit is
# there, so the first commit-log segment has a say in the minimum. A queue without units keeps its maximum: it is
# where the next message goes.
_REFRESH_OFFSETS = f"""
    UPDATE queue SET
        max_offset = coalesce(
            (SELECT (s.base + s.size) / {UNIT_BYTES} FROM segment AS s
             WHERE s.topic = queue.topic AND s.queue_id = queue.queue_id AND s.broker = queue.broker
               AND s.cluster = queue.cluster AND s.type = {SegmentType.CONSUME_QUEUE:d}
               AND s.status <> {SegmentStatus.DELETED:d}
             ORDER BY s.base DESC LIMIT 1),
            max_offset),
        min_offset = coalesce(
            max((SELECT s.base / {UNIT_BYTES} FROM segment AS s
                 WHERE s.topic = queue.topic AND s.queue_id = queue.queue_id AND s.broker = queue.broker
                   AND s.cluster = queue.cluster AND s.type = {SegmentType.CONSUME_QUEUE:d}
                   AND s.status <> {SegmentStatus.DELETED:d}
                 ORDER BY s.base LIMIT 1),
                coalesce(
                    (SELECT s.begin_offset FROM segment AS s
                     WHERE s.topic = queue.topic AND s.queue_id = queue.queue_id AND s.broker = queue.broker
                       AND s.cluster = queue.cluster AND s.type = {SegmentType.COMMIT_LOG:d}
                       AND s.status <> {SegmentStatus.DELETED:d}
                     ORDER BY s.base LIMIT 1),
                    {UNKNOWN_OFFSET})),
            max_offset),
        updated_ms = ?
    WHERE topic = ? AND queue_id = ? AND broker = ? AND cluster = ?"""


def queue_values(key: QueueKey) -> tuple[str, int, str, str]:
    """The key in the order of the tables' primary keys."""
    return key.topic, key.queue_id, key.broker, key.cluster


class QueueRows:
    """Queues, gaps and time entries in the database. Part of MetadataStore."""

    _database: Database
    _clock: Clock

    def add_queue(self, key: QueueKey, offset: int = UNKNOWN_OFFSET) -> Queue:
        """The queue of that key; a new one begins and ends at `offset`. An existing queue is returned as it is."""
        with self._database.transaction():
            known = self.queue(key)
            if known is not None:
                return known
            queue = Queue(key, offset, offset, 0, self._clock.now_ms())
            self.put_queue(queue)
            return queue

    def put_queue(self, queue: Queue) -> None:
        """Store the queue exactly as given. For import and restore."""
        self._database.write(
            "INSERT OR REPLACE INTO queue (topic, queue_id, broker, cluster, min_offset, max_offset, epoch, "
            "updated_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*queue_values(queue.key), queue.min_offset, queue.max_offset, queue.epoch, queue.updated_ms),
        )

    def queue(self, key: QueueKey) -> Queue | None:
        """The queue of that key, or None."""
        row = self._database.read_one(_SELECT + _THIS_QUEUE, queue_values(key))
        return None if row is None else _queue(row)

    def queues(self, topic: str | None = None) -> list[Queue]:
        """All queues, or a topic's, by topic and queue id."""
        if topic is None:
            return [_queue(row) for row in self._database.read(_SELECT + _IN_ORDER)]
        return [_queue(row) for row in self._database.read(_SELECT + " WHERE topic = ?" + _IN_ORDER, (topic,))]

    def update_queue(
        self,
        key: QueueKey,
        *,
        min_offset: int | None = None,
        max_offset: int | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Change what is given. False, and nothing changed, when there is no such queue."""
        changed = self._database.write(
            "UPDATE queue SET min_offset = coalesce(?, min_offset), max_offset = coalesce(?, max_offset), "
            "epoch = coalesce(?, epoch), updated_ms = ?" + _THIS_QUEUE,
            (min_offset, max_offset, epoch, self._clock.now_ms(), *queue_values(key)),
        )
        return changed > 0

    def refresh_offsets(self, key: QueueKey) -> None:
        """Derive minimum and maximum offset from the segments that are there. One statement, a few look-ups by key."""
        self._database.write(_REFRESH_OFFSETS, (self._clock.now_ms(), *queue_values(key)))

    def delete_queue(self, key: QueueKey) -> None:
        """Forget the queue, its gaps and its time entries. Its segments keep their rows until they are deleted."""
        with self._database.transaction():
            for table in ("DELETE FROM queue", "DELETE FROM gap", "DELETE FROM time_entry"):
                self._database.write(table + _THIS_QUEUE, queue_values(key))

    def add_gap(self, key: QueueKey, gap: Gap) -> None:
        """Record that messages are missing for good. Of two gaps from the same offset the longer is kept."""
        self._database.write(
            "INSERT INTO gap (topic, queue_id, broker, cluster, from_offset, to_offset, reason, at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET to_offset = excluded.to_offset, "
            "reason = excluded.reason, at_ms = excluded.at_ms WHERE excluded.to_offset > to_offset",
            (*queue_values(key), gap.from_offset, gap.to_offset, gap.reason, gap.at_ms),
        )

    def gaps(self, key: QueueKey) -> list[Gap]:
        """The queue's gaps in the order of offsets."""
        statement = "SELECT from_offset, to_offset, reason, at_ms FROM gap" + _THIS_QUEUE + " ORDER BY from_offset"
        return [Gap(*row) for row in self._database.read(statement, queue_values(key))]

    def add_time_entries(self, key: QueueKey, entries: Iterable[TimeEntry]) -> None:
        """Add to the sparse time index. An entry for the same queue offset is replaced."""
        rows = [(*queue_values(key), entry.queue_offset, entry.store_ms, entry.log_offset) for entry in entries]
        self._database.write_many(
            "INSERT OR REPLACE INTO time_entry (topic, queue_id, broker, cluster, queue_offset, store_ms, log_offset) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def time_entries(self, key: QueueKey) -> list[TimeEntry]:
        """The queue's sparse time index in the order of offsets."""
        statement = "SELECT queue_offset, store_ms, log_offset FROM time_entry" + _THIS_QUEUE + " ORDER BY queue_offset"
        return [TimeEntry(*row) for row in self._database.read(statement, queue_values(key))]

    def last_time_entry(self, key: QueueKey) -> TimeEntry | None:
        """The newest entry of the sparse time index."""
        statement = "SELECT queue_offset, store_ms, log_offset FROM time_entry" + _THIS_QUEUE
        row = self._database.read_one(statement + " ORDER BY queue_offset DESC LIMIT 1", queue_values(key))
        return None if row is None else TimeEntry(*row)

    def trim_time_entries(self, key: QueueKey, min_offset: int) -> int:
        """Drop the entries of messages before `min_offset`, after an expiry. Returns how many went."""
        return self._database.write(
            "DELETE FROM time_entry" + _THIS_QUEUE + " AND queue_offset < ?", (*queue_values(key), min_offset)
        )


def _queue(row: Row) -> Queue:
    cluster, broker, topic, queue_id, min_offset, max_offset, epoch, updated_ms = row
    return Queue(QueueKey(cluster, broker, topic, queue_id), min_offset, max_offset, epoch, updated_ms)

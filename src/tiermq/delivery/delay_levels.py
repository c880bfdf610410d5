"""DelayLevels: delivers the messages that wait in SCHEDULE_TOPIC_XXXX, one queue per level, when their time has come.

    queue n - 1 of the schedule topic: [delivered … │ next due … … newest]      all wait equally long, so they are due
                                                    └ delayOffset.json            in the order in which they were stored

A message is due when its level's delay has passed since it was stored; one that claims to be stored in the future (the
clock was set back) is due now. It is put to REAL_TOPIC and REAL_QID with all its properties, as RocketMQ stores it.

Invariants: each message is delivered at least once, in the order of its level, also over restarts and power cuts: an
offset is written to disk only when what was delivered below it is. A put that fails for a while (full disk) is tried
again and holds its level back; a message that can never be delivered (unreadable, without a topic, too large) is
skipped, logged and counted. After a stop everything that became due meanwhile is delivered at once.
Threads: `run_once` is the service's own; `waiting` may be called by any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from tiermq.clock import Clock
from tiermq.config import StoreConfig
from tiermq.delivery.redeliver import (
    NEVER,
    STORED,
    Escape,
    QueueFor,
    SkippedRecords,
    as_named,
    redirected,
    undeliverable,
)
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import GetPage, Message
from tiermq.message.properties import REAL_QID, REAL_TOPIC
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import SCHEDULE_TOPIC
from tiermq.service import SHORT_TURNS, Service
from tiermq.status import PutStatus
from tiermq.store.delay_offsets import FILE, decode_delay_offsets, decode_delays_ms, encode_delay_offsets
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

LEVELS_REST_S = 0.1
LEVEL_PAGE = 256
PAGES_MAX = 8
"""Pages of one level before the next level."""


class DelayLevels(Service):
    """See the module."""

    def __init__(
        self,
        store: LocalStore,
        directory: str,
        clock: Clock,
        flush_interval_ms: int = 10_000,
        access: FileAccess | None = None,
        queue_for: QueueFor = as_named,
        escape: Escape | None = None,
    ) -> None:
        """`directory` holds delayOffset.json; `escape` is of a slave that acts for its master. Raises StoreDamaged when
        the file cannot be read.
        """
        super().__init__("delay-levels")
        self.path = os.path.join(directory, FILE)
        self.delays_ms = store.config.delay_levels_ms
        self.delivered_count = 0
        self._skipped = SkippedRecords("delayed messages", clock)
        self._queue_for = queue_for
        self._escape = escape
        self._store = store
        self._clock = clock
        self._access = access or OsFileAccess()
        self._flush_interval_ms = flush_interval_ms
        self._counter = 0
        self._offsets: dict[int, int] = {}
        self._next_due_ms: dict[int, int] = {}
        self._changed = False
        self._flushed_ms = clock.now_ms()
        found = self._access.read_config(self.path, decode_delay_offsets)
        if found is not None:
            self._offsets, self._counter = found
        written_ms = self._access.read_config(self.path, decode_delays_ms) or StoreConfig().delay_levels_ms
        self._changed = written_ms != self.delays_ms

    def waiting(self) -> dict[int, tuple[int, int]]:
        """Level → (offset of the next message to deliver, end of its queue), of levels that ever had one."""
        found = {}
        for level in range(1, len(self.delays_ms) + 1):
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end > 0 or level in self._offsets:
                found[level] = (self._offsets.get(level, 0), end)
        return found

    def delivered(self) -> dict[int, int]:
        """Level → offset of the next message to deliver: what is before it is in the log. Any thread may call."""
        return self._offsets.copy()

    @property
    def waiting_count(self) -> int:
        """How many messages wait for their time."""
        return sum(max(0, end - offset) for offset, end in self.waiting().values())

    @property
    def skipped_count(self) -> int:
        """Messages that can never be delivered."""
        return self._skipped.count

    def take_greater(self, offsets: Mapping[int, int]) -> None:
        """Before the start: what a slave that acted for this broker has delivered is not delivered again."""
        for level, offset in offsets.items():
            if offset > self._offsets.get(level, 0):
                self._advance(level, offset)

    # Rounds.

    def run_once(self) -> float:
        """Deliver what is due; returns the time until the next."""
        more = False
        with SHORT_TURNS:
            for level in range(1, len(self.delays_ms) + 1):
                if self._next_due_ms.get(level, 0) <= self._clock.now_ms():
                    more = self._deliver_level(level) or more
        now_ms = self._clock.now_ms()
        if self._changed and now_ms - self._flushed_ms >= self._flush_interval_ms:
            self.flush()
        if more:
            return 0.0
        next_ms = min(self._next_due_ms.values(), default=now_ms + 1000)
        return min(LEVELS_REST_S, max(0.001, (next_ms - now_ms) / 1000))

    def finish(self) -> None:
        if self._changed:
            self.flush()

    def flush(self) -> None:
        """Write the delivered offset of each level, after its deliveries are durable. Raises OSError, StoreError."""
        offsets = dict(self._offsets)
        self._changed = False
        try:
            self._store.flush()
            self._counter += 1
            self._access.make_directories(os.path.dirname(self.path))
            text = encode_delay_offsets(offsets, self._counter, self._clock.now_ms(), self.delays_ms)
            self._access.write_config(self.path, text)
        except BaseException:
            self._changed = True
            raise
        self._flushed_ms = self._clock.now_ms()

    def _deliver_level(self, level: int) -> bool:
        """Deliver what is due of one level; whether there is more that was left for the next round."""
        self._next_due_ms.pop(level, None)
        for _ in range(PAGES_MAX):
            if self.stopping:
                return False
            offset = self._offset(level)
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if offset >= end:
                return False  # No get: the store's statistics would count it as one that found nothing.
            if self._deliver_plain(level, offset, min(end, offset + LEVEL_PAGE)):
                if level in self._next_due_ms:
                    return False
                continue
            page = self._store.get(SCHEDULE_TOPIC, level - 1, offset, LEVEL_PAGE)
            if page.count == 0:
                if page.next_offset <= offset or page.next_offset > page.max_offset:
                    return False
                self._advance(level, page.next_offset)  # Deleted messages, or offsets without one.
                continue
            if not self._deliver_page(level, offset, page):
                return False
        return True

    def _deliver_plain(self, level: int, offset: int, end: int) -> bool:
        """Deliver messages as most are, up to the first that is not due or must be looked at; whether that is any
        progress. Those behind it are not delivered before it.
        """
        store, delay_ms, now_ms = self._store, self.delays_ms[level - 1], self._clock.now_ms()
        begin = offset
        for queue_offset, physical_offset, size in store.units_between(SCHEDULE_TOPIC, level - 1, offset, end):
            record = store.deferred_at(SCHEDULE_TOPIC, physical_offset, size) if queue_offset == offset else None
            if record is None or undeliverable(topic := record.real_topic, "0") is not None:
                break
            due_ms = record.store_timestamp_ms + delay_ms
            if now_ms < due_ms <= now_ms + delay_ms:  # One from the future is due now: the clock was set back.
                self._next_due_ms[level] = due_ms
                return True
            message = record.message(topic, self._queue_for(topic, record.real_queue), b"", record.sys_flag)
            if not self._was_put(level, offset, self._put(message)):
                self._next_due_ms[level] = self._clock.now_ms() + int(LEVELS_REST_S * 1000)
                return True
            offset += 1
            self._advance(level, offset)
        return offset > begin

    def _offset(self, level: int) -> int:
        """The next offset: the stored one, if the queue has it; else the nearest end of the queue."""
        low = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
        high = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
        known = self._offsets.get(level, 0)
        offset = max(low, min(known, high))
        if offset != known:
            if level in self._offsets:
                _log.warning("delay level %d: offset %d is not in [%d, %d], going on there", level, known, low, high)
            self._advance(level, offset)
        return offset

    def _advance(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._changed = True

    def _deliver_page(self, level: int, offset: int, page: GetPage) -> bool:
        """Deliver one page's messages in order; False when one must wait."""
        readable = self._readable(level, offset, page)
        if readable is None:
            return True
        now_ms, delay_ms = self._clock.now_ms(), self.delays_ms[level - 1]
        # Put one by one, not as a list: one that cannot be put keeps back those behind it.
        for message in readable.messages:
            due_ms = message.store_timestamp_ms + delay_ms
            if now_ms < due_ms <= now_ms + delay_ms:  # One from the future is due now: the clock was set back.
                self._next_due_ms[level] = due_ms
                return False
            if not self._deliver(level, message):
                self._next_due_ms[level] = self._clock.now_ms() + int(LEVELS_REST_S * 1000)
                return False
            self._advance(level, message.queue_offset + 1)
        self._advance(level, max(readable.next_offset, self._offsets.get(level, 0)))
        return True

    def _readable(self, level: int, offset: int, page: GetPage) -> GetPage | None:
        """The page, or its first message alone if others are damaged; None if that was damaged, and was skipped."""
        try:
            _ = page.messages
        except CorruptRecord as error:
            first = self._store.get(SCHEDULE_TOPIC, level - 1, offset, 1)
            try:
                _ = first.messages
            except CorruptRecord:
                self._skip(level, offset, f"unreadable: {error}")
                self._advance(level, first.next_offset)
                return None
            return first
        return page

    def _deliver(self, level: int, message: StoredMessage) -> bool:
        """Put one message to its topic. False: it could not be put now."""
        try:
            topic, queue_id = message.get_property(REAL_TOPIC), message.get_property(REAL_QID) or "0"
            again = redirected(message, topic, queue_id, queue_for=self._queue_for)
            status = self._put(again)
        except (CorruptRecord, IllegalMessage) as error:
            self._skip(level, message.queue_offset, str(error))
            return True
        return self._was_put(level, message.queue_offset, status)

    def _put(self, message: Message) -> PutStatus:
        return self._store.append(message).status if self._escape is None else self._escape([message])[0]

    def _was_put(self, level: int, offset: int, status: PutStatus) -> bool:
        """Whether a message is done: stored, or never to be stored. False: it could not be put now."""
        if status in STORED:
            self.delivered_count += 1
            return True
        if status in NEVER:
            self._skip(level, offset, f"the store refuses it: {status.name}")
            return True
        if self._escape is None:  # Which logs itself why messages wait.
            _log.warning("delay level %d: offset %d waits: %s", level, offset, status.name)
        return False

    def _skip(self, level: int, offset: int, reason: str) -> None:
        self._skipped.add(f"level {level}, offset {offset}", reason)

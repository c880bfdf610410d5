"""PopLog: check points and acknowledgements as records of the revive topic, so that they outlive the process.

    rmq_sys_REVIVE_LOG_<cluster>, queue q:   ck  ack  ck  ck  ack  ack  …
                                              └ the last one that is done: the offset of CID_RMQ_SYS_REVIVE_GROUP

The records are RocketMQ's (JSON, tags `ck` and `ack`), and so are the topic, the group and the meaning of its offset.
What differs: RocketMQ delivers a record to the topic by a timer when it is due, and joins records there; here a record
is appended at once, the table is in memory, and the topic is read only when the broker starts. A RocketMQ broker that
takes over the directory can read the records: `TIMER_DELIVER_MS` is when each was appended, so RocketMQ revives what is
due by its own clock.

Conversely, records of RocketMQ are in the timer wheel and reach the topic while this broker runs. Their
offsets are those that this log did not append (`take_delivered`); RocketMQ gives each a unique key, and this log gives
none. An acknowledgement that comes before its check point is kept until then (`_early`): only of messages that exist,
for at most the longest invisible time, and of at most `EARLY_ACKS_MAX` check points of a group.

Invariants: a check point is in the log before its messages are delivered, and before the offset of the group passes
them; the group's offset is written to disk only after the log (`ConsumerOffsets.before_write`). So a crash of the
process or of the machine leaves each popped message either acknowledged, or in a check point, or not popped. Pops that
are newer than the offsets' file move the offsets again when the log is read: acknowledged messages are not repeated.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.consumer_offsets import SEPARATOR, ConsumerOffsets, Offsets
from tiermq.broker.pop.pop_checkpoints import CheckPoint, CheckPoints, Lease, PoppedMessage, popped_in
from tiermq.broker.pop.pop_waiting import INVISIBLE_MS_MAX
from tiermq.delivery.redeliver import SkippedRecords
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.kernel import GetPage, Message
from tiermq.message.properties import TAGS, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import REVIVE_GROUP, REVIVE_PREFIX
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object, int64_in
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

EARLY_ACKS_MAX = 10_000
"""Check points of one group that were acknowledged before a timer delivered them."""

TAG_CHECK_POINT = "ck"
TAG_ACK = "ack"
TAG_ACKS = "bAck"
AGAIN = "again"
"""TierMQ's own field, ignored by RocketMQ: this check point is no pop, but stands for messages of another
one, which has this start offset and pop time. They are acknowledged there next; a kill between the two changes nothing.
"""
EARLY = "early"
"""TierMQ's own field of an acknowledgement: until when its check point is awaited."""
POP_RECORD_BYTES_MAX = 65_536
"""Far above what 127 offsets take: larger records are skipped before they are parsed."""
FUTURE_MS_MAX = 24 * 3_600_000
"""How much later than it was stored a pop may claim to be: clocks are set back, but not by years."""
_DELIVER_MS = TIMER_DELIVER_MS.encode()
_STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT})


@dataclass(slots=True)
class _EarlyAck:
    """Messages that were acknowledged before a timer delivered their check point."""

    log_offset: int
    due_ms: int
    offsets: set[int] = field(default_factory=set)


class PopLog:
    """See the module. Any thread may call."""

    def __init__(
        self, local: LocalStore, offsets: ConsumerOffsets, config: BrokerConfig, now_ms: Callable[[], int]
    ) -> None:
        self.topic = f"{REVIVE_PREFIX}{config.broker_cluster_name}"
        self.queues = config.revive_queue_num
        self.points = CheckPoints(self.queues)
        self._local = local
        self._offsets = offsets
        self._broker = config.broker_name
        self._now_ms = now_ms
        self.skipped = SkippedRecords(self.topic, offsets.clock)
        self._turn = itertools.count()
        # Under the lock of a queue: its appends, its end, records delivered by timers, early acknowledgements.
        self._locks = [threading.Lock() for _ in range(self.queues)]
        self._ends = [0] * self.queues
        self._brought: list[list[range]] = [[] for _ in range(self.queues)]
        self._early: list[dict[PoppedMessage, _EarlyAck]] = [{} for _ in range(self.queues)]
        self._early_lock = threading.Lock()
        self._early_counts: Counter[str] = Counter()
        self._early_max = config.pop_ck_max_buffer_size
        self._commit_lock = threading.Lock()
        self._tags = {tag: encode_properties({TAGS: tag}) for tag in (TAG_CHECK_POINT, TAG_ACK, TAG_ACKS)}
        self._was_used = False
        self._opened_ms = now_ms()
        self._offsets_written_ms = offsets.data_version.timestamp
        self._ends_written = offsets.log_ends

    def join_offsets(self) -> None:
        """Of a master: offsets are written after this log, with what is open in it."""
        self._offsets.before_write.append(self._flush)
        self._offsets.take_log_ends = self._take_ends
        self._offsets.take_open = self._take_open

    def _flush(self) -> None:
        if self._was_used:
            self._local.flush()

    def _take_ends(self) -> list[int]:
        """Where each queue ends: check points before that have moved their group's offset already."""
        found = []
        for queue in range(self.queues):
            with self._locks[queue]:
                found.append(self._ends[queue])
        return found

    def _take_open(self) -> Offsets:
        """By topic, group and queue the first message of a check point that is open."""
        found: Offsets = {}
        for point in self.points:
            group, topic, queue_id, start, _ = point.popped
            queues = found.setdefault(f"{topic}{SEPARATOR}{group}", {})
            queues[queue_id] = min(start, queues.get(queue_id, start))
        return found

    # Writing.

    def next_queue(self) -> int:
        """A revive queue for one pop: its answer can hold one."""
        return next(self._turn) % self.queues

    def begin(
        self,
        queue: int,
        popped: PoppedMessage,
        invisible_ms: int,
        offsets: tuple[int, ...],
        *,
        group_offset: int | None = None,
        instead_of: PoppedMessage | None = None,
    ) -> CheckPoint:
        """Make a check point and move the group's offset, or make one `instead_of` another, for messages of that one.

        Raises RequestRefused when the store does not take it: nothing may be delivered then.
        """
        point = CheckPoint(popped, invisible_ms, offsets, queue)
        value = point.to_json(self._broker)
        if instead_of is not None:
            value[AGAIN] = [instead_of.start_offset, instead_of.pop_ms]
        with self._locks[queue]:
            point.log_offset = self._append(queue, TAG_CHECK_POINT, value)
            self.points.add(point)
            if group_offset is not None:  # Under the lock, for `_take_ends`.
                self._offsets.commit(popped.group, popped.topic, popped.queue_id, group_offset)
        return point

    def extend(self, popped: PoppedMessage, invisible_ms: int, lease: Lease | None) -> bool:
        """Give the open messages of a check point another invisible time, counted from the pop: their receipts stay
        valid. It is a record of the same identity. False if none is open. Raises RequestRefused.
        """
        point = self.points.find(popped)
        if point is None:
            return False
        with self._locks[point.revive_queue]:
            if not point.open:
                return False
            made = CheckPoint(popped, invisible_ms, tuple(sorted(point.open)), point.revive_queue, lease=lease)
            made.log_offset = self._append(point.revive_queue, TAG_CHECK_POINT, made.to_json(self._broker))
            self.points.add(made)
        return True

    def acknowledge(self, popped: PoppedMessage, offsets: Collection[int]) -> bool:
        """Acknowledge messages of a check point. False unless all of them were open. Raises RequestRefused."""
        point = self.points.find(popped)
        if point is None:
            return False
        with self._locks[point.revive_queue]:
            closing = sorted(point.open.intersection(offsets))
            if closing:
                self._record_acks(point, closing)
                self.points.acknowledge(popped, closing)
        return len(closing) == len(offsets)

    def _record_acks(self, point: CheckPoint, offsets: list[int]) -> None:
        """The queue's lock is held. Raises RequestRefused."""
        self._append(point.revive_queue, *_ack(point.popped, offsets, self._broker))

    def is_awaited(self, queue: int, popped: PoppedMessage, due_ms: int) -> bool:
        """Whether a timer may still deliver a check point: it was made before this log was opened, and is not due."""
        return 0 <= queue < self.queues and popped.pop_ms < self._opened_ms and due_ms > self._now_ms()

    def check_early(self, queue: int, popped: PoppedMessage, offsets: Collection[int], due_ms: int) -> None:
        """Raises RequestRefused for messages that were not popped, and if too many check points are awaited."""
        end = self._local.max_offset(popped.topic, popped.queue_id)
        if not 0 <= popped.start_offset <= min(offsets) <= max(offsets) < end:
            raise RequestRefused(
                f"expected offsets of {popped.topic} queue {popped.queue_id} below {end} and from the pop's first "
                f"one, {popped.start_offset}, found {min(offsets)} to {max(offsets)}",
                ResponseCode.NO_MESSAGE,
            )
        if due_ms - popped.pop_ms > INVISIBLE_MS_MAX:
            raise RequestRefused(
                f"expected an invisible time of at most {INVISIBLE_MS_MAX} ms, found {due_ms - popped.pop_ms}",
                ResponseCode.INVALID_PARAMETER,
            )
        if popped in self._early[queue]:
            return
        found = self._early_counts[popped.group]
        if found >= EARLY_ACKS_MAX or sum(map(len, self._early)) >= self._early_max:
            raise RequestRefused(
                f"group {popped.group} has acknowledged {found} pops whose check points timers have not delivered "
                f"yet, of at most {EARLY_ACKS_MAX}; try again later",
                ResponseCode.SYSTEM_BUSY,
            )

    def was_early(self, queue: int, popped: PoppedMessage, offset: int) -> bool:
        """Whether a message of an awaited check point was acknowledged."""
        with self._locks[queue]:
            known = self._early[queue].get(popped)
            return known is not None and offset in known.offsets

    def acknowledge_early(self, queue: int, popped: PoppedMessage, offsets: Collection[int], due_ms: int) -> None:
        """Acknowledge messages of a check point that `is_awaited`. Raises RequestRefused."""
        with self._locks[queue]:
            self.check_early(queue, popped, offsets, due_ms)
            known = self._early[queue].get(popped)
            new = sorted(set(offsets).difference(known.offsets if known else ()))
            if not new:
                return
            tag, value = _ack(popped, new, self._broker)
            self._keep_early(queue, popped, new, self._append(queue, tag, {**value, EARLY: due_ms}), due_ms)

    def _keep_early(
        self, queue: int, popped: PoppedMessage, offsets: Collection[int], log_offset: int, due_ms: int
    ) -> None:
        known = self._early[queue].get(popped)
        if known is None:
            known = self._early[queue][popped] = _EarlyAck(log_offset, due_ms)
            with self._early_lock:
                self._early_counts[popped.group] += 1
        known.offsets.update(offsets)

    def _end_early(self, queue: int, popped: PoppedMessage) -> _EarlyAck | None:
        ended = self._early[queue].pop(popped, None)
        if ended is not None:
            with self._early_lock:
                self._early_counts[popped.group] -= 1
                if not self._early_counts[popped.group]:
                    del self._early_counts[popped.group]
        return ended

    def _append(self, queue: int, tag: str, value: dict[str, Any]) -> int:
        """The queue's lock is held."""
        self._was_used = True
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        properties = b"%b%b\x01%d\x02" % (self._tags[tag], _DELIVER_MS, self._now_ms())
        result = self._local.append(Message(self.topic, body, queue, encoded_properties=properties))
        if result.status not in _STORED:
            raise RequestRefused(
                f"the store refuses a record of the POP log: {result.status.name}", ResponseCode.SYSTEM_BUSY
            )
        self._found_end(queue, result.queue_offset)
        self._ends[queue] = result.queue_offset + 1
        return result.queue_offset

    def _found_end(self, queue: int, end: int) -> None:
        """Records between the known end and `end` were delivered by timers."""
        if end > self._ends[queue]:
            self._brought[queue].append(range(self._ends[queue], end))
            self._ends[queue] = end

    def commit(self) -> None:
        """Advance the revive group's offset over finished check points; the next flush of offsets stores it."""
        with self._commit_lock:  # Otherwise a thread with an older value could overwrite a newer one.
            for queue in range(self.queues):
                with self._locks[queue]:  # A check point whose record is in the log is among the points, too.
                    done = self._needed_from(queue) - 1
                if done > self._offsets.query(REVIVE_GROUP, self.topic, queue):
                    self._offsets.commit(REVIVE_GROUP, self.topic, queue, done)

    def _needed_from(self, queue: int) -> int:
        oldest = self.points.oldest_logged(queue)
        unread = (each.start for each in self._brought[queue])
        early = (each.log_offset for each in self._early[queue].values())
        return min(self._ends[queue] if oldest is None else oldest, *unread, *early, self._ends[queue])

    # Reading.

    def recover(self) -> int:
        """Read the log from the revive group's offset; returns the number of open check points."""
        self._local.dispatch_now()
        for queue in range(self.queues):
            done = self._offsets.query(REVIVE_GROUP, self.topic, queue)
            end = max(0, self._local.max_offset(self.topic, queue))
            with self._locks[queue]:
                self._ends[queue] = end
                for message in self._records(queue, max(0, done), end):
                    # The last finished record is read again if it is ours: acknowledgements follow it, and older
                    # versions of this broker committed the first unfinished one. RocketMQ acknowledges nothing
                    # that it revived.
                    if message.queue_offset != done or not _is_brought(message):
                        self._take(queue, message)
        return len(self.points)

    def take_delivered(self) -> None:
        """Read records that timers delivered since: what a RocketMQ broker had written to the wheel."""
        for queue in range(self.queues):
            with self._locks[queue]:
                end = self._local.max_offset(self.topic, queue)
                self._found_end(queue, end)
                waiting = [each for each in self._brought[queue] if each.stop > end]  # Not dispatched yet.
                for each in self._brought[queue]:
                    if each.stop <= end:
                        for message in self._records(queue, each.start, each.stop):
                            self._take(queue, message)
                self._brought[queue] = waiting

    @property
    def has_early(self) -> bool:
        """Whether acknowledgements wait for their check points."""
        return any(self._early)

    def forget_early(self, delivered_ms: int) -> None:
        """Drop early acknowledgements that were due before `delivered_ms`: timers delivered everything up to then."""
        for queue in range(self.queues):
            with self._locks[queue]:
                for popped in [each for each, ack in self._early[queue].items() if ack.due_ms < delivered_ms]:
                    self._end_early(queue, popped)

    def _records(self, queue: int, at: int, end: int) -> Iterator[StoredMessage]:
        at = max(at, self._local.min_offset(self.topic, queue))
        while at < end:
            page = self._local.get(self.topic, queue, at)
            yield from (each for each in self._readable(queue, page) if each.queue_offset < end)
            if page.next_offset <= at:
                break
            at = page.next_offset

    def _take(self, queue: int, message: StoredMessage) -> None:
        """The queue's lock is held."""
        try:
            if len(message.body) > POP_RECORD_BYTES_MAX:
                raise RequestRefused(f"expected at most {POP_RECORD_BYTES_MAX} bytes, found {len(message.body)}")
            table = decode_object(message.body)
            popped = popped_in(table)
            if popped.pop_ms > message.store_timestamp_ms + FUTURE_MS_MAX:
                raise RequestRefused(f"expected a pop before {message.store_timestamp_ms}, found {popped.pop_ms}")
            if message.tags == TAG_CHECK_POINT:
                self._take_point(queue, message, table)
            else:
                self._take_ack(queue, message, table)
        except (RequestRefused, CorruptRecord) as error:
            self.skipped.add(f"queue {queue}, offset {message.queue_offset}", error)

    def _readable(self, queue: int, page: GetPage) -> list[StoredMessage]:
        """The page's messages; damaged ones are skipped one by one."""
        try:
            return list(page.messages)
        except CorruptRecord:
            found = []
        for offset in range(page.next_offset - page.count, page.next_offset):
            try:
                found += self._local.get(self.topic, queue, offset, 1).messages
            except CorruptRecord as error:
                self.skipped.add(f"queue {queue}, offset {offset}", error)
        return found

    def _take_point(self, queue: int, message: StoredMessage, table: dict[str, Any]) -> None:
        point = CheckPoint.from_json(table, queue, message.queue_offset)
        point.is_read = True
        early = self._end_early(queue, point.popped)
        if early is not None:
            point.open -= early.offsets
        if point.open:
            self.points.add(point)
        again = table.get(AGAIN)
        if isinstance(again, list) and len(again) == 2:
            before = point.popped._replace(start_offset=as_int(again[0]), pop_ms=as_int(again[1]))
            self.points.acknowledge(before, point.offsets)
        elif again is None and not _is_brought(message):
            self._pass(point)

    def _take_ack(self, queue: int, message: StoredMessage, table: dict[str, Any]) -> None:
        listed = table.get("aol") or [table.get("ao")]
        if not isinstance(listed, list):
            raise RequestRefused(f"expected a list in aol, found a {type(listed).__name__}")
        offsets = [as_int(each) for each in listed]
        popped, due_ms = popped_in(table), int64_in(table, EARLY)
        if self.points.find(popped) is not None:
            self.points.acknowledge(popped, offsets)
        elif due_ms > self._now_ms():
            self.check_early(queue, popped, offsets, due_ms)
            self._keep_early(queue, popped, offsets, message.queue_offset, due_ms)

    def _pass(self, point: CheckPoint) -> None:
        """Move the group's offset over messages that were popped after the offsets' file was written.

        The file records how much of this log it covers. Clocks are compared only where RocketMQ wrote the file.
        """
        popped, after, ends = point.popped, max(point.offsets) + 1, self._ends_written
        if after > self._local.max_offset(popped.topic, popped.queue_id):
            return  # Messages that the queue does not have were never delivered.
        if ends is None:
            is_newer = popped.pop_ms >= self._offsets_written_ms
        else:
            is_newer = point.revive_queue >= len(ends) or point.log_offset >= ends[point.revive_queue]
        if is_newer and after > self._offsets.query(*popped[:3]):
            self._offsets.commit(popped.group, popped.topic, popped.queue_id, after)


def _is_brought(message: StoredMessage) -> bool:
    """Whether RocketMQ wrote a record of the revive topic."""
    return message.get_property(UNIQ_KEY) is not None


def _ack(popped: PoppedMessage, offsets: list[int], broker: str) -> tuple[str, dict[str, Any]]:
    """Tag and body of an acknowledgement."""
    made: dict[str, Any] = {
        "ao": offsets[0],
        "bn": broker,
        "c": popped.group,
        "pt": popped.pop_ms,
        "q": popped.queue_id,
        "so": popped.start_offset,
        "t": popped.topic,
    }
    return (TAG_ACK, made) if len(offsets) == 1 else (TAG_ACKS, {**made, "aol": offsets})

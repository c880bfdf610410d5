"""PopLog: check points and acknowledgements as records of the revive topic, so that they outlive the process.

    rmq_sys_REVIVE_LOG_<cluster>, queue q:   ck  ack  ck  ck  ack  ack  …
                                              └ everything before was done: the offset of CID_RMQ_SYS_REVIVE_GROUP

The records are RocketMQ's (JSON, tags `ck` and `ack`), and so are the topic, the group and the meaning of its offset.
What differs: RocketMQ lets a timer bring a record to the topic when it is due, and joins records there; here a record
is appended at once, memory has the table, and the topic is read only when the broker starts. A broker of RocketMQ that
takes over the directory finds records that it understands.

Invariants: a check point is in the log before its messages are given out, and before the offset of the group passes
them; the group's offset is written to disk only after the log (`ConsumerOffsets.before_write`). So a crash of the
process or of the machine leaves each popped message either acknowledged, or in a check point, or not popped. Pops that
are newer than the offsets' file move the offsets again when the log is read: what was acknowledged stays so.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Collection
from typing import Any

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.consumer_offsets import ConsumerOffsets
from tiermq.broker.pop_checkpoints import CheckPoint, CheckPoints, Popped, popped_in
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.kernel import Message
from tiermq.message.properties import TAGS, encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import REVIVE_GROUP, REVIVE_PREFIX
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

TAG_CHECK_POINT = "ck"
TAG_ACK = "ack"
TAG_ACKS = "bAck"
AGAIN = "again"
"""A word of our own, which RocketMQ does not look at: this check point is no pop."""
_STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT})


class PopLog:
    """See the module. Any thread may call."""

    def __init__(self, local: LocalStore, offsets: ConsumerOffsets, config: BrokerConfig) -> None:
        self.topic = f"{REVIVE_PREFIX}{config.broker_cluster_name}"
        self.queues = config.revive_queue_num
        self.points = CheckPoints(self.queues)
        self._local = local
        self._offsets = offsets
        self._broker = config.broker_name
        self._turn = itertools.count()
        self._locks = [threading.Lock() for _ in range(self.queues)]
        self._ends = [0] * self.queues
        self._commit_lock = threading.Lock()
        self._properties = {tag: encode_properties({TAGS: tag}) for tag in (TAG_CHECK_POINT, TAG_ACK, TAG_ACKS)}
        self._was_used = False
        self._offsets_written_ms = offsets.data_version.timestamp
        offsets.before_write.append(self._flush)

    def _flush(self) -> None:
        if self._was_used:
            self._local.flush()

    # Writing.

    def next_queue(self) -> int:
        """A revive queue for one pop: its answer has room for one."""
        return next(self._turn) % self.queues

    def begin(
        self, queue: int, popped: Popped, invisible_ms: int, offsets: tuple[int, ...], *, is_again: bool = False
    ) -> CheckPoint:
        """Make a check point; `is_again`: of a message that has one already, and gets more time.

        Raises RequestRefused when the store does not take it: nothing may be given out then.
        """
        point = CheckPoint(popped, invisible_ms, offsets, queue)
        value = point.to_json(self._broker)
        if is_again:
            value[AGAIN] = 1
        with self._locks[queue]:
            point.log_offset = self._append(queue, TAG_CHECK_POINT, value)
            self.points.add(point)
        return point

    def acknowledge(self, popped: Popped, offsets: Collection[int]) -> bool:
        """Messages of a check point are done. False: none of them was open. Raises RequestRefused."""
        point = self.points.find(popped)
        if point is None:
            return False
        closing = sorted(point.open.intersection(offsets))
        if not closing:
            return False
        self._append(point.revive_queue, TAG_ACKS if len(closing) > 1 else TAG_ACK, _ack(popped, closing, self._broker))
        self.points.acknowledge(popped, closing)
        return True

    def _append(self, queue: int, tag: str, value: dict[str, Any]) -> int:
        self._was_used = True
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        result = self._local.append(Message(self.topic, body, queue, encoded_properties=self._properties[tag]))
        if result.status not in _STORED:
            raise RequestRefused(
                f"the store does not take what POP must remember: {result.status.name}", ResponseCode.SYSTEM_BUSY
            )
        self._ends[queue] = max(self._ends[queue], result.queue_offset + 1)
        return result.queue_offset

    def commit(self) -> None:
        """Let the revive group's offset follow what is done; the offsets' file takes it along."""
        with self._commit_lock:  # Or one who looked before another would set back what that one has written.
            for queue in range(self.queues):
                with self._locks[queue]:  # A check point whose record is in the log is among the points, too.
                    oldest = self.points.oldest_logged(queue)
                    done = self._ends[queue] if oldest is None else oldest
                if done > max(0, self._offsets.query(REVIVE_GROUP, self.topic, queue)):
                    self._offsets.commit(REVIVE_GROUP, self.topic, queue, done)

    # Reading.

    def recover(self) -> int:
        """Read the log from where it is not done; how many check points are open."""
        self._local.dispatch_now()
        for queue in range(self.queues):
            low = self._local.min_offset(self.topic, queue)
            at = max(0, low, self._offsets.query(REVIVE_GROUP, self.topic, queue))
            end = self._local.max_offset(self.topic, queue)
            self._ends[queue] = max(0, end)
            while at < end:
                page = self._local.get(self.topic, queue, at)
                for message in _readable(page):
                    self._take(queue, message)
                if page.next_offset <= at:
                    break
                at = page.next_offset
        return len(self.points)

    def _take(self, queue: int, message: StoredMessage) -> None:
        try:
            table = decode_object(message.body)
            if message.tags == TAG_CHECK_POINT:
                point = CheckPoint.from_json(table, queue, message.queue_offset)
                if point.open:
                    self.points.add(point)
                if AGAIN not in table:
                    self._pass(point)
            else:
                offsets = table.get("aol") or [table.get("ao")]
                self.points.acknowledge(popped_in(table), [as_int(each) for each in offsets])
        except RequestRefused as error:
            _log.error("%s, queue %d, offset %d: passed over: %s", self.topic, queue, message.queue_offset, error)

    def _pass(self, point: CheckPoint) -> None:
        """What was popped after the offsets' file was written moves the group's offset, as it did before the crash."""
        popped, after = point.popped, point.offsets[-1] + 1
        if popped.pop_ms >= self._offsets_written_ms and after > self._offsets.query(*popped[:3]):
            self._offsets.commit(popped.group, popped.topic, popped.queue_id, after)


def _ack(popped: Popped, offsets: list[int], broker: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ao": offsets[0],
        "bn": broker,
        "c": popped.group,
        "pt": popped.pop_ms,
        "q": popped.queue_id,
        "so": popped.start_offset,
        "t": popped.topic,
    }
    return made if len(offsets) == 1 else {**made, "aol": offsets}


def _readable(page: Any) -> list[StoredMessage]:
    try:
        found: list[StoredMessage] = page.messages
    except CorruptRecord as error:
        _log.error("records of the revive topic are damaged; what they say is lost: %s", error)
        return []
    return found

"""read_deferred: a record that was stored in another topic first, as far as its delivery needs it.

    record of a delay, a timer or the half of a transaction ─► DeferredRecord ─► Message for its own topic

Only plain records are read: whole, undamaged, with ASCII properties that end with a separator, without properties that
need the general decoder (a checksum, inner batches, WAIT=false), with REAL_TOPIC and a REAL_QID of up to nine digits.
For every other record there is None: the caller decodes it as a StoredMessage. Of equal names the last one counts, and
empty values do not, as `decode_properties` reads them.
"""

from __future__ import annotations

from tiermq.errors import CorruptRecord
from tiermq.kernel.message import Message
from tiermq.kernel.write_cursor import Segments
from tiermq.message.layout import I32
from tiermq.message.properties import decode_properties
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage

CANCELS = 1
"""It has TIMER_DEL_UNIQKEY."""
STAMPED = 2
"""It has TIMER_ENQUEUE_MS or TIMER_DEQUEUE_MS."""
CHECKED = 4
"""It has a property of halves that were checked, that set an immunity time, or that an account sent."""
DEFERRED = 8
"""It has a delay level or asks for a time."""
_NAMES = {
    "TIMER_DEL_UNIQKEY": CANCELS,
    "TIMER_ENQUEUE_MS": STAMPED,
    "TIMER_DEQUEUE_MS": STAMPED,
    "TRAN_PREPARED_QUEUE_OFFSET": CHECKED,
    "TRANSACTION_CHECK_TIMES": CHECKED,
    "CHECK_IMMUNITY_TIME_IN_SECONDS": CHECKED,
    "TIERMQ_SENDER": CHECKED,
    "DELAY": DEFERRED,
    "TIMER_DELIVER_MS": DEFERRED,
    "TIMER_DELAY_SEC": DEFERRED,
    "TIMER_DELAY_MS": DEFERRED,
}
_QUEUE_DIGITS_MAX = 9
_TIME_DIGITS_MAX = 18
_UNUSUAL_FLAGS = 0xC0


class DeferredRecord:
    """See the module. Immutable."""

    __slots__ = (
        "_stored", "body_crc", "born_timestamp_ms", "group", "has", "out_ms", "physical_offset", "properties_bytes",
        "queue_id", "queue_offset", "real_queue", "real_topic", "size", "store_timestamp_ms", "sys_flag", "unique_key",
    )  # fmt: skip

    def __init__(self, stored: StoredMessage, properties: dict[str, str]) -> None:
        self._stored = stored
        self.physical_offset = stored.physical_offset
        self.size = stored.size
        self.queue_id = stored.queue_id
        self.queue_offset = stored.queue_offset
        self.store_timestamp_ms = stored.store_timestamp_ms
        self.born_timestamp_ms = stored.born_timestamp_ms
        self.body_crc = stored.body_crc
        self.sys_flag = stored.sys_flag
        self.properties_bytes = len(stored.encoded_properties)
        self.real_topic = properties["REAL_TOPIC"]
        self.real_queue = int(properties["REAL_QID"])
        self.unique_key = properties.get("UNIQ_KEY", "")
        self.group = properties.get("PGROUP", "")
        out_ms = properties.get("TIMER_OUT_MS", "")
        self.out_ms = int(out_ms) if out_ms.isdigit() and len(out_ms) <= _TIME_DIGITS_MAX else -1
        self.has = 0
        for name in properties:
            self.has |= _NAMES.get(name, 0)

    def message(
        self, topic: str, queue_id: int, added: bytes = b"", sys_flag: int = 0, prepared_offset: int = 0
    ) -> Message:
        """The message to put: with `added` behind its properties, and with this system flag."""
        stored = self._stored
        return Message(
            topic,
            stored.body,
            queue_id,
            encoded_properties=stored.encoded_properties + added,
            flag=stored.flag,
            sys_flag=sys_flag,
            born_timestamp_ms=stored.born_timestamp_ms,
            born_host=stored.born_address + I32.pack(stored.born_port),
            reconsume_times=stored.reconsume_times,
            prepared_transaction_offset=prepared_offset,
        )


def read_deferred(log: Segments, physical_offset: int, size: int, topic: str) -> DeferredRecord | None:
    """The record of a topic at a physical offset; None when the general decoder must look at it. A `size` of 0 is not
    known."""
    if size <= 0:
        size = int.from_bytes(log.read(physical_offset, 4) or b"", "big", signed=True)
    data = log.read(physical_offset, size) if size > 0 else None
    if data is None:
        return None
    try:
        stored = decode_record(data, expect_physical_offset=physical_offset)
        encoded = stored.encoded_properties
    except CorruptRecord:
        return None
    if stored.size != size or stored.topic != topic or stored.sys_flag & _UNUSUAL_FLAGS or not encoded.isascii():
        return None
    if not encoded.endswith(b"\x02") or b"\0" in encoded or b"INNER_" in encoded or b"__CRC32#" in encoded:
        return None
    if not _waits_once(encoded):
        return None
    properties = decode_properties(encoded)
    queue = properties.get("REAL_QID", "")
    if "REAL_TOPIC" not in properties or not queue.isdigit() or len(queue) > _QUEUE_DIGITS_MAX:
        return None
    return DeferredRecord(stored, properties)


def _waits_once(encoded: bytes) -> bool:
    """WAIT is absent, or "true" once."""
    found = [each for each in encoded.split(b"\x02") if each.startswith(b"WAIT\x01")]
    return found in ([], [b"WAIT\x01true"])

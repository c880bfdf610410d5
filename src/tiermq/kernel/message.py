"""Message, PutResult and PutResults in pure Python: the input and the results of a put.

Both twins share the functions: checking values, merging properties, ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from tiermq.errors import IllegalMessage
from tiermq.message.crc import CRC_PROPERTY_NAME
from tiermq.message.hosts import encode_host
from tiermq.message.properties import (
    KEY_SEPARATOR,
    decode_properties,
    delete_property,
    encode_properties,
    waits_for_store,
)
from tiermq.status import PutStatus

_INNER = b"INNER_"  # Start of every property that ties a message to its queue offset.
INNER_BATCH_FLAG = 0x80
_I32 = range(-(2**31), 2**31)
_I64 = range(-(2**63), 2**63)


def prepare_message(
    topic: object,
    body: object,
    queue_id: object,
    keys: str | Iterable[str],
    tags: str,
    properties: Mapping[str, str] | None,
    encoded_properties: bytes | None,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: str | bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> tuple[str, bytes, bytes, bytes, bool, bool]:
    """Check every value and return (topic, body, encoded properties, born host, waits for store, needs_offset).

    Raises IllegalMessage for values that no record can hold. The store checks sizes, which have its limits.
    """
    if type(topic) is not str or not topic:
        raise IllegalMessage(f"a topic is a non-empty str, found {topic!r}")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise IllegalMessage(f"a body is bytes, found {type(body).__name__}")
    if type(queue_id) is not int or not 0 <= queue_id < 2**31:
        raise IllegalMessage(f"a queue id is an int from 0 to 2**31-1, found {queue_id!r}")
    if not (
        type(flag) is type(sys_flag) is type(reconsume_times) is int
        and type(born_timestamp_ms) is type(prepared_transaction_offset) is int
        and flag in _I32
        and sys_flag in _I32
        and reconsume_times in _I32
        and born_timestamp_ms in _I64
        and prepared_transaction_offset in _I64
    ):
        _check_numbers(flag, sys_flag, reconsume_times, born_timestamp_ms, prepared_transaction_offset)
    encoded = merge_properties(keys, tags, properties, encoded_properties)
    host = encode_host(born_host) if isinstance(born_host, str) else born_host
    if not isinstance(host, (bytes, bytearray, memoryview)) or len(host) not in (0, 8, 20):
        raise IllegalMessage(f"a host is text such as 1.2.3.4:5, or its 8 or 20 bytes, found {born_host!r}")
    needs_offset = bool(sys_flag & INNER_BATCH_FLAG) or _INNER in encoded
    return topic, bytes(body), encoded, bytes(host), waits_for_store(encoded), needs_offset


def _check_numbers(
    flag: int, sys_flag: int, reconsume_times: int, born_timestamp_ms: int, prepared_transaction_offset: int
) -> None:
    """Refuse numbers out of range; enum flags, which are ints, are accepted."""
    for name, value in (("flag", flag), ("sys_flag", sys_flag), ("reconsume_times", reconsume_times)):
        # Not `value not in` alone: for anything but a plain int a range is searched number by number.
        if not isinstance(value, int) or int(value) not in _I32:
            raise IllegalMessage(f"{name} must fit 32 bits, found {value!r}")
    for name, value in (
        ("born_timestamp_ms", born_timestamp_ms),
        ("prepared_transaction_offset", prepared_transaction_offset),
    ):
        if not isinstance(value, int) or int(value) not in _I64:
            raise IllegalMessage(f"{name} must fit 64 bits, found {value!r}")


def merge_properties(
    keys: str | Iterable[str], tags: str, properties: Mapping[str, str] | None, encoded: bytes | None
) -> bytes:
    """One encoded property string from all property arguments."""
    if encoded is not None:
        if keys or tags or properties:
            raise IllegalMessage("give either encoded_properties or keys, tags and properties, not both")
        if not isinstance(encoded, (bytes, bytearray, memoryview)):
            raise IllegalMessage(f"encoded properties are bytes, found {type(encoded).__name__}")
        merged = bytes(encoded)
    else:
        try:
            named = dict(properties or {})
            listed = [keys] if isinstance(keys, str) and keys else list(keys)
            joined = KEY_SEPARATOR.join(listed)
        except (TypeError, ValueError) as error:
            raise IllegalMessage(f"properties are a mapping of text, keys are text: {error}") from error
        if joined:
            if joined.count(KEY_SEPARATOR) != len(listed) - 1 or "" in listed:
                raise IllegalMessage(
                    "a key is a text without blanks and not empty, since blanks separate the stored keys; "
                    f"found {listed}"
                )
            named["KEYS"] = joined
        elif KEY_SEPARATOR in str(named.get("KEYS", "")):
            raise IllegalMessage(
                f"properties: expected KEYS without blanks, which separate stored keys, found {named['KEYS']!r}; give "
                "several by keys=[…], or the stored form by encoded_properties"
            )
        if tags:
            named["TAGS"] = tags
        merged = encode_properties(named)
    if b"\0" in merged:
        # Bytes that a power cut lost read as zeros: recovery detects a torn record by them.
        raise IllegalMessage("properties hold a NUL byte: no name and no value may")
    if CRC_PROPERTY_NAME in merged:
        # A whole-record CRC belongs to one stored record; a re-sent message must not keep the old one.
        merged = delete_property(merged, CRC_PROPERTY_NAME)
    return merged


def properties_of(encoded: bytes) -> dict[str, str]:
    return decode_properties(encoded)


def described(topic: str, queue_id: int, encoded: bytes, body_bytes: int) -> str:
    """A message as text for people, also where its properties cannot be decoded. Bodies are not shown."""
    named = decode_properties(encoded, errors="backslashreplace")
    keys = f", keys={named['KEYS'].split(KEY_SEPARATOR)}" if "KEYS" in named else ""
    tags = f", tags={named['TAGS']!r}" if "TAGS" in named else ""
    return f"Message(topic={topic!r}, queue_id={queue_id}{keys}{tags}, body=<{body_bytes} bytes>)"


def results_text(results: Iterable[PutResult]) -> str:
    """Results as text for people: how many have each status."""
    counts = Counter(result.status.name for result in results)
    return f"PutResults({', '.join(f'{count} {name}' for name, count in counts.items()) or 'none'})"


def batch_of(messages: object) -> list[Any]:
    """Messages that were not given as a list. Raises TypeError for what is no row of any."""
    if not isinstance(messages, Iterable):
        raise TypeError(f"expected Messages, such as a list of them, found {messages!r}")
    return list(messages)


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Upper-case hex of address, port and offset: 32 digits for IPv4, 56 for IPv6."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


PUT_OK = PutStatus.PUT_OK


class Message:
    """One message to put. Values are checked here once; the store checks sizes. Immutable.

    topic, queue_id: its queue. body: bytes. keys: for lookups (`query`). tags: what consumers filter by. properties:
    further texts by name; encoded_properties: the same in stored form, instead of them. born_timestamp_ms and
    born_host: when and where it was made (0 and b'': now, and unknown).
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp_ms",
        "encoded_properties",
        "flag",
        "needs_offset",
        "prepared_transaction_offset",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
        "waits_for_store",
    )

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue_id: int = 0,
        *,
        keys: str | Iterable[str] = (),
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        encoded_properties: bytes | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | bytes = b"",
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        values = prepare_message(
            topic, body, queue_id, keys, tags, properties, encoded_properties, flag, sys_flag,
            born_timestamp_ms, born_host, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        self.topic, self.body, self.encoded_properties, self.born_host, self.waits_for_store, self.needs_offset = values
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.born_timestamp_ms = born_timestamp_ms
        self.prepared_transaction_offset = prepared_transaction_offset

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name, keys and tags among them."""
        return properties_of(self.encoded_properties)

    def __repr__(self) -> str:
        return described(self.topic, self.queue_id, self.encoded_properties, len(self.body))


class PutResult(tuple[Any, ...]):
    """Result of one put. `physical_offset` is -1 when nothing was stored.

    A tuple, because CPython creates those fastest: a put spends a tenth of its time on its result.
    """

    __slots__ = ()

    def __new__(
        cls,
        status: PutStatus,
        host: bytes = b"",
        physical_offset: int = -1,
        queue_offset: int = -1,
        store_timestamp_ms: int = 0,
        size: int = 0,
        count: int = 1,
    ) -> Self:
        return tuple.__new__(cls, (status, host, physical_offset, queue_offset, store_timestamp_ms, size, count))

    @property
    def status(self) -> PutStatus:
        """Whether it is stored, and as durable as the settings require; else why not."""
        status: PutStatus = self[0]
        return status

    @property
    def physical_offset(self) -> int:
        """Where its record begins in the commit log."""
        return int(self[2])

    @property
    def queue_offset(self) -> int:
        """Its number in its queue."""
        return int(self[3])

    @property
    def store_timestamp_ms(self) -> int:
        """When it was stored."""
        return int(self[4])

    @property
    def size(self) -> int:
        """Bytes of its record."""
        return int(self[5])

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many messages it stands for: of a batch, several."""
        return int(self[6])

    @property
    def ok(self) -> bool:
        """Whether the status is PUT_OK."""
        return self[0] is PUT_OK

    @property
    def end_offset(self) -> int:
        """The offset of the commit log behind its record."""
        return int(self[2]) + int(self[5])

    @property
    def message_id(self) -> str | None:
        """RocketMQ's id, by which brokers find it; None when nothing was stored."""
        return offset_message_id(self[1], self[2]) if self[2] >= 0 else None

    def with_status(self, status: PutStatus) -> PutResult:
        """The same place with another status."""
        return PutResult(status, *self[1:])

    def __repr__(self) -> str:
        return (
            f"PutResult(status={self.status.name}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, size={self.size})"
        )


class PutResults:
    """The results of one put_many, in the order of its messages: a sequence. `end_offset`: behind the last record that
    was stored, -1 when none was.
    """

    __slots__ = ("_results", "end_offset", "store_timestamp_ms")

    def __init__(self, results: list[PutResult], store_timestamp_ms: int) -> None:
        self._results = results
        self.store_timestamp_ms = store_timestamp_ms
        self.end_offset = max((r.end_offset for r in results if r.physical_offset >= 0), default=-1)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: int) -> PutResult:
        return self._results[index]

    def __iter__(self) -> Iterator[PutResult]:
        return iter(self._results)

    @property
    def others_by_index(self) -> dict[int, PutResult]:
        """Those that are not PUT_OK, by the number of their message."""
        return {at: result for at, result in enumerate(self._results) if not result.ok}

    @property
    def all_ok(self) -> bool:
        """Whether every status is PUT_OK."""
        return all(result.ok for result in self._results)

    @staticmethod
    def refused(status: PutStatus, count: int) -> PutResults:
        """`count` results that all have `status`."""
        return PutResults([PutResult(status) for _ in range(count)], 0)

    def with_status(self, status: PutStatus) -> PutResults:
        """The same results with every stored one marked as `status` (a flush that timed out)."""
        return PutResults([r.with_status(status) if r.ok else r for r in self._results], self.store_timestamp_ms)

    def __repr__(self) -> str:
        return results_text(self)

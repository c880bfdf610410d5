"""StoredMessage: every field of one record, with the costly ones decoded on first use."""

from __future__ import annotations

import base64
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.message import properties as names
from tiermq.message.compression import DECOMPRESSED_BYTES_MAX, decompress
from tiermq.message.hosts import format_host
from tiermq.message.ids import format_message_id
from tiermq.message.layout import RecordVersion
from tiermq.message.properties import decode_properties, get_text_property
from tiermq.message.system_flag import TransactionType, transaction_type

SHOWN_BYTES = 40
"""Of a body, in a text for people."""


class StoredMessage:
    """One decoded record. A value: do not assign to its fields, threads may share it.

    `body` is as stored (see `decompressed_body`). `size` is the bytes of the record in the commit log.
    Hosts are kept as the record's bytes. `properties`, `keys`, `tags` and `unique_key` raise CorruptRecord if the
    property string is not UTF-8; `encoded_properties` always has the bytes.
    """

    __slots__ = (
        "_properties",
        "body",
        "body_crc",
        "born_address",
        "born_port",
        "born_timestamp_ms",
        "encoded_properties",
        "flag",
        "physical_offset",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_address",
        "store_port",
        "store_timestamp_ms",
        "sys_flag",
        "topic",
        "version",
    )

    # The order of the fixed part's fields in the record, so that decoding passes them on unchanged.
    def __init__(
        self,
        topic: str,
        body: bytes,
        encoded_properties: bytes,
        version: RecordVersion,
        size: int,
        body_crc: int,
        queue_id: int,
        flag: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_address: bytes,
        born_port: int,
        store_timestamp_ms: int,
        store_address: bytes,
        store_port: int,
        reconsume_times: int,
        prepared_transaction_offset: int,
    ) -> None:
        self.topic = topic
        self.body = body
        self.encoded_properties = encoded_properties
        self.version = version
        self.size = size
        self.body_crc = body_crc
        self.queue_id = queue_id
        self.flag = flag
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.sys_flag = sys_flag
        self.born_timestamp_ms = born_timestamp_ms
        self.born_address = born_address
        self.born_port = born_port
        self.store_timestamp_ms = store_timestamp_ms
        self.store_address = store_address
        self.store_port = store_port
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self._properties: dict[str, str] | None = None

    @property
    def born_host(self) -> str:
        return format_host(self.born_address, self.born_port)

    @property
    def store_host(self) -> str:
        return format_host(self.store_address, self.store_port)

    @property
    def properties(self) -> dict[str, str]:
        """All properties. Decoded once: do not change the dict."""
        if self._properties is None:
            self._properties = decode_properties(self.encoded_properties)
        return self._properties

    def get_property(self, name: str) -> str | None:
        """One property, without decoding all of them."""
        return get_text_property(self.encoded_properties, name)

    @property
    def tags(self) -> str | None:
        return self.get_property(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The KEYS property, split on spaces; empty keys do not count."""
        keys = self.get_property(names.KEYS)
        return [key for key in keys.split(names.KEY_SEPARATOR) if key] if keys else []

    @property
    def unique_key(self) -> str | None:
        return self.get_property(names.UNIQ_KEY)

    @property
    def message_id(self) -> str:
        """The offset id: the record's location. Raises CorruptRecord if the record's offset is invalid."""
        if self.physical_offset < 0:
            raise CorruptRecord(f"topic {self.topic!r}: physical offset {self.physical_offset} is no valid log offset")
        return format_message_id(self.store_address, self.store_port, self.physical_offset)

    @property
    def transaction_type(self) -> TransactionType:
        return transaction_type(self.sys_flag)

    def decompressed_body(self, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
        """The body that the producer sent. Raises CorruptRecord if it cannot be decompressed within `max_bytes`."""
        return decompress(self.body, self.sys_flag, max_bytes=max_bytes)

    def fields(self) -> tuple[Any, ...]:
        """Every stored field; two messages are equal if these are."""
        return (
            self.topic,
            self.body,
            self.encoded_properties,
            self.version,
            self.size,
            self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp_ms,
            self.born_address,
            self.born_port,
            self.store_timestamp_ms,
            self.store_address,
            self.store_port,
            self.reconsume_times,
            self.prepared_transaction_offset,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredMessage) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.queue_id, self.queue_offset, self.physical_offset))

    def __repr__(self) -> str:
        shown = repr(self.body[:SHOWN_BYTES]) + ("…" if len(self.body) > SHOWN_BYTES else "")
        return (
            f"StoredMessage(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"keys={self._shown(names.KEYS)}, tags={self._shown(names.TAGS)}, body={shown}, size={self.size}, "
            f"physical_offset={self.physical_offset})"
        )

    def _shown(self, name: str) -> str:
        """A property as text for people, also where it cannot be decoded."""
        value = decode_properties(self.encoded_properties, errors="backslashreplace").get(name)
        return repr(value)

    def to_dict(self) -> dict[str, Any]:
        """For JSON. The body is text when it is UTF-8 and base64 otherwise; `body_encoding` is which.

        For display: a property that is not UTF-8 is shown with backslashes.
        """
        try:
            body, body_encoding = self.body.decode(), "utf-8"
        except UnicodeDecodeError:
            body, body_encoding = base64.b64encode(self.body).decode("ascii"), "base64"
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "message_id": self.message_id if self.physical_offset >= 0 else None,
            "physical_offset": self.physical_offset,
            "size": self.size,
            "version": int(self.version),
            "flag": self.flag,
            "sys_flag": self.sys_flag,
            "transaction_type": self.transaction_type.name,
            "born_timestamp_ms": self.born_timestamp_ms,
            "born_host": self.born_host,
            "store_timestamp_ms": self.store_timestamp_ms,
            "store_host": self.store_host,
            "reconsume_times": self.reconsume_times,
            "prepared_transaction_offset": self.prepared_transaction_offset,
            "properties": decode_properties(self.encoded_properties, errors="backslashreplace"),
            "body_crc": self.body_crc,
            "body_encoding": body_encoding,
            "body": body,
        }

    def to_sent_dict(self, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> dict[str, Any]:
        """As `to_dict`, with the body as its producer sent it; as stored, if it cannot be decompressed within that."""
        fields = self.to_dict()
        try:
            body = self.decompressed_body(max_bytes=max_bytes)
        except CorruptRecord:
            return fields
        try:
            fields["body"], fields["body_encoding"] = body.decode(), "utf-8"
        except UnicodeDecodeError:
            fields["body"], fields["body_encoding"] = base64.b64encode(body).decode("ascii"), "base64"
        return fields

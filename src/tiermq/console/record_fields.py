"""The bytes of one record, field by field: name, position, length, bytes, value. Pure.

The fields and their order are those of `message/layout.py`, which draws them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.message.hosts import format_host
from tiermq.message.layout import (
    FIXED_FIELDS,
    FIXED_PARTS,
    FIXED_SIZES,
    MAGIC_V1,
    SHAPE_MASK,
    SHAPE_SHIFT,
    SYS_FLAG_LOW_BYTE_AT,
)

HOST_FIELDS = {"born_address": "born_port", "store_address": "store_port"}
SHORT = {"queue_offset", "physical_offset", "born_timestamp_ms", "store_timestamp_ms", "prepared_transaction_offset"}
FIELD_SHOWN_BYTES = 256


@dataclass(frozen=True, slots=True)
class Field:
    """Bytes [at, at + length) of a record."""

    name: str
    at: int
    length: int
    value: str
    data: bytes

    def to_dict(self) -> dict[str, object]:
        shown = self.data[:FIELD_SHOWN_BYTES].hex(" ")
        return {"name": self.name, "at": self.at, "length": self.length, "value": self.value, "hex": shown}


def record_fields(record: bytes) -> list[Field]:
    """The fields of a whole record, which was decoded before: nothing is checked here again."""
    shape = (record[SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT
    values = dict(zip(FIXED_FIELDS, FIXED_PARTS[shape].unpack_from(record), strict=True))
    found: list[Field] = []
    at = 0

    def add(name: str, length: int, value: str) -> None:
        nonlocal at
        found.append(Field(name, at, length, value, record[at : at + length]))
        at += length

    for name, value in values.items():
        if name in HOST_FIELDS:
            port = values[HOST_FIELDS[name]]
            add(name.replace("address", "host"), len(value) + 4, format_host(value, port))
        elif name == "magic":
            add(name, 4, f"{value & 0xFFFFFFFF:#010x} ({'V1' if value == MAGIC_V1 else 'V2'})")
        elif name not in HOST_FIELDS.values():
            add(name, 8 if name in SHORT else 4, str(value))
    assert at == FIXED_SIZES[shape], "the fixed part is complete"
    add("body", values["body_length"], f"{values['body_length']:,} bytes")
    width = 1 if values["magic"] == MAGIC_V1 else 2
    length = int.from_bytes(record[at : at + width])
    add("topic_length", width, str(length))
    add("topic", length, record[at : at + length].decode(errors="backslashreplace"))
    length = int.from_bytes(record[at : at + 2])
    add("properties_length", 2, str(length))
    properties = record[at : at + length].decode(errors="backslashreplace")
    add("properties", length, properties.replace("\x01", " = ").replace("\x02", "; "))
    return found

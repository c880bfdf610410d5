"""Avro bodies to columns, by the writer's schema. A body is one datum, plain or with the header of Avro's single-object
encoding (C3 01 and eight bytes), which is skipped.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from tiermq.errors import BadBody
from tiermq.tables.body_format import DecodedBodies, decode_each
from tiermq.tables.ddl_schema import checked

SINGLE_OBJECT = b"\xc3\x01"
SINGLE_OBJECT_BYTES = 10
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


class AvroBodies:
    """See BodyDecoder."""

    def __init__(self, schema: bytes) -> None:
        try:
            document = json.loads(schema)
            self._avro = fastavro.parse_schema(document)
        except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            raise BadBody(f"expected an Avro schema as JSON, found none: {error}") from None
        kind = _arrow_type(document, {})
        if not pa.types.is_struct(kind):
            raise BadBody(f"expected an Avro schema of a record, found one of {kind}")
        self.schema = checked(pa.schema(list(kind)))

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        return decode_each(bodies, self.schema, self._row)

    def _row(self, body: bytes) -> dict[str, Any]:
        stream = io.BytesIO(body[SINGLE_OBJECT_BYTES:] if body[:2] == SINGLE_OBJECT else body)
        try:
            value: Any = fastavro.schemaless_reader(stream, self._avro, None)
        except (EOFError, IndexError, KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
            raise ValueError(f"no Avro of this schema: {type(error).__name__} {error}") from None
        left = len(stream.getbuffer()) - stream.tell()
        if left:
            raise ValueError(f"no Avro of this schema: {left} bytes are left over")
        return {each.name: _plain(value.get(each.name), each.type) for each in self.schema}


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Convert values that Arrow does not accept: a UUID where a text is expected, a map inside."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(name, _plain(each, kind.item_type)) for name, each in value.items()]
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {each.name: _plain(value.get(each.name), each.type) for each in kind}
    return str(value) if pa.types.is_string(kind) else value


def _arrow_type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise BadBody(f"expected unions of one type with null, found {json.dumps(schema)[:200]}")
        return _arrow_type(kinds[0], named)
    if isinstance(schema, str):
        found = _PLAIN.get(schema) or named.get(schema) or named.get(schema.rsplit(".", 1)[-1])
        if found is None:
            raise BadBody(f"Avro type {schema!r} is unknown or recursive, which a table cannot represent")
        return found
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _arrow_type(kind, named)
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if kind == "array":
        return pa.list_(pa.field("element", _arrow_type(schema["items"], named)))
    if kind == "map":
        value = _arrow_type(schema["values"], named)
        return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))
    if kind == "record":
        made = pa.struct([pa.field(each["name"], _arrow_type(each["type"], named)) for each in schema["fields"]])
    else:
        made = _arrow_type(kind, named)
    if "name" in schema:
        named[schema["name"]] = made
    return made

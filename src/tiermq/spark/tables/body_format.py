"""How bodies become columns: what was asked for, as a value that travels, and what a decoder gives.

A body that does not fit is no error: its row says why, and an export keeps it apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from tiermq.errors import BadBody

KINDS = ("json", "avro", "protobuf")
REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class DecodedBodies:
    """One array per column, as long as the bodies were many. A reason for each body that did not fit, else None."""

    columns: list[pa.Array]
    reasons: list[str | None] | None = None


class BodyDecoder(Protocol):
    """Made once per process."""

    @property
    def schema(self) -> pa.Schema: ...

    def decode(self, bodies: pa.Array) -> DecodedBodies: ...


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """`schema` is DDL or a JSON schema, an Avro schema, or a set of descriptors; `message` names one of the last."""

    kind: str
    schema: bytes
    message: str = ""
    prefix: str = ""

    @classmethod
    def of(cls, kind: str, schema: str | bytes, *, message: str = "", prefix: str = "") -> BodyFormat:
        """`schema` as text, as bytes, or as the path of a file that has it. Raises BadBody."""
        if kind not in KINDS:
            raise BadBody(f"expected bodies of {', '.join(KINDS)}, found {kind!r}")
        if kind == "protobuf" and not message:
            raise BadBody("expected the name of the message, such as shop.Order, found none; give message")
        if isinstance(schema, str) and (kind == "protobuf" or "\n" not in schema) and os.path.isfile(schema):
            with open(schema, "rb") as file:
                schema = file.read()
        elif isinstance(schema, str) and kind == "protobuf":
            raise BadBody(f"expected a file of descriptors (protoc --descriptor_set_out), found no file {schema!r}")
        made = cls(kind, schema.encode() if isinstance(schema, str) else schema, message, prefix)
        decoder_of(made)
        return made

    @property
    def columns(self) -> pa.Schema:
        """The columns with their prefix."""
        return pa.schema([pa.field(self.prefix + each.name, each.type) for each in decoder_of(self).schema])


@lru_cache(maxsize=32)
def decoder_of(body: BodyFormat) -> BodyDecoder:
    """Raises BadBody."""
    try:
        if body.kind == "avro":
            from tiermq.spark.tables.body_avro import AvroBodies

            return AvroBodies(body.schema)
        if body.kind == "protobuf":
            from tiermq.spark.tables.body_protobuf import ProtobufBodies

            return ProtobufBodies(body.schema, body.message)
    except ImportError as error:
        raise BadBody(f"{body.kind} bodies: {error}; pip install 'tiermq[tables]'") from error
    from tiermq.spark.tables.body_json import JsonBodies

    return JsonBodies(body.schema.decode())


def decode_each(bodies: pa.Array, schema: pa.Schema, decode: Callable[[bytes], dict[str, Any]]) -> DecodedBodies:
    """Body by body. What `decode` raises as ValueError is the reason of that row."""
    rows: list[dict[str, Any]] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        try:
            rows.append(decode(b"" if body is None else body))
            reasons.append(None)
        except ValueError as error:
            rows.append({})
            reasons.append(str(error)[:REASON_MAX])
    columns = [_array(rows, each, reasons) for each in schema]
    return DecodedBodies(columns, reasons if any(reasons) else None)


def _array(rows: Sequence[dict[str, Any]], column: pa.Field, reasons: list[str | None]) -> pa.Array:
    values = [row.get(column.name) for row in rows]
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # One of them does not fit the type: find it, and leave the others alone.
        for number, value in enumerate(values):
            try:
                pa.array([value], column.type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[number] = None
                reasons[number] = f"field {column.name}: {error}"[:REASON_MAX]
        return pa.array(values, column.type)

"""How bodies become columns: what was asked for, as a value that travels, and what a decoder gives.

A body that cannot be decoded is no error: its row has the reason, and an export stores it separately.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tiermq.errors import BadBody, install_hint
from tiermq.tables.ddl_schema import schema_of_ddl, schema_of_json

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
            from tiermq.tables.body_avro import AvroBodies

            return AvroBodies(body.schema)
        if body.kind == "protobuf":
            from tiermq.tables.body_protobuf import ProtobufBodies

            return ProtobufBodies(body.schema, body.message)
    except ImportError as error:
        raise BadBody(f"{body.kind} bodies: {error}; {install_hint('tables')}") from error
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
        # One of them does not fit the type: find it, and keep the rest.
        for number, value in enumerate(values):
            try:
                pa.array([value], column.type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[number] = None
                reasons[number] = f"field {column.name}: {error}"[:REASON_MAX]
        return pa.array(values, column.type)


class JsonBodies:
    """JSON bodies to columns: all at once by Arrow's reader; one by one if a body does not fit, to find which and why.

    Fields that the schema does not name are left out, fields that a body does not have are null. Numbers are not
    made of texts, nor whole ones of fractions; times are ISO texts.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema_of_json(schema) if schema.lstrip().startswith("{") else schema_of_ddl(schema)
        self._all_at_once = not any(_has_map(each.type) for each in self.schema)

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        found = self._together(bodies) if self._all_at_once else None
        return decode_each(bodies, self.schema, self._row) if found is None else found

    def _together(self, bodies: pa.Array) -> DecodedBodies | None:
        """All bodies as lines of one text; None when they cannot be, or when one of them does not fit."""
        # A body that begins an object gives a row at least: so as many rows as bodies means one row for each.
        if bodies.null_count or not pc.all(pc.starts_with(bodies, pattern=b"{")).as_py():
            return None
        lines = b"\n".join(bodies.to_pylist())
        if lines.count(b"\n") != len(bodies) - 1:
            return None
        options = pa.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore")
        try:
            table = pa.json.read_json(
                pa.BufferReader(lines),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=options,
            )
        except pa.ArrowException:
            return None
        if table.num_rows != len(bodies) or table.schema.types != self.schema.types:
            return None
        return DecodedBodies([table.column(number).combine_chunks() for number in range(table.num_columns)])

    def _row(self, body: bytes) -> dict[str, Any]:
        try:
            value = json.loads(body)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"no JSON: {error}") from None
        except RecursionError:
            raise ValueError("no JSON that can be read: nested too deep") from None
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, found {_kind(value)}")  # noqa: TRY004 - it is the reason of a row
        return {each.name: conform(value.get(each.name), each.type, each.name) for each in self.schema}


def conform(value: Any, kind: pa.DataType, where: str) -> Any:
    """A value of JSON as one of an Arrow type. Raises ValueError."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        inner = _require(value, dict, kind, where)
        return {each.name: conform(inner.get(each.name), each.type, f"{where}.{each.name}") for each in kind}
    if pa.types.is_map(kind):
        return [
            (conform(name, kind.key_type, where), conform(each, kind.item_type, f"{where}.{name}"))
            for name, each in _require(value, dict, kind, where).items()
        ]
    if pa.types.is_list(kind):
        return [conform(each, kind.value_type, f"{where}[]") for each in _require(value, list, kind, where)]
    if pa.types.is_boolean(kind):
        return _require(value, bool, kind, where)
    if pa.types.is_integer(kind):
        if isinstance(value, bool) or not isinstance(value, int) or not _fits(value, kind):
            raise _misfit(value, kind, where)
        return value
    if pa.types.is_floating(kind):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _misfit(value, kind, where)
        return float(value)
    return _of_text(value, kind, where)


def _of_text(value: Any, kind: pa.DataType, where: str) -> Any:
    try:
        if pa.types.is_decimal(kind):
            # From the shortest text of a number: 0.1 is one tenth, not what a float makes of it.
            return decimal.Decimal(str(value) if not isinstance(value, bool) else "no number")
        text = _require(value, str, kind, where)
        if pa.types.is_timestamp(kind):
            moment = dt.datetime.fromisoformat(text)
            return moment if kind.tz is None or moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        if pa.types.is_date(kind):
            return dt.date.fromisoformat(text)
    except (ValueError, decimal.InvalidOperation):
        raise _misfit(value, kind, where) from None
    return text.encode() if pa.types.is_binary(kind) else text


def _require(value: Any, wanted: type, kind: pa.DataType, where: str) -> Any:
    if not isinstance(value, wanted):
        raise _misfit(value, kind, where)
    return value


def _misfit(value: Any, kind: pa.DataType, where: str) -> ValueError:
    return ValueError(f"field {where}: expected {kind}, found {_kind(value)} {json.dumps(value)[:60]}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _fits(value: int, kind: pa.DataType) -> bool:
    bits = int(kind.bit_width) - 1
    return -(1 << bits) <= value < (1 << bits)


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    return pa.types.is_struct(kind) and any(_has_map(each.type) for each in kind)

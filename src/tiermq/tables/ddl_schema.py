"""Schemas as people write them, to Arrow: Spark's DDL text, or a JSON schema.

    id bigint, price double, placed timestamp, items array<struct<sku: string, count: int>>, labels map<string, string>

Every column may be null: a body need not have every field.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from tiermq.errors import BadBody
from tiermq.history.arrow_schema import TIMESTAMP

_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>(),:])")
_JSON_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_JSON_FORMATS = {"date-time": TIMESTAMP, "date": pa.date32()}


def schema_of_ddl(text: str) -> pa.Schema:
    """Raises BadBody, which shows where the text stops making sense."""
    parser = _Parser(text)
    fields = parser.fields(between=None)
    parser.require_end()
    return checked(pa.schema(fields))


def schema_of_json(text: str) -> pa.Schema:
    """From a JSON schema of an object: types, formats date-time and date, items, properties, additionalProperties."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadBody(f"expected a JSON schema, found no JSON: {error}") from None
    kind = _json_type(document, "the schema")
    if not pa.types.is_struct(kind):
        raise BadBody(f"expected a JSON schema of an object with properties, found one of {kind}")
    return checked(pa.schema(list(kind)))


def checked(schema: pa.Schema) -> pa.Schema:
    names = schema.names
    if not names:
        raise BadBody("expected a schema with columns, found none")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadBody(f"expected each column once, found {twice} twice in the schema")
    return schema


class _Parser:
    """One pass over a DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, between: str | None) -> list[pa.Field]:
        """Fields up to the end, or up to the closing bracket of a struct; in there a colon may follow the name."""
        found = []
        while True:
            name = self._name()
            if self._peek() == ":":
                self._next()
            found.append(pa.field(name, self._type()))
            self._rest_of_field()
            if self._peek() != ",":
                break
            self._next()
        if between is not None:
            self._expect(between)
        return found

    def require_end(self) -> None:
        if self._text[self._at :].strip():
            raise self._error("the end or a comma")

    def _rest_of_field(self) -> None:
        if (self._peek() or "").lower() == "not":
            self._next()
            self._expect("null")
        if (self._peek() or "").lower() == "comment":
            self._next()
            self._next()

    def _type(self) -> pa.DataType:
        began = self._at
        word = (self._next() or "").lower()
        if word == "array":
            self._expect("<")
            inner = self._type()
            self._expect(">")
            return pa.list_(pa.field("element", inner))
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
        if word == "struct":
            self._expect("<")
            return pa.struct(self.fields(between=">"))
        if word in ("decimal", "dec", "numeric"):
            numbers = self._numbers() or [10, 0]
            return pa.decimal128(numbers[0], numbers[1] if len(numbers) > 1 else 0)
        if word in ("varchar", "char"):
            self._numbers()
            return pa.string()
        if word in _TYPES:
            return _TYPES[word]
        self._at = began
        raise self._error(f"a type ({', '.join(_TYPES)}, decimal(p,s), array<>, map<>, struct<>)")

    def _numbers(self) -> list[int]:
        if self._peek() != "(":
            return []
        self._next()
        numbers = []
        while (word := self._next()) not in (")", None):
            if word != ",":
                numbers.append(int(word))
        return numbers

    def _name(self) -> str:
        began = self._at
        word = self._next()
        if word is not None and word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if word is None or not re.fullmatch(r"[A-Za-z_]\w*", word):
            self._at = began
            raise self._error("the name of a column")
        return word

    def _expect(self, wanted: str) -> None:
        began = self._at
        if (self._next() or "").lower() != wanted:
            self._at = began
            raise self._error(repr(wanted))

    def _peek(self) -> str | None:
        found = _TOKEN.match(self._text, self._at)
        return found[1] if found else None

    def _next(self) -> str | None:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[1]

    def _error(self, wanted: str) -> BadBody:
        rest = self._text[self._at :].strip()
        return BadBody(
            f"schema {self._text!r}: expected {wanted} at {rest[:30]!r}; a schema is 'id bigint, name string'"
        )


def _json_type(document: Any, where: str) -> pa.DataType:
    kind = document.get("type") if isinstance(document, dict) else None
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "array":
        return pa.list_(pa.field("element", _json_type(document.get("items"), f"{where}, items")))
    if kind == "object" and document.get("properties"):
        inner = document["properties"].items()
        return pa.struct([pa.field(name, _json_type(each, f"{where}, {name}")) for name, each in inner])
    if kind == "object" and isinstance(document.get("additionalProperties"), dict):
        value = _json_type(document["additionalProperties"], f"{where}, additionalProperties")
        return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))
    if kind in _JSON_TYPES:
        return (
            _JSON_FORMATS.get(str(document.get("format")), _JSON_TYPES[kind]) if kind == "string" else _JSON_TYPES[kind]
        )
    raise BadBody(
        f"{where}: expected a type of string, integer, number, boolean, array with items, or object with properties, "
        f"found {document!r}"[:400]
    )

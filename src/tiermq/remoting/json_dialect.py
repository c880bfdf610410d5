"""JSON bodies as RocketMQ's Java writes and reads them (fastjson).

Written: fields in alphabetical order (of a table beyond SORTED_MAX in its own), absent ones left out, enums by name,
keys of maps as quoted text, and a map whose keys are objects (message queues) with the object as the key, because Java
reads it so and no other way:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":7}}}

Read: that, integer keys without quotes, and everything that is JSON. A key that is an object reads as its text in
standard JSON, in the order of arrival. What a number, a boolean or an enum was written as is for `as_int`, `as_bool`
and `as_name`; `object_in`, `text_in`, `int32_in` and others check the type of a field. Nesting is limited, so that no
body can exhaust the stack; a key that is an object counts for many levels, because its text is quoted once more in
every key around it: thirty of them would be gigabytes.

`json.loads` holds the interpreter's lock until it has read all of a body, and every other thread waits meanwhile. So a
body above `AT_ONCE_BYTES` (a registration of many topics) is read in small parts, between which others run.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from tiermq.errors import RequestRefused
from tiermq.settings import INT_MAX, LONG_MAX

NESTING_MAX = 100
KEY_LEVELS = 40
AT_ONCE_BYTES = 128 * 1024
PART_CHARACTERS = 1024
"""The length of an object or array that is parsed in one step."""
NAMES_AT_ONCE = 1_000
SORTED_MAX = 10_000
"""A longer list of names is written as it comes: to sort it would hold the interpreter's lock for tens of
milliseconds."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_$.+-]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
E = TypeVar("E", bound=enum.IntEnum)


class ObjectKeyed:
    """A map whose keys are objects, in the order given."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[tuple[Mapping[str, Any], Any]]) -> None:
        self.items = list(items)


def encode_body(value: Any) -> bytes:
    """`value` (mappings, sequences, dataclasses, enums, ObjectKeyed, plain values) as a body."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode("utf-8", "replace")


def decode_body(body: bytes | memoryview) -> Any:
    """The document in a body. Raises RequestRefused if it is invalid."""
    data = bytes(body)
    if len(data) <= AT_ONCE_BYTES:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            pass  # Not standard JSON: perhaps the dialect.
        else:
            _check_nesting(value, data)
            return value
    try:
        text = data.decode("utf-8")
        value, at = _read(text, _skip(text, 0), 0)
        if _skip(text, at) != len(text):
            raise ValueError(f"something behind the end at {at}")
    except (ValueError, IndexError) as error:
        raise RequestRefused(f"expected a JSON body, found {len(data)} bytes that are none: {error}") from error
    return value


def _check_nesting(value: Any, data: bytes) -> None:
    """Refuse what an encoder could not write again."""
    if data.count(b"{") + data.count(b"[") <= NESTING_MAX:
        return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(NESTING_MAX + 1):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise RequestRefused(f"expected a JSON body, found one with more than {NESTING_MAX} levels of nesting")


def decode_object(body: bytes | memoryview) -> dict[str, Any]:
    """The same for a body that must be an object."""
    value = decode_body(body)
    if not isinstance(value, dict):
        raise RequestRefused(f"expected a JSON object as the body, found a {type(value).__name__}")
    return value


def as_int(value: Any, default: int = 0) -> int:
    """A number that may have been written as text or as a boolean."""
    if value is None or value == "":
        return default
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestRefused(f"expected a number in the body, found {str(value)[:40]!r}") from error


def as_bool(value: Any, default: bool = False) -> bool:
    """A boolean that may have been written as text or as a number."""
    if value is None:
        return default
    if isinstance(value, str):
        return value == "1" or value.lower() == "true"
    return bool(value)


def as_name(value: Any, names: type[E], default: E) -> E:
    """An enum that may have been written by name, by number, or by a number as text."""
    if isinstance(value, str) and value in names.__members__:
        return names[value]
    try:
        return default if value is None or value == "" else names(int(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, enum.Enum):
        parts.append(quoted(value.name))
    elif isinstance(value, str):
        parts.append(quoted(value))
    elif isinstance(value, Mapping):
        _write_object({_key(name): each for name, each in value.items()}, parts)
    elif is_dataclass(value) and not isinstance(value, type):
        _write_object({field.name: getattr(value, field.name) for field in fields(value)}, parts)
    elif isinstance(value, ObjectKeyed):
        parts.append("{")
        for number, (key, each) in enumerate(value.items):
            parts.append("," if number else "")
            _write(key, parts)
            parts.append(":")
            _write(each, parts)
        parts.append("}")
    elif isinstance(value, list) and all(type(each) is str for each in value):
        _write_names(value, parts)
    elif isinstance(value, list | tuple | set | frozenset):
        parts.append("[")
        for number, each in enumerate(sorted(value, key=str) if isinstance(value, set | frozenset) else value):
            parts.append("," if number else "")
            _write(each, parts)
        parts.append("]")
    else:
        parts.append(json.dumps(value))


def _write_names(names: list[str], parts: list[str]) -> None:
    """Names by the ten thousand, in parts between which other threads run."""
    parts.append("[")
    for begin in range(0, len(names), NAMES_AT_ONCE):
        text = json.dumps(names[begin : begin + NAMES_AT_ONCE], separators=(",", ":"), ensure_ascii=False)
        parts.append(f"{',' if begin else ''}{text[1:-1]}")
    parts.append("]")


def _write_object(values: dict[str, Any], parts: list[str]) -> None:
    parts.append("{")
    first = True
    for name in in_order(values):
        if values[name] is not None:
            parts.append(f"{'' if first else ','}{quoted(name)}:")
            _write(values[name], parts)
            first = False
    parts.append("}")


def _key(name: object) -> str:
    return name.name if isinstance(name, enum.Enum) else str(name)


def in_order(names: Collection[str]) -> Collection[str]:
    """Sorted, unless there are very many."""
    return sorted(names) if len(names) <= SORTED_MAX else names


def quoted(text: str) -> str:
    """Text as JSON has it."""
    return json.dumps(text, ensure_ascii=False)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _read(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > NESTING_MAX:
        raise ValueError(f"more than {NESTING_MAX} levels of nesting")
    if text[at] in "{[":
        return _read_part(text, at, depth) or (_read_object if text[at] == "{" else _read_array)(text, at, depth)
    value, end = _DECODER.raw_decode(text, at)
    return value, end


def _read_part(text: str, at: int, depth: int) -> tuple[Any, int] | None:
    """An object or array that is short and standard JSON; None for others."""
    part = text[at : at + PART_CHARACTERS]
    if part.count("{") + part.count("[") + depth > NESTING_MAX:
        return None
    try:
        value, length = _DECODER.raw_decode(part)
    except ValueError:
        return None
    return value, at + length


def _read_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _read_key(text, at, depth)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError(f"no colon at {at}")
        found[key], at = _read(text, _skip(text, at + 1), depth + 1)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != "}":
            raise ValueError(f"neither a comma nor the end of an object at {at}")
    return found, at + 1


def _read_key(text: str, at: int, depth: int) -> tuple[str, int]:
    if text[at] == '"':
        key, at = _DECODER.raw_decode(text, at)
        return str(key), at
    if text[at] == "{":
        value, at = _read(text, at, depth + KEY_LEVELS)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False), at
    bare = _BARE_KEY.match(text, at)
    if bare is None:
        raise ValueError(f"no key at {at}")
    return bare[0], bare.end()


def _read_array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        value, at = _read(text, at, depth + 1)
        found.append(value)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != "]":
            raise ValueError(f"neither a comma nor the end of an array at {at}")
    return found, at + 1


def object_in(value: object, what: str) -> dict[str, Any]:
    """An object of a body; raises RequestRefused for anything else."""
    if not isinstance(value, dict):
        raise RequestRefused(f"expected {what} to be an object, found a {type(value).__name__}")
    return value


def list_in(table: Mapping[str, Any], name: str) -> list[Any]:
    """A list of a body, empty if missing; raises RequestRefused for anything else."""
    found = table.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise RequestRefused(f"expected a list in {name}, found a {type(found).__name__}")
    return found


def text_in(value: object, what: str) -> str:
    """Text of a body, "" if missing; raises RequestRefused for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestRefused(f"expected text in {what}, found a {type(value).__name__}")
    return value


def text_map_in(value: object, what: str) -> dict[str, str]:
    """A map of text to text; plain values that are no text become it, absent ones are left out, as Java does."""
    found = {}
    for key, each in object_in(value, what).items():
        if isinstance(each, dict | list):
            raise RequestRefused(f"expected text in {what}, found a {type(each).__name__} under {key[:40]!r}")
        if each is not None:
            found[key] = str(each).lower() if isinstance(each, bool) else str(each)
    return found


def int32_in(table: Mapping[str, Any], name: str, default: int = 0) -> int:
    return _within(as_int(table.get(name), default), name, INT_MAX)


def int64_in(table: Mapping[str, Any], name: str, default: int = 0) -> int:
    return _within(as_int(table.get(name), default), name, LONG_MAX)


def _within(value: int, name: str, high: int) -> int:
    if not -high - 1 <= value <= high:
        raise RequestRefused(f"expected a number of {high.bit_length() + 1} bits in {name}, found {value}")
    return value

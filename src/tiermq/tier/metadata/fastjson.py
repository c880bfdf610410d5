"""Text as fastjson 1.2 writes it with PrettyFormat, which is how RocketMQ keeps its configuration files.

    {
    <tab>"table":{
    <tab><tab>"b-a/Orders/0":{0:{
    <tab><tab><tab><tab>"path":"b-a/Orders/0",
    ...

A bean puts each field on a line of its own. A map does that for text keys only: a key that is an integer follows the
brace or the comma at once and has no quotes. Both indent by one tab per level and end on a line of their own, unless
they are empty. `Bean` and `dict` stand for the two; values are text, integers, or these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, Union

Value: TypeAlias = Union[str, int, "Bean", dict[str, "Value"], dict[int, "Value"]]

_ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\u000B",
}  # fmt: skip


class Bean:
    """An object with declared fields, in the order in which they are written."""

    __slots__ = ("fields",)

    def __init__(self, fields: Sequence[tuple[str, Value]]) -> None:
        self.fields = fields


def encode_fastjson(value: Value) -> str:
    """The value's text, without a line end behind it."""
    out: list[str] = []
    _write(out, value, 0)
    return "".join(out)


def _write(out: list[str], value: Value, level: int) -> None:
    if isinstance(value, Bean):
        _write_members(out, list(value.fields), level)
    elif isinstance(value, dict):
        _write_members(out, list(value.items()), level)
    elif isinstance(value, str):
        out.append(_quoted(value))
    else:
        out.append(str(value))


def _write_members(out: list[str], members: Sequence[tuple[str | int, Value]], level: int) -> None:
    out.append("{")
    for index, (key, value) in enumerate(members):
        if index:
            out.append(",")
        if isinstance(key, str):
            out.append("\n" + "\t" * (level + 1) + _quoted(key) + ":")
        else:
            out.append(f"{key}:")
        _write(out, value, level + 1)
    if members:
        out.append("\n" + "\t" * level)
    out.append("}")


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    # What fastjson escapes beyond JSON's duty: the upper control characters and JavaScript's line ends.
    if code < 0x20 or 0x7F <= code < 0xA0 or code in (0x2028, 0x2029):
        return f"\\u{code:04X}"
    return character

"""Typed reading of a request's ext fields, as lenient as clients in other languages need.

A missing mandatory field, or one that is no number, refuses the request with SYSTEM_ERROR, as RocketMQ does.
"""

from __future__ import annotations

import re

from tiermq.errors import RequestRefused
from tiermq.remoting.command import RemotingCommand

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_CERTAIN_64, _CERTAIN_32 = 18, 9  # So many digits fit, whatever they are.
assert 10**_CERTAIN_64 < 1 << 63
assert 10**_CERTAIN_32 < 1 << 31


def text_field(command: RemotingCommand, name: str, default: str | None = None) -> str:
    """The field's text; without a default it must be there."""
    value = command.ext.get(name, default)
    if value is None:
        raise RequestRefused(f"request {int(command.code)}: expected the field {name}, found none")
    return value


def int_field(command: RemotingCommand, name: str, default: int | None = None) -> int:
    """The field's 64-bit number; without a default it must be there."""
    value = command.ext.get(name)
    if value is not None and len(value) <= _CERTAIN_64 and value.isdecimal() and value.isascii():
        return int(value)  # The usual: a pull has seven of them.
    if value is None:
        if default is None:
            raise RequestRefused(f"request {int(command.code)}: expected the field {name}, found none")
        return default
    if not _INTEGER.fullmatch(value) or not -(1 << 63) <= int(value) < 1 << 63:
        raise RequestRefused(f"request {int(command.code)}: expected a number in {name}, found {value[:40]!r}")
    return int(value)


def int32_field(command: RemotingCommand, name: str, default: int | None = None) -> int:
    """The same of 32 bits."""
    text = command.ext.get(name)
    if text is not None and len(text) <= _CERTAIN_32 and text.isdecimal() and text.isascii():
        return int(text)
    value = int_field(command, name, default)
    if not -(1 << 31) <= value < 1 << 31:
        raise RequestRefused(f"request {int(command.code)}: expected a number of 32 bits in {name}, found {value}")
    return value


def bool_field(command: RemotingCommand, name: str, default: bool | None = None) -> bool:
    """True for "true" and "1" (C++ writes the latter), False for anything else, as in Java."""
    value = command.ext.get(name)
    if value is None:
        if default is None:
            raise RequestRefused(f"request {int(command.code)}: expected the field {name}, found none")
        return default
    return value == "1" or value.lower() == "true"

"""RemotingCommand: one request or response, whatever header it travelled with.

    length i32 | type u8, header length u24 | header | body        length counts everything after this field

Invariants: `ext` holds text only, whatever types the peer wrote; an absent body is an empty one; a response has the
opaque and the header type of its request. `account` is who signed a request that was checked; None where nothing is
checked, since there are no accounts or the peer needs none.

`text_field`, `int_field` and others read ext fields by type, as lenient as clients in other languages need: a missing
mandatory field, or one that is no number, refuses the
request with SYSTEM_ERROR, as RocketMQ does.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiermq.remoting.codes import VERSION, Language

if TYPE_CHECKING:
    from tiermq.remoting.permissions import Account


import re

from tiermq.errors import RequestRefused

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_CERTAIN_64, _CERTAIN_32 = 18, 9  # Any number with this many digits fits.
assert 10**_CERTAIN_64 < 1 << 63
assert 10**_CERTAIN_32 < 1 << 31


class HeaderType(enum.IntEnum):
    """How a header is written. Each side chooses its own; we answer in the type of the request."""

    JSON = 0
    ROCKETMQ = 1


class RemotingCommand:
    """See the module."""

    __slots__ = ("account", "body", "code", "ext", "flag", "header_type", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        *,
        opaque: int = 0,
        flag: int = 0,
        language: int = Language.PYTHON,
        version: int = VERSION,
        remark: str | None = None,
        ext: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        header_type: int = HeaderType.JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.remark = remark
        self.ext: dict[str, str] = {} if ext is None else dict(ext)
        self.body = body
        self.header_type = header_type
        self.account: Account | None = None

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def respond(
        self,
        code: int = 0,
        remark: str | None = None,
        *,
        ext: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> RemotingCommand:
        """The answer to this request."""
        return RemotingCommand(
            code,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            ext=ext,
            body=body,
            header_type=self.header_type,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        mine, theirs = ([getattr(each, name) for name in self.__slots__ if name != "account"] for each in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # It can be changed.

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "one-way" if self.is_oneway else "request"
        return f"<{kind} {int(self.code)} #{self.opaque} ext={self.ext} body={len(self.body)} remark={self.remark!r}>"


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
        return int(value)  # The common case: a pull has seven of them.
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

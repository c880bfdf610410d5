"""RemotingCommand: one request or response, whatever header it travelled with.

    length i32 | type u8, header length u24 | header | body        length counts everything behind itself

Invariants: `ext` holds text only, whatever types the peer wrote; an absent body is an empty one; a response has the
opaque and the header type of its request. `account` is who signed a request that was checked; None where nothing is
checked, since there are no accounts or the peer needs none.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiermq.remoting.codes import VERSION, Language

if TYPE_CHECKING:
    from tiermq.remoting.permissions import Account

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2


class HeaderType(enum.IntEnum):
    """How a header is written. Each side chooses for itself; we answer in the type of the request."""

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

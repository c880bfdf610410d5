"""Access: who may make a request. It is declared where the request is handled, and what is not declared is not served.

    @serves(RequestCode.PULL_MESSAGE, access=reads("topic") & of_group("consumerGroup"))
    def pull(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None: ...

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER, access=ADMINISTRATOR, in_pool=True)

    server.serve(processor)           # every handler that the processor declares

What a request names in its fields is checked before its handler runs. What it reaches by other ways (a body, an offset
in the log) is declared with `reaches`: then the handler calls `require_topic` and `require_group` for each topic and
group once it knows them, and before any effect or answer. Without accounts nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tiermq.remoting.command import RemotingCommand, text_field
from tiermq.remoting.permissions import EITHER, Account, Permission

if TYPE_CHECKING:
    from tiermq.remoting.connection import Connection

Handler = Callable[["Connection", RemotingCommand], RemotingCommand | None]
F = TypeVar("F", bound=Callable[..., Any])
_DECLARED = "__serves__"


@dataclass(frozen=True, slots=True)
class Access:
    """What an account needs to make a request: as text, and as the check that raises RequestRefused."""

    text: str
    check: Callable[[Account, RemotingCommand], None]

    def __and__(self, other: Access) -> Access:
        def both(account: Account, command: RemotingCommand) -> None:
            self.check(account, command)
            other.check(account, command)

        return Access(f"{self.text}, {other.text}", both)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One request code of a handler."""

    code: int
    access: Access
    in_pool: bool
    large_body: bool
    long_in_pool: bool
    decode: Callable[[RemotingCommand], Any] | None


ANY_ACCOUNT = Access(
    "any account with a permission", lambda account, command: account.require_some_permission(command.code)
)
"""Of requests that clients with any permission need, and that give no message."""
ADMINISTRATOR = Access("administrator", lambda account, command: account.require_admin(command.code))


def writes(field: str) -> Access:
    """PUB for the topic in a field."""
    return _topic_in(field, Permission.PUB, "PUB of the topic")


def reads(field: str) -> Access:
    """SUB for the topic in a field."""
    return _topic_in(field, Permission.SUB, "SUB of the topic")


def knows(field: str) -> Access:
    """PUB or SUB for the topic in a field: of requests for information about a topic, without messages."""
    return _topic_in(field, EITHER, "PUB or SUB of the topic")


def of_group(field: str) -> Access:
    """SUB for the group in a field."""
    return Access("SUB of the group", lambda account, command: account.require_group(text_field(command, field)))


def reaches(text: str) -> Access:
    """Checked by the handler, which must find out first what the request is about.

    An account without any permission gets no further: what it asks for may reach nothing, and change something.
    """
    return Access(text, ANY_ACCOUNT.check)


def _topic_in(field: str, wanted: Permission, text: str) -> Access:
    return Access(text, lambda account, command: account.require_topic(text_field(command, field), wanted))


def serves(
    *codes: int,
    access: Access,
    in_pool: bool = False,
    large_body: bool = False,
    long_in_pool: bool = False,
    decode: Callable[[RemotingCommand], Any] | None = None,
) -> Callable[[F], F]:
    """Declare what a handler serves, who may ask for it, and whether it waits (for the disk, the tier, a peer).

    A body above `INLINE_BODY_BYTES` is refused, unless the handler runs in the pool or declares what to do with one:

    * `decode`: it gets what `decode` makes of a request as its third argument. That is made in the pool if the body is
      long, and with `in_pool` always; the handler runs on the loop.
    * `long_in_pool`: the whole handler runs in the pool if the body is long.
    * `large_body`: it may be as large as a frame, not only as `ServerLimits.body_bytes_max`. Without `decode` the
      handler does not parse it.
    """

    def declare(handler: F) -> F:
        added = (Declaration(int(code), access, in_pool, large_body, long_in_pool, decode) for code in codes)
        setattr(handler, _DECLARED, (*getattr(handler, _DECLARED, ()), *added))
        return handler

    return declare


def declared_by(processor: object) -> Iterator[tuple[Declaration, Callable[..., RemotingCommand | None]]]:
    """What the methods of a processor declare. One that declares `decode` takes a third argument."""
    for name in dir(type(processor)):
        for declaration in getattr(getattr(type(processor), name), _DECLARED, ()):
            yield declaration, getattr(processor, name)


def require_topic(command: RemotingCommand, topic: str, wanted: Permission) -> None:
    """Raises RequestRefused unless the request's signer has the permission for a topic that the request reaches."""
    if command.account is not None:
        command.account.require_topic(topic, wanted)


def require_group(command: RemotingCommand, group: str) -> None:
    """The same for a group."""
    if command.account is not None:
        command.account.require_group(group)

"""LocalRequest: a request of another protocol to the broker's processors, in place of the connection it came by.

    pending = asking.ask(caller, RequestCode.ACK_MESSAGE, {...})
    answer = await pending                                        # at once, or when the processor answers later

`Conversation` runs a coroutine that awaits such answers. It needs no task: most answers are there at once, and a task
for each call would cost as much as the call.

Invariants: an answer comes once; when the caller is gone (`Conversation.cancel`), what waits for it is dropped, in the
processors too. All state belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tiermq.broker.group.client_processor import ACCOUNT
from tiermq.kernel import SendRequest
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import AccessCheck, Connection
from tiermq.remoting.frame import decode_frame
from tiermq.remoting.permissions import Account
from tiermq.remoting.server import RemotingServer


@dataclass(slots=True)
class Caller:
    """Who makes a call."""

    client_id: str
    account: Account | None
    peer: tuple[str, int]
    local: tuple[str, int]
    born_host: bytes
    loop: asyncio.AbstractEventLoop
    address: bytes
    """Where messages were made that do not say so."""

    @property
    def key(self) -> tuple[str, str]:
        """What state of a client is kept by: another account that uses its id takes nothing over."""
        return self.client_id, "" if self.account is None else self.account.access_key


class Pending:
    """An answer that is there, or comes."""

    __slots__ = ("_value", "is_done", "resume")

    def __init__(self) -> None:
        self.is_done = False
        self.resume: Callable[[], None] | None = None
        self._value: RemotingCommand | None = None

    @property
    def value(self) -> RemotingCommand:
        """The answer that is there."""
        assert self._value is not None
        return self._value

    def answer(self, value: RemotingCommand) -> None:
        """The first one counts."""
        if self.is_done:
            return
        self.is_done, self._value = True, value
        if self.resume is not None:
            self.resume()

    def __await__(self) -> Generator[Pending, None, RemotingCommand]:
        if not self.is_done:
            yield self
        return self.value


class LocalRequest(Connection):
    """See the module. It has what handlers look at in a connection, and no transport."""

    __slots__ = ("account", "pending")

    def __init__(self, caller: Caller) -> None:
        # Not the base's: a call needs no reader, no buffers and no queue.
        self.id = 0
        self.loop = caller.loop
        self.peer, self.local = caller.peer, caller.local
        self.attributes = {} if caller.account is None else {ACCOUNT: caller.account}
        self.born_host = caller.born_host
        self.on_close = []
        self.closing = False
        self.last_active_s = 0.0
        self._transport = None
        self._out = []
        self._out_bytes = 0
        self._requests = {}
        self._next_opaque = 0
        self.account = caller.account
        self.pending = Pending()

    def send(self, command: RemotingCommand) -> None:
        """The answer."""
        self.pending.answer(command)

    def send_bytes(self, *parts: bytes | memoryview) -> None:
        """The answer, as a frame."""
        self.pending.answer(decode_frame(b"".join(parts)))

    def send_at_once(self, command: RemotingCommand) -> None:
        """A refusal."""
        self.pending.answer(command)

    def oneway(self, command: RemotingCommand) -> None:
        """Nothing is notified to a single request."""

    def close(self) -> None:
        """The caller is gone."""
        self.closing = True

    def abort(self) -> None:
        """The same."""
        self.closing = True

    def signer_of(self, _acl: AccessCheck, _command: RemotingCommand) -> Account | None:
        """Checked when the call came."""
        return self.account


class Asking:
    """Makes requests to the processors of a server."""

    def __init__(self, server: RemotingServer) -> None:
        self.server = server

    def ask(self, caller: Caller, code: int, ext: Mapping[str, str], body: bytes = b"") -> LocalRequest:
        """Make a request; its answer is what `pending` gives."""
        request = LocalRequest(caller)
        self.server.take_request(request, RemotingCommand(code, ext=ext, body=body))
        return request

    def send(self, caller: Caller, send: SendRequest) -> LocalRequest:
        """The same for a send whose access was checked."""
        request = LocalRequest(caller)
        self.server.take_checked_send(request, send, _command_of)
        return request

    def give_way(self) -> Pending:
        """Wait until other work in steps has had its slice of the loop."""
        pending = Pending()
        self.server.give_way(lambda: pending.answer(_NOTHING))
        return pending

    async def in_pool(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, or raises, in a thread of the server's pool."""
        found: list[Any] = []
        pending = Pending()

        def done(result: Any, failure: Exception | None) -> None:
            found.extend((result, failure))
            pending.answer(_NOTHING)

        self.server.run_in_pool(work, done)
        await pending
        result, failure = found
        if failure is not None:
            raise failure
        return result

    def drop(self, request: LocalRequest) -> None:
        """The caller is gone."""
        if not request.pending.is_done:
            request.closing = True
            self.server.forget(request)


_NOTHING = RemotingCommand(0)
"""The answer that ends a wait for something else."""


def _command_of(send: SendRequest) -> RemotingCommand:
    return RemotingCommand(send.code)


class Conversation:
    """Runs a coroutine that awaits `Pending` answers, and nothing else."""

    __slots__ = ("_coroutine", "_finished", "_is_over")

    def __init__(
        self,
        coroutine: Coroutine[Pending, None, Any],
        finished: Callable[[Any, Exception | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._finished = finished
        self._is_over = False

    def go_on(self) -> None:
        """Run it up to the next answer that is not there."""
        if self._is_over:
            return
        try:
            pending = self._coroutine.send(None)
        except StopIteration as stop:
            self._is_over = True
            self._finished(stop.value, None)
        except Exception as error:  # noqa: BLE001 - a call's outermost edge: it is answered, counted and logged
            self._is_over = True
            self._finished(None, error)
        else:
            pending.resume = self.go_on

    def cancel(self) -> None:
        """The caller is gone: nothing more is done."""
        if not self._is_over:
            self._is_over = True
            self._coroutine.close()

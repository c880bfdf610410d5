"""Call: one gRPC call on a stream of HTTP/2, and the outcome of a call.

    path, metadata ─► a message, or several ─► answers ─► the outcome, as trailers

Invariants: a call ends once, by `end`, or by its peer (`on_cancel`); what is sent after its end is dropped. Of its
metadata it keeps what is read here (`KEPT_METADATA`). All state belongs to the loop's thread.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiermq.errors import RemotingError

if TYPE_CHECKING:
    from tiermq.grpc.http2 import Http2Connection

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its length in four bytes."""
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
TIMEOUT_DIGITS_MAX = 8
CALL_BYTES = 1_024
"""What a call holds without its metadata and its message."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Of a request: several messages of the largest size there are."""
INFLATED_BYTES_MAX = 1024 * 1024
"""Of a message that is compressed as a whole: inflating takes the loop's time."""
KEPT_METADATA = frozenset(
    (
        ":method", ":path", "content-type", "grpc-timeout", "grpc-encoding", "authorization", "x-mq-client-id",
        "x-mq-date-time", "x-mq-language",
    )
)  # fmt: skip


class Outcome(enum.IntEnum):
    """gRPC's own status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(RemotingError):
    """A call that ends with an outcome that is not OK."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Call:
    """See the module."""

    __slots__ = (
        "buffer",
        "connection",
        "deadline_s",
        "ended",
        "held_bytes",
        "id",
        "is_half_closed",
        "message_bytes_max",
        "metadata",
        "on_cancel",
        "on_half_close",
        "on_lost",
        "on_message",
        "on_taken",
        "out",
        "out_at",
        "out_bytes",
        "path",
        "received_bytes",
        "served_bytes",
        "started",
        "trailers",
        "window",
    )

    def __init__(self, connection: Http2Connection, number: int, metadata: dict[str, str], window: int) -> None:
        self.connection = connection
        self.id = number
        self.metadata = metadata
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.held_bytes = CALL_BYTES + sum(map(len, metadata.values()))
        self.served_bytes = 0
        self.path = metadata.get(":path", "")
        self.window = window
        self.buffer = bytearray()
        self.received_bytes = 0
        self.started = False
        self.ended = False
        self.is_half_closed = False
        self.out: list[bytes] = []
        self.out_at = 0
        """How much of the first is sent."""
        self.out_bytes = 0
        self.trailers: bytes | None = None
        timeout_s = timeout_in(metadata.get("grpc-timeout"))
        self.deadline_s = None if timeout_s is None else connection.loop.time() + timeout_s
        self.on_message: Callable[[Call, bytes], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        """Its peer may not have got all its answers: the call, or the connection, has ended before."""
        self.on_taken: Callable[[], None] | None = None
        """Its peer has got all its answers. Asked for by a ping, so only where it matters; beside it, `on_lost` is."""

    @property
    def left_s(self) -> float | None:
        """How long the client waits; None if it does not say."""
        return None if self.deadline_s is None else self.deadline_s - self.connection.loop.time()

    def reply(self, message: bytes) -> None:
        """Send the one answer of a unary call, and end it."""
        self.connection.send_answer(self, message, Outcome.OK, "")

    def send(self, *messages: bytes) -> None:
        """Send some of several answers."""
        self.connection.send_messages(self, messages)

    def end(self, outcome: Outcome = Outcome.OK, text: str = "") -> None:
        """No more answers come."""
        self.connection.send_answer(self, None, outcome, text)

    def messages_in(self, data: bytes) -> list[bytes]:
        """The messages that are whole now. Raises CallFailed."""
        buffer, most_bytes = self.buffer, self.message_bytes_max
        if (
            not buffer and len(data) >= PREFIX_BYTES and not data[0]
        ):  # Most messages come whole, in a frame of their own.
            length = int.from_bytes(data[1:PREFIX_BYTES], "big")
            if length == len(data) - PREFIX_BYTES and length <= most_bytes:
                return [bytes(data[PREFIX_BYTES:])]
        buffer += data
        found: list[bytes] = []
        at = 0
        while len(buffer) - at >= PREFIX_BYTES:
            length = int.from_bytes(buffer[at + 1 : at + PREFIX_BYTES], "big")
            if length > most_bytes:
                raise CallFailed(
                    Outcome.RESOURCE_EXHAUSTED, f"expected a message of at most {most_bytes} bytes, found {length}"
                )
            end = at + PREFIX_BYTES + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                message = bytes(view[at + PREFIX_BYTES : end])
            found.append(self._decompressed(message) if buffer[at] else message)
            at = end
        if at:
            del buffer[:at]
        return found

    def _decompressed(self, message: bytes) -> bytes:
        encoding = self.metadata.get("grpc-encoding", "identity")
        if encoding != "gzip":
            raise CallFailed(Outcome.UNIMPLEMENTED, f"expected messages as they are or by gzip, found {encoding[:40]}")
        most_bytes = min(self.message_bytes_max, INFLATED_BYTES_MAX)
        try:
            inflating = zlib.decompressobj(wbits=31)
            found = inflating.decompress(message, most_bytes)
        except zlib.error as error:
            raise CallFailed(Outcome.INTERNAL, f"expected a message by gzip, found other bytes: {error}") from error
        if inflating.unconsumed_tail or not inflating.eof:
            raise CallFailed(
                Outcome.RESOURCE_EXHAUSTED, f"expected a message of at most {most_bytes} bytes by gzip, found more"
            )
        return found


def timeout_in(text: str | None) -> float | None:
    """`grpc-timeout`: up to eight digits and a unit; None for one that is no such."""
    if not text or text[-1] not in _UNITS_S or not text[:-1].isdecimal() or len(text) > TIMEOUT_DIGITS_MAX + 1:
        return None
    return int(text[:-1]) * _UNITS_S[text[-1]]


def framed(message: bytes) -> bytes:
    """A message with its prefix."""
    return b"\x00" + len(message).to_bytes(4, "big") + message

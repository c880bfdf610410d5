"""Connection: one peer, in either role. Frames in, commands to its owner, answers out.

Invariants:
* Everything happens on the loop's thread; others go through `RemotingServer.call_threadsafe`.
* All answers that one read causes leave in one write; answers of other moments of one turn of the loop too.
* Nothing is sent before it is known whether the peer speaks TLS, where both are allowed.
* While the peer does not take its answers, nothing is read from it, and frames that were already read wait.
* Requests of one peer hold the loop at most `SLICE_S` at a time. What is left of a read waits in the owner's queue, one
  slice of one peer for each loop iteration, and nothing more is read from that peer meanwhile.
* A body that is too long for its request is refused when the header is there, and skipped as it arrives.
* A peer is active when it completes a frame, or has sent `ACTIVE_BYTES` of one: single bytes keep nothing open.
* A connection that cannot continue (garbage, too much unsent) is closed; requests to the peer that were open then fail
  with PeerGone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from tiermq.errors import BadFrame, PeerGone, RemotingError, RequestTimedOut
from tiermq.kernel import FRAME_BYTES_MAX, AckRequest, FastSendPath, Frame, FrameReader, SendRequest
from tiermq.kernel.frame_reader import HEADER_MASK, LENGTHS
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from tiermq.remoting.frame import command_of, encode_frame
from tiermq.remoting.limits import SLICE_S, ServerLimits
from tiermq.remoting.tls import HANDSHAKE_BYTE, TlsLayer

if TYPE_CHECKING:
    from tiermq.remoting.permissions import Account

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)
_FLUSH_BYTES = 256 * 1024
BESIDE_BODY_BYTES = 64 * 1024
"""Left of a frame for the header of an answer with a long body."""
OPAQUE_MASK = 0x7FFFFFFF
"""Numbers of requests are positive and of 32 bits."""
ACTIVE_BYTES = 64 * 1024
"""This many bytes of an incomplete frame count as activity."""
UNKNOWN_PEER = ("", 0)
"""The address of a peer that disconnected before it was read."""
_JOINED_BYTES_MAX = 16 * 1024  # Beyond it a copy costs more than handing the parts over one by one.


ACK_RUN_MAX = 256
"""Acknowledgements of one read that are taken together: they hold the loop for less than a slice."""
AnyFrame = Frame | SendRequest | AckRequest
TakeSends = Callable[["Connection", "list[AnyFrame]"], int]
"""Takes sends for the fast path at the head of a read, and returns how many: they are answered later."""


class AccessCheck(Protocol):
    """The account that signed a request; None may do everything. Raises RequestRefused for an unsigned one."""

    def signer_of(self, command: RemotingCommand, peer_host: str) -> Account | None: ...

    def signer_by(self, key: str, signature: str, peer_host: str, sign: Callable[[str], str]) -> Account | None:
        """The same of a protocol with signatures of its own: `sign` makes the one that a secret key would make."""


class Sliced(Protocol):
    """Work on the loop in time slices."""

    loop: asyncio.AbstractEventLoop

    def take_slice(self) -> bool:
        """Work for at most SLICE_S; returns whether the work is done."""


class RoundRobin:
    """Work that waits for the loop: one item gets a time slice in each loop iteration.

    Peers that send one request at a time are read in between, so a flood of one, or of many, delays them by one slice.
    """

    def __init__(self) -> None:
        self._waiting: deque[Sliced] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, work: Sliced) -> None:
        self._waiting.append(work)
        if len(self._waiting) == 1:
            work.loop.call_soon(self._run)

    def _run(self) -> None:
        work = self._waiting[0]
        try:
            is_done = work.take_slice()
        finally:
            self._waiting.popleft()
            if self._waiting:
                work.loop.call_soon(self._run)
        if not is_done:
            self.add(work)


class ConnectionOwner(Protocol):
    """The owner of the connection: the server, or a client."""

    limits: ServerLimits
    speaks_tls: bool
    plain_allowed: bool
    fast_path: FastSendPath | None
    take_sends: TakeSends | None
    round_robin: RoundRobin
    may_answer: Callable[[], bool] | None
    """Asked whenever answers leave: they are dropped, and the connection closed, when they may not."""

    @property
    def tls_context(self) -> ssl.SSLContext | None: ...

    def now_s(self) -> float: ...

    def opened(self, connection: Connection) -> bool:
        """False: the limit is reached."""

    def closed(self, connection: Connection) -> None: ...

    def partial_changed(self, delta_bytes: int) -> None:
        """Add to (or subtract from) the bytes of frames that are not complete."""

    def unsent_changed(self, delta_bytes: int) -> None:
        """Add to (or subtract from) the bytes of answers that the peer has not taken."""

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call it at the end of what runs on the loop now, or in its next iteration."""

    def take_send(self, connection: Connection, request: SendRequest) -> None: ...

    def take_acks(self, connection: Connection, acks: list[AckRequest]) -> None:
        """Of acknowledgements that followed each other in one read."""

    def take_request(self, connection: Connection, command: RemotingCommand) -> None: ...

    def refuses_body(self, connection: Connection, command: RemotingCommand, body_bytes: int) -> bool:
        """Whether a request's body is too long for it. Then the request, without its body, has been answered."""


class Connection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_counted_unsent",
        "_flush_is_due",
        "_frames",
        "_header_begun",
        "_in_read",
        "_next_opaque",
        "_out",
        "_out_bytes",
        "_owner",
        "_partial_bytes",
        "_reader",
        "_refused_bytes",
        "_requests",
        "_silent_bytes",
        "_tls",
        "_tls_known",
        "_transport",
        "_waits_for_slice",
        "_write_is_paused",
        "attributes",
        "born_host",
        "closing",
        "id",
        "last_active_s",
        "local",
        "loop",
        "on_close",
        "peer",
    )

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.id = next(_numbers)
        self.loop = loop
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.attributes: dict[str, Any] = {}
        self.born_host = b""
        self.on_close: list[Callable[[Connection], None]] = []
        self.closing = False
        self.last_active_s = 0.0
        self._owner = owner
        self._reader = self._new_reader()
        self._refused_bytes = 0
        self._partial_bytes = 0
        self._header_begun = b""  # Of a frame that is not whole, until its header is.
        self._silent_bytes = 0
        self._counted_unsent = 0
        self._waits_for_slice = False
        self._transport: asyncio.Transport | None = None
        self._tls: TlsLayer | None = None
        self._tls_known = not owner.speaks_tls and owner.plain_allowed
        self._frames: deque[AnyFrame] = deque()
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_is_due = False
        self._in_read = False
        self._write_is_paused = False
        self._requests: dict[int, tuple[asyncio.Future[RemotingCommand], asyncio.TimerHandle]] = {}
        self._next_opaque = 0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by its class: uvloop's transports are not asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.last_active_s = self._owner.now_s()
        high = self._owner.limits.write_high_bytes
        transport.set_write_buffer_limits(high=high, low=high // 4)
        if not self._owner.opened(self):
            self.closing = True
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._silent_bytes += len(data)
        try:
            data = self._decrypted(data)
            if self._refused_bytes:
                data = self._skip_refused(data)
            frames = self._reader.feed(data) if data else []
            if pending_bytes := self._reader.pending_bytes:
                if frames or not self._partial_bytes:
                    self._header_begun = data[-pending_bytes:]
                    self._refuse_long()
                elif self._header_begun:
                    self._header_begun += data
                    self._refuse_long()
        except BadFrame as error:
            self._give_up(error)
            return
        if self._reader.pending_bytes != self._partial_bytes:
            self._owner.partial_changed(self._reader.pending_bytes - self._partial_bytes)
            self._partial_bytes = self._reader.pending_bytes
        if frames or self._silent_bytes >= ACTIVE_BYTES:
            self.last_active_s = self._owner.now_s()
            self._silent_bytes = 0
        if frames:
            if self.born_host and not self._frames and not self._write_is_paused:
                self._take_fast_path(frames)
            if self._frames:
                self._frames.extend(frames)
            elif frames:
                self._frames = deque(frames)
            if not self._waits_for_slice:
                self._take_frames()
        if self._tls is not None and self._tls.ended and not self.closing:
            self.close()

    def pause_writing(self) -> None:
        self._write_is_paused = True
        if self._transport is not None and not self.closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_is_paused = False
        self.last_active_s = self._owner.now_s()
        if self.closing:
            return
        self._count_unsent()
        if not self._waits_for_slice:
            self._take_frames()
            self._read_on()

    def take_slice(self) -> bool:
        """Continue with requests that were read before; returns whether none are left, or they must wait."""
        self._waits_for_slice = False
        if self.closing:
            return True
        self._take_frames(waits=False)
        if self._frames and not self._write_is_paused and not self.closing:
            self._waits_for_slice = True
            return False
        self._read_on()
        return True

    def _read_on(self) -> None:
        may_read = not (self._write_is_paused or self._waits_for_slice or self.closing)
        if may_read and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._frames.clear()
        self._out.clear()
        self._out_bytes = 0
        if self._partial_bytes:
            self._owner.partial_changed(-self._partial_bytes)
            self._partial_bytes = 0
        if self._counted_unsent:
            self._owner.unsent_changed(-self._counted_unsent)
            self._counted_unsent = 0
        requests, self._requests = self._requests, {}
        why = f" ({exc})" if exc is not None else ""
        for future, timer in requests.values():
            timer.cancel()
            if not future.done():
                future.set_exception(
                    PeerGone(f"{self._peer_text}: expected an answer, found the connection closed{why}")
                )
        self._owner.closed(self)
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - one owner's mistake must not keep others from hearing of the end
                _log.exception("%s: a close callback failed", self)

    # What others call.

    def send(self, command: RemotingCommand) -> None:
        """Send, together with other data of this loop iteration. A closed connection takes it and drops it.

        A peer closes the connection at a frame that is too long: it gets an answer with the reason instead.
        """
        if len(command.body) >= FRAME_BYTES_MAX - BESIDE_BODY_BYTES and command.flag & FLAG_RESPONSE:
            remark = (
                f"the answer has {len(command.body)} bytes, more than a frame can have: ask for parts of it (topicSeq "
                "and maxTopicNum, groupSeq and maxGroupNum), or for less"
            )
            command.code, command.remark, command.ext, command.body = ResponseCode.INVALID_PARAMETER, remark, {}, b""
        self.send_bytes(encode_frame(command))

    def send_bytes(self, *parts: bytes | memoryview) -> None:
        """The same for a frame that is already encoded, in one or several parts."""
        if self.closing:
            return
        self._out.extend(parts)
        for part in parts:
            self._out_bytes += len(part)
        if self._in_read:
            if self._out_bytes >= _FLUSH_BYTES:
                self._flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._owner.flush_soon(self._flush)

    def send_at_once(self, command: RemotingCommand) -> None:
        """Send what may leave although `may_answer` forbids answers: a refusal, or a status."""
        answers_wait = bool(self._out)
        self._out.append(encode_frame(command))
        self._out_bytes += len(self._out[-1])
        if answers_wait:
            self._flush()
        else:
            self._write_out()

    def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> asyncio.Future[RemotingCommand]:
        """Ask the peer. The future gets the answer, whatever its code, or PeerGone or RequestTimedOut."""
        command.opaque = self._next_opaque + 1 & OPAQUE_MASK
        return self._ask((encode_frame(command),) if not self.closing else (), timeout_s, int(command.code))

    def request_encoded(
        self, encode: Callable[[int], tuple[bytes | memoryview, ...]], timeout_s: float, code: int
    ) -> asyncio.Future[RemotingCommand]:
        """The same for a caller that encodes the frame, in parts, when it gets the number of the request."""
        return self._ask(encode(self._next_opaque + 1 & OPAQUE_MASK), timeout_s, code)

    def _ask(
        self, parts: tuple[bytes | memoryview, ...], timeout_s: float, code: int
    ) -> asyncio.Future[RemotingCommand]:
        future: asyncio.Future[RemotingCommand] = self.loop.create_future()
        if self.closing:
            future.set_exception(PeerGone(f"{self._peer_text}: expected an open connection, found it closed"))
            return future
        self._next_opaque = opaque = self._next_opaque + 1 & OPAQUE_MASK
        self.send_bytes(*parts)
        timer = self.loop.call_later(timeout_s, self._time_out, opaque, timeout_s, code)
        self._requests[opaque] = (future, timer)
        return future

    def oneway(self, command: RemotingCommand) -> None:
        """Send a one-way command."""
        self._next_opaque = command.opaque = self._next_opaque + 1 & OPAQUE_MASK
        command.flag |= FLAG_ONEWAY
        self.send(command)

    def close(self) -> None:
        """Send what waits, then close. Nothing more is read."""
        if not self.closing:
            self._flush()
            self.closing = True
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits is dropped."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return self._out_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    @property
    def partial_bytes(self) -> int:
        """What it has sent of a frame that is not complete."""
        return self._partial_bytes

    @property
    def open_requests(self) -> int:
        """How many requests to the peer have no answer yet."""
        return len(self._requests)

    def __repr__(self) -> str:
        return f"<connection {self.id} with {self._peer_text}>"

    @property
    def _peer_text(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    # How it works inside.

    def _decrypted(self, data: bytes) -> bytes:
        """What the peer sent, without TLS. Raises BadFrame."""
        if not self._tls_known:
            self._choose_tls(data[0])
            self.loop.call_soon(self._flush)
        if self._tls is None:
            return data
        data = self._tls.received(data)
        self._write_raw(self._tls.pending_output())
        return data

    def signer_of(self, acl: AccessCheck, command: RemotingCommand) -> Account | None:
        """The account of a request of this peer; None may do everything. Raises RequestRefused."""
        return acl.signer_of(command, self.peer[0])

    def _choose_tls(self, first_byte: int) -> None:
        self._tls_known = True
        if first_byte == HANDSHAKE_BYTE and self._owner.tls_context is not None:
            self._tls = TlsLayer(self._owner.tls_context)
        elif not self._owner.plain_allowed:
            raise BadFrame("expected TLS, which this server enforces, found a plain peer")

    def _take_fast_path(self, frames: list[AnyFrame]) -> None:
        """Take sends for the fast path at the head of a read all at once, and out of the list."""
        fast_path, take_sends = self._owner.fast_path, self._owner.take_sends
        if fast_path is not None:
            taken, answers = fast_path.take_all(frames, self.born_host)
            if answers:
                self._out.append(answers)
                self._out_bytes += len(answers)
        elif take_sends is not None:
            taken = take_sends(self, frames)
        else:
            return
        if taken:
            del frames[:taken]

    def _new_reader(self) -> FrameReader:
        limits = self._owner.limits
        return FrameReader(limits.frame_bytes_max, header_bytes_max=limits.header_bytes_max)

    def _refuse_long(self) -> None:
        """Of a frame that has only begun: refuse a body that is too long for the request before it is received.

        Also one that answers nothing.
        """
        begin = self._header_begun
        if len(begin) < LENGTHS.size:
            return
        length, mixed = LENGTHS.unpack_from(begin)
        header_end = LENGTHS.size + (mixed & HEADER_MASK)
        body_bytes = 4 + length - header_end
        is_long = body_bytes > self._owner.limits.body_bytes_max
        if is_long and len(begin) < header_end:
            return
        self._header_begun = b""
        if not is_long:
            return
        command = command_of(Frame(mixed >> 24, begin[LENGTHS.size : header_end], b""))
        if command.flag & FLAG_RESPONSE:
            is_refused = command.opaque not in self._requests
        else:
            is_refused = self._owner.refuses_body(self, command, body_bytes)
        if is_refused:
            self._refused_bytes = 4 + length - len(begin)
            self._reader = self._new_reader()

    def _skip_refused(self, data: bytes) -> bytes:
        """What is behind the refused body."""
        skipped = data[self._refused_bytes :]
        self._refused_bytes = max(0, self._refused_bytes - len(data))
        return skipped

    def _take_frames(self, *, waits: bool = True) -> None:
        """Serve what was read. What exceeds the time slice is queued, if `waits`; else left to the caller."""
        frames, self._in_read = self._frames, True
        until_s = 0.0
        try:
            while frames and not self._write_is_paused and not self.closing:
                if not until_s:
                    until_s = time.monotonic() + SLICE_S
                elif time.monotonic() >= until_s:
                    break
                frame = frames.popleft()
                if type(frame) is SendRequest:
                    self._owner.take_send(self, frame)
                    continue
                if type(frame) is AckRequest:
                    acks = [frame]
                    while frames and type(frames[0]) is AckRequest and len(acks) < ACK_RUN_MAX:
                        acks.append(cast(AckRequest, frames.popleft()))
                    self._owner.take_acks(self, acks)
                    continue
                command = command_of(frame)  # type: ignore[arg-type]
                if command.flag & FLAG_RESPONSE:
                    self._answered(command)
                else:
                    self._owner.take_request(self, command)
        except BadFrame as error:
            self._give_up(error)
            return
        finally:
            self._in_read = False
        self._flush()
        if not frames:
            if self._reader.broken is not None:
                self._give_up(BadFrame(self._reader.broken))
        elif waits and not self._write_is_paused and not self.closing:
            self._waits_for_slice = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()
            self._owner.round_robin.add(self)

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self._out or self.closing or self._transport is None:
            return
        if not self._tls_known:
            # The peer's first byte shows whether it uses TLS: until then everything waits.
            if self._out_bytes > self._owner.limits.write_bytes_max:
                self.abort()
            return
        may_answer = self._owner.may_answer
        if may_answer is not None and not may_answer():
            _log.info("%s: closed: this process may not answer now", self)
            self.abort()
            return
        self._write_out()

    def _write_out(self) -> None:
        if self.closing or self._transport is None:
            return
        out, self._out = self._out, []
        out_bytes, self._out_bytes = self._out_bytes, 0
        self.last_active_s = self._owner.now_s()
        if self._tls is None and out_bytes >= _JOINED_BYTES_MAX and len(out) > 1:
            self._transport.writelines(out)
        else:
            data = out[0] if len(out) == 1 else b"".join(out)
            self._write_raw(data if self._tls is None else self._tls.wrap(bytes(data)))
        unsent = self._count_unsent()
        if unsent > self._owner.limits.write_bytes_max:
            _log.warning("%s: closed: %d bytes of answers are unread", self, unsent)
            self.abort()

    def _count_unsent(self) -> int:
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unsent != self._counted_unsent:
            changed, self._counted_unsent = unsent - self._counted_unsent, unsent
            self._owner.unsent_changed(changed)
        return unsent

    def _write_raw(self, data: bytes | memoryview) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _answered(self, command: RemotingCommand) -> None:
        known = self._requests.pop(command.opaque, None)
        if known is None:
            return  # It came too late: the request has timed out.
        future, timer = known
        timer.cancel()
        if not future.done():
            future.set_result(command)

    def _time_out(self, opaque: int, timeout_s: float, code: int) -> None:
        known = self._requests.pop(opaque, None)
        if known is not None and not known[0].done():
            known[0].set_exception(
                RequestTimedOut(
                    f"{self._peer_text}: expected an answer to request {code} within {timeout_s} s, found none"
                )
            )

    def _give_up(self, error: RemotingError) -> None:
        _log.info("%s: closed: %s", self, error)
        self._frames.clear()
        self.close()


def _address(found: Any) -> tuple[str, int]:
    if isinstance(found, tuple) and len(found) >= 2:
        return str(found[0]), int(found[1])
    return UNKNOWN_PEER if found is None else (str(found), 0)

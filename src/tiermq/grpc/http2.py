"""Http2Connection: the server's side of HTTP/2, as far as gRPC needs it.

    length u24 | type u8 | flags u8 | stream u31 | payload              a frame

    preface, SETTINGS ─► HEADERS (+ CONTINUATION) ─► DATA … ─► Call ─► HEADERS, DATA …, HEADERS with the outcome

Invariants:
* Everything that holds for a `Connection` holds here: one write for what a read causes, time slices, limits of what is
  unread and of what is incomplete, TLS by the first byte.
* Data leaves only as far as the peer's windows reach, of the stream and of the connection; what waits for them counts
  as unsent, and a peer that lets too much wait is closed.
* What open calls hold (metadata, the message that is served, what is there of one that is not whole) counts as
  incomplete.
* What a peer can send without an answer (resets, pings, settings, windows, header blocks, empty frames) is counted, by
  what it costs: `CONTROL_FRAMES_MAX` within `CONTROL_PERIOD_S`, and the connection ends.
* Of a call with `on_taken` one of `on_taken` and `on_lost` is called: what was written may still be lost with the
  connection, so a ping leaves behind the outcome, at most one at a time, and its answer proves that all before it came.
* Header blocks are decoded in the order in which they came, also those of streams that are refused: they change the
  state of the decoder. Blocks that leave are literals, which need no state.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from tiermq.errors import BadFrame, RemotingError
from tiermq.grpc.call import Call, CallFailed, Outcome, framed
from tiermq.grpc.header_codes import CODES
from tiermq.kernel import BadBlock, HeaderDecoder
from tiermq.remoting.connection import ACTIVE_BYTES, Connection, ConnectionOwner
from tiermq.remoting.limits import SLICE_S
from tiermq.remoting.proxy_protocol import Networks, header_in, is_within

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct(
    ">"
    "H"  # length, its upper 16 bits
    "B"  # length, its lower 8 bits
    "B"  # type
    "B"  # flags
    "I"  # stream
)
HEAD_BYTES = HEAD.size
assert HEAD_BYTES == 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 3
FRAME_SIZE_ERROR, REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 9, 11
SET_MAX_STREAMS, SET_WINDOW, SET_FRAME_BYTES, SET_HEADER_BYTES = 3, 4, 5, 6
STREAM_MASK = 0x7FFFFFFF
FRAME_BYTES = 16_384
"""The longest payload that is accepted, and sent."""
FIRST_WINDOW = 65_535
WINDOW_MAX = (1 << 31) - 1
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 8 << 20
STREAMS_MAX = 4_096
"""Calls of one connection at a time: a consumer has one for each receive that waits."""
HEADER_BLOCK_BYTES_MAX = 32 * 1024
CONTROL_FRAMES_MAX = 20_000
CONTROL_PERIOD_S = 1.0
CALLS_PER_CONTROL_FRAME = 16
"""A change of all windows costs as much as one frame for so many open calls, and for each that is blocked."""
TAKEN = b"tmqtaken"
"""The ping behind answers."""
TEXT_BYTES_MAX = 1_024
"""Of the text of an outcome."""
Handle = Callable[[Call], None]


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without an index, for blocks that need no state."""
    assert len(name) < 127
    assert len(value) < 127
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


_ANSWER_BLOCK = b"\x88" + _literal(b"content-type", b"application/grpc")
_OK_BLOCK = _literal(b"grpc-status", b"0")


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


_SETTINGS = _frame(
    SETTINGS,
    0,
    0,
    b"".join(
        struct.pack(">HI", name, value)
        for name, value in (
            (SET_MAX_STREAMS, STREAMS_MAX),
            (SET_WINDOW, STREAM_WINDOW),
            (SET_FRAME_BYTES, FRAME_BYTES),
            (SET_HEADER_BYTES, HEADER_BLOCK_BYTES_MAX),
        )
    ),
) + _frame(WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW - FIRST_WINDOW).to_bytes(4, "big"))
_SETTINGS_ACK = _frame(SETTINGS, ACK, 0)


class _Broken(RemotingError):
    """What ends a connection, with HTTP/2's code for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Http2Connection(Connection):
    """See the module."""

    __slots__ = (
        "_awaits_header",
        "_block",
        "_blocked",
        "_buffered_bytes",
        "_calls",
        "_control_frames",
        "_control_since_s",
        "_decoder",
        "_handle",
        "_input",
        "_last_stream",
        "_opened",
        "_peer_frame_bytes",
        "_peer_window",
        "_ping_is_out",
        "_pinged",
        "_proxies",
        "_received_bytes",
        "_untaken",
        "_waiting_bytes",
        "_window",
        "caller",
    )

    def __init__(
        self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop, handle: Handle, proxies: Networks = ()
    ) -> None:
        """`proxies`: peers that pass connections on, each with a header that names its peer."""
        super().__init__(owner, loop)
        self._handle = handle
        self._proxies = proxies
        self._awaits_header = False
        self._input = b""
        self._opened = False
        self._decoder = HeaderDecoder(HEADER_BLOCK_BYTES_MAX, CODES)
        self._calls: dict[int, Call] = {}
        self._blocked: dict[int, Call] = {}
        self._pinged: dict[int, Call] = {}
        self._untaken: dict[int, Call] = {}
        self._ping_is_out = False
        self._block: tuple[int, int, bytearray] | None = None
        self._last_stream = 0
        self._window = FIRST_WINDOW
        self._peer_window = FIRST_WINDOW
        self._peer_frame_bytes = FRAME_BYTES
        self._received_bytes = 0
        self._waiting_bytes = 0
        self._buffered_bytes = 0
        self._control_frames = 0
        self._control_since_s = 0.0
        self.caller: object = None
        """Who made the last call, as the service of the calls knows it."""

    # Reading.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._awaits_header = is_within(self.peer[0], self._proxies)

    def _behind_header(self, data: bytes) -> bytes:
        """What the peer itself sent. Raises BadFrame."""
        data = self._input + data
        header = header_in(data)
        self._input = data if header is None else b""
        self._count_partial()
        if header is None:
            return b""
        self._awaits_header = False
        self.peer, self.local = header.source or self.peer, header.destination or self.local
        return data[header.length :]

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._silent_bytes += len(data)
        try:
            if self._awaits_header:
                data = self._behind_header(data)
            if not data:
                return
            data = self._decrypted(data)
        except BadFrame as error:
            self._give_up(error)
            return
        self._input = self._input + data if self._input else data
        if self._silent_bytes >= ACTIVE_BYTES:
            self.last_active_s = self._owner.now_s()
            self._silent_bytes = 0
        if not self._waits_for_slice:
            self._take_frames()
        if self._tls is not None and self._tls.ended and not self.closing:
            self.close()

    def _take_frames(self, *, waits: bool = True) -> None:
        self._in_read = True
        try:
            done = self._take_input()
        except _Broken as error:
            _log.info("%s: closed: %s", self, error)
            self._out.append(_go_away(self._last_stream, error.code, str(error)))
            done = True
            self._end_calls()
            super().close()
        finally:
            self._in_read = False
        self._count_partial()
        self._flush()
        if not done and waits and not self.closing:
            self._waits_for_slice = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()
            self._owner.round_robin.add(self)

    def take_slice(self) -> bool:
        """See `Connection.take_slice`."""
        self._waits_for_slice = False
        if self.closing:
            return True
        before = len(self._input)
        self._take_frames(waits=False)
        if self._has_frame and len(self._input) < before and not self._write_is_paused and not self.closing:
            self._waits_for_slice = True
            return False
        self._read_on()
        return True

    @property
    def _has_frame(self) -> bool:
        data = self._input
        return len(data) >= HEAD_BYTES and len(data) >= HEAD_BYTES + int.from_bytes(data[:3], "big")

    def _take_input(self) -> bool:
        """Serve the frames that are whole; False if the time slice ended before. Raises _Broken."""
        data, at = self._input, 0
        if not self._opened:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise _Broken(PROTOCOL_ERROR, "expected HTTP/2, as gRPC speaks it, found other bytes")
            if len(data) < len(PREFACE):
                return True
            self._opened, at = True, len(PREFACE)
            self._out.append(_SETTINGS)
        until_s, end = time.monotonic() + SLICE_S, len(data)
        try:
            while end - at >= HEAD_BYTES and not self._write_is_paused and not self.closing:
                high, low, kind, flags, stream = HEAD.unpack_from(data, at)
                length = high << 8 | low
                if length > FRAME_BYTES:
                    raise _Broken(FRAME_SIZE_ERROR, f"expected frames of {FRAME_BYTES} bytes, found {length}")
                begin, at_next = at + HEAD_BYTES, at + HEAD_BYTES + length
                if at_next > end:
                    break
                at = at_next
                self._take(kind, flags, stream & STREAM_MASK, data[begin:at])
                if time.monotonic() >= until_s:
                    return False
        finally:
            if at:
                self._input = data[at:]
                self.last_active_s, self._silent_bytes = self._owner.now_s(), 0
        return True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or stream != self._block[0]):
            raise _Broken(PROTOCOL_ERROR, f"expected the rest of a header block, found a frame of type {kind}")
        if kind == DATA:
            self._take_data(flags, stream, payload)
        elif kind == HEADERS:
            self._take_headers(flags, stream, payload)
        elif kind == CONTINUATION:
            self._take_continuation(flags, payload)
        elif kind == WINDOW_UPDATE:
            self._take_window(stream, payload)
        elif kind == SETTINGS:
            self._take_settings(flags, payload)
        elif kind == PING:
            self._count_control()
            if len(payload) != 8:
                raise _Broken(FRAME_SIZE_ERROR, f"expected a ping of 8 bytes, found {len(payload)}")
            if not flags & ACK:
                self._write_frame(_frame(PING, ACK, 0, payload))
            elif self._ping_is_out and payload == TAKEN:
                self._were_taken()
        elif kind == RST_STREAM:
            self._count_control()
            self._cancel(self._calls.get(stream) or self._pinged.pop(stream, None) or self._untaken.pop(stream, None))
        elif kind == PUSH_PROMISE:
            raise _Broken(PROTOCOL_ERROR, "expected what a client sends, found a pushed stream")
        else:
            self._count_control()  # PRIORITY, GOAWAY, and what was added to the protocol later: ignored.

    def _count_control(self, frames: int = 1) -> None:
        now_s = self.loop.time()
        if now_s - self._control_since_s > CONTROL_PERIOD_S:
            self._control_since_s, self._control_frames = now_s, 0
        self._control_frames += frames
        if self._control_frames > CONTROL_FRAMES_MAX:
            raise _Broken(ENHANCE_YOUR_CALM, f"expected calls, found {self._control_frames} frames without one")

    # Header blocks.

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream & 1:
            raise _Broken(PROTOCOL_ERROR, f"expected a client's stream, found {stream}")
        payload = _unpadded(flags, payload)
        if flags & WITH_PRIORITY:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._open(stream, flags, payload)
        else:
            self._block = (stream, flags, bytearray(payload))

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise _Broken(PROTOCOL_ERROR, "expected a header block, found the rest of one")
        self._count_control()
        stream, begun, block = self._block
        block += payload
        if len(block) > HEADER_BLOCK_BYTES_MAX:
            raise _Broken(ENHANCE_YOUR_CALM, f"expected headers of at most {HEADER_BLOCK_BYTES_MAX} bytes, found more")
        if flags & END_HEADERS:
            self._block = None
            self._open(stream, begun, bytes(block))

    def _open(self, stream: int, flags: int, block: bytes) -> None:
        try:
            metadata = self._decoder.metadata(block)
        except BadBlock as error:
            raise _Broken(COMPRESSION_ERROR, str(error)) from error
        known = self._calls.get(stream)
        if known is not None or stream <= self._last_stream:
            self._count_control()
            if known is not None and flags & END_STREAM:
                self._half_close(known)
            return
        self._last_stream = stream
        if len(self._calls) >= STREAMS_MAX:
            self._count_control()
            self._write_frame(_frame(RST_STREAM, 0, stream, REFUSED_STREAM.to_bytes(4, "big")))
            return
        self._calls[stream] = call = Call(self, stream, metadata, self._peer_window)
        self._buffered_bytes += call.held_bytes
        if metadata.get(":method") != "POST" or not metadata.get("content-type", "").startswith("application/grpc"):
            self._forget(call)
            self._write_frame(_frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x08\x03415"))
            return
        self._handle(call)
        if flags & END_STREAM:
            self._half_close(call)

    # Data.

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        length = len(payload)
        if not stream:
            raise _Broken(PROTOCOL_ERROR, "expected data of a stream, found some of none")
        if not length:
            self._count_control()
        self._received_bytes += length
        if self._received_bytes >= CONNECTION_WINDOW // 2:
            self._write_frame(_frame(WINDOW_UPDATE, 0, 0, self._received_bytes.to_bytes(4, "big")))
            self._received_bytes = 0
        call = self._calls.get(stream)
        if call is None or call.is_half_closed:
            if stream > self._last_stream:
                raise _Broken(PROTOCOL_ERROR, f"expected data of an open stream, found some of {stream}")
            return  # It was answered, or reset, while this was on its way.
        data, before = _unpadded(flags, payload), len(call.buffer)
        messages: list[bytes] = []
        failure: CallFailed | None = None
        try:
            messages = call.messages_in(data)
        except CallFailed as error:
            failure = error
        self._buffered_bytes += len(call.buffer) - before
        if failure is not None:
            self.send_answer(call, None, failure.outcome, str(failure))
            return
        if not flags & END_STREAM:
            call.received_bytes += length
            if call.received_bytes >= STREAM_WINDOW // 2:
                self._write_frame(_frame(WINDOW_UPDATE, 0, stream, call.received_bytes.to_bytes(4, "big")))
                call.received_bytes = 0
        for message in messages:
            if call.on_message is not None and not call.ended:
                self._hold(call, len(message))
                call.on_message(call, message)
        if flags & END_STREAM:
            self._half_close(call)

    def _hold(self, call: Call, message_bytes: int) -> None:
        """A call is given a message, and has it until it ends, or until the next one."""
        held = call.held_bytes - call.served_bytes + message_bytes
        self._buffered_bytes += held - call.held_bytes
        call.held_bytes, call.served_bytes = held, message_bytes

    def _half_close(self, call: Call) -> None:
        call.is_half_closed = True
        if call.on_half_close is not None and not call.ended:
            call.on_half_close()

    def _cancel(self, call: Call | None) -> None:
        if call is None:
            return
        self._forget(call)
        if call.on_cancel is not None:
            call.on_cancel()
        if call.on_lost is not None:
            call.on_lost()

    def _forget(self, call: Call) -> None:
        call.ended = True
        if self._calls.pop(call.id, None) is not None:
            self._buffered_bytes -= call.held_bytes
        self._blocked.pop(call.id, None)
        self._waiting_bytes -= call.out_bytes
        self._buffered_bytes -= len(call.buffer)
        call.out, call.out_at, call.out_bytes = [], 0, 0
        call.buffer.clear()
        if not self._in_read:
            self._count_partial()

    def _end_calls(self) -> None:
        for call in tuple(self._calls.values()):
            self._cancel(call)

    # What the peer asks for.

    def _take_settings(self, flags: int, payload: bytes) -> None:
        self._count_control(1 + len(payload) // 6)
        if flags & ACK:
            return
        if len(payload) % 6:
            raise _Broken(FRAME_SIZE_ERROR, f"expected settings of 6 bytes each, found {len(payload)} bytes")
        window = self._peer_window
        for name, value in struct.iter_unpack(">HI", payload):
            if name == SET_WINDOW:
                if value > WINDOW_MAX:
                    raise _Broken(FLOW_CONTROL_ERROR, f"expected a window below {WINDOW_MAX}, found {value}")
                window = value
            elif name == SET_FRAME_BYTES:
                self._peer_frame_bytes = min(value, FRAME_BYTES) if value >= FRAME_BYTES else FRAME_BYTES
        self._write_frame(_SETTINGS_ACK)
        if window != self._peer_window:
            self._change_windows(window)

    def _change_windows(self, window: int) -> None:
        """Once for a frame, whatever it repeats: each open call is a step."""
        self._count_control(len(self._calls) // CALLS_PER_CONTROL_FRAME + len(self._blocked))
        grown, self._peer_window = window - self._peer_window, window
        for call in self._calls.values():
            call.window += grown
        if grown > 0:
            self._send_blocked()

    def _take_window(self, stream: int, payload: bytes) -> None:
        self._count_control()
        if len(payload) != 4:
            raise _Broken(FRAME_SIZE_ERROR, f"expected a window of 4 bytes, found {len(payload)}")
        grown = int.from_bytes(payload, "big") & STREAM_MASK
        if not grown:
            raise _Broken(PROTOCOL_ERROR, "expected a larger window, found none")
        if not stream:
            was_shut = self._window <= 0
            self._window += grown
            if self._window > WINDOW_MAX:
                raise _Broken(FLOW_CONTROL_ERROR, f"expected a window below {WINDOW_MAX}, found {self._window}")
            if was_shut:  # Otherwise what is blocked waits for the windows of its own streams.
                self._send_blocked()
        elif (call := self._calls.get(stream)) is not None:
            call.window += grown
            if call.id in self._blocked:
                self._send_out(call)

    # Sending.

    def send_messages(self, call: Call, messages: Sequence[bytes]) -> None:
        """Answers of a call, in frames that they share. A call that is over takes them and drops them."""
        if call.ended or self.closing:
            return
        if not call.started:
            call.started = True
            self._write_frame(_frame(HEADERS, END_HEADERS, call.id, _ANSWER_BLOCK))
        self._add(call, b"".join(map(framed, messages)))
        self._send_out(call)

    def send_answer(self, call: Call, message: bytes | None, outcome: Outcome, text: str) -> None:
        """The last answer of a call, if it has one, and its outcome."""
        if call.ended or self.closing:
            return
        block = _OK_BLOCK if outcome is Outcome.OK else _failure_block(outcome, text)
        if message is not None and not call.started:
            length = len(message) + 5
            if length <= min(self._window, call.window, FRAME_BYTES):
                self._window -= length
                number = call.id
                self._write_frame(
                    b"".join(
                        (
                            _frame(HEADERS, END_HEADERS, number, _ANSWER_BLOCK),
                            HEAD.pack(length >> 8, length & 0xFF, DATA, 0, number),
                            b"\x00",
                            (length - 5).to_bytes(4, "big"),
                            message,
                            _frame(HEADERS, END_HEADERS | END_STREAM, number, block),
                        )
                    )
                )
                self._forget(call)
                return
        if not call.started:
            call.started = True
            self._write_frame(_frame(HEADERS, END_HEADERS, call.id, _ANSWER_BLOCK))
        if message is not None:
            self._add(call, framed(message))
        call.trailers = _frame(HEADERS, END_HEADERS | END_STREAM, call.id, block)
        self._send_out(call)

    def _add(self, call: Call, data: bytes) -> None:
        call.out.append(data)
        call.out_bytes += len(data)
        self._waiting_bytes += len(data)

    def _send_out(self, call: Call) -> None:
        """What the windows let pass. However small they are, a byte is copied a few times at most."""
        number = call.id
        while call.out and self._window > 0 and call.window > 0:
            if len(call.out) > 1:
                call.out, call.out_at = [b"".join((call.out[0][call.out_at :], *call.out[1:]))], 0
            data, begin = call.out[0], call.out_at
            end = min(len(data), begin + min(self._window, call.window))
            for at in range(begin, end, self._peer_frame_bytes):
                self._write_frame(_frame(DATA, 0, number, data[at : min(at + self._peer_frame_bytes, end)]))
            if 2 * end > len(data):  # What is held is at most twice what counts as waiting.
                data, call.out_at = data[end:], 0
            else:
                call.out_at = end
            call.out = [data] if data else []
            call.out_bytes -= end - begin
            self._waiting_bytes -= end - begin
            self._window -= end - begin
            call.window -= end - begin
        if call.out:
            self._blocked[number] = call
            if self._waiting_bytes > self._owner.limits.write_bytes_max:
                _log.warning("%s: closed: %d bytes of answers are unread", self, self._waiting_bytes)
                self.abort()
            return
        self._blocked.pop(number, None)
        if call.trailers is not None:
            self._write_frame(call.trailers)
            self._forget(call)
            if call.on_taken is not None:
                self._ask_whether_taken(call)

    def _ask_whether_taken(self, call: Call) -> None:
        self._untaken[call.id] = call
        if len(self._untaken) + len(self._pinged) > STREAMS_MAX:
            _log.warning("%s: closed: it does not answer pings", self)
            self.abort()
        elif not self._ping_is_out:
            self._ping()

    def _ping(self) -> None:
        self._ping_is_out, self._pinged, self._untaken = True, self._untaken, {}
        self._write_frame(_frame(PING, 0, 0, TAKEN))

    def _were_taken(self) -> None:
        self._ping_is_out = False
        taken, self._pinged = self._pinged, {}
        for call in taken.values():
            if call.on_taken is not None:
                call.on_taken()
        if self._untaken:
            self._ping()

    def _send_blocked(self) -> None:
        self._count_control(len(self._blocked) // CALLS_PER_CONTROL_FRAME)
        for call in tuple(self._blocked.values()):
            if self._window <= 0:
                break
            self._send_out(call)

    def _write_frame(self, data: bytes) -> None:
        self.send_bytes(data)

    # The end.

    def close(self) -> None:
        """Send what waits, then close. Open calls are ended: their clients try again."""
        if not self.closing:
            for call in tuple(self._calls.values()):
                self.send_answer(call, None, Outcome.UNAVAILABLE, "the server ends the connection")
            self._end_calls()
            self._out.append(_go_away(self._last_stream, NO_ERROR, ""))
        super().close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_calls()
        for call in (*self._pinged.values(), *self._untaken.values()):
            self._cancel(call)
        self._input = b""
        super().connection_lost(exc)

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return super().unsent_bytes + self._waiting_bytes

    def _count_partial(self) -> None:
        """What calls hold."""
        held = len(self._input) + self._buffered_bytes
        if held != self._partial_bytes:
            changed, self._partial_bytes = held - self._partial_bytes, held
            self._owner.partial_changed(changed)


def _unpadded(flags: int, payload: bytes) -> bytes:
    """Raises _Broken."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise _Broken(PROTOCOL_ERROR, "expected less padding than the frame has bytes, found more")
    return payload[1 : len(payload) - payload[0]]


def _go_away(last_stream: int, code: int, text: str) -> bytes:
    return _frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:400])


def _failure_block(outcome: Outcome, text: str) -> bytes:
    block = _literal(b"grpc-status", b"%d" % outcome)
    words = quote(text.encode()[:TEXT_BYTES_MAX], safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}~").encode()
    if words:
        block += b"\x00\x0cgrpc-message" + _length(len(words)) + words
    return block


def _length(value: int) -> bytes:
    """A number with a prefix of seven bits."""
    if value < 127:
        return bytes((value,))
    made, value = [127], value - 127
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes((*made, value))

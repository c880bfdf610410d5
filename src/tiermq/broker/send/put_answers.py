"""The answer to a put, in RocketMQ's codes, by the store's status."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.config import FlushDiskType
from tiermq.errors import RequestRefused
from tiermq.kernel import SendRequest
from tiermq.kernel.frame_reader import LENGTHS
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import FLAG_RESPONSE, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import decode_frame, encode_frame
from tiermq.remoting.server import RemotingServer
from tiermq.replication.ha_master import HaMaster
from tiermq.replication.replica_acks import ReplicaState
from tiermq.settings import LONG_MAX
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

STORED = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""With these the message is in the log: the client gets its offset, and a code for what is not certain."""

_CODES: dict[PutStatus, tuple[ResponseCode, str | None]] = {
    PutStatus.PUT_OK: (ResponseCode.SUCCESS, None),
    PutStatus.FLUSH_DISK_TIMEOUT: (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        "the message is stored, but whether it is on disk is not known yet",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "the message is stored, but too few slaves have confirmed it yet",
    ),
    PutStatus.SLAVE_NOT_AVAILABLE: (
        ResponseCode.SLAVE_NOT_AVAILABLE,
        "the message is stored, but too few slaves are in sync to confirm it",
    ),
    PutStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the store takes no messages now: its disk may be full, or it is closing",
    ),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (ResponseCode.SYSTEM_ERROR, "no next file of the commit log could be made"),
    PutStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: its body may be larger than maxMessageSize, or it is a batch that may not be one",
    ),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: its properties take more than 32767 bytes",
    ),
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (
        ResponseCode.SYSTEM_ERROR,
        "no memory map is left for one more queue (vm.max_map_count; light queues have half): send to an older one",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (ResponseCode.SYSTEM_BUSY, "the store cannot keep up: try again, or another broker"),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (ResponseCode.SYSTEM_ERROR, "messages for an arbitrary time are not enabled"),
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the delivery time is illegal: it is no number, further away than timerMaxDelaySec, or over for a cancellation",
    ),
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: (
        ResponseCode.SYSTEM_ERROR,
        "too many messages are due at that time already (timerCongestNumEachSlot): choose another, or try again",
    ),
}
LOOK_S = 0.5


def code_of(status: PutStatus, why_not: str = "") -> tuple[ResponseCode, str | None]:
    """The response code and the remark for a status. `why_not`: why the store takes no messages, if it is known."""
    if status is PutStatus.SERVICE_NOT_AVAILABLE and why_not:
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"the store takes no messages now: {why_not}"
    return _CODES.get(status) or (ResponseCode.SYSTEM_ERROR, f"the message was not stored: {status.name}")


def require_queue(local: LocalStore, topic: str, queue_id: int) -> None:
    """Of the topic that consumers get a message from, now or when it is due. Raises RequestRefused."""
    if not local.may_begin_queue(topic, queue_id):
        code, remark = code_of(PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
        raise RequestRefused(remark or "", code)


def answers_with(answers: bytes, status: PutStatus) -> bytes:
    """The same answers, frames side by side, with another status: the offsets of their messages stay."""
    code, remark = code_of(status)
    changed = []
    begin = 0
    while begin < len(answers):
        end = begin + LENGTHS.unpack_from(answers, begin)[0] + 4
        answer = decode_frame(answers[begin:end])
        answer.code, answer.remark = code, remark
        changed.append(encode_frame(answer))
        begin = end
    return b"".join(changed)


def with_batch_id(answer: bytes, unique_key: str) -> bytes:
    """The frame that answers a batch stored as one record: by this field clients give it one id for all."""
    command = decode_frame(answer)
    command.ext["batchUniqId"] = unique_key
    return encode_frame(command)


def refusal_of(request: SendRequest, error: RequestRefused) -> RemotingCommand:
    """The answer to a send that was refused."""
    return RemotingCommand(
        error.code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=str(error),
        header_type=request.header_type,
    )


@dataclass(slots=True)
class _Waiting:
    end_offset: int
    since_s: float
    connection: Connection
    answer: bytes
    late: Callable[[PutStatus], bytes]
    sends: int


class DurableAnswers:
    """Answers to sends that wait until what was sent is on disk (SYNC_FLUSH) and on enough replicas (SYNC_MASTER).

        add ─► line ─► one flush is asked for at a time ─► what is durable then, and replicated ─► answered, in order
                         ▲                                        │ more came meanwhile       ▲
                         └────────────────────────────────────────┘         reports of slaves ┘

    Invariants: nothing is answered SUCCESS before it is durable and replicated as the settings require; each is
    answered once; no send waits longer than the flush timeout for the disk, nor than the slave timeout for slaves: then
    the answer is FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT. While too few replicas are in sync to confirm anything, it
    is SLAVE_NOT_AVAILABLE, at once. In each of these cases the message is stored. All state belongs to the loop's
    thread.
    """

    def __init__(
        self, local: LocalStore, server: RemotingServer, clock: Clock, replicas: HaMaster | None = None
    ) -> None:
        """`replicas`: the HA port of a master whose sends wait for slaves."""
        self.timed_out = 0
        self.flushes = local.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._local = local
        self._server = server
        self._clock = clock
        self._replicas = replicas
        self._flush_timeout_s = local.config.sync_flush_timeout / 1000
        self._slave_timeout_s = local.config.slave_timeout / 1000
        self._line: deque[_Waiting] = deque()
        self._waiting = 0
        self._asked_to = -1
        self._newest_end = -1
        self._flushed_to = -1 if self.flushes else LONG_MAX
        if replicas is not None:
            replicas.listeners.append(self._replicas_changed)

    @property
    def waits(self) -> bool:
        """Whether sends wait at all."""
        return self.flushes or self._replicas is not None

    @property
    def waiting(self) -> int:
        """Sends that are not answered yet."""
        return self._waiting

    def add(
        self,
        end_offset: int,
        connection: Connection,
        answer: bytes,
        late: Callable[[PutStatus], bytes],
        sends: int = 1,
    ) -> None:
        """Answer `sends` sends of a connection by `answer` once everything below `end_offset` is durable and
        replicated, or by what `late` gives for another status.
        """
        self._line.append(_Waiting(end_offset, self._clock.monotonic(), connection, answer, late, sends))
        self._waiting += sends
        self.flush_soon(end_offset)
        if not self.flushes:
            self._release()

    def flush_soon(self, end_offset: int) -> None:
        """Make everything below `end_offset` durable and replicated; no caller waits for it."""
        self._newest_end = max(self._newest_end, end_offset)
        if self.flushes and self._asked_to < 0:
            self._ask()
        if self._replicas is not None:
            self._replicas.wake()

    def _ask(self) -> None:
        self._asked_to = end = self._newest_end
        self._local.when_durable(end, lambda status: self._server.call_threadsafe(self._flushed, end, status))

    def _flushed(self, end_offset: int, status: PutStatus) -> None:
        self._asked_to = -1
        line = self._line
        if status is PutStatus.PUT_OK:  # A flush takes along what was stored after it was asked for.
            end_offset = max(end_offset, self._local.flushed_where)
            self._flushed_to = max(self._flushed_to, end_offset)
            if self._replicas is not None:
                self._replicas.wake()
            self._release()
        while status is not PutStatus.PUT_OK and line and line[0].end_offset <= end_offset:
            self._answer(line.popleft(), status)
        if self._newest_end > end_offset:
            self._ask()

    def _replicas_changed(self, _state: ReplicaState) -> None:
        """On the thread of the HA port."""
        if self._line:
            self._server.call_threadsafe(self._release)

    def _release(self) -> None:
        """Answer what is durable and replicated, or durable and without a replica that could confirm it."""
        line, replicas = self._line, self._replicas
        replicated = LONG_MAX if replicas is None else replicas.replicated_where()
        committed = min(self._flushed_to, replicated)
        # The log is appended in order, and so is the queue: sends after the first waiting one wait too.
        while line and line[0].end_offset <= committed:
            self._answer(line.popleft(), PutStatus.PUT_OK)
        if replicas is not None and not replicas.state.is_available:
            while line and line[0].end_offset <= self._flushed_to:
                self._answer(line.popleft(), PutStatus.SLAVE_NOT_AVAILABLE)

    def answer_late(self) -> int:
        """Answer sends that wait too long, for the disk or for slaves; returns their number. Called periodically."""
        now_s = self._clock.monotonic()
        count = 0
        while self._line:
            waited_s, is_flushed = now_s - self._line[0].since_s, self._line[0].end_offset <= self._flushed_to
            if waited_s <= (self._slave_timeout_s if is_flushed else self._flush_timeout_s):
                break
            count += self._line[0].sends
            status = PutStatus.FLUSH_SLAVE_TIMEOUT if is_flushed else PutStatus.FLUSH_DISK_TIMEOUT
            self._answer(self._line.popleft(), status)
        return count

    def _answer(self, waiting: _Waiting, status: PutStatus) -> None:
        self._waiting -= waiting.sends
        if status is PutStatus.PUT_OK:
            waiting.connection.send_bytes(waiting.answer)
        else:
            self.timed_out += waiting.sends
            waiting.connection.send_bytes(waiting.late(status))

"""What a client is told of a put, by the store's status and in RocketMQ's codes."""

from __future__ import annotations

from tiermq.errors import RequestRefused
from tiermq.kernel import SendRequest
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import FLAG_RESPONSE, RemotingCommand
from tiermq.remoting.frame import LENGTHS, decode_frame, encode_frame
from tiermq.status import PutStatus

STORED = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""With these the message lies in the log: the client gets its place, and a code that says what is not certain."""

_CODES: dict[PutStatus, tuple[ResponseCode, str | None]] = {
    PutStatus.PUT_OK: (ResponseCode.SUCCESS, None),
    PutStatus.FLUSH_DISK_TIMEOUT: (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        "the message is stored, but whether it is on disk is not known yet",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, "the slave has not confirmed the message yet"),
    PutStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, "the message is stored, but there is no slave"),
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


def code_of(status: PutStatus) -> tuple[ResponseCode, str | None]:
    """The response code and the remark for a status."""
    return _CODES.get(status) or (ResponseCode.SYSTEM_ERROR, f"the message was not stored: {status.name}")


def answers_with(answers: bytes, status: PutStatus) -> bytes:
    """The same answers, frames side by side, with another status: the places of their messages stay."""
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

"""From frames to commands and sends: the general path behind `tiermq.kernel.FrameReader`.

A send has two spellings: V1 (code 10) with names, V2 (310, 320) with letters. Both become a `SendRequest`; replies
(324, 325) are spelled alike.
"""

from __future__ import annotations

from tiermq.kernel import Frame, SendRequest, parse_header
from tiermq.remoting.binary_header import decode_binary_header
from tiermq.remoting.codes import TRUNCATED_CODES, Language, RequestCode
from tiermq.remoting.command import FLAG_RESPONSE, HeaderType, RemotingCommand
from tiermq.remoting.fields import bool_field, int32_field, int_field, text_field
from tiermq.remoting.json_header import decode_json_header

SEND_CODES = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
_NAMED_CODES = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
_LANGUAGES: dict[int | str | None, Language] = {each.value: each for each in Language}
_LANGUAGES |= {each.name: each for each in Language}
_BINARY = int(HeaderType.ROCKETMQ)
_LETTERS = tuple("abcdefghijklm")
assert len(_NAMES) == len(_LETTERS)


def command_of(frame: Frame) -> RemotingCommand:
    """The command in a frame. Raises BadFrame for a header that is none."""
    fields = parse_header(frame.header_type, frame.header)
    if fields is None:
        is_json = frame.header_type == HeaderType.JSON
        command = decode_json_header(frame.header) if is_json else decode_binary_header(frame.header)
    else:
        code, language, version, opaque, flag, remark, ext = fields
        if frame.header_type == _BINARY and not flag & FLAG_RESPONSE:
            code = TRUNCATED_CODES.get(code & 0xFFFF, code)
        # Without the constructor, which copies the fields: they are nobody else's.
        command = RemotingCommand.__new__(RemotingCommand)
        command.code = code
        command.opaque = opaque
        command.flag = flag
        command.language = _LANGUAGES.get(language, Language.OTHER)
        command.version = version
        command.remark = remark
        command.ext = ext
        command.header_type = frame.header_type
        command.account = None
    command.body = frame.body
    return command


def send_request_of(command: RemotingCommand) -> SendRequest:
    """The send that a command of codes 10, 310, 320, 324 or 325 asks for. Raises RequestRefused."""
    a, b, c, d, e, f, g, h, i, j, k, l, m = _NAMES if command.code in _NAMED_CODES else _LETTERS  # noqa: E741
    return SendRequest(
        int(command.code),
        command.opaque,
        producer_group=text_field(command, a),
        topic=text_field(command, b),
        default_topic=text_field(command, c),
        default_topic_queue_nums=int32_field(command, d),
        queue_id=int32_field(command, e),
        sys_flag=int32_field(command, f),
        born_ms=int_field(command, g),
        flag=int32_field(command, h),
        properties=text_field(command, i, "").encode("utf-8", "replace"),
        reconsume_times=int32_field(command, j, 0),
        unit_mode=bool_field(command, k, False),
        max_reconsume_times=int32_field(command, l, -1),
        batch=bool_field(command, m, False) or command.code == RequestCode.SEND_BATCH_MESSAGE,
        body=bytes(command.body),
        is_oneway=command.is_oneway,
        header_type=int(command.header_type),
        version=command.version,
    )


def command_of_send(request: SendRequest) -> RemotingCommand:
    """The command that a send came in, read from its header again. Raises BadFrame when the send was not received."""
    return command_of(Frame(request.header_type, request.header, request.body))

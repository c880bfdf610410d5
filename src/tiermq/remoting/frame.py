"""One frame: length, header type, header, body.

The binary header ("ROCKETMQ"), which the official benchmarks use.

    code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark: i32 length, bytes | ext: i32 length, entries
    entry: key i16 length, bytes | value i32 length, bytes

A value of no bytes reads as absent. A key twice: the last one counts. Codes beyond 16 bits (the POP family) arrive
truncated; they are mapped back, which is safe, because no code below them has those low bits.

The JSON header. Reading is lenient, since clients in other languages write numbers and booleans; writing is not.

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON",
     "version":479}

Fields are written in alphabetical order, as Java does; a remark only if there is one.

From frames to commands and sends: the general path behind `tiermq.kernel.FrameReader`.

A send has two spellings: V1 (code 10) with names, V2 (310, 320) with letters. Both become a `SendRequest`; replies
(324, 325) are spelled alike.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadFrame
from tiermq.kernel import AckRequest, Frame, SendRequest, parse_header
from tiermq.kernel.frame_reader import LENGTHS
from tiermq.remoting.codes import TRUNCATED_CODES, VERSION, Language, RequestCode, language_of
from tiermq.remoting.command import (
    FLAG_RESPONSE,
    HeaderType,
    RemotingCommand,
    bool_field,
    int32_field,
    int_field,
    text_field,
)
from tiermq.remoting.limits import HEADER_FIELDS_MAX
from tiermq.settings import INT_MAX, INT_MIN

if TYPE_CHECKING:
    from tiermq.remoting.permissions import Credentials

_OWN_TEXTS = 32
"""More than the names and values beside the ext fields."""
FIXED = struct.Struct(
    ">"
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
)
LENGTH = struct.Struct(">i")
KEY_LENGTH = struct.Struct(">h")
KEY_MAX = (1 << 15) - 1
assert FIXED.size == 13
_TEMPLATE = struct.Struct(
    ">"
    "iI"  # LENGTHS
    "hBhii"  # FIXED
    "i"  # length of the remark
    "i"  # length of the fields
)
assert _TEMPLATE.size == LENGTHS.size + FIXED.size + 2 * LENGTH.size
HEADER_LENGTH_MAX = (1 << 24) - 1
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


def decode_json_header(header: bytes | memoryview) -> RemotingCommand:
    """The command without its body. Raises BadFrame for what is not a header."""
    data = bytes(header)
    _check_texts(data)
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError(f"a JSON {type(fields).__name__}")
        remark = fields.get("remark")
        return RemotingCommand(
            _json_number(fields, "code", required=True),
            opaque=_json_number(fields, "opaque"),
            flag=_json_number(fields, "flag"),
            language=language_of(fields.get("language")),
            version=_json_number(fields, "version"),
            remark=None if remark is None else str(remark),
            ext=_json_texts(fields.get("extFields")),
            header_type=HeaderType.JSON,
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadFrame(f"expected a JSON header, found {len(header)} bytes that are none: {error}") from error


def encode_json_header(command: RemotingCommand) -> bytes:
    fields: dict[str, Any] = {
        "code": int(command.code),
        "extFields": command.ext,
        "flag": command.flag,
        "language": Language(command.language).name,
        "opaque": command.opaque,
        "remark": command.remark,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is None:
        del fields["remark"]
    if not command.ext:
        del fields["extFields"]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _check_texts(data: bytes) -> None:
    """Before it is parsed, which takes long for many fields. Raises BadFrame."""
    most = 2 * HEADER_FIELDS_MAX + _OWN_TEXTS
    if data.count(b'"') > 2 * most:
        found = data.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
        if found > most:
            raise BadFrame(f"expected a JSON header of at most {HEADER_FIELDS_MAX} fields, found {found} texts in it")


def _json_number(fields: dict[str, Any], name: str, *, required: bool = False) -> int:
    value = fields.get(name)
    if value is None:
        if required:
            raise ValueError(f"no {name!r}")
        return 0
    number = int(value)
    if not INT_MIN <= number <= INT_MAX:
        raise ValueError(f"{name!r} of {number} does not fit into 32 bits")
    return number


def _json_texts(fields: Any) -> dict[str, str]:
    """The ext fields as text. Numbers and booleans arrive from C++ and JavaScript; null is as good as absent."""
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise TypeError(f"extFields that are a JSON {type(fields).__name__}")
    return {name: _json_text(value) for name, value in fields.items() if value is not None}


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def decode_binary_header(header: bytes | memoryview) -> RemotingCommand:
    """The command without its body. Raises BadFrame for what is not a header."""
    data = bytes(header)
    try:
        code, language, version, opaque, flag = FIXED.unpack_from(data)
        remark, at = _binary_text(data, FIXED.size)
        (ext_length,) = LENGTH.unpack_from(data, at)
        ext = _binary_entries(data, at + LENGTH.size, ext_length)
    except (struct.error, ValueError) as error:
        raise BadFrame(f"expected a binary header, found {len(data)} bytes that are none: {error}") from error
    return RemotingCommand(
        code if flag & FLAG_RESPONSE else TRUNCATED_CODES.get(code & 0xFFFF, code),
        opaque=opaque,
        flag=flag,
        language=language_of(language),
        version=version,
        remark=remark or None,
        ext=ext,
        header_type=HeaderType.ROCKETMQ,
    )


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Raises BadFrame for a value that does not fit."""
    remark, entries = (command.remark or "").encode("utf-8", "replace"), _entries_of(command.ext)
    fixed = FIXED.pack(_short(command.code), command.language, command.version, command.opaque, command.flag)
    return b"".join((fixed, LENGTH.pack(len(remark)), remark, LENGTH.pack(len(entries)), entries))


class RequestTemplate:
    """Requests without a body that differ in a few numbers, as whole frames with a binary header.

    For requests by the thousand: `encode_frame` takes ten times as long.
    """

    def __init__(self, code: int, fields: Mapping[str, str], numbers: Sequence[str]) -> None:
        """`fields` are the same in each request, `numbers` are the names of those that are not."""
        self._command = RemotingCommand(code, ext=fields, header_type=HeaderType.ROCKETMQ)
        self._numbers = tuple(numbers)
        self._code = _short(code)
        self._fields = _entries_of(fields)
        self._keys = tuple(map(_key_of, numbers))
        self._length = len(self._fields) + sum(len(key) + LENGTH.size for key in self._keys)

    def encode(self, opaque: int, *numbers: int) -> bytes:
        """The frame, with the numbers in the order of their names."""
        parts, length = [b"", self._fields], self._length
        for key, number in zip(self._keys, numbers, strict=True):
            text = b"%d" % number
            parts += key, LENGTH.pack(len(text)), text
            length += len(text)
        header_length = _TEMPLATE.size - LENGTHS.size + length
        parts[0] = _TEMPLATE.pack(
            4 + header_length, _BINARY << 24 | header_length,
            self._code, Language.PYTHON, VERSION, opaque, 0, 0, length,
        )  # fmt: skip
        return b"".join(parts)

    def signed(self, credentials: Credentials, opaque: int, *numbers: int) -> bytes:
        """The frame of an account's request."""
        command = copy(self._command)
        command.opaque = opaque
        command.ext = {**command.ext, **dict(zip(self._numbers, map(str, numbers), strict=True))}
        credentials.sign(command)
        return encode_frame(command)


def _short(code: int) -> int:
    """A code in the 16 bits of a binary header."""
    code &= 0xFFFF
    return code - 0x10000 if code > 0x7FFF else code


def _entries_of(fields: Mapping[str, str]) -> bytes:
    """Raises BadFrame for a name that does not fit."""
    entries = bytearray()
    for name, value in fields.items():
        text = value.encode("utf-8", "replace")
        entries += _key_of(name) + LENGTH.pack(len(text)) + text
    return bytes(entries)


def _key_of(name: str) -> bytes:
    key = name.encode("utf-8", "replace")
    if len(key) > KEY_MAX:
        raise BadFrame(f"expected a field name of at most {KEY_MAX} bytes, found {len(key)}")
    return KEY_LENGTH.pack(len(key)) + key


def _binary_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = LENGTH.unpack_from(data, at)
    end = at + LENGTH.size + length
    if length < 0 or end > len(data):
        raise ValueError(f"a text of {length} bytes at {at}")
    return data[at + LENGTH.size : end].decode("utf-8", "replace"), end


def _binary_entries(data: bytes, at: int, length: int) -> dict[str, str]:
    end = at + length
    if length < 0 or end > len(data):
        raise ValueError(f"fields of {length} bytes at {at}")
    found: dict[str, str] = {}
    count = 0
    while at < end:
        count += 1
        if count > HEADER_FIELDS_MAX:
            raise ValueError(f"more than {HEADER_FIELDS_MAX} fields")
        (key_length,) = KEY_LENGTH.unpack_from(data, at)
        key_at = at + KEY_LENGTH.size
        value_at = key_at + key_length
        if key_length < 0 or value_at + LENGTH.size > end:
            raise ValueError(f"a field name of {key_length} bytes at {at}")
        value, at = _binary_text(data, value_at)
        if at > end:
            raise ValueError(f"a field that ends at {at}, behind its block")
        if value:
            found[data[key_at:value_at].decode("utf-8", "replace")] = value
    return found


def encode_frame(command: RemotingCommand) -> bytes:
    """Raises BadFrame for a header that does not fit."""
    is_json = command.header_type == HeaderType.JSON
    header = encode_json_header(command) if is_json else encode_binary_header(command)
    if len(header) > HEADER_LENGTH_MAX:
        raise BadFrame(f"expected a header of at most {HEADER_LENGTH_MAX} bytes, found {len(header)}")
    lengths = LENGTHS.pack(4 + len(header) + len(command.body), command.header_type << 24 | len(header))
    return b"".join((lengths, header, command.body))


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """The command of exactly one whole frame, its length field included. Raises BadFrame."""
    if len(frame) < LENGTHS.size:
        raise BadFrame(f"expected a frame of at least {LENGTHS.size} bytes, found {len(frame)}")
    length, mixed = LENGTHS.unpack_from(frame)
    header_type, header_length = mixed >> 24, mixed & HEADER_LENGTH_MAX
    if length != len(frame) - 4 or header_length > length - 4:
        raise BadFrame(f"expected a frame of {len(frame)} bytes, found lengths {length} and {header_length} in it")
    view = memoryview(frame)
    header = view[LENGTHS.size : LENGTHS.size + header_length]
    if header_type == HeaderType.JSON:
        command = decode_json_header(header)
    elif header_type == HeaderType.ROCKETMQ:
        command = decode_binary_header(header)
    else:
        raise BadFrame(f"expected header type 0 (JSON) or 1 (ROCKETMQ), found {header_type}")
    command.body = view[LENGTHS.size + header_length :]
    return command


def command_of(frame: Frame) -> RemotingCommand:
    """The command in a frame. Raises BadFrame for an invalid header."""
    fields = parse_header(frame.header_type, frame.header)
    if fields is None:
        is_json = frame.header_type == HeaderType.JSON
        command = decode_json_header(frame.header) if is_json else decode_binary_header(frame.header)
    else:
        code, language, version, opaque, flag, remark, ext = fields
        if frame.header_type == _BINARY and not flag & FLAG_RESPONSE:
            code = TRUNCATED_CODES.get(code & 0xFFFF, code)
        # Without the constructor, which copies the fields: they are not shared.
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


def command_of_ack(ack: AckRequest) -> RemotingCommand:
    """The same of an acknowledgement."""
    return command_of(Frame(ack.header_type, ack.header, b""))

"""Frames cut from a stream, requests parsed and answers built at once: against the general codecs, in both kernels."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from kernel.kernel_world import COMPILED, KERNELS, needs_both
from tiermq.broker.pop.pop_acks import Receipt
from tiermq.errors import BadFrame, IllegalMessage, RequestRefused
from tiermq.kernel import SendRequest, pure
from tiermq.remoting import frame as codec
from tiermq.remoting.codes import VERSION, Language
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import decode_frame, encode_frame

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text("abcT%_-", min_size=1, max_size=8) | TEXT.filter(bool)
FLAGS = st.sampled_from(["true", "false", "TRUE", "1", "0", "x"])
LETTERS = "abcdefghijklm"
NAMES = codec._NAMES
VALUES = ("producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag", "born_ms",
          "flag", "properties", "reconsume_times", "unit_mode", "max_reconsume_times", "batch", "code", "opaque",
          "version", "header_type", "is_oneway", "body")  # fmt: skip
SEND_VALUES = (NAME, NAME, NAME, I32, I32, I32, I64, I32, TEXT, I32, FLAGS, I32, FLAGS)


@st.composite
def sends(draw: st.DrawFn) -> RemotingCommand:
    """A send as clients write it, sometimes with a field missing, one too many, or one that is no number."""
    code = draw(st.sampled_from([10, 310, 320]))
    names = NAMES if code == 10 else LETTERS
    ext = {name: str(draw(values)) for name, values in zip(names, SEND_VALUES, strict=True)}
    for name in draw(st.sets(st.sampled_from(names[8:]))):
        del ext[name]
    if draw(st.integers(0, 9)) == 0:
        ext[draw(st.sampled_from(names))] = draw(
            st.sampled_from(["", "x", "+1", "1e3", " 7", "9" * 19, "9" * 25, "-0", "007"])
        )
    if draw(st.integers(0, 9)) == 0:
        del ext[draw(st.sampled_from(sorted(ext)))]
    ext |= draw(st.dictionaries(st.sampled_from(["n", "AccessKey", "é", "topic", "b"]), TEXT, max_size=2))
    return RemotingCommand(
        code,
        opaque=draw(I32),
        flag=draw(st.sampled_from([0, 0, 0, 2, 1])),
        language=draw(st.sampled_from(Language)),
        version=draw(st.integers(0, 500)),
        remark=draw(st.none() | st.none() | TEXT),
        ext=ext,
        body=draw(st.binary(max_size=40)),
        header_type=draw(st.sampled_from(HeaderType)),
    )


RECEIPT_WORDS = st.integers(0, 1 << 62).map(str) | st.sampled_from(
    ["0", "1", "2", "007", "-1", "+1", "", "x", "9" * 19]
)


@st.composite
def acks(draw: st.DrawFn) -> RemotingCommand:
    """An acknowledgement as clients write it, sometimes one that does not fit its receipt, or with other fields."""
    queue_id, offset = draw(st.integers(0, 9)), draw(st.integers(0, 1 << 59))
    words = ["5", "1700000000000", "60000", "3", draw(st.sampled_from("012")), draw(TEXT), str(queue_id), str(offset)]
    words += draw(st.lists(TEXT, max_size=2))
    if draw(st.integers(0, 3)) == 0:
        words[draw(st.integers(0, 7))] = draw(RECEIPT_WORDS)
    if draw(st.integers(0, 5)) == 0:
        del words[draw(st.integers(0, len(words))) :]
    ext = {"consumerGroup": draw(NAME), "topic": draw(NAME), "queueId": str(queue_id), "offset": str(offset)}
    ext["extraInfo"] = " ".join(words)
    if draw(st.integers(0, 5)) == 0:
        ext[draw(st.sampled_from(sorted(ext)))] = draw(RECEIPT_WORDS)
    if draw(st.integers(0, 9)) == 0:
        del ext[draw(st.sampled_from(sorted(ext)))]
    ext |= draw(st.dictionaries(st.sampled_from(["bname", "AccessKey", "é", "b"]), TEXT, max_size=2))
    return RemotingCommand(
        200051,
        opaque=draw(I32),
        flag=draw(st.sampled_from([0, 0, 0, 2, 1])),
        remark=draw(st.none() | st.none() | TEXT),
        ext=ext,
        body=draw(st.just(b"") | st.binary(max_size=4)),
        header_type=draw(st.sampled_from(HeaderType)),
    )


def outcome_of(frame: Any) -> tuple[Any, ...]:
    """What became of a frame, however it was parsed."""
    if type(frame).__name__ == "AckRequest":
        return outcome_of(pure.Frame(frame.header_type, frame.header, b""))
    if type(frame).__name__ == "Frame":
        try:
            command = codec.command_of(frame)
        except BadFrame:
            return ("bad",)
        if command.code not in codec.SEND_CODES or command.is_response:
            return (
                "command",
                command.ext,
                command.code,
                command.opaque,
                command.flag,
                command.remark,
                bytes(command.body),
            )
        try:
            frame = codec.send_request_of(command)
        except RequestRefused:
            return ("refused",)
    return ("send", *(getattr(frame, name) for name in VALUES))


def expected_of(frame: bytes) -> tuple[Any, ...]:
    try:
        command = decode_frame(frame)
    except BadFrame:
        return ("bad",)
    if command.code not in codec.SEND_CODES or command.is_response:
        return ("command", command.ext, command.code, command.opaque, command.flag, command.remark, bytes(command.body))
    try:
        send = codec.send_request_of(command)
    except RequestRefused:
        return ("refused",)
    return ("send", *(getattr(send, name) for name in VALUES))


@pytest.mark.parametrize("kernel", KERNELS)
@examples(40)
@given(st.lists(sends(), min_size=1, max_size=3))
def test_a_send_is_the_one_that_the_general_codec_reads(kernel: ModuleType, commands: list[RemotingCommand]) -> None:
    frames = [encode_frame(command) for command in commands]
    found = kernel.FrameReader().feed(b"".join(frames))
    assert [outcome_of(frame) for frame in found] == [expected_of(frame) for frame in frames]
    for each, command in zip(found, commands, strict=True):
        if type(each).__name__ == "SendRequest":
            assert (
                codec.command_of(kernel.Frame(each.header_type, each.header, each.body)).ext
                == decode_frame(encode_frame(command)).ext
            )


@pytest.mark.skipif(COMPILED is None, reason="the compiled kernel is not built")
@pytest.mark.parametrize("header_type", HeaderType)
@pytest.mark.parametrize("code", [10, 310, 320])
def test_plain_sends_are_parsed_at_once(code: int, header_type: int) -> None:
    assert COMPILED is not None
    values = [
        "group",
        "topic",
        "TBW102",
        4,
        3,
        0,
        1_700_000_000_000,
        0,
        "UNIQ_KEY\x01A\x02WAIT\x01true\x02é\x01x\x02",
        0,
    ]
    ext = {name: str(value) for name, value in zip(NAMES if code == 10 else LETTERS, values, strict=False)}
    frame = encode_frame(RemotingCommand(code, ext=ext, body=b"b", header_type=header_type, opaque=-5))
    (send,) = COMPILED.FrameReader().feed(frame)
    assert type(send) is COMPILED.SendRequest
    assert outcome_of(send) == expected_of(frame)
    (plain,) = COMPILED.FrameReader(parse_sends=False).feed(frame)
    assert type(plain) is COMPILED.Frame


def parsed_of(ack: Any) -> tuple[Any, ...]:
    return (ack.group, ack.topic, ack.queue_id, ack.offset, ack.receipt, ack.opaque, ack.is_oneway, ack.header_type)


@pytest.mark.parametrize("kernel", KERNELS)
@examples(200)
@given(st.lists(acks(), min_size=1, max_size=3))
def test_an_acknowledgement_is_the_one_that_the_general_codec_reads(
    kernel: ModuleType, commands: list[RemotingCommand]
) -> None:
    frames = [encode_frame(command) for command in commands]
    found = kernel.FrameReader().feed(b"".join(frames))
    assert [outcome_of(frame) for frame in found] == [expected_of(frame) for frame in frames]
    for each, frame in zip(found, frames, strict=True):
        if type(each).__name__ != "AckRequest":
            continue
        command = decode_frame(frame)
        ext, receipt = command.ext, Receipt.decode(each.receipt, each.offset)
        assert Receipt.decode(ext["extraInfo"], int(ext["offset"])) == receipt
        assert (receipt.queue_id, receipt.offset) == (each.queue_id, each.offset)
        assert not command.body
        expected = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]), int(ext["offset"]), each.receipt)
        assert parsed_of(each) == (*expected, command.opaque, command.is_oneway, command.header_type)


@pytest.mark.skipif(COMPILED is None, reason="the compiled kernel is not built")
@pytest.mark.parametrize("header_type", HeaderType)
@pytest.mark.parametrize("more", ["", " 7", " 7 123456 more"])
def test_plain_acknowledgements_are_parsed_at_once(more: str, header_type: int) -> None:
    assert COMPILED is not None
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "3", "offset": "7", "bname": "b1"}
    ext["extraInfo"] = "5 1700000000000 60000 2 0 b1 3" + more
    frame = encode_frame(RemotingCommand(200051, ext=ext, header_type=header_type, opaque=-5))
    (ack,) = COMPILED.FrameReader().feed(frame)
    assert parsed_of(ack) == ("G", "T", 3, 7, "5 1700000000000 60000 2 0 b1 3", -5, False, header_type)
    (plain,) = COMPILED.FrameReader(parse_sends=False).feed(frame)
    assert type(plain) is COMPILED.Frame


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.lists(st.tuples(I32, st.booleans(), st.sampled_from(HeaderType)), max_size=5))
def test_answers_to_acknowledgements_are_those_of_the_general_codec(
    kernel: ModuleType, asked: list[tuple[int, bool, HeaderType]]
) -> None:
    found = [
        kernel.AckRequest(
            opaque, group="G", topic="T", queue_id=0, offset=0, receipt="", is_oneway=is_oneway, header_type=header_type
        )
        for opaque, is_oneway, header_type in asked
    ]
    expected = [
        encode_frame(RemotingCommand(200051, opaque=opaque, header_type=header_type).respond())
        for opaque, is_oneway, header_type in asked
        if not is_oneway
    ]
    assert kernel.ack_answers(found, VERSION) == b"".join(expected)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
JSON_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "code": st.integers(0, 400) | JSON_VALUES,
        "opaque": I32 | JSON_VALUES,
        "flag": st.integers(0, 3),
        "language": st.sampled_from(["JAVA", "CPP", "?", None, 3]) | st.text(max_size=4),
        "version": st.integers(0, 500),
        "remark": st.none() | TEXT | JSON_VALUES,
        "extFields": st.dictionaries(st.text(max_size=4), JSON_VALUES | TEXT, max_size=4) | JSON_VALUES,
        "other": JSON_VALUES,
    },
)


def json_frame(header: bytes, header_type: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), header_type << 24 | len(header)) + header + body


@needs_both
@examples(40)
@given(JSON_HEADERS, st.booleans(), st.sampled_from([None, 1]), st.integers(0, 30), st.integers(0, 255))
def test_any_json_header_reads_as_the_general_codec_reads_it(
    header: dict[str, Any], ascii_only: bool, indent: int | None, at: int, damage: int
) -> None:
    assert COMPILED is not None
    text = bytearray(json.dumps(header, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass"))
    for data in (bytes(text), bytes(text[:at]) + bytes([damage]) + bytes(text[at + 1 :])):
        frame = json_frame(data)
        (found,) = COMPILED.FrameReader().feed(frame)
        assert outcome_of(found) == expected_of(frame)
        read = COMPILED.parse_header(0, data)
        if read is not None:
            expected = decode_frame(frame)
            assert (read[0], *read[2:]) == (
                expected.code, expected.version, expected.opaque, expected.flag, expected.remark, expected.ext
            )  # fmt: skip


@needs_both
@examples(40)
@given(sends(), st.data())
def test_damaged_headers_read_as_the_general_codec_reads_them(command: RemotingCommand, data: st.DataObject) -> None:
    assert COMPILED is not None
    frame = bytearray(encode_frame(command))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))
    (found,) = COMPILED.FrameReader().feed(bytes(frame))
    assert outcome_of(found) == expected_of(bytes(frame))


@needs_both
@given(st.binary(max_size=80), st.sampled_from(HeaderType))
def test_garbage_as_a_header_is_left_to_the_general_codec(header: bytes, header_type: int) -> None:
    assert COMPILED is not None
    frame = json_frame(header, header_type)
    (found,) = COMPILED.FrameReader().feed(frame)
    assert outcome_of(found) == expected_of(frame)


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.lists(sends(), min_size=1, max_size=4), st.lists(st.integers(1, 60), min_size=1, max_size=9))
def test_frames_are_the_same_however_the_stream_was_cut(
    kernel: ModuleType, commands: list[RemotingCommand], sizes: list[int]
) -> None:
    frames = [encode_frame(command) for command in commands]
    stream = b"".join(frames)
    reader, found, at = kernel.FrameReader(), [], 0
    for size in itertools.cycle(sizes):
        found += reader.feed(stream[at : at + size])
        at += size
        if at >= len(stream):
            break
    assert [outcome_of(frame) for frame in found] == [expected_of(frame) for frame in frames]
    assert reader.pending_bytes == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_not_complete_is_kept_and_counted(kernel: ModuleType) -> None:
    reader = kernel.FrameReader()
    frame = json_frame(b'{"code":1}', body=b"x" * 1000)
    assert reader.feed(frame + frame[:100]) != []
    assert reader.pending_bytes == 100
    assert reader.feed(frame[100:-1]) == []
    assert reader.pending_bytes == len(frame) - 1
    (found,) = reader.feed(frame[-1:])
    assert (found.header, found.body, reader.pending_bytes) == (b'{"code":1}', b"x" * 1000, 0)
    assert reader.feed(b"") == []


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        struct.pack(">iI", 16 * 1024 * 1024 - 3, 0),
        struct.pack(">iI", 3, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 100, 97),
        struct.pack(">iI", 100, 2 << 24),
    ],
)
def test_garbage_is_refused_at_its_first_bytes_and_frames_before_it_are_not_lost(
    kernel: ModuleType, start: bytes
) -> None:
    reader = kernel.FrameReader()
    with pytest.raises(BadFrame, match="expected a frame"):
        reader.feed(start)
    with pytest.raises(BadFrame, match="expected a frame"):
        reader.feed(b"")
    reader = kernel.FrameReader()
    assert len(reader.feed(json_frame(b'{"code":1}') + start)) == 1
    assert reader.broken is not None
    with pytest.raises(BadFrame):
        reader.feed(b"")


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_largest_frame_is_taken_and_a_smaller_limit_is_kept(kernel: ModuleType) -> None:
    length = kernel.FRAME_BYTES_MAX - 4
    assert kernel.FrameReader().feed(struct.pack(">iI", length, 0)) == []
    with pytest.raises(BadFrame):
        kernel.FrameReader(1000).feed(struct.pack(">iI", 997, 0))
    with pytest.raises(BadFrame, match="a header of at most 100 bytes"):
        kernel.FrameReader(1000, header_bytes_max=100).feed(struct.pack(">iI", 200, 101))
    assert kernel.FrameReader(1000, header_bytes_max=100).feed(struct.pack(">iI", 200, 100)) == []


@needs_both
@given(st.lists(st.binary(max_size=30), max_size=6))
def test_both_kernels_refuse_the_same_streams(pieces: list[bytes]) -> None:
    outcomes = []
    for kernel in (pure, COMPILED):
        assert kernel is not None
        reader = kernel.FrameReader()
        counts: list[int] = []
        with contextlib.suppress(BadFrame):
            counts.extend(len(reader.feed(piece)) for piece in pieces)
        outcomes.append((counts, reader.broken, reader.pending_bytes))
    assert outcomes[0] == outcomes[1]


ANSWER_TEXT = st.text("ABC0189", max_size=40) | st.text(max_size=8)


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    st.sampled_from(HeaderType), I32, st.sampled_from([0, 10, 17, 32_767]), ANSWER_TEXT, I32, I64, ANSWER_TEXT,
    ANSWER_TEXT, st.none() | ANSWER_TEXT,
)  # fmt: skip
def test_the_answer_to_a_send_has_the_bytes_of_the_general_codec(
    kernel: ModuleType, header_type: int, opaque: int, code: int, message_id: str, queue_id: int, offset: int,
    transaction_id: str, region: str, remark: str | None,
) -> None:  # fmt: skip
    ext = {"msgId": message_id, "queueId": str(queue_id), "queueOffset": str(offset), "transactionId": transaction_id}
    if not transaction_id:
        del ext["transactionId"]
    ext |= {"MSG_REGION": region, "TRACE_ON": "true"}
    request = RemotingCommand(310, opaque=opaque, header_type=header_type)
    assert kernel.send_answer(
        int(header_type), opaque, code, 479, message_id, queue_id, offset, transaction_id, region, "true", remark
    ) == encode_frame(request.respond(code, remark, ext=ext))


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.sampled_from(HeaderType), I32, I64, I64, I64, st.none() | st.just("FOUND") | st.text(max_size=9), st.binary())
def test_the_answer_to_a_pull_has_the_bytes_of_the_general_codec(
    kernel: ModuleType, header_type: int, opaque: int, after: int, low: int, high: int, remark: str | None, body: bytes
) -> None:
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(after), "minOffset": str(low), "maxOffset": str(high)}
    request = RemotingCommand(11, opaque=opaque, header_type=header_type)
    head = kernel.pull_answer(int(header_type), opaque, 19, 479, remark, 0, after, low, high, len(body))
    assert head + body == encode_frame(request.respond(19, remark, ext=ext, body=body))


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_answer_that_does_not_fit_the_fast_path_is_built_all_the_same(kernel: ModuleType) -> None:
    message_ids = ",".join("0" * 32 for _ in range(1000))
    frame = kernel.send_answer(1, 7, 0, 479, message_ids, 0, 1, "", "R", "true")
    assert decode_frame(frame).ext["msgId"] == message_ids


def a_send(kernel: ModuleType, **values: Any) -> Any:
    fields: dict[str, Any] = {
        "producer_group": "g", "topic": "T", "default_topic": "TBW102", "default_topic_queue_nums": 4, "queue_id": -1,
        "sys_flag": 0, "born_ms": 5, "flag": 6, "reconsume_times": 7, "body": b"body",
    }  # fmt: skip
    return kernel.SendRequest(310, 1, **fields | values)


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    st.lists(
        st.sampled_from([b"WAIT\x01true\x02", b"WAIT\x01TRUE", b"WAIT\x01false\x02", b"XWAIT\x01true\x02",
                         b"K\x01v\x02", b"__CRC32#\x01123\x02", b"INNER_NUM\x015\x02", b"WAIT"]), max_size=3
    ).map(b"".join),
    st.sampled_from([0, 0x80, 1]),
)  # fmt: skip
def test_the_message_of_a_send_is_the_one_that_its_constructor_makes(
    kernel: ModuleType, properties: bytes, sys_flag: int
) -> None:
    made = kernel.message_of_send(a_send(kernel, sys_flag=sys_flag), 3, properties, b"\x7f\0\0\1\0\0\0\1")
    expected = kernel.Message(
        "T", b"body", 3, encoded_properties=properties, flag=6, sys_flag=sys_flag, born_timestamp_ms=5,
        born_host=b"\x7f\0\0\1\0\0\0\1", reconsume_times=7,
    )  # fmt: skip
    for name in ("topic", "body", "queue_id", "encoded_properties", "flag", "sys_flag", "born_timestamp_ms",
                 "born_host", "reconsume_times", "prepared_transaction_offset", "waits_for_store",
                 "needs_offset"):  # fmt: skip
        assert getattr(made, name) == getattr(expected, name), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_send_that_no_record_can_hold_is_refused(kernel: ModuleType) -> None:
    for send, queue_id, properties, host in (
        (a_send(kernel, topic=""), 0, b"", bytes(8)),
        (a_send(kernel), -1, b"", bytes(8)),
        (a_send(kernel), 0, b"a\0", bytes(8)),
        (a_send(kernel), 0, b"", bytes(7)),
    ):
        with pytest.raises(IllegalMessage):
            kernel.message_of_send(send, queue_id, properties, host)


def test_a_send_has_values_for_what_it_did_not_say() -> None:
    send = SendRequest(
        310, 1, producer_group="g", topic="T", default_topic="D", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_ms=0, flag=0,
    )  # fmt: skip
    assert (send.properties, send.reconsume_times, send.max_reconsume_times, send.batch, send.unit_mode, send.body) == (
        b"", 0, -1, False, False, b""
    )  # fmt: skip

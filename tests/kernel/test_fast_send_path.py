"""Plain sends, stored and answered in one step: in both kernels, and all others left alone."""

from __future__ import annotations

import base64
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from kernel.kernel_world import COMPILED, KERNELS, World, needs_both
from tiermq.kernel import pure
from tiermq.kernel.fast_send_path import SIZE_BOUNDS, Later, count_sent, new_counts
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.properties import decode_properties, encode_properties
from tiermq.message.record import decode_record
from tiermq.remoting.command import HeaderType
from tiermq.remoting.frame import decode_frame

ADDED = encode_properties({"MSG_REGION": "R", "TRACE_ON": "true", "CLUSTER": "C"})
BORN = bytes((10, 0, 0, 1, 0, 0, 4, 0))
PLAIN = b"UNIQ_KEY\x01K1\x02TAGS\x01a\x02WAIT\x01true\x02"
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
NAMES = st.sampled_from(
    ["UNIQ_KEY", "WAIT", "TAGS", "KEYS", "DELAY", "POP_CK", "CLUSTER", "TRACE_ON", "TRAN_MSG", "MSG_REGION", "TIMER_X",
     "INNER_NUM", "xINNER_", "__CRC32#", "DELAYED", "xWAIT", "UNIQ_KEYS", "", "TIMER", "é", "REAL_TOPIC", "REAL_QID",
     "__transactionId__", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "TIERMQ_SENDER", "REAL_QIDX"]
)  # fmt: skip
VALUES = st.sampled_from(["true", "false", "K1", "a b", "", "é", 'q"', "\\", "\x7f", "~", "\x1f", "x" * 512, "x" * 513])
DEFERRING = st.tuples(
    st.sampled_from(["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG", "TIMER_OUT_MS"]),
    st.sampled_from(
        ["1", "2", "3", "99", "0", "01", "+1", "-1", "1x", "999999999", "1234567890", "86400", "86401", "86400000",
         "999999999999", "1700000000000", "1700000000001", "1700000001000", "1700086400000", "1700086400001",
         "999999999999999", "9999999999999999", "true", "True", "false"]
    ),
)  # fmt: skip
PROPERTIES = st.one_of(
    st.just(PLAIN),
    st.lists(DEFERRING | st.tuples(NAMES, VALUES), max_size=4).map(
        lambda pairs: PLAIN[:12] + "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    ),
    st.lists(st.sampled_from([b"UNIQ_KEY", b"\x01", b"\x02", b"K", b"\0", b"WAIT", b"true"]), max_size=9).map(b"".join),
)


BATCHES = st.lists(
    st.builds(BatchElement, flag=I32, body=st.binary(max_size=60), encoded_properties=PROPERTIES), max_size=5
).map(encode_client_batch)


def request_in(kernel: Any, **fields: Any) -> Any:
    """A plain send, but for `fields`."""
    values = {
        "code": 310, "opaque": 7, "producer_group": "G", "topic": "T", "default_topic": "D",
        "default_topic_queue_nums": 4, "queue_id": 0, "sys_flag": 0, "born_ms": 5, "flag": 1, "properties": PLAIN,
        "body": b"body", "header_type": 0,
    }  # fmt: skip
    return kernel.SendRequest(**{**values, **fields})


def opaques_of(answers: bytes) -> list[int]:
    """Which requests a run of answers belongs to."""
    found = []
    while answers:
        end = 4 + int.from_bytes(answers[:4], "big")
        found.append(decode_frame(answers[:end]).opaque)
        answers = answers[end:]
    return found


class FastPath:
    """A fast path over a log in memory, with queue 0 and 1 of topic T known and four of its queues open."""

    def __init__(
        self,
        kernel: Any,
        added: bytes = ADDED,
        region: str = "R",
        properties_bytes_max: int = 32_767,
        later: Later | None = None,
        **options: Any,
    ) -> None:
        self.world = World(kernel, **options)
        self.world.roll()
        for queue_id in (0, 1):
            self.world.bind("T", queue_id)
        for name in (("SCHEDULE_TOPIC_XXXX", 0), ("SCHEDULE_TOPIC_XXXX", 2), ("rmq_sys_wheel_timer", 0)):
            self.world.bind(*name)
        self.world.bind("RMQ_SYS_TRANS_HALF_TOPIC", 0)
        self.path = kernel.FastSendPath(
            self.world.appender, added, 477, region, "true", properties_bytes_max, later or Later()
        )
        self.counts = new_counts()
        self.path.open_topic("T", 4, self.counts)


LATER = Later(3, lambda: True, 1_000, 86_400_000, "b1")

requests = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["T", "U"]),
        "queue_id": st.sampled_from([0, 1, 2, 4, -1, -(2**31)]),
        "sys_flag": st.sampled_from([0, 1, 2, 0x10, 0x30, 4, 8, 0x40, 0x80, -1]),
        "properties": PROPERTIES,
        "body": st.sampled_from([b"", b"x", b"x" * 100, b"x" * 1051]) | BATCHES,
        "header_type": st.sampled_from([0, 1]),
        "batch": st.booleans(),
        "is_oneway": st.booleans(),
        "opaque": I32,
        "flag": I32,
        "born_ms": st.sampled_from([0, 1, -5, 2**62]),
        "reconsume_times": I32,
    },
)
born_hosts = st.sampled_from([BORN, bytes(16) + b"\0\0\4\0", b"", b"xx"])


@needs_both
@examples(60)
@given(
    st.lists(requests, max_size=6),
    born_hosts,
    st.fixed_dictionaries(
        {
            "host": st.sampled_from(["127.0.0.1:10911", "[::1]:10911"]),
            "crc_property": st.booleans(),
            "max_body_bytes": st.just(1050),
            "properties_bytes_max": st.sampled_from([32_767, 600, 90]),
            "later": st.sampled_from([LATER, Later(), LATER._replace(broker_name="b" * 300)]),
        }
    ),
)
def test_both_kernels_take_the_same_sends_and_give_the_same_bytes(
    batch: list[dict[str, Any]], born_host: bytes, options: dict[str, Any]
) -> None:
    first, second = FastPath(pure, **options), FastPath(COMPILED, **options)
    for fields in batch:
        answers = [each.path.take(request_in(each.world.kernel, **fields), born_host) for each in (first, second)]
        assert answers[0] == answers[1]
        assert first.path.admits(request_in(pure, **fields)) is second.path.admits(request_in(COMPILED, **fields))
    together = [
        each.path.take_all([request_in(each.world.kernel, **fields) for fields in batch], born_host)
        for each in (first, second)
    ]
    assert together[0] == together[1]
    assert first.world.log() == second.world.log()
    assert first.counts == second.counts


@pytest.mark.parametrize("kernel", KERNELS)
def test_properties_beyond_the_limit_are_left_to_the_general_path(kernel: ModuleType) -> None:
    made = FastPath(kernel, properties_bytes_max=len(PLAIN) + len(ADDED))
    assert made.path.take(request_in(kernel), BORN) is not None
    assert made.path.take(request_in(kernel, properties=b"x\x01y\x02" + PLAIN), BORN) is None
    own = b"UNIQ_KEY\x01K\x02"
    room = len(PLAIN) - len(own)
    for size, taken in ((room, True), (room + 1, False)):
        elements = [BatchElement(0, b"a", b""), BatchElement(0, b"b", b"x\x01".ljust(size - 1, b"y") + b"\x02")]
        body = encode_client_batch(elements)
        answer = made.path.take(request_in(kernel, properties=own, body=body, batch=True), BORN)
        assert (answer is not None) is taken
    assert made.counts[0] == 3


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_plain_send_is_stored_and_answered_with_its_place(kernel: ModuleType, header_type: int) -> None:
    made = FastPath(kernel)
    assert made.path.take(request_in(kernel, header_type=header_type), BORN) is not None
    answer = made.path.take(request_in(kernel, header_type=header_type, body=b"second", opaque=-9), BORN)
    first = decode_record(made.world.log(), 0)
    second = decode_record(made.world.log(), first.size)
    assert (second.body, second.queue_offset, second.physical_offset) == (b"second", 1, first.size)
    assert second.encoded_properties == PLAIN + ADDED
    assert decode_properties(second.encoded_properties)["MSG_REGION"] == "R"
    assert (second.born_host, second.flag, second.born_timestamp_ms) == ("10.0.0.1:1024", 1, 5)
    command = decode_frame(answer)
    assert (command.code, command.opaque, command.is_response, command.version) == (0, -9, True, 477)
    assert command.ext == {
        "msgId": f"7F00000100002A9F{first.size:016X}",
        "queueId": "0",
        "queueOffset": "1",
        "transactionId": "K1",
        "MSG_REGION": "R",
        "TRACE_ON": "true",
    }
    assert made.counts[:3] == [2, first.size + second.size, 2]


REAL = b"REAL_TOPIC\x01T\x02REAL_QID\x011\x02"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("deferring", "place", "properties"),
    [
        (b"DELAY\x013\x02", ("SCHEDULE_TOPIC_XXXX", 2), PLAIN + ADDED + b"DELAY\x013\x02"),
        (b"DELAY\x0199\x02", ("SCHEDULE_TOPIC_XXXX", 2), PLAIN + ADDED + b"DELAY\x013\x02"),
        (
            b"TIMER_DELAY_SEC\x015\x02",
            ("rmq_sys_wheel_timer", 0),
            b"TIMER_DELAY_SEC\x015\x02" + PLAIN + ADDED + b"TIMER_OUT_MS\x011700000004000\x02",
        ),
        (
            b"TIMER_DELIVER_MS\x011700000004001\x02",
            ("rmq_sys_wheel_timer", 0),
            b"TIMER_DELIVER_MS\x011700000004001\x02" + PLAIN + ADDED + b"TIMER_OUT_MS\x011700000004000\x02",
        ),
        (
            b"TRAN_MSG\x01true\x02",
            ("RMQ_SYS_TRANS_HALF_TOPIC", 0),
            b"TRAN_MSG\x01true\x02" + PLAIN + ADDED + b"__transactionId__\x01K1\x02",
        ),
    ],
)
def test_a_deferred_send_is_stored_with_what_defers_it_and_names_its_own_queue(
    kernel: ModuleType, deferring: bytes, place: tuple[str, int], properties: bytes
) -> None:
    made = FastPath(kernel, later=LATER)
    sys_flag = 4 if b"TRAN" in deferring else 0
    answer = made.path.take(request_in(kernel, queue_id=1, properties=deferring + PLAIN, sys_flag=sys_flag), BORN)
    stored = decode_record(made.world.log(), 0)
    assert (stored.topic, stored.queue_id, stored.queue_offset, stored.sys_flag) == (*place, 0, 0)
    assert stored.encoded_properties == properties + REAL
    ext = decode_frame(answer).ext
    assert (ext["queueId"], ext["queueOffset"], ext["transactionId"]) == ("1", "0", "K1")
    handle = base64.urlsafe_b64encode(b"v1 T b1 1700000004001 K1").decode() if b"TIMER" in deferring else None
    assert ext.get("recallHandle") == handle
    assert made.counts[:3] == [1, stored.size, 1]


UNUSUAL: list[dict[str, Any]] = [
    {"topic": "Unknown"},
    {"queue_id": 4},
    {"queue_id": -1},
    {"queue_id": 2},  # Open, but not put to before.
    {"body": b""},
    {"body": b"x" * 5000},  # It does not fit into the file.
    {"batch": True},  # A body that is none.
    {"batch": True, "body": encode_client_batch([BatchElement(0, b"a", b"INNER_NUM\x013\x02")])},
    {"batch": True, "body": encode_client_batch([BatchElement(0, b"a", b"")]), "queue_id": 2},
    {"batch": True, "body": encode_client_batch([BatchElement(0, b"a", b"")]), "sys_flag": 4},
    {"batch": True, "body": encode_client_batch([BatchElement(0, b"a", b"")]), "properties": b"WAIT\x01true\x02"},
    {"batch": True, "body": encode_client_batch([BatchElement(0, b"x" * 900, b"")] * 6)},  # It does not fit.
    {"sys_flag": 4},
    {"sys_flag": 0x80},
    {"properties": b""},
    {"properties": PLAIN[:-1]},
    {"properties": b"UNIQ_KEY\x01\x02"},
    {"properties": PLAIN + b"UNIQ_KEY\x01K2\x02"},
    {"properties": PLAIN + b"DELAY\x013\x02"},
    {"properties": PLAIN + b"CLUSTER\x01mine\x02"},
    {"properties": PLAIN + b"TIMER_DELAY_MS\x015\x02"},
    {"properties": b"UNIQ_KEY\x01K\x02WAIT\x01false\x02"},
    {"properties": PLAIN + b"INNER_NUM\x013\x02"},
    {"properties": PLAIN + b"a\0\x01b\x02"},
    {"properties": b"UNIQ_KEY\x01\xc3\xa9\x02"},
]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("fields", UNUSUAL, ids=lambda fields: str(fields)[:40])
def test_an_unusual_send_is_left_alone_and_nothing_is_stored(kernel: ModuleType, fields: dict[str, Any]) -> None:
    made = FastPath(kernel)
    before = made.world.log()
    assert made.path.take(request_in(kernel, **fields), BORN) is None
    assert made.path.take_all([request_in(kernel, **fields), request_in(kernel)], BORN) == (0, b"")
    assert made.world.log() == before
    assert (made.counts, made.world.refusals, made.world.tails[0].position) == (new_counts(), [], 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sends_are_taken_up_to_the_first_that_must_wait_for_its_turn(kernel: ModuleType) -> None:
    made = FastPath(kernel, file_size=1 << 16)
    frames = [
        request_in(kernel, opaque=1),
        request_in(kernel, opaque=2, is_oneway=True),
        request_in(kernel, opaque=3),
        kernel.Frame(0, b"{}", b""),
        request_in(kernel, opaque=4),
    ]
    taken, answers = made.path.take_all(frames, BORN)
    assert (taken, made.counts[0]) == (3, 3)
    assert opaques_of(answers) == [1, 3]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_thousand_answers_of_one_read_are_joined(kernel: ModuleType) -> None:
    made = FastPath(kernel, file_size=1 << 20)
    taken, answers = made.path.take_all([request_in(kernel, opaque=number) for number in range(1000)], BORN)
    assert (taken, opaques_of(answers)) == (1000, list(range(1000)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_taken_while_the_fast_path_the_topic_or_the_gate_is_closed(kernel: ModuleType) -> None:
    made = FastPath(kernel)
    made.path.is_open = False
    assert made.path.take(request_in(kernel), BORN) is None
    made.path.is_open = True
    made.world.appender.closed = True
    assert made.path.take(request_in(kernel), BORN) is None
    made.world.appender.closed = False
    made.path.close_topic("T")
    made.path.close_topic("T")
    assert made.path.take(request_in(kernel), BORN) is None
    made.path.open_topic("T", 1, made.counts)
    assert made.path.take(request_in(kernel, queue_id=1), BORN) is None
    assert made.path.take(request_in(kernel), BORN) is not None
    assert made.world.tails[0].position == made.counts[1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_records_are_counted_by_their_size_in_the_buckets_of_rocketmq(kernel: ModuleType) -> None:
    made = FastPath(kernel, file_size=32 << 20, max_body_bytes=8 << 20)
    wanted = new_counts()
    overhead = 0
    for at, bound in enumerate((0, *SIZE_BOUNDS, 5 << 20)):
        for size in (bound, bound + 1) if at else (200,):
            before = made.world.tails[0].position
            assert made.path.take(request_in(kernel, body=b"x" * max(1, size - overhead)), BORN) is not None
            stored = made.world.tails[0].position - before
            overhead = overhead or stored - size
            assert stored == size or not at
            count_sent(wanted, 1, stored)
    assert made.counts == wanted
    assert wanted[2:] == [2, 2, 2, 2, 2, 2, 3]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("region", ["", 'a"b', "é", "x" * 513])
def test_a_region_that_must_be_escaped_leaves_every_send_to_the_general_path(kernel: ModuleType, region: str) -> None:
    made = FastPath(kernel, region=region)
    assert made.path.take(request_in(kernel), BORN) is None
    assert made.counts == new_counts()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_put_that_is_to_be_timed_goes_the_general_path_and_dispatch_is_woken(kernel: ModuleType) -> None:
    timed: list[Any] = []
    made = FastPath(kernel, file_size=1 << 20, sample=lambda message: timed.append(message))
    made.world.appender.reput_idle = True
    while made.path.take(request_in(kernel), BORN) is not None:
        assert made.counts[0] < 3000
    assert (timed, made.world.wakes) == ([], 1)
    assert 1023 <= made.counts[0] <= 1024


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("count", [1, 16, 500])
def test_a_plain_batch_is_stored_side_by_side_and_answered_with_all_its_places(
    kernel: ModuleType, header_type: int, count: int
) -> None:
    made = FastPath(kernel, file_size=1 << 20)
    body = encode_client_batch(BatchElement(n, b"%d" % n, b"KEYS\x01k%d\x02" % n) for n in range(count))
    frames = [
        request_in(kernel, header_type=header_type),
        request_in(kernel, header_type=header_type, batch=True, body=body, opaque=8),
        request_in(kernel, header_type=header_type, batch=True, body=body, opaque=9, is_oneway=True),
        request_in(kernel, header_type=header_type, opaque=10),
    ]
    taken, answers = made.path.take_all(frames, BORN)
    assert (taken, opaques_of(answers)) == (4, [7, 8, 10])
    at, places, log = 0, [], made.world.log()
    for number in range(2 + 2 * count):
        record = decode_record(log, at)
        assert record.queue_offset == number
        if 1 <= number <= count:
            places.append(f"7F00000100002A9F{at:016X}")
            assert (record.body, record.flag) == (b"%d" % (number - 1), number - 1)
            assert record.encoded_properties == b"KEYS\x01k%d\x02" % (number - 1) + PLAIN + ADDED
        at += record.size
    assert made.counts[:2] == [2 + 2 * count, at]
    second = answers[4 + int.from_bytes(answers[:4], "big") :]
    command = decode_frame(second[: 4 + int.from_bytes(second[:4], "big")])
    assert (command.ext["msgId"], command.ext["queueOffset"]) == (",".join(places), "1")
    assert command.ext["transactionId"] == "K1"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "name", [b"DELAY", b"POP_CK", b"CLUSTER", b"TRACE_ON", b"TRAN_MSG", b"MSG_REGION", b"TIMER_DELIVER_MS"]
)
@pytest.mark.parametrize("form", [b"%s\x01v\x02", b"%s\x01v", b"%s\x01", b"A\x01b\x02%s\x01v\x02", b"\x02%s\x01v"])
def test_a_batch_with_a_broker_s_property_in_one_message_is_left_alone(
    kernel: ModuleType, name: bytes, form: bytes
) -> None:
    made = FastPath(kernel, file_size=1 << 20)
    elements = [BatchElement(0, b"x", b"KEYS\x01k\x02"), BatchElement(0, b"y", form % name)]
    assert made.path.take(request_in(kernel), BORN) is not None
    for order in (elements, elements[::-1]):
        assert made.path.take(request_in(kernel, batch=True, body=encode_client_batch(order)), BORN) is None
    assert made.counts[0] == 1
    assert made.path.take(request_in(kernel, batch=True, body=encode_client_batch(elements[:1])), BORN) is not None

"""Whatever records lie in a broker's internal topics, it starts, passes over what it cannot use, and serves the rest.

The records are put straight into the store, as they lie there where a client was once allowed to send them.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.consuming import LOCALLY, SIZES, Peer, bodies_of, part, running, until
from broker.pop.pop_peer import PopPeer, pops, revive
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.broker.delivery.tiered_timers import KnownTopics
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.errors import RequestRefused
from tiermq.message.properties import encode_properties
from tiermq.message.record import reencode
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.command import RemotingCommand
from tiermq.store.local_store import LocalStore

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
NOW_MS = ManualClock().now_ms()


class Record(NamedTuple):
    topic: str
    body: bytes
    properties: bytes
    queue_id: int = 0


def record(topic: str, body: bytes, queue_id: int = 0, **properties: str) -> Record:
    return Record(topic, body, encode_properties(properties), queue_id)


def fill(path: Path, records: Sequence[Record], clock: ManualClock) -> None:
    with LocalStore.open(path, clock=clock, **SIZES) as store:
        for each in records:
            put = store.put(Message(each.topic, each.body or b" ", each.queue_id, encoded_properties=each.properties))
            assert put.ok, put


@contextlib.contextmanager
def opened(records: Sequence[Record], clock: ManualClock) -> Iterator[Broker]:
    """A real broker on a store with these records. Its services are the test's to run."""
    with tempfile.TemporaryDirectory() as directory:
        fill(Path(directory), records, clock)
        broker = Broker.open(directory, config=BrokerConfig(**LOCALLY), clock=clock, **SIZES)
        try:
            if broker.parts.topics.get("T") is None:
                broker.parts.topics.put(TopicConfig("T", 4, 4))
            yield broker
        finally:
            broker.stop()


def queues_of(broker: Broker) -> dict[str, list[int]]:
    broker.parts.local.dispatch_now()
    return broker.parts.local.topics()


def found(broker: Broker, topic: str, queue_id: int) -> list[bytes]:
    broker.parts.local.dispatch_now()
    return [each.body for each in broker.parts.local.get(topic, queue_id, 0).messages]


# The revive log, read by POP's recovery


def check_point(**changes: Any) -> dict[str, Any]:
    return {"bm": 0, "bn": "b", "c": "G", "d": [0], "it": 1000, "n": 1, "pt": NOW_MS, "q": 0, "ro": 0, "so": 0,
            "t": "T", **changes}  # fmt: skip


def without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


ACK = {"ao": 0, "bn": "b", "c": "G", "pt": NOW_MS, "q": 0, "so": 0, "t": "T"}
REVIVE_ATTACKS: list[tuple[str, Any]] = [
    ("bAck", {**ACK, "aol": 5}),
    ("bAck", {**ACK, "aol": {"a": 1}}),
    ("bAck", {**ACK, "aol": [[1], None, "x"]}),
    ("ack", {**ACK, "ao": [1]}),
    ("ack", without(ACK, "t")),
    ("ack", 5),
    ("ck", without(check_point(n=0), "d")),
    ("ck", without(check_point(n=-1), "d")),
    ("ck", without(check_point(n=50_000_000), "d")),
    ("ck", without(check_point(n=2**40), "d")),
    ("ck", check_point(d=[0] * 128)),
    ("ck", check_point(d=[2**70])),
    ("ck", check_point(d=[-5])),
    ("ck", check_point(so=-1)),
    ("ck", check_point(so=2**63 - 1)),
    ("ck", check_point(q=-1)),
    ("ck", check_point(pt=2**62)),
    ("ck", check_point(c="../x")),
    ("ck", check_point(c="")),
    ("ck", check_point(t=REVIVE_TOPIC)),
    ("ck", check_point(t=TIMER_TOPIC)),
    ("ck", check_point(t="a/b")),
    ("ck", without(check_point(), "c", "t")),
    ("ck", [1, 2]),
    ("ck", check_point(bm="x")),
    ("ck", check_point(pt=float("nan"))),
    ("ck", check_point(more="x" * 65_536)),
    ("ack", {**ACK, "more": "x" * 65_536}),
]


def revive_record(tag: str, value: Any, queue_id: int = 0) -> Record:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return record(REVIVE_TOPIC, body, queue_id, TAGS=tag)


def test_pop_recovers_from_every_attack_on_its_log_and_what_was_popped_comes_back(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    attacks = [revive_record(tag, value, number % 8) for number, (tag, value) in enumerate(REVIVE_ATTACKS)]
    deep = [revive_record("ck", body) for body in (b"[" * 60_000, b'{"a":' * 13_000, b"[" * 10**6, b"\xff")]
    large = [revive_record("ck", b"{a:1" + b",b:2" * 100_000 + b"}")]
    message = record("T", b"popped")
    sound = revive_record("ck", check_point())
    fill(tmp_path, [message, *attacks, *deep, *large, sound], manual_clock)
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        log = pops(broker).log
        assert log.skipped.count == len(attacks) + len(deep) + len(large)
        assert f"tiermq_pop_log_skipped_total {log.skipped.count}" in broker.render_metrics()
        assert len(log.points) == 1
        manual_clock.advance_ms(2000)
        revive(broker)
        assert [each.body for each in peer.pop()] == ["popped"]


def test_a_check_point_of_messages_that_are_not_there_moves_no_offset_and_is_done_at_once(
    manual_clock: ManualClock,
) -> None:
    records = [revive_record("ck", check_point(so=10**12)), revive_record("ck", check_point(q=10**6, it=2**62))]
    with opened(records, manual_clock) as broker:
        assert broker.parts.offsets.topics_of("G") == []
        manual_clock.advance_ms(8 * 24 * 3_600_000)
        revive(broker)
        assert len(pops(broker).log.points) == 0
        assert pops(broker).revive.gone.count == 2
        assert queues_of(broker).keys() == {REVIVE_TOPIC}


def test_a_check_point_whose_retry_topic_has_an_illegal_name_is_done_at_once(manual_clock: ManualClock) -> None:
    topic = "t" * 127
    records = [record(topic, b"m"), revive_record("ck", check_point(c="g" * 200, t=topic))]
    with opened(records, manual_clock) as broker:
        manual_clock.advance_ms(1000)
        revive(broker)
        assert len(pops(broker).log.points) == 0
        assert not [name for name in broker.parts.topics.table if name.startswith("%RETRY%g")]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 40), st.floats(), st.text(max_size=6),
    st.sampled_from(["T", "G", REVIVE_TOPIC, "%RETRY%G_T", "%RETRY%G+T", "9" * 5000, NOW_MS]),
)  # fmt: skip
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=6), st.dictionaries(st.text(max_size=3), SCALARS, max_size=3))
REVIVE_NAMES = st.sampled_from(["bm", "bn", "c", "d", "it", "n", "pt", "q", "ro", "so", "t", "ao", "aol", "again"])


@st.composite
def revive_bodies(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(st.binary(max_size=60))
    table = {**ACK, **check_point(), **draw(st.dictionaries(REVIVE_NAMES, VALUES, max_size=4))}
    return json.dumps(without(table, *draw(st.sets(REVIVE_NAMES, max_size=2)))).encode()


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.sampled_from(["ck", "ack", "bAck", "x"]), revive_bodies(), st.integers(0, 9)), max_size=60)
)
def test_pop_recovers_from_any_log(records: list[tuple[str, bytes, int]]) -> None:
    clock = ManualClock()
    log = [record("T", b"1"), record("T", b"2"), *(revive_record(*each) for each in records)]
    with opened(log, clock) as broker:
        clock.advance_ms(8 * 24 * 3_600_000)
        revive(broker)
        assert len(pops(broker).log.points) == 0
        assert all(ids == [0] for name, ids in queues_of(broker).items() if name not in (REVIVE_TOPIC, "T"))


# Delay levels


PLACES = st.fixed_dictionaries(
    {},
    optional={
        "REAL_TOPIC": st.one_of(
            st.sampled_from(
                ["T", "U", SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, "rmq_sys_x", "TRANS_CHECK_MAX_TIME_TOPIC"]
            ),
            st.text(alphabet="aä/%|. \n", max_size=300),
        ),
        "REAL_QID": st.one_of(
            st.integers(-3, 2**33).map(str), st.sampled_from(["²", "x", "9" * 5000, "0", "3", "2147483647", " 1"])
        ),
        "DELAY": st.sampled_from(["1", "x", "99"]),
        "UNIQ_KEY": st.text(alphabet="kä", max_size=5),
        "PGROUP": st.text(alphabet="gä", max_size=5),
        "TRAN_MSG": st.sampled_from(["true", "x"]),
        "TRAN_PREPARED_QUEUE_OFFSET": st.sampled_from(["-1", "0", "x", "9" * 5000, "²"]),
        "TRANSACTION_CHECK_TIMES": st.sampled_from(["-1", "3", "x", "9" * 18, "²"]),
        "CHECK_IMMUNITY_TIME_IN_SECONDS": st.sampled_from(["-1", "3", "x", "9" * 18]),
        "TIMER_OUT_MS": st.one_of(
            st.integers(-1, 10**18).map(str), st.integers(NOW_MS - 5000, NOW_MS + 5000).map(str),
            st.sampled_from(["", "x", "0", "²", "9" * 18, "9" * 5000]),
        ),
        "TIMER_ROLL_TIMES": st.sampled_from(["x", "-1", "²", "9" * 5000, "1"]),
        "TIMER_DEL_UNIQKEY": st.sampled_from(["T+k", "x", "ä"]),
        "TAGS": st.sampled_from(["d", "x"]),
        "TIERMQ_ROLLBACKS": st.sampled_from(["-", "x", "1,2,", "9" * 30]),
    },
)  # fmt: skip
PROPERTIES = st.one_of(
    PLACES.map(encode_properties),
    st.binary(max_size=80).map(lambda raw: raw.replace(b"\0", b"\1")),  # No record has a NUL there.
    PLACES.map(lambda each: encode_properties(each) + b"REAL_TOPIC\x01\xff\xfe\x02"),
)


def waiting(topic: str, queues: int = 1) -> st.SearchStrategy[list[Record]]:
    one = st.builds(Record, st.just(topic), st.binary(min_size=1, max_size=30), PROPERTIES, st.integers(0, queues - 1))
    return st.lists(one, max_size=60)


def is_within_reason(queues: dict[str, list[int]]) -> bool:
    """No record has made a queue that its topic does not have: T has four, a topic that is not known one."""
    return all(max(ids) < (4 if name == "T" else 1) for name, ids in queues.items() if name in ("T", "U"))


@settings(max_examples=10)
@given(waiting(SCHEDULE_TOPIC, 18))
def test_delay_levels_pass_over_any_record_and_deliver_what_is_behind(records: list[Record]) -> None:
    clock = ManualClock()
    last = [record(SCHEDULE_TOPIC, b"sound", level, REAL_TOPIC="T", REAL_QID="3") for level in range(18)]
    with opened([*records, *last], clock) as broker:
        levels = broker.delivery.delay_levels
        clock.advance_ms(3 * 3_600_000)
        while levels.waiting_count:
            levels.run_once()
        assert levels.delivered_count + levels.skipped_count == len(records) + 18
        assert levels.error_count == 0
        assert found(broker, "T", 3).count(b"sound") == 18
        assert is_within_reason(queues_of(broker))


def test_a_delayed_message_for_the_schedule_topic_does_not_go_round_and_none_makes_a_queue(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    records = [
        record(SCHEDULE_TOPIC, b"round", REAL_TOPIC=SCHEDULE_TOPIC, REAL_QID="0"),
        record(SCHEDULE_TOPIC, b"timer", REAL_TOPIC=TIMER_TOPIC, REAL_QID="0"),
        record(SCHEDULE_TOPIC, b"end of a transaction", REAL_TOPIC=OP_TOPIC, REAL_QID="0", TAGS="d"),
        record(SCHEDULE_TOPIC, b"far", REAL_TOPIC="T", REAL_QID="2147483647"),
        record(SCHEDULE_TOPIC, b"unknown", REAL_TOPIC="gone", REAL_QID="70000"),
    ]
    fill(tmp_path, records, manual_clock)
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        manual_clock.advance_ms(1000)
        levels = broker.delivery.delay_levels
        until(broker, lambda: levels.waiting_count == 0)
        assert (levels.skipped_count, levels.delivered_count) == (3, 2)
        assert queues_of(broker) == {SCHEDULE_TOPIC: [0], "T": [3], "gone": [0]}
        peer.join()
        assert bodies_of(peer.pull(0, queueId=3)) == ["far"]


def test_a_message_of_a_queue_that_its_topic_once_had_goes_there(manual_clock: ManualClock) -> None:
    records = [record("T", b"old", 9), record(SCHEDULE_TOPIC, b"late", REAL_TOPIC="T", REAL_QID="9")]
    with opened(records, manual_clock) as broker:
        levels = broker.delivery.delay_levels
        manual_clock.advance_ms(1000)
        levels.run_once()
        assert found(broker, "T", 9) == [b"old", b"late"]


# Timers


def timers_of(broker: Broker) -> TimerService:
    timers = broker.delivery.timers
    assert timers is not None
    return timers


def run_until_idle(timers: TimerService) -> None:
    for _ in range(1000):
        if timers.run_once() > 0 and timers.behind_count == 0:
            return
    raise AssertionError("the timers do not come to rest")


@settings(max_examples=10)
@given(waiting(TIMER_TOPIC))
def test_timers_pass_over_any_record_and_deliver_what_is_behind(records: list[Record]) -> None:
    clock = ManualClock()
    at_ms = str(NOW_MS + 3000)
    last = record(TIMER_TOPIC, b"sound", REAL_TOPIC="T", REAL_QID="3", TIMER_OUT_MS=at_ms)
    with opened([*records, last], clock) as broker:
        timers = timers_of(broker)
        for _ in range(12):
            run_until_idle(timers)
            clock.advance_ms(1000)
        broker.parts.local.dispatch_now()
        list(timers.listing())
        timers.flush()
        assert timers.error_count == 0
        assert found(broker, "T", 3).count(b"sound") == 1
        assert is_within_reason(queues_of(broker))


def test_a_timer_for_the_timer_topic_does_not_feed_itself(tmp_path: Path, manual_clock: ManualClock) -> None:
    past: dict[str, Any] = {"TIMER_OUT_MS": str(NOW_MS - 10_000)}
    records = [
        record(TIMER_TOPIC, b"round", REAL_TOPIC=TIMER_TOPIC, REAL_QID="0", **past),
        record(TIMER_TOPIC, b"soon", REAL_TOPIC=TIMER_TOPIC, REAL_QID="0", TIMER_OUT_MS=str(NOW_MS + 2000)),
        record(TIMER_TOPIC, b"op", REAL_TOPIC=OP_TOPIC, REAL_QID="0", TAGS="d", **past),
        record(TIMER_TOPIC, b"half", REAL_TOPIC=HALF_TOPIC, REAL_QID="0", **past),
        record(TIMER_TOPIC, b"level", REAL_TOPIC=SCHEDULE_TOPIC, REAL_QID="0", **past),
        record(TIMER_TOPIC, b"far", REAL_TOPIC="T", REAL_QID="2147483647", **past),
    ]
    fill(tmp_path, records, manual_clock)
    with running(tmp_path, clock=manual_clock) as broker:
        timers = timers_of(broker)
        until(broker, lambda: timers.behind_count == 0)
        manual_clock.advance_ms(5000)
        until(broker, lambda: timers.read_ms >= NOW_MS + 4000)
        assert (timers.counts.skipped, timers.counts.delivered) == (5, 1)
        assert "tiermq_timers_skipped_total 5" in broker.render_metrics()
        assert broker.parts.local.max_offset(TIMER_TOPIC, 0) == len(records)
        assert queues_of(broker) == {TIMER_TOPIC: [0], "T": [3]}


def test_a_timer_brings_a_check_point_of_rocketmq_to_the_revive_log(manual_clock: ManualClock) -> None:
    body = json.dumps(check_point()).encode()
    late: dict[str, Any] = {
        "TIMER_OUT_MS": str(NOW_MS - 1000),
        "REAL_TOPIC": REVIVE_TOPIC,
        "REAL_QID": "5",
        "TAGS": "ck",
    }
    with opened([record(TIMER_TOPIC, body, **late)], manual_clock) as broker:
        run_until_idle(timers_of(broker))
        assert found(broker, REVIVE_TOPIC, 5) == [body]


@pytest.mark.parametrize("queue_id", ["2147483647", "9" * 5000, "²", "-1", "3"])
@pytest.mark.parametrize("topic", ["new", TIMER_TOPIC, "a/b"])
def test_a_timer_that_comes_back_from_the_tier_makes_no_topic_of_two_billion_queues(
    manual_clock: ManualClock, topic: str, queue_id: str
) -> None:
    with opened([record(TIMER_TOPIC, b"x", REAL_TOPIC=topic, REAL_QID=queue_id)], manual_clock) as broker:
        broker.parts.local.dispatch_now()
        (message,) = broker.parts.local.get(TIMER_TOPIC, 0, 0).messages
        before = broker.parts.topics.table.keys()
        KnownTopics(broker.parts.topics).serve(TieredTimer(NOW_MS, False, reencode(message)))
        made = broker.parts.topics.table.keys() - before
        assert made == ({"new"} if topic == "new" and queue_id in ("2147483647", "3") else set())
        assert all(broker.parts.topics.table[name].read_queues <= 1024 for name in made)


# Transactions


def half(body: bytes, **changes: Any) -> Record:
    named: dict[str, Any] = {
        "UNIQ_KEY": body.decode(),
        "PGROUP": "P",
        "TRAN_MSG": "true",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    return record(HALF_TOPIC, body, **{**named, **changes})


OPS = st.lists(
    st.builds(
        Record,
        st.just(OP_TOPIC),
        st.one_of(
            st.binary(min_size=1, max_size=30), st.sampled_from([b"1,2,", b"9" * 5000, b"-1,", b"0,", b"x", b","])
        ),
        st.one_of(PROPERTIES, st.just(encode_properties({"TAGS": "d"}))),
        st.just(0),
    ),
    max_size=20,
)


@settings(max_examples=10)
@given(waiting(HALF_TOPIC), OPS)
def test_transactions_pass_over_any_record_and_ask_about_what_is_behind(
    records: list[Record], ops: list[Record]
) -> None:
    clock = ManualClock()
    with opened([*records, *ops, half(b"sound")], clock) as broker:
        transactions = part(broker, EndTransactionProcessor)
        asked: list[str] = []
        transactions.check._ask = lambda question: asked.append(question.transaction_id)
        for _ in range(3):
            clock.advance_ms(60_000)
            broker.parts.local.dispatch_now()
            transactions.check.round()
        assert transactions.waiting >= 0
        ended = [int(each) for op in ops for each in op.body.split(b",") if each.isdigit() and len(each) < 9]
        assert "sound" in asked or len(records) in ended
        assert not queues_of(broker).keys() & {"T", "U"}


def test_half_messages_for_internal_topics_are_skipped_and_none_makes_a_queue(manual_clock: ManualClock) -> None:
    records = [
        half(b"op", REAL_TOPIC=OP_TOPIC), half(b"timer", REAL_TOPIC=TIMER_TOPIC), half(b"pop", REAL_TOPIC=REVIVE_TOPIC),
        half(b"far", REAL_QID="2147483647"), record(OP_TOPIC, b"x", TAGS="d"),
    ]  # fmt: skip
    with opened(records, manual_clock) as broker:
        transactions = part(broker, EndTransactionProcessor)
        broker.parts.local.dispatch_now()
        local = broker.parts.local
        for number in range(4):
            stored = local.get(HALF_TOPIC, 0, number, 1).messages[0]
            ext = {"producerGroup": "P", "commitOrRollback": "8", "commitLogOffset": str(stored.physical_offset),
                   "tranStateTableOffset": str(number)}  # fmt: skip
            end_raw(transactions, ext)
        assert queues_of(broker).keys() == {HALF_TOPIC, OP_TOPIC, "T"}
        assert found(broker, "T", 3) == [b"far"]
        manual_clock.advance_ms(60_000)
        transactions.check.round()
        assert transactions.check.skipped_count == 4
        assert "tiermq_transactions_skipped_total 4" in broker.render_metrics()


def end_raw(transactions: EndTransactionProcessor, ext: dict[str, str]) -> None:
    with contextlib.suppress(RequestRefused):
        transactions.end(None, RemotingCommand(37, ext=ext))  # type: ignore[arg-type]


# How much is said of it


def test_twenty_thousand_bad_records_start_a_broker_with_a_handful_of_lines(
    tmp_path: Path, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    bad = revive_record("ck", without(check_point(n=50_000_000), "d"))
    with LocalStore.open(tmp_path, clock=manual_clock, **SIZES) as store:
        store.put_many([Message(bad.topic, bad.body, 0, encoded_properties=bad.properties)] * 20_000)
    with running(tmp_path, clock=manual_clock) as broker:
        assert pops(broker).log.skipped.count == 20_000
    lines = [each for each in caplog.records if "skipped at" in each.getMessage()]
    assert len(lines) == 10

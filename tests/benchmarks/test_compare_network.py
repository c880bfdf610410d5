"""The network works: the echo carries what it says, a broker takes the requests, and a tiny run of the real thing."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.broker_side import BATCH_TOPIC, QUEUES, TOPIC, Loaded
from benchmarks.compare import network_works, peer_process
from benchmarks.compare.echo_limit import Exchange
from benchmarks.compare.network_works import (
    ASYNC_FLUSH,
    SYNC_FLUSH,
    WORKS,
    answered_bytes,
    batch_body,
    count_of,
    pull_request,
    send_request,
    stored_bytes,
    telling,
)
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, TUNED, Place, by_name
from benchmarks.report import Round
from interop.rocketmq import Unavailable, fetch
from tiermq.remoting.frame import encode_frame
from tiermq.testing import LocalBroker

COUNTED_MESSAGES = 500
_FLUSH = re.compile(r"(?:fdatasync|fsync|msync)\(")


@pytest.mark.parametrize("exchange", [Exchange(358, 202, in_flight=64), Exchange(285, 300_000, 32, 8), Exchange(7, 1)])
def test_an_echo_answers_every_request_with_all_its_bytes(exchange: Exchange) -> None:
    with ExitStack() as stack:
        echo = peer_process.start_tiermq(stack, "echo_limit", "Echo")
        echo.prepare(**exchange.parameters())
        for messages in (exchange.messages * 100, 1):  # Less than a window, too.
            requests = -(-messages // exchange.messages)
            done = echo.run(messages=messages)
            assert done.messages == requests * exchange.messages
            assert done.bytes == requests * (exchange.asked_bytes + exchange.answered_bytes)
            assert done.seconds > 0


def test_an_echo_over_several_connections_shares_the_requests() -> None:
    with ExitStack() as stack:
        echo = peer_process.start_tiermq(stack, "echo_limit", "Echo")
        echo.prepare(**Exchange(100, 200, in_flight=12, connections=3).parameters())
        assert echo.run(messages=1_000).messages == 1_000


def test_an_echo_of_nothing_is_refused() -> None:
    with ExitStack() as stack:
        echo = peer_process.start_tiermq(stack, "echo_limit", "Echo")
        with pytest.raises(peer_process.PeerFailed, match="expected positive numbers"):
            echo.prepare(**Exchange(0, 1).parameters())


def test_a_broker_takes_the_requests_that_the_limit_is_made_of(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store") as broker:
        for topic in (TOPIC, BATCH_TOPIC):
            broker.create_topic(topic, queues=QUEUES)
        port = int(broker.address.rsplit(":", 1)[1])
        one = answered_bytes(port, encode_frame(send_request(TOPIC, b"x" * 128)))
        many = answered_bytes(port, encode_frame(send_request(BATCH_TOPIC, batch_body(16, 128), is_batch=True)))
        assert [len(message.body) for message in broker.messages(TOPIC)] == [128]
        assert [len(message.body) for message in broker.messages(BATCH_TOPIC)] == [128] * 16
        assert many > one + 15 * 32  # It has sixteen message ids.
        for _ in range(40):
            broker.send(TOPIC, b"y" * 128, queue_id=0)
        pulled = answered_bytes(port, encode_frame(pull_request(TOPIC)))
        assert 32 * 128 < pulled < 40 * 300


def test_the_limit_of_flushed_sends_writes_as_many_bytes_as_a_broker_stores(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store") as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        record = stored_bytes(int(broker.address.rsplit(":", 1)[1]), send_request(TOPIC, b"x" * 1024))
        first, second = (message.physical_offset for message in broker.messages(TOPIC))
        assert record == second - first > 1024


def test_a_round_grows_with_its_scale_and_is_whole_batches(tmp_path: Path) -> None:
    counts = [count_of(Place(tmp_path, tmp_path, scale)) for scale in (1, 4, 16)]
    assert counts == [counts[0], 4 * counts[0], 16 * counts[0]]
    quick = count_of(Place(tmp_path, tmp_path, quick=True), 4)
    assert 0 < quick < counts[0]
    assert quick % (16 * 32) == 0


def test_the_official_programs_have_the_goals_of_the_issue() -> None:
    goals = {name: work.goal.ratio for name, work in by_name(WORKS).items() if work.goal}
    flushed = {"producer_sync_16": 1.2, "producer_sync_64": 1.2}
    later = {"producer_delay": 1.2, "producer_timer": 1.2, "transactions": 1.2}
    plain = {"producer_128": 1.2, "producer_1024": 1.2, "batch_producer": 1.5, "consumer": 1.2, "pop_consumer": 1.2}
    assert (goals.pop("delay_lag"), goals.pop("topic_creation")) == (1.0, 1.0)
    assert goals == {**plain, **flushed, **later}
    rates = [work for work in WORKS if work.limit]
    assert all(work.grows and ("fdatasync" if work.name in flushed else "echo") in work.limit for work in rates)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages a broker has delivered, from look to look; each look takes 20 s."""
    found: list[int] = []
    now_s = itertools.count(0, 20)
    monkeypatch.setattr(network_works, "topic_end", lambda *_: found.pop(0) if len(found) > 1 else found[0])
    monkeypatch.setattr("benchmarks.compare.network_works.time.monotonic", lambda: float(next(now_s)))
    monkeypatch.setattr("benchmarks.compare.network_works.time.sleep", lambda _: None)
    monkeypatch.setattr(
        "benchmarks.compare.network_works.process_tree.cpu_seconds", lambda _: 3.0 if len(found) > 1 else 10.0
    )
    return found


def loaded(messages: int) -> Loaded:
    return Loaded("tiermq", lambda **_job: {"failed": 0, "messages": messages, "seconds": 2.0}, 1, "127.0.0.1:1", 1)


def test_a_deferred_round_has_the_processor_time_of_its_deliveries(ends: list[int]) -> None:
    ends += [500, 500, 540, 599, 600]
    waited: dict[str, float] = {}
    done = network_works.delivered(loaded(100), {"messages": 100, "bytes": 128}, waited)
    assert (done.messages, done.seconds, done.cpu_seconds) == (100, 2.0, 7.0)
    assert waited["tiermq"] > 0
    assert ends == [600]


def test_a_broker_that_stores_and_drops_has_no_figure(ends: list[int]) -> None:
    ends += [500, 500, 599]
    with pytest.raises(peer_process.PeerFailed, match="expected Load to get 600 messages, found 599 and no more"):
        network_works.delivered(loaded(100), {"messages": 100, "bytes": 128}, {})


def test_a_round_that_fails_reports_what_the_client_reported_last(tmp_path: Path) -> None:
    def fail() -> Round:
        raise SystemExit("rocketmq: 3 of 97 messages failed")

    failing = telling(fail, tmp_path / "official.errors")
    with pytest.raises(peer_process.PeerFailed, match="3 of 97"):
        failing()
    (tmp_path / "official.errors").write_text("first\nCODE: 2 DESC: system busy\n")
    with pytest.raises(peer_process.PeerFailed, match=r"3 of 97(?s:.*)system busy"):
        failing()


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", [work.name for work in WORKS])
def test_both_brokers_do_a_round_of_each_network_work(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    monkeypatch.setattr(network_works, "MESSAGES", 4096)
    monkeypatch.setattr(network_works, "SYNC_MESSAGES", 4096)
    brokers = {TIERMQ, ROCKETMQ, TUNED}
    expected = brokers | {LIMIT} if by_name(WORKS)[name].limit else brokers
    with ExitStack() as stack:
        sides = by_name(WORKS)[name].opener(Place(tmp_path, tmp_path, quick=True), stack)
        done = {side: run() for side, run in sides.rounds.items()}
        assert set(done) == expected
        assert {each.messages for each in done.values()} == {sides.notes["messages"]}
        assert set(sides.pids) == brokers
        assert done[TIERMQ].bytes == done[ROCKETMQ].bytes
        assert (done[TIERMQ].bytes > 0) is (name != "topic_creation")


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("flush", [ASYNC_FLUSH, SYNC_FLUSH])
def test_both_brokers_flush_before_they_answer_where_a_work_reports_so(tmp_path: Path, flush: str) -> None:
    """One thread sends a message when the one before was answered, so each of them needs a flush of its own."""
    if shutil.which("strace") is None:
        pytest.skip("strace, which counts the flushes, is not installed")
    try:
        jars = peer_process.distribution()
    except SystemExit as reason:
        pytest.skip(str(reason))
    with ExitStack() as stack:
        for name, side in network_works.open_brokers(tmp_path, stack, jars, flush).items():
            job = {"kind": "send", "topic": TOPIC, "threads": 1, "bytes": 1024, "messages": COUNTED_MESSAGES}
            side.round(**job)  # What a first round makes does not count.
            with counted_flushes(side.pid, tmp_path / f"{name}.strace") as count:
                side.round(**job)
            assert (count() >= COUNTED_MESSAGES) == (flush == SYNC_FLUSH), f"{name} flushed {count()} times"


@contextlib.contextmanager
def counted_flushes(pid: int, log: Path) -> Iterator[Callable[[], int]]:
    """Count the flushes of a process and its threads until the end of the block."""
    command = ["strace", "-f", "-e", "trace=fdatasync,fsync,msync", "-o", str(log), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        attached = strace.stderr.readline()
        assert "attached" in attached, attached
        try:
            yield lambda: len(_FLUSH.findall(log.read_text()))
        finally:
            strace.terminate()

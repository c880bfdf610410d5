"""Consumers against a broker: one member gets each message, what is done is committed, failures come again."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tiermq
from loop_runs import LOOP_RUNS, Run
from tiermq import Message, RetryLater
from tiermq.client.member.async_consumer import AsyncConsumer
from tiermq.client.member.cluster import Cluster, Consumer
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.client.member.start_position import Start
from tiermq.errors import BadConfig, BadExpression, IllegalMessage, RemotingError, RequestRefused
from tiermq.testing import LocalBroker
from waiting import until

EXPECTED = [b"%03d" % number for number in range(40)]
IDLE_S = 0.3


def fill(broker: LocalBroker, topic: str, bodies: list[bytes] = EXPECTED, **fields: Any) -> None:
    for number, body in enumerate(bodies):
        broker.send(topic, body, number % 4, **fields)


def committed(broker: LocalBroker, group: str, topic: str) -> int:
    return sum(broker.committed_offset(group, topic, queue_id) or 0 for queue_id in range(4))


def test_a_loop_gets_every_message_once_and_the_block_s_end_commits(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic)
    found = []
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        assert len(consumer.queues) == 4
        for message in consumer:
            found.append(message.body)
            if len(found) == len(EXPECTED):
                break
        metrics = consumer.metrics
    assert sorted(found) == EXPECTED
    assert (metrics["received"], metrics["sent_back"], metrics["queues"]) == (len(EXPECTED), 0, 4)
    assert metrics["open"] == 1  # The last one, until the block ends.
    assert committed(broker, group, topic) == len(EXPECTED)
    with cluster.consumer(group, topic=topic, start="first", idle_s=IDLE_S) as consumer:
        assert list(consumer) == []


def test_a_body_that_raises_leaves_its_message_for_the_next_member(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    broker.send(topic, b"one", 0)
    broker.send(topic, b"two", 0)

    def handle(consumer: Consumer) -> None:
        for message in consumer:
            if message.body == b"two":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), cluster.consumer(group, topic=topic, start="first") as consumer:
        handle(consumer)
    assert committed(broker, group, topic) == 1
    with cluster.consumer(group, topic=topic) as consumer:
        assert next(consumer).body == b"two"


def test_a_new_group_begins_where_it_was_asked_to(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic, [b"old"] * 4)
    moment = broker.messages(topic)[-1].store_timestamp_ms
    with cluster.consumer(group, topic=topic) as consumer:
        broker.send(topic, b"new", 1)
        assert next(consumer).body == b"new"
    starts: tuple[Start, ...] = (datetime.fromtimestamp(0, UTC), 0, "first")
    for number, start in enumerate(starts):
        with cluster.consumer(f"{group}-{number}", topic=topic, start=start, idle_s=IDLE_S) as consumer:
            assert len(list(consumer)) == 5
    with cluster.consumer(f"{group}-late", topic=topic, start=moment + 3_600_000, idle_s=IDLE_S) as consumer:
        assert list(consumer) == []


def test_a_topic_that_is_made_later_is_read_from_its_first_message(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    with cluster.consumer(group, topic=f"{topic}-later") as consumer:
        assert consumer.queues == []
        broker.send(f"{topic}-later", b"first")
        assert next(consumer).body == b"first"


def test_poll_returns_lists_and_finishes_the_last_one(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic)
    found: list[ReceivedMessage] = []
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        while len(found) < len(EXPECTED):
            got = consumer.poll(7)
            assert len(got) <= 7
            found += got
        assert consumer.poll(wait_s=0) == []
        consumer.commit()
        assert committed(broker, group, topic) == len(EXPECTED)


def test_an_interrupted_poll_skips_nothing(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes when the messages are taken and the waiting thread has not seen them; the block ends well."""
    fill(broker, topic)
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        until(lambda: consumer.metrics["ready"] == len(EXPECTED))
        submit = consumer._thread.submit

        def interrupted(work: Any) -> Any:
            submit(work).result()
            raise KeyboardInterrupt

        with monkeypatch.context() as interrupting:
            interrupting.setattr(consumer._thread, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(32)
    with cluster.consumer(group, topic=topic, idle_s=IDLE_S) as consumer:
        assert sorted(message.body for message in consumer) == EXPECTED


def test_without_auto_ack_only_what_was_acknowledged_is_done(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic, [b"a", b"b", b"c", b"d", b"e"])
    with cluster.consumer(group, topic=topic, start="first", auto_ack=False, idle_s=IDLE_S) as consumer:
        for message in consumer:
            if message.body != b"a":
                consumer.ack(message)
    with cluster.consumer(group, topic=topic, idle_s=IDLE_S) as consumer:
        assert [message.body for message in consumer] == [b"a", b"e"]  # Both of queue 0.


def test_tags_and_conditions_choose_messages(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    for number in range(12):
        tag, properties = ("paid", "open", "lost")[number % 3], {"amount": str(number)}
        broker.send(topic, b"%02d" % number, number % 4, tags=tag, properties=properties)
    with cluster.consumer(group, topic=topic, tags="paid || open", start="first", idle_s=IDLE_S) as consumer:
        assert {message.tags for message in consumer} == {"paid", "open"}
    sql = "amount > 5 AND TAGS = 'paid'"
    with cluster.consumer(f"{group}-sql", topic=topic, sql=sql, start="first", idle_s=IDLE_S) as consumer:
        assert sorted(message.body for message in consumer) == [b"06", b"09"]
    with pytest.raises(RequestRefused), cluster.consumer(f"{group}-bad", topic=topic, sql="amount >"):
        pass
    with pytest.raises(BadExpression, match="tags or sql"):
        cluster.consumer(group, topic=topic, tags="a", sql="b > 1")


def test_several_topics_are_read_each_with_its_tags(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    broker.send(f"{topic}-b", b"other", tags="x")
    broker.send(topic, b"paid", tags="paid")
    broker.send(topic, b"open", tags="open")
    topics = {topic: "paid", f"{topic}-b": "*"}
    with cluster.consumer(group, topics=topics, start="first", idle_s=IDLE_S) as consumer:
        assert {(message.topic, message.body) for message in consumer} == {(topic, b"paid"), (f"{topic}-b", b"other")}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_handlers_get_every_message_and_failures_come_again(
    broker: LocalBroker, topic: str, group: str, kind: str
) -> None:
    fill(broker, topic)
    seen: list[tuple[bytes, int]] = []
    lock = threading.Lock()

    def handle(message: ReceivedMessage) -> None:
        with lock:
            seen.append((message.body, message.attempt))
        assert message.topic == topic
        if message.body == b"007" and message.attempt == 1:
            raise RetryLater(delay_level=1)

    async def handle_in_task(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        handle(message)

    with tiermq.connect(broker.name_server) as cluster:
        handler = handle if kind == "threads" else handle_in_task
        with cluster.consumer(group, topic=topic, start="first", on_message=handler, workers=4) as consumer:
            until(lambda: (b"007", 1) in seen)
            broker.advance(seconds=5)
            until(lambda: len(seen) > len(EXPECTED))
            consumer.commit()
    assert sorted(seen) == sorted([(body, 1) for body in EXPECTED] + [(b"007", 2)])
    assert committed(broker, group, topic) == len(EXPECTED)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_handler_that_lets_a_cancellation_out_has_failed_and_its_worker_goes_on(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str, kind: str, ordered: bool
) -> None:
    """For instance one that awaits a task that was cancelled. There is one worker: all come after it."""
    for number in range(4):
        broker.send(topic, b"%d" % number, 0)
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"0" and [body for body, _ in seen].count(b"0") == 1:
            raise asyncio.CancelledError

    async def handle_in_task(message: ReceivedMessage) -> None:
        handle(message)

    handler = handle if kind == "threads" else handle_in_task
    options: dict[str, Any] = {"topic": topic, "start": "first", "workers": 1, "ordered": ordered}
    with cluster.consumer(group, on_message=handler, **options) as consumer:
        until(lambda: len(seen) >= 4)
        if not ordered:
            until(lambda: consumer.metrics["sent_back"] == 1)
            broker.advance(seconds=20)
        until(lambda: len(seen) == 5)
        until(lambda: consumer.metrics["open"] == 0)
    again = (b"0", 1) if ordered else (b"0", 2)
    assert sorted(seen) == sorted([(b"%d" % number, 1) for number in range(4)] + [again])


def test_a_handler_that_ends_its_thread_ends_neither_worker_nor_program(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    for number in range(3):
        broker.send(topic, b"%d" % number, 0)
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0":
            raise SystemExit("this handler gives up")

    with cluster.consumer(group, topic=topic, start="first", on_message=handle, workers=1) as consumer:
        until(lambda: consumer.metrics["sent_back"] == 1 and len(seen) == 3)
    assert seen == [b"0", b"1", b"2"]


def test_a_handler_whose_work_nobody_awaits_has_failed(broker: LocalBroker, topic: str, group: str) -> None:
    """It would be lost: a function that returns a coroutine has not done its work."""
    broker.send(topic, b"x")
    handled = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message)

    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(
            group, topic=topic, start="first", on_message=lambda message: handle(message), max_attempts=1
        ) as consumer,
    ):
        until(lambda: broker.messages(f"%DLQ%{group}"))
        assert consumer.metrics["sent_back"] == 1
    assert not handled


def test_a_loop_beside_a_handler_is_refused(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    seen: list[ReceivedMessage] = []
    with cluster.consumer(group, topic=topic, start="first", on_message=seen.append) as consumer:
        for take in (consumer.poll, lambda: next(consumer)):
            with pytest.raises(IllegalMessage, match="without on_message"):
                take()
        fill(broker, topic)
        until(lambda: len(seen) == len(EXPECTED))


def test_what_cannot_be_decided_about_a_message_is_refused(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    broker.send(topic, b"x")
    with cluster.consumer(group, topic=topic, start="first", auto_ack=False) as consumer:
        message = next(consumer)
        copied = pickle.loads(pickle.dumps(message))
        for decide in (consumer.ack, consumer.retry, consumer.dead_letter):
            with pytest.raises(IllegalMessage, match="found a copy"):
                decide(copied)
        levels: list[Any] = [-1, 19, "3"]
        for level in levels:
            with pytest.raises(IllegalMessage, match="delay level of 1 to 18"):
                consumer.retry(message, delay_level=level)
            with pytest.raises(IllegalMessage, match="delay level of 1 to 18"):
                RetryLater(level)
        consumer.ack(message)
    assert committed(broker, group, topic) == 1
    assert pickle.loads(pickle.dumps(RetryLater(3))).delay_level == 3


def test_a_handler_that_closes_the_cluster_is_an_error_and_ends_nothing(
    broker: LocalBroker, topic: str, group: str
) -> None:
    problems: list[str] = []
    broker.send(topic, b"x")

    def handle(message: ReceivedMessage) -> None:
        try:
            cluster.close()
        except RemotingError as error:
            problems.append(str(error))

    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(group, topic=topic, start="first", on_message=handle) as consumer,
    ):
        until(lambda: problems)
        assert consumer.metrics["queues"] == 4

    async def work() -> None:
        async def handle_in_task(message: ReceivedMessage) -> None:
            try:
                await inner.close()
            except RemotingError as error:
                problems.append(str(error))
                seen.set()

        seen = asyncio.Event()
        async with (
            tiermq.aconnect(broker.name_server) as inner,
            inner.consumer(f"{group}-task", topic=topic, start="first", on_message=handle_in_task),
        ):
            await seen.wait()

    asyncio.run(work())
    assert [problem for problem in problems if "found it inside" in problem] == problems
    assert len(problems) == 2


def test_a_coroutine_handler_of_threads_own_client_does_not_wait_for_itself(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    """It runs on the client's loop, where a call that waits would wait for ever."""
    problems: list[str] = []
    broker.send(topic, b"x")
    with cluster.producer("shop") as producer:

        async def handle(message: ReceivedMessage) -> None:
            try:
                producer.send(Message(topic, b"y"))
            except RemotingError as error:
                problems.append(str(error))

        with cluster.consumer(group, topic=topic, start="first", on_message=handle):
            until(lambda: problems)
    assert "on this client's own loop" in problems[0]


def test_a_handler_that_closes_its_own_consumer_is_an_error_in_a_thread_and_works_in_a_task(
    broker: LocalBroker, topic: str, group: str
) -> None:
    problems: list[BaseException] = []
    broker.send(topic, b"x")

    def handle(message: ReceivedMessage) -> None:
        try:
            consumer.close()
        except RemotingError as error:
            problems.append(error)

    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(group, topic=topic, start="first", on_message=handle) as consumer,
    ):
        until(lambda: problems)
    assert "outside of the consumer's handlers" in str(problems[0])

    async def work() -> None:
        async def handle_in_task(message: ReceivedMessage) -> None:
            await inner.close()

        async with (
            tiermq.aconnect(broker.name_server) as cluster,
            cluster.consumer(f"{group}-task", topic=topic, start="first", on_message=handle_in_task) as inner,
        ):
            await inner.wait()

    asyncio.run(work())


@pytest.mark.parametrize("way", ["sent back", "sent again", "in order"])
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_message_that_always_fails_becomes_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, max_attempts: int
) -> None:
    attempts = []

    def handle(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)
        raise RetryLater(delay_level=1)

    async def refuse(*_: Any) -> None:
        raise RequestRefused("look message by offset failed")

    if way == "sent again":
        monkeypatch.setattr(AsyncConsumer, "_send_back", refuse)
    options: dict[str, Any] = {"on_message": handle, "max_attempts": max_attempts, "ordered": way == "in order"}
    with LocalBroker(tmp_path) as broker, tiermq.connect(broker.name_server) as cluster:
        broker.send("orders", b"bad")
        with cluster.consumer("audit", topic="orders", start="first", **options):
            until(lambda: attempts)
            for _ in range(max_attempts - 1):
                broker.advance(seconds=5)
                until(lambda: len(attempts) > 1)
            until(lambda: broker.messages("%DLQ%audit"))
            broker.advance(seconds=5)
        assert [message.body for message in broker.messages("%DLQ%audit")] == [b"bad"]
    assert len(attempts) == max_attempts


def test_a_loop_can_put_messages_off_or_aside(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    for body in (b"later", b"never", b"good"):
        broker.send(topic, body, 0)
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        for message in consumer:
            if message.body == b"later" and message.attempt == 1:
                consumer.retry(message, delay_level=1)
                broker.advance(seconds=5)
            elif message.body == b"never":
                consumer.dead_letter(message)
            elif message.body == b"later":
                assert (message.attempt, message.topic) == (2, topic)
                break
    assert [message.body for message in broker.messages(f"%DLQ%{group}")] == [b"never"]
    assert committed(broker, group, topic) == 3


def test_an_ordered_handler_sees_each_queue_in_order_and_tries_again_first(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic)
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"004" and seen.count(b"004") == 1:
            raise ValueError("not now")

    with cluster.consumer(group, topic=topic, start="first", on_message=handle, ordered=True, workers=4):
        until(lambda: len(seen) == len(EXPECTED) + 1)
    for queue in range(4):
        expected = [body for number, body in enumerate(EXPECTED) if number % 4 == queue]
        mine = [body for body in seen if body in expected]
        if queue == 0:
            expected.insert(1, b"004")
        assert mine == expected
    assert committed(broker, group, topic) == len(EXPECTED)


def test_every_broadcasting_consumer_gets_every_message_and_keeps_its_place(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str, tmp_path: Path
) -> None:
    fill(broker, topic)
    places = tmp_path / "places.json"
    options: dict[str, Any] = {"topic": topic, "start": "first", "broadcast": True, "idle_s": IDLE_S}
    with cluster.consumer(group, **options, offsets_file=places) as consumer:
        assert len(list(consumer)) == len(EXPECTED)
    with tiermq.connect(broker.name_server) as other, other.consumer(group, **options) as consumer:
        assert len(list(consumer)) == len(EXPECTED)
    broker.send(topic, b"new")
    with cluster.consumer(group, **options, offsets_file=places) as consumer:
        assert [message.body for message in consumer] == [b"new"]
    assert broker.committed_offset(group, topic, 0) is None


def test_a_member_that_seeks_gets_what_it_had_again(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic)
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        assert sorted(next(consumer).body for _ in EXPECTED) == EXPECTED
        consumer.seek("first")
        assert sorted(next(consumer).body for _ in EXPECTED) == EXPECTED


@pytest.mark.parametrize(
    "start", ["1h", "2020-01-31T12:00:00Z", timedelta(hours=1), datetime(2020, 1, 31, tzinfo=UTC), 0, 1_600_000_000_000]
)
def test_a_seek_and_a_start_take_times_and_ages(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str, start: Start
) -> None:
    fill(broker, topic)
    with cluster.consumer(group, topic=topic, start=start, idle_s=2) as consumer:
        assert sorted(next(consumer).body for _ in EXPECTED) == EXPECTED
        consumer.seek(start)
        assert sorted(next(consumer).body for _ in EXPECTED) == EXPECTED
        consumer.seek("last")
        consumer.seek(timedelta(hours=-24))
        broker.send(topic, b"new")
        assert next(consumer).body == b"new"


@pytest.mark.parametrize("start", ["frist", "1 hour", "2020-01-31T12:00:00", -5, 1.5, True, None, {0: 1}, {99: 1}])
def test_a_seek_to_anything_else_is_refused_in_words(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str, start: Any
) -> None:
    broker.send(topic, b"one", 0)
    with cluster.consumer(group, topic=topic, start="first", idle_s=2) as consumer:
        assert next(consumer).body == b"one"
        with pytest.raises(BadConfig, match="seek: expected 'first', 'last', an age"):
            consumer.seek(start)
    assert committed(broker, group, topic) == 1


def test_a_consumer_outside_of_its_block_is_refused_in_words(cluster: Cluster, topic: str, group: str) -> None:
    consumer = cluster.consumer(group, topic=topic, start="first", idle_s=IDLE_S)
    uses: list[Callable[[], Any]] = [
        lambda: next(consumer),
        lambda: consumer.poll(wait_s=IDLE_S),
        lambda: consumer.seek("first"),
        consumer.commit,
    ]
    for use in uses:
        with pytest.raises(RemotingError, match=r"use `with cluster\.consumer\("):
            use()
    with consumer:
        assert consumer.poll(wait_s=IDLE_S) == []


def test_flow_control_stops_pulls_until_messages_are_taken(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic, [bytes([number % 256]) * 1_000 for number in range(400)])
    with cluster.consumer(group, topic=topic, start="first", max_buffered=40, idle_s=2) as consumer:
        inner = consumer._inner
        until(lambda: inner.ready_count >= 4 * (40 // 5))  # The retry topic's queue has a share, too.
        assert inner.ready_count <= 40
        assert sum(1 for _ in consumer) == 400
        assert inner.ready_count == 0


def test_a_consumer_that_wants_one_at_a_time_has_one_of_each_queue(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    fill(broker, topic)
    with cluster.consumer(group, topic=topic, start="first", max_buffered=1, idle_s=2) as consumer:
        inner = consumer._inner
        until(lambda: inner.ready_count == 4)
        assert sorted(message.body for message in consumer) == EXPECTED


def test_flow_control_stops_pulls_by_bytes_too(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    fill(broker, topic, [bytes([number % 256]) * 1_000 for number in range(400)])
    with cluster.consumer(group, topic=topic, start="first", max_buffered_bytes=10_000, idle_s=2) as consumer:
        inner = consumer._inner
        # Each pull, of the retry topic too, has seen that there is no room, and waits for it.
        until(lambda: inner._ready_bytes >= 10_000 and all(tuple(room._waiters) for room in inner._room.values()))
        assert inner._ready_bytes < 10_000 + 4 * 32 * 1_200
        assert sum(1 for _ in consumer) == 400


def test_what_cannot_be_consumed_is_refused_in_words(cluster: Cluster, topic: str, group: str) -> None:
    for options, reason in (
        ({}, "topic or topics, found neither"),
        ({"topic": topic, "topics": [topic]}, "found both"),
        ({"topic": topic, "start": "never"}, "'first', 'last'"),
        ({"topic": topic, "offsets_file": "x"}, "broadcasting"),
        ({"topics": [topic], "tags": "a"}, "each has its tags"),
        ({"topics": topic}, "give one with topic="),
        ({"topics": []}, "an empty list"),
        ({"topic": topic, "on_message": topic}, "on_message: expected a function"),
    ):
        with pytest.raises(BadConfig, match=reason):
            cluster.consumer(group, **options)
    with (
        cluster.consumer(group, topic=topic),
        pytest.raises(IllegalMessage, match="a second"),
        cluster.consumer(group, topic=topic),
    ):
        pass


@pytest.mark.parametrize("run", LOOP_RUNS)
def test_the_async_form_has_the_same_names(broker: LocalBroker, topic: str, group: str, run: Run) -> None:
    fill(broker, topic)

    async def work() -> list[bytes]:
        async with (
            tiermq.aconnect(broker.name_server) as cluster,
            cluster.consumer(group, topic=topic, start="first", idle_s=IDLE_S) as consumer,
        ):
            return [message.body async for message in consumer]

    assert sorted(run(work())) == EXPECTED
    assert committed(broker, group, topic) == len(EXPECTED)


def test_a_request_is_answered_by_a_consumer(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    with tiermq.connect(broker.name_server) as other:

        def handle(message: ReceivedMessage) -> None:
            consumer.reply(message, b"for " + message.body)

        with other.consumer(group, topic=topic, on_message=handle) as consumer, cluster.producer("shop") as producer:
            assert producer.request(Message(topic, b"a tea"), timeout_s=30).body == b"for a tea"
    with cluster.producer("shop") as producer, pytest.raises(Exception, match="a reply within"):
        producer.request(Message(topic, b"a tea"), timeout_s=0.2)

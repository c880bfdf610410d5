"""Consumer groups of an embedded store, without a broker."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from present import present
from simulation.manual_clock import ManualClock
from tiermq import Consumer, LocalStore, Message
from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.errors import BadConfig, IllegalMessage, StoreClosed, StoreError, TierError
from waiting import until


def opened(path: Path, clock: ManualClock | None = None) -> LocalStore:
    return LocalStore.open(path, clock=clock) if clock is not None else LocalStore.open(path)


def put(store: LocalStore, *bodies: bytes, queue_id: int = 0, tags: str = "") -> None:
    for body in bodies:
        store.put(Message("orders", body, queue_id=queue_id, tags=tags))


def bodies(consumer: Consumer) -> list[bytes]:
    return [message.body for message in consumer]


def test_a_group_continues_where_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            assert bodies(consumer) == [b"1", b"2", b"3"]
            assert (consumer.positions, consumer.lag) == ({0: 3}, 0)
        put(store, b"4")
    with opened(tmp_path) as store, store.consumer("orders", group="audit") as consumer:
        assert consumer.lag == 1
        assert bodies(consumer) == [b"4"]
    with opened(tmp_path) as store, store.consumer("orders", group="other") as other:
        assert bodies(other) == [b"1", b"2", b"3", b"4"]


def test_offsets_are_where_a_broker_keeps_them(tmp_path: Path, manual_clock: ManualClock) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2")
        put(store, b"3", queue_id=1)
        with store.consumer("orders", group="audit") as consumer:
            assert len(bodies(consumer)) == 3
    offsets = ConsumerOffsets(str(tmp_path / "config"), manual_clock)
    assert offsets.queues("audit", "orders") == {0: 2, 1: 1}


def test_offsets_are_stored_in_time_though_the_wall_clock_goes_back(tmp_path: Path) -> None:
    class Clock(ManualClock):
        back_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() - self.back_ms

    clock = Clock()
    with opened(tmp_path, clock) as store:
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            present(consumer.receive())
            clock.back_ms = 86_400_000
            clock.advance_ms(6_000)
            present(consumer.receive())
            present(consumer.receive())
            assert ConsumerOffsets(str(tmp_path / "config"), clock).queues("audit", "orders") == {0: 1}


def test_a_message_whose_work_failed_comes_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")

        def fail_at_2() -> None:
            with store.consumer("orders", group="audit") as consumer:
                for message in consumer:
                    assert message.body != b"2"

        with pytest.raises(AssertionError):
            fail_at_2()
        with store.consumer("orders", group="audit") as consumer:
            assert bodies(consumer) == [b"2", b"3"]


def test_a_loop_that_is_left_has_consumed_what_it_was_given(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            for message in consumer:
                if message.body == b"2":
                    break
        with store.consumer("orders", group="audit") as consumer:
            assert bodies(consumer) == [b"3"]


def test_close_alone_consumes_nothing_and_commit_does(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")
        consumer = store.consumer("orders", group="audit")
        assert [message.body for message in consumer.take(2)] == [b"1", b"2"]
        consumer.close()
        consumer.close()
        consumer = store.consumer("orders", group="audit")
        assert len(consumer.take(2)) == 2
        consumer.commit()
        table = json.loads((tmp_path / "config" / "consumerOffset.json").read_text().replace("{0:", '{"0":'))
        assert table["offsetTable"]["orders@audit"] == {"0": 2}
        consumer.close()
        with pytest.raises(StoreClosed):
            consumer.receive()
        with store.consumer("orders", group="audit") as again:
            assert bodies(again) == [b"3"]


def test_a_dead_letter_names_no_light_queues(tmp_path: Path, manual_clock: ManualClock) -> None:
    with opened(tmp_path, manual_clock) as store:
        store.put(Message("orders", b"bad", 0, properties={"INNER_MULTI_DISPATCH": "%LMQ%$orders$x", "x": "y"}))
        with store.consumer("orders", group="audit") as consumer:
            consumer.dead_letter(present(consumer.receive()))
        [dead] = store.get("%DLQ%audit")
        assert (dead.properties["x"], "INNER_MULTI_DISPATCH" in dead.properties) == ("y", False)


def test_a_retry_comes_after_its_delay_and_becomes_a_dead_letter_at_last(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with opened(tmp_path, manual_clock) as store:
        put(store, b"bad", b"good")
        with store.consumer("orders", group="audit", max_retries=2) as consumer:
            seen = []
            for message in consumer:
                seen.append((message.body, message.reconsume_times))
                if message.body == b"bad":
                    assert consumer.retry(message)
            assert seen == [(b"bad", 0), (b"good", 0)]
            manual_clock.advance_ms(9_000)
            assert consumer.receive() is None
            manual_clock.advance_ms(2_000)
            message = present(consumer.receive(wait_s=60))
            assert (message.body, message.reconsume_times) == (b"bad", 1)
            assert message.properties["RETRY_TOPIC"] == "orders"
            assert consumer.retry(message, after_s=0)
            message = present(consumer.receive(wait_s=60))
            assert message.reconsume_times == 2
            assert not consumer.retry(message)
            assert consumer.receive() is None
        [dead] = store.get("%DLQ%audit")
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"bad", "orders")


def test_a_retry_that_waits_survives_a_restart(tmp_path: Path, manual_clock: ManualClock) -> None:
    with opened(tmp_path, manual_clock) as store:
        put(store, b"bad")
        with store.consumer("orders", group="audit") as consumer:
            for message in consumer:
                consumer.retry(message)
    manual_clock.advance_ms(11_000)
    with opened(tmp_path, manual_clock) as store, store.consumer("orders", group="audit") as consumer:
        message = present(consumer.receive(wait_s=60))
        assert (message.body, message.reconsume_times) == (b"bad", 1)


def test_only_a_message_that_was_given_can_be_retried(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2")
        with store.consumer("orders", group="audit") as consumer:
            first = consumer.receive()
            consumer.receive()
            assert first is not None
            with pytest.raises(StoreError, match="given"):
                consumer.retry(first)


def test_a_group_may_begin_at_the_end_or_at_a_time(tmp_path: Path, manual_clock: ManualClock) -> None:
    with opened(tmp_path, manual_clock) as store:
        put(store, b"1")
        manual_clock.advance_ms(600_000)
        put(store, b"2")
        manual_clock.advance_ms(60_000)
        with store.consumer("orders", group="last", start="last") as consumer:
            put(store, b"3")
            put(store, b"4", queue_id=7)
            assert sorted(bodies(consumer)) == [b"3", b"4"]
        with store.consumer("orders", group="recent", start="5m") as consumer:
            assert sorted(bodies(consumer)) == [b"2", b"3", b"4"]
        with store.consumer("orders", group="future", start=manual_clock.now_ms() + 1) as consumer:
            assert bodies(consumer) == []
            put(store, b"5")
            assert bodies(consumer) == [b"5"]


def test_a_position_can_be_moved(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            assert len(bodies(consumer)) == 3
            consumer.seek("first")
            assert len(bodies(consumer)) == 3
            consumer.seek({0: 2})
            assert bodies(consumer) == [b"3"]
            consumer.seek("last")
            assert bodies(consumer) == []
            with pytest.raises(BadConfig):
                consumer.seek({0: -1})


def test_a_position_beyond_the_end_is_the_end_and_what_comes_later_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")

        def fail_after_a_seek() -> None:
            with store.consumer("orders", group="audit") as consumer:
                consumer.seek({0: 10})
                assert (consumer.positions, consumer.lag) == ({0: 3}, 0)
                put(store, b"4", b"5")
                assert consumer.lag == 2
                assert [message.body for message in consumer.take()] == [b"4", b"5"]
                raise ValueError

        with pytest.raises(ValueError):
            fail_after_a_seek()
        with store.consumer("orders", group="audit") as consumer:
            assert bodies(consumer) == [b"4", b"5"]
    assert "offset 10 is beyond the end of queue 0 of orders: it continues at 3" in caplog.text


def test_stored_offsets_beyond_the_end_are_moved_to_it(tmp_path: Path, manual_clock: ManualClock) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2", b"3")
    offsets = ConsumerOffsets(str(tmp_path / "config"), manual_clock)
    for queue_id in (0, 1):
        offsets.commit("audit", "orders", queue_id, 10)
    offsets.flush()
    with opened(tmp_path) as store:
        with store.consumer("orders", group="audit") as consumer:
            put(store, b"4")
            put(store, b"5", queue_id=1)  # A queue that was empty when the consumer was made.
            assert sorted(bodies(consumer)) == [b"4", b"5"]
        with store.consumer("orders", group="audit") as consumer:
            assert (consumer.positions, consumer.lag) == ({0: 4, 1: 1}, 0)


@pytest.mark.parametrize("to", ["frist", {7: 1}, {0: 1, 7: 1}, {"0": 1}, {0: True}, -5])
def test_a_seek_to_what_is_not_there_is_refused_and_moves_nothing(tmp_path: Path, to: Any) -> None:
    with opened(tmp_path) as store:
        with store.consumer("orders", group="audit") as consumer, pytest.raises(BadConfig):
            consumer.seek(to)
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            assert len(bodies(consumer)) == 3
            with pytest.raises(BadConfig):
                consumer.seek(to)
            assert bodies(consumer) == []


def test_tags_choose_and_others_are_passed_for_good(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", tags="paid")
        put(store, b"2", b"3", tags="open")
        with store.consumer("orders", group="audit", tags="paid") as consumer:
            assert bodies(consumer) == [b"1"]
            assert consumer.lag == 0


def test_a_group_has_one_consumer_of_a_topic(tmp_path: Path) -> None:
    with opened(tmp_path) as store, store.consumer("orders", group="audit") as first:
        with pytest.raises(StoreError, match="already"):
            store.consumer("orders", group="audit")
        with store.consumer("orders", group="other"), store.consumer("payments", group="audit"):
            pass
        assert "group='audit'" in repr(first)
        for wrong in ("two words", ""):
            with pytest.raises(IllegalMessage):
                store.consumer("orders", group=wrong)


def test_a_consumer_that_waits_gets_what_comes_and_can_be_closed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        consumer = store.consumer("orders", group="audit", wait_s=600)
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.extend(bodies(consumer)))
        thread.start()
        put(store, b"1", b"2")
        until(lambda: len(consumer.positions) and consumer.positions[0] >= 1)
        consumer.close()
        thread.join()
        assert consumer._closed


def test_a_consumer_that_is_asked_once_can_be_closed_while_it_waits(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        consumer = store.consumer("orders", group="audit")
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(consumer.receive(wait_s=600)))
        thread.start()
        until(lambda: store._made_arrivals)
        consumer.close()
        thread.join()
        assert found == [None]


def test_a_store_that_is_closed_twice_has_written_its_groups_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, b"1")
    consumer = store.consumer("orders", group="audit")
    consumer.take(5)
    consumer.commit()
    store.close()
    store.close()
    consumer.close()
    with opened(tmp_path) as again, again.consumer("orders", group="audit") as consumer:
        assert bodies(consumer) == []


def test_offsets_are_written_while_a_consumer_runs(tmp_path: Path, manual_clock: ManualClock) -> None:
    with opened(tmp_path, manual_clock) as store:
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            consumer.receive()
            manual_clock.advance_ms(6_000)
            consumer.receive()
            written = ConsumerOffsets(str(tmp_path / "config"), manual_clock)
            assert written.queues("audit", "orders") == {0: 1}


def test_a_read_that_fails_loses_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read fails the first time, as one from a tier that is away. What was taken before is given later."""
    with opened(tmp_path) as store:
        put(store, *(b"%d" % number for number in range(7)))
        monkeypatch.setattr("tiermq.embedded.message_stream.STREAMED_PAGE", 3)
        page, failed = store._page, set[int]()

        def fails_once(topic: str, queue_id: int, offset: int, *more: Any, **named: Any) -> Any:
            if topic == "orders" and offset and offset not in failed:
                failed.add(offset)
                raise TierError(f"no answer for {offset}")
            return page(topic, queue_id, offset, *more, **named)

        monkeypatch.setattr(store, "_page", fails_once)
        found: list[bytes] = []
        with store.consumer("orders", group="audit") as consumer:
            while len(found) < 7:
                with suppress(TierError):
                    found += [message.body for message in consumer.take(5)]
        assert found == [b"%d" % number for number in range(7)]
        failed.clear()
        stream, found = store.read("orders"), []
        while len(found) < 7:
            with suppress(TierError):
                found.append(present(stream.next_now()).body)
        assert found == [b"%d" % number for number in range(7)]
        assert failed == {3, 6}


def test_offsets_that_cannot_be_written_lose_no_message(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, manual_clock) as store:
        put(store, b"1", b"2", b"3")
        with store.consumer("orders", group="audit") as consumer:
            assert present(consumer.receive()).body == b"1"
            with monkeypatch.context() as broken:

                def refuse() -> None:
                    raise OSError("no space")

                broken.setattr(consumer._state.offsets, "flush", refuse)
                manual_clock.advance_ms(6_000)
                with pytest.raises(OSError, match="no space"):
                    consumer.take(2)
            assert [message.body for message in consumer.take(2)] == [b"2", b"3"]


def test_a_retry_after_what_is_no_time_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1")
        with store.consumer("orders", group="audit") as consumer:
            [message] = consumer.take()
            wrong: Any
            for wrong in (-1, float("nan"), float("inf"), "5"):
                with pytest.raises(BadConfig, match="after_s: expected seconds, 0 or more, or None, found"):
                    consumer.retry(message, after_s=wrong)
        assert set(store.topics()) == {"orders"}


def test_a_message_is_put_off_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1", b"2")
        with store.consumer("orders", group="audit") as consumer:
            first, second = consumer.take(2)
            assert consumer.retry(first, after_s=0)
            consumer.dead_letter(second)
            for message in (first, second):
                with pytest.raises(StoreError, match="not put off yet"):
                    consumer.retry(message)
                with pytest.raises(StoreError, match="not put off yet"):
                    consumer.dead_letter(message)
            [again] = consumer.take(2)
            assert (again.body, consumer.retry(again, after_s=0)) == (b"1", True)  # A delivery of its own.
        assert [message.body for message in store.read("%DLQ%audit")] == [b"2"]
        assert [message.body for message in store.read("%RETRY%audit")] == [b"1", b"1"]


def test_numbers_of_a_consumer_are_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"1")
        wrong: Any
        for wrong in (-1, "3", 1.5):
            with pytest.raises(BadConfig, match="max_retries: expected a whole number of 0 or more"):
                store.consumer("orders", group="audit", max_retries=wrong)
        wrong = ["paid"]
        with pytest.raises(IllegalMessage, match="tags are one text"):
            store.consumer("orders", group="audit", tags=wrong)
        with store.consumer("orders", group="audit") as consumer:
            for wrong in (0, "3", 1.5):
                with pytest.raises(BadConfig, match="max_messages: expected a whole number of 1 or more"):
                    consumer.take(wrong)
            assert [message.body for message in consumer.take()] == [b"1"]

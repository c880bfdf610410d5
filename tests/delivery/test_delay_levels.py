"""Delayed messages: when they are delivered, where to, in which order, and what a restart or a power cut changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from small_store import SIZES
from tiermq import Message, PutResult
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.errors import StoreError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.stored_message import StoredMessage
from tiermq.status import PutStatus
from tiermq.store.delay_offsets import FILE, decode_delay_offsets
from tiermq.store.local_store import LocalStore

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class World:
    """A store without threads at a standing clock, and the delivery over it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.clock = ManualClock()
        self.settings = {**SIZES, **settings}
        self.open()

    def open(self) -> None:
        self.store = LocalStore.open(self.path, clock=self.clock, background=False, **self.settings)
        self.delivery = DelayLevels(self.store, str(self.path / "config"), self.clock)

    def restart(self, *, flush: bool) -> None:
        """Stop delivery, cleanly or not, and begin again."""
        if flush:
            self.delivery.finish()
        self.store.close()
        self.open()

    def wait_in(self, level: int, *bodies: str, topic: str = "T", queue_id: int = 1, **fields: Any) -> None:
        for body in bodies:
            named = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
            message = Message(
                SCHEDULE, body.encode(), level - 1, properties={**named, **fields.pop("more", {})}, **fields
            )
            assert self.store.put(message).ok
        self.store.dispatch_now()

    def run(self) -> float:
        """Rounds until nothing more is due; how long it would rest then."""
        while (rest_s := self.delivery.run_once()) == 0.0:
            pass
        self.store.dispatch_now()
        return rest_s

    def delivered(self, topic: str = "T", queue_id: int = 1) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while (page := self.store.get(topic, queue_id, len(found))).count:
            found += page.messages
        return found

    def bodies(self, topic: str = "T", queue_id: int = 1) -> list[str]:
        return [each.body.decode() for each in self.delivered(topic, queue_id)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1_000), (3, 10_000), (5, 60_000), (18, 7_200_000)])
def test_a_message_is_delivered_when_its_levels_time_has_passed(world: World, level: int, delay_ms: int) -> None:
    fields: dict[str, Any] = {"flag": 7, "born_timestamp_ms": 5, "born_host": "9.8.7.6:5", "reconsume_times": 2}
    world.wait_in(level, "a", more={"KEYS": "k", "TAGS": "A"}, **fields)
    world.clock.advance_ms(delay_ms - 1)
    assert world.run() == pytest.approx(0.001)
    assert world.bodies() == []
    world.clock.advance_ms(1)
    world.run()
    (message,) = world.delivered()
    assert (message.body, message.flag, message.born_timestamp_ms, message.born_host) == (b"a", 7, 5, "9.8.7.6:5")
    assert (message.reconsume_times, message.keys, message.tags) == (2, ["k"], "A")
    assert message.properties["REAL_TOPIC"] == "T"
    assert message.store_timestamp_ms == world.clock.now_ms()
    assert world.delivery.waiting() == {level: (1, 1)}


def test_messages_of_a_level_keep_their_order_and_levels_do_not_wait_for_each_other(world: World) -> None:
    world.wait_in(3, *"abc")
    world.wait_in(1, *"xy")
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == ["x", "y"]
    world.clock.advance_ms(9_000)
    world.run()
    assert world.bodies() == ["x", "y", "a", "b", "c"]


def test_many_more_messages_than_a_page_are_delivered(world: World) -> None:
    bodies = [str(number) for number in range(120)]
    world.wait_in(1, *bodies)
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == bodies
    assert world.delivery.delivered_count == 120


def test_delivery_goes_on_where_it_stopped(world: World) -> None:
    world.wait_in(1, *"ab")
    world.clock.advance_ms(1_000)
    world.run()
    world.wait_in(1, *"cd")
    world.restart(flush=True)
    world.clock.advance_ms(3_600_000)
    world.run()
    assert world.bodies() == ["a", "b", "c", "d"], (
        "what became due meanwhile comes at once, what was delivered not again"
    )


def test_without_a_written_offset_messages_come_twice_and_never_not_at_all(world: World) -> None:
    world.wait_in(1, *"ab")
    world.clock.advance_ms(1_000)
    world.run()
    world.restart(flush=False)
    world.run()
    assert world.bodies() == ["a", "b", "a", "b"]


def test_offsets_are_written_now_and_then_and_only_after_what_was_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    flush, write = world.store.flush, OsFileAccess.write_config

    def noted_flush() -> None:
        order.append("messages")
        flush()

    def noted_write(access: OsFileAccess, path: str, data: bytes) -> None:
        order.append("offsets")
        write(access, path, data)

    monkeypatch.setattr(world.store, "flush", noted_flush)
    monkeypatch.setattr(OsFileAccess, "write_config", noted_write)
    world.wait_in(1, "a")
    world.clock.advance_ms(1_000)
    world.run()
    assert order == []
    world.clock.advance_ms(10_000)
    world.run()
    assert order == ["messages", "offsets"]
    world.clock.advance_ms(10_000)
    world.run()
    assert order == ["messages", "offsets"], "nothing was delivered since"
    assert decode_delay_offsets((world.path / "config" / FILE).read_bytes())[0] == {1: 1}


def test_offsets_that_could_not_be_written_are_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.wait_in(1, "a")
    world.clock.advance_ms(1_000)
    world.run()

    def broken() -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "flush", broken)
        with pytest.raises(StoreError, match="gone"):
            world.delivery.flush()
    world.delivery.finish()
    assert decode_delay_offsets((world.path / "config" / FILE).read_bytes())[0] == {1: 1}


def test_a_put_that_fails_is_tried_again_and_holds_back_only_its_level(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.wait_in(1, *"ab")
    world.wait_in(2, "x", topic="U")
    world.clock.advance_ms(5_000)
    append = world.store.append

    def full(message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE) if message.topic == "T" else append(message)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        world.run()
        assert (world.bodies(), world.bodies("U")) == ([], ["x"])
    world.run()
    assert world.bodies() == [], "it waits for a moment first"
    world.clock.advance_ms(100)
    world.run()
    assert world.bodies() == ["a", "b"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "no topic!"},
        {"REAL_QID": "x"},
        {"REAL_QID": "-1"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
    ],
)
def test_a_message_that_can_never_be_delivered_is_passed_over(world: World, wrong: dict[str, str]) -> None:
    world.wait_in(1, "bad", more=wrong)
    world.wait_in(1, "good")
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == ["good"]
    assert (world.delivery.skipped_count, world.delivery.delivered_count) == (1, 1)


def test_a_damaged_message_is_passed_over_and_the_others_are_not(world: World) -> None:
    world.wait_in(1, "first", "damaged", "last")
    unit = world.store.unit_at(SCHEDULE, 0, 1)
    assert unit is not None
    physical, size = unit
    log = world.path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    at = data.index(b"damaged", physical, physical + size)
    data[at] ^= 0xFF
    with log.open("r+b") as file:
        file.write(data)
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == ["first", "last"]
    assert world.delivery.skipped_count == 1


def test_a_clock_that_was_set_back_does_not_make_messages_wait_for_longer(world: World) -> None:
    world.wait_in(1, "a")
    world.clock.set_ms(world.clock.now_ms() - 3_600_000)
    world.run()
    assert world.bodies() == ["a"]


@pytest.mark.parametrize(("offset", "expected"), [(50, []), (-5, ["a", "b"])])
def test_an_offset_that_the_queue_does_not_have_is_corrected(tmp_path: Path, offset: int, expected: list[str]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE).write_text(f'{{"offsetTable":{{1:{offset}}}}}')
    world = World(tmp_path)
    world.wait_in(1, *"ab")
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == expected
    world.wait_in(1, "c")
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == [*expected, "c"]
    world.store.close()


def test_other_levels_can_be_configured(tmp_path: Path) -> None:
    world = World(tmp_path, message_delay_level="2s 1d")
    world.wait_in(1, "a")
    world.wait_in(2, "b")
    world.clock.advance_ms(2_000)
    world.run()
    assert world.bodies() == ["a"]
    world.clock.advance_ms(24 * 3_600_000)
    world.run()
    assert world.bodies() == ["a", "b"]
    world.store.close()


def test_what_cannot_be_put_holds_its_place_in_the_middle_of_a_page_and_nothing_behind_it_overtakes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.wait_in(1, *"abcde")
    world.clock.advance_ms(1_000)
    append, refused = world.store.append, {b"b": 2, b"d": 1}

    def busy(message: Message) -> PutResult:
        if refused.get(message.body, 0):
            refused[message.body] -= 1
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
        return append(message)

    monkeypatch.setattr(world.store, "append", busy)
    seen = []
    for _ in range(4):
        world.run()
        seen.append("".join(world.bodies()))
        world.wait_in(1, "x")
        world.clock.advance_ms(100)
    assert seen == ["a", "a", "abc", "abcde"], "each try begins at the one that failed"
    world.clock.advance_ms(1_000)
    world.run()
    assert "".join(world.bodies()) == "abcdexxxx"


def test_everything_that_became_due_in_a_long_stop_comes_in_order_and_once(world: World) -> None:
    count = 1_000
    for level in (1, 2, 18):
        world.wait_in(level, *(f"{level}-{number}" for number in range(count)), queue_id=level)
    world.clock.advance_ms(1_000)
    world.delivery.run_once()
    world.restart(flush=True)
    world.clock.advance_ms(30 * 24 * 3_600_000)
    world.run()
    for level in (1, 2, 18):
        assert world.bodies(queue_id=level) == [f"{level}-{number}" for number in range(count)]
    assert world.delivery.waiting_count == 0


def test_a_level_with_much_to_do_does_not_keep_the_others_from_their_turn(world: World) -> None:
    world.wait_in(1, *(str(number) for number in range(3_000)))
    world.wait_in(2, "x", topic="U")
    world.clock.advance_ms(5_000)
    assert world.delivery.run_once() == 0.0
    world.store.dispatch_now()
    assert world.bodies("U") == ["x"]
    assert 0 < len(world.bodies()) < 3_000


def test_after_a_clock_was_set_back_old_messages_are_due_at_once_and_new_ones_in_their_time(world: World) -> None:
    world.wait_in(3, "before")
    world.clock.set_ms(world.clock.now_ms() - 3_600_000)
    world.wait_in(3, "after")
    world.run()
    assert world.bodies() == ["before"]
    world.clock.advance_ms(9_999)
    world.run()
    assert world.bodies() == ["before"]
    world.clock.advance_ms(1)
    world.run()
    assert world.bodies() == ["before", "after"]


def test_a_message_that_names_its_topic_in_no_text_is_passed_over(world: World) -> None:
    properties = b"DELAY\x011\x02REAL_TOPIC\x01\xff\xfe\x02REAL_QID\x011\x02"
    assert world.store.put(Message(SCHEDULE, b"bad", 0, encoded_properties=properties)).ok
    world.wait_in(1, "good")
    world.clock.advance_ms(1_000)
    world.run()
    assert world.bodies() == ["good"]
    assert world.delivery.skipped_count == 1


def test_levels_that_are_no_longer_configured_wait_until_they_are_again(world: World) -> None:
    world.wait_in(2, "a")
    world.clock.advance_ms(5_000)
    world.run()
    world.wait_in(2, "b")
    world.settings["message_delay_level"] = "1s"
    world.restart(flush=True)
    world.wait_in(1, "one")
    world.clock.advance_ms(60_000)
    world.run()
    assert world.bodies() == ["a", "one"]
    world.settings["message_delay_level"] = "1s 5s"
    world.restart(flush=True)
    world.run()
    assert world.bodies() == ["a", "one", "b"], "how far the level was, is not forgotten meanwhile"


def test_nothing_is_written_where_nothing_was_delivered(world: World) -> None:
    world.run()
    world.delivery.finish()
    assert not (world.path / "config" / FILE).exists()
    assert world.delivery.waiting() == {}


def test_its_thread_delivers_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    store = LocalStore.open(tmp_path, clock=clock, **SIZES)
    delivery = DelayLevels(store, str(tmp_path / "config"), clock)
    properties = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
    assert store.put(Message(SCHEDULE, b"a", 0, properties=properties)).ok
    clock.advance_ms(1_000)
    delivery.start()
    while store.max_offset("T", 0) == 0:
        store.dispatch_now()
    delivery.stop()
    assert delivery.error_count == 0
    assert decode_delay_offsets((tmp_path / "config" / FILE).read_bytes())[0] == {1: 1}
    store.close()

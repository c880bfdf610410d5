"""The demo would notice whatever a store loses, doubles, moves or changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tiermq.cli import demo_reading as reading
from tiermq.cli.demo_orders import QUEUES, body_of, expected, key_of, number_of
from tiermq.cli.demo_producers import DemoFailed

EACH = 100


@dataclass
class Stored:
    queue_offset: int
    body: bytes


@dataclass
class Page:
    messages: list[Stored]
    next_offset: int


class FakeStore:
    """The demo's messages in memory; the message at `at` of queue 3 may be lost or changed. A message a second."""

    def __init__(self, lost: int = -1, changed: int = -1, late: int = 0) -> None:
        self.late = late
        self.queues: list[list[Stored]] = []
        for queue_id in range(QUEUES):
            wanted = [Stored(offset, body_of(number_of(queue_id, offset))) for offset in range(EACH)]
            if queue_id == 3 and changed >= 0:
                wanted[changed].body = b"other"
            self.queues.append([each for each in wanted if queue_id != 3 or each.queue_offset != lost])

    def get(self, topic: str, queue_id: int, offset: int, max_messages: int) -> Page:
        found = self.queues[queue_id][offset : offset + max_messages]
        return Page(found, offset + len(found))

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int) -> Page:
        offset, queue_id = divmod(int(key.removeprefix("order-")), QUEUES)
        return Page([each for each in self.queues[queue_id] if each.queue_offset == offset], 0)

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int:
        return 1_000 * offset

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str) -> int:
        return timestamp_ms // 1_000 + self.late


def test_everything_is_counted_by_queue() -> None:
    told: list[int] = []
    held, tally = reading.read_back(FakeStore(), told.append)
    assert held == [EACH] * QUEUES
    assert tally.agrees(expected(held))
    assert sum(told) == tally.count == EACH * QUEUES


@pytest.mark.parametrize("offset", [0, 31, 32, EACH - 2])
def test_a_message_that_is_lost_or_changed_is_named(offset: int) -> None:
    for store in (FakeStore(lost=offset), FakeStore(changed=offset)):
        with pytest.raises(DemoFailed, match=f"queue 3: message {offset} is not what was put"):
            reading.read_back(store, lambda _: None)


def test_a_queue_that_ends_too_early_is_named() -> None:
    held, _ = reading.read_back(FakeStore(lost=EACH - 1), lambda _: None)
    reading.require_acknowledged(held, [EACH - 1] * QUEUES)
    with pytest.raises(DemoFailed, match=f"only {EACH - 1} are there; {key_of(number_of(3, EACH - 1))} is gone"):
        reading.require_acknowledged(held, [EACH] * QUEUES)


def test_a_key_that_is_not_found_is_named() -> None:
    assert reading.look_up_keys(FakeStore(), [EACH] * QUEUES) == reading.KEYS_TRIED
    with pytest.raises(DemoFailed, match=key_of(number_of(3, 0))):
        reading.look_up_keys(FakeStore(lost=0), [EACH] * QUEUES)


@pytest.mark.parametrize("late", [-1, 1])
def test_a_place_before_or_behind_a_time_is_noticed(late: int) -> None:
    assert reading.look_up_times(FakeStore(), [EACH] * QUEUES) == reading.TIMES_TRIED * QUEUES
    with pytest.raises(DemoFailed, match="expected the first message at or after"):
        reading.look_up_times(FakeStore(late=late), [EACH] * QUEUES)


def test_queues_without_messages_are_not_asked() -> None:
    assert reading.look_up_times(FakeStore(), [0] * QUEUES) == reading.look_up_keys(FakeStore(), [0] * QUEUES) == 0

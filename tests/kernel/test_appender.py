"""The Appender: the fast path refuses before it writes, and counts only what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kernel.kernel_world import KERNELS, World
from tiermq.kernel.stop_reasons import Refusal

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def ready(kernel: ModuleType, **options: Any) -> World:
    """A world with an open file and a bound queue."""
    world = World(kernel, **options)
    world.roll()
    world.bind("T", 0)
    return world


def test_a_shut_gate_refuses_everything_before_anything_else(kernel: ModuleType) -> None:
    world = ready(kernel)
    world.appender.closed = True
    message = kernel.Message("T", b"x", sys_flag=0x80)
    world.appender.put(message)
    world.appender.put_many([message])
    assert world.refusals == ["CLOSED", "CLOSED"]
    assert world.appender.put_together([message]) is Refusal.CLOSED
    assert world.appender.put_expecting(message, 0, 1) is Refusal.CLOSED
    assert world.appender.handle("T", 0).put(b"x").ok is False
    assert world.log() == bytes(4096)


def test_a_put_that_raises_stores_as_the_other_does_and_raises_for_refusals_alone(kernel: ModuleType) -> None:
    raised: list[Any] = []
    world = ready(kernel)
    world.appender.raise_refusal = lambda message, result: raised.append((message, result.ok))
    message = kernel.Message("T", b"x")
    assert world.appender.put_or_raise(message).queue_offset == 0
    assert world.appender.put(message).queue_offset == 1
    assert raised == []
    world.appender.closed = True
    world.appender.put_or_raise(message)
    assert raised == [(message, False)]


def test_an_unknown_queue_and_a_special_message_go_the_slow_way(kernel: ModuleType) -> None:
    world = ready(kernel)
    world.appender.put(kernel.Message("Fresh", b"x"))
    world.appender.put(kernel.Message("T", b"x", properties={"INNER_NUM": "1"}))
    assert world.refusals == ["UNBOUND", "NEEDS_OFFSET"]


def test_a_batch_is_refused_whole_before_anything_is_written(kernel: ModuleType) -> None:
    world = ready(kernel, max_body_bytes=100)
    good = kernel.Message("T", b"x")
    for bad, refusal in (
        (kernel.Message("T", bytes(101)), Refusal.BODY_TOO_LARGE),
        (kernel.Message("T", b"", encoded_properties=b"p" * 32768), Refusal.PROPERTIES_TOO_LARGE),
    ):
        assert world.appender.put_together([good, bad]) is refusal
    assert world.appender.put_together([]) is Refusal.EMPTY
    assert world.appender.put_together([kernel.Message("Unbound", b"x")]) is Refusal.UNBOUND
    assert world.appender.put_together([good] * 100) is Refusal.ROOM
    assert (world.log(), world.appender.puts, world.appender.handle("T", 0).next_offset) == (bytes(4096), 0, 0)


def test_an_expected_offset_that_was_taken_is_refused(kernel: ModuleType) -> None:
    world = ready(kernel)
    message = kernel.Message("T", b"x")
    first = world.appender.put_expecting(message, 0, 5)
    assert (first.queue_offset, first.count, world.appender.handle("T", 0).next_offset) == (0, 5, 5)
    assert world.appender.put_expecting(message, 0, 1) is Refusal.OFFSET_MOVED
    assert world.appender.put_expecting(message, 5, 1).queue_offset == 5
    assert world.appender.put_expecting(kernel.Message("Unbound", b"x"), 0, 1) is Refusal.UNBOUND


def test_a_prepared_message_is_stored_without_taking_the_expected_offset(kernel: ModuleType) -> None:
    world = ready(kernel)
    world.appender.put(kernel.Message("T", b"x"))
    result = world.appender.put_expecting(kernel.Message("T", b"x", sys_flag=4), 1, 3)
    assert (result.queue_offset, result.count, world.appender.handle("T", 0).next_offset) == (0, 1, 1)


def test_room_is_counted_to_the_limit_and_leaves_a_blank_record_s_place(kernel: ModuleType) -> None:
    world = ready(kernel)
    message = kernel.Message("T", bytes(100))
    size = world.appender.record_bytes(message)
    world.tails[0].limit = size + 7
    assert world.appender.put_together([message]) is Refusal.ROOM
    world.tails[0].limit = size + 8
    assert world.appender.put(message).size == size
    assert world.refusals == []


def test_a_detached_tail_has_no_room(kernel: ModuleType) -> None:
    world = ready(kernel)
    world.tails[0].detach()
    assert world.appender.put_together([kernel.Message("T", b"x")]) is Refusal.ROOM
    world.appender.attach(None)
    assert world.appender.tail is None
    assert world.appender.put_together([kernel.Message("T", b"x")]) is Refusal.ROOM


def test_the_sleeping_dispatcher_is_woken_once(kernel: ModuleType) -> None:
    world = ready(kernel)
    puts: tuple[Callable[[], object], ...] = (
        lambda: world.appender.put(kernel.Message("T", b"x")),
        lambda: world.appender.put_many([kernel.Message("T", b"x")] * 3),
        lambda: world.appender.put_together([kernel.Message("T", b"x")] * 2),
        lambda: world.appender.handle("T", 0).put(b"x"),
        lambda: world.appender.put_expecting(kernel.Message("T", b"x"), world.appender.handle("T", 0).next_offset, 1),
    )
    for put in puts:
        before = world.wakes
        world.appender.reput_idle = True
        put()
        put()
        assert (world.wakes, world.appender.reput_idle) == (before + 1, False)


def test_a_refused_put_wakes_no_thread(kernel: ModuleType) -> None:
    world = ready(kernel, max_body_bytes=10)
    world.appender.reput_idle = True
    world.appender.put(kernel.Message("T", bytes(11)))
    assert (world.wakes, world.appender.reput_idle) == (0, True)


def test_one_put_in_a_thousand_is_given_to_the_sampler(kernel: ModuleType) -> None:
    sampled: list[int] = []

    def sample(message: Any) -> Any:
        sampled.append(world.appender.puts)
        return world.appender.put(message)

    world = World(kernel, file_size=1 << 20, sample=sample)
    world.roll()
    world.bind("T", 0)
    for _ in range(3000):
        assert world.appender.put(kernel.Message("T", b"x")).ok
    assert len(sampled) == 2


def test_a_handle_with_a_door_puts_through_it(kernel: ModuleType) -> None:
    world = ready(kernel)
    through: list[Any] = []
    world.appender.is_sync = True

    def put_through(message: Any) -> Any:
        through.append(message.body)
        return world.appender.put(message)

    world.appender.sync_put = put_through
    assert world.appender.handle("T", 0).put(b"x").ok
    assert through == [b"x"]


def test_rolling_ends_the_file_with_a_blank_record(kernel: ModuleType) -> None:
    world = ready(kernel)
    size = world.appender.put(kernel.Message("T", b"x")).size
    world.roll()
    assert world.log()[size : size + 8] == (4096 - size).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert (world.tails[0].position, world.tails[1].position) == (4096, 0)
    assert world.appender.put(kernel.Message("T", b"x")).physical_offset == 4096


def test_unbinding_forgets_a_topic_s_handles(kernel: ModuleType) -> None:
    world = ready(kernel)
    world.bind("T", 1)
    world.bind("U", 0)
    assert len(world.appender.handles()) == 3
    world.appender.unbind("T")
    assert [handle.topic for handle in world.appender.handles()] == ["U"]
    assert world.appender.handle("T", 0) is None


def test_an_old_crc_property_is_replaced_by_the_record_s_own(kernel: ModuleType) -> None:
    world = ready(kernel, crc_property=True)
    message = kernel.Message("T", b"x", encoded_properties=b"a\x01b\x02__CRC32#\x010000000000\x02")
    result = world.appender.put(message)
    assert world.log()[: result.size].count(b"__CRC32#") == 1
    assert world.kernel.scan(world.tails[0], 0, result.size, 2)[2] == 1

"""What one group knows about one queue: its bounds, cheaply, and never stale."""

from __future__ import annotations

from tier.fetch.fetch_world import FetchWorld, mails
from tier.flat.flat_world import remove_first
from tiermq.tier.fetch.read_ahead import QueueReader


def test_bounds_follow_every_commit_and_every_removed_segment(make_world) -> None:  # type: ignore[no-untyped-def]
    world: FetchWorld = make_world(log_bytes=500)
    file = world.queue(first=100)
    reader = QueueReader("group", file, 4096)
    assert reader.bounds() == (100, 100)
    world.write(mails(3))
    assert reader.bounds() == (100, 103)
    world.write(mails(20))
    assert reader.bounds() == (100, 123)
    remove_first(file.log, file.log.segments[0])
    low, high = reader.bounds()
    assert (low, high) == (file.min_offset, 123)
    assert low > 100


def test_a_queue_without_a_place_has_no_bounds(world: FetchWorld) -> None:
    file = world.files.find_or_create("orders", 9)
    assert QueueReader("group", file, 4096).bounds() == (0, 0)


def test_bounds_ask_the_tier_nothing(world: FetchWorld) -> None:
    file = world.write(mails(10), first=5)
    reader = QueueReader("group", file, 4096)
    for _ in range(3):
        reader.bounds()
    assert world.driver.reads == []


def test_a_group_is_before_what_it_has_still_to_read(world: FetchWorld) -> None:
    reader = QueueReader("group", world.write(mails(10)), 4096)
    assert not reader.is_before(10)
    reader.ahead.on_read(0, 5)
    assert reader.is_before(6)
    assert not reader.is_before(5)

"""A power cut at any call of a busy life: nothing that was committed is missing from the index, nothing is doubled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tier.index.index_world import EVER, PowerCut, World, run_until_idle
from tiermq.errors import TierUnavailable
from tiermq.tier.index.index_store import IndexStore

pytestmark = pytest.mark.crash

QUEUES = [("T", 0), ("T", 1), ("U", 0)]


class Cut:
    """Counts every call to the disk, the tier and the rows, and cuts the power at one of them."""

    def __init__(self, world: World, at: int) -> None:
        self._left = at
        world.access.on_call = lambda operation, path: self.tick()
        world.driver.hook = world.rows.hook = lambda when, name: self.tick()

    def tick(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PowerCut

    @property
    def has_happened(self) -> bool:
        return self._left < 0


def live(world: World, random_: random.Random) -> None:
    """Open, put, let the upkeep run, close; all of it as the dispatcher would: commit first, put second."""
    store = world.open()
    for _ in range(12):
        topic, queue_id = random_.choice(QUEUES)
        keys = random_.sample(["a", "b", "c", "d"], random_.randint(0, 3))
        world.commit_and_put(store, topic, queue_id, *keys, topic_id=1 if topic == "T" else 2)
        if random_.random() < 0.3:
            store.run_once()
    if random_.random() < 0.5:
        store.close()


def after_power_cut(world: World, random_: random.Random) -> World:
    share = random_.choice([0.0, 0.5, 1.0])
    access = world.access.crash(lambda path, page: random_.random() < share)
    world.driver.hook = world.rows.hook = None
    return World(access, world.driver, world.rows, world.clock, world.committed)


def check(world: World, store: IndexStore) -> None:
    assert store.hole_count == 0
    assert world.indexed_items(store) == world.expected_items()
    for topic, queue_id in QUEUES:
        for key in "abcd":
            log = world.committed.get((topic, queue_id), [])
            wanted = [request.tier_offset for request in reversed(log) if key in request.keys]
            hits = store.query(topic, key, 1000, *EVER).hits
            assert [hit.tier_offset for hit in hits if hit.queue_id == queue_id] == wanted


def cuts(seed: int) -> Iterator[int]:
    """Every call for one seed, some calls for the others."""
    return iter(range(400)) if seed == 0 else iter(random.Random(seed).sample(range(300), 40))


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_at_any_call_loses_and_doubles_nothing(seed: int) -> None:
    for at in cuts(seed):
        random_ = random.Random(f"{seed} {at}")
        world = World()
        if seed % 2:
            live(world, random_)  # An earlier life, with files in every state.
        cut = Cut(world, at)
        with suppress(PowerCut):
            live(world, random_)
        if not cut.has_happened and seed == 0:
            break
        world = after_power_cut(world, random_)
        store = world.open()
        run_until_idle(store)
        check(world, store)
        for topic, queue_id in QUEUES:  # And life goes on.
            world.commit_and_put(store, topic, queue_id, "a", "d", topic_id=1 if topic == "T" else 2)
        run_until_idle(store)
        check(world, store)


@pytest.mark.parametrize("seed", range(4))
def test_two_power_cuts_one_in_the_recovery_from_the_other_lose_and_double_nothing(seed: int) -> None:
    for at in random.Random(seed).sample(range(10, 250), 25):
        random_ = random.Random(f"{seed} {at}")
        world = World()
        for calls in (at, random_.randint(0, 60), random_.randint(0, 60)):
            Cut(world, calls)
            with suppress(PowerCut):
                live(world, random_)
            world = after_power_cut(world, random_)
        store = world.open()
        run_until_idle(store)
        check(world, store)


@pytest.mark.parametrize("seed", range(4))
def test_a_back_end_that_fails_or_loses_answers_at_random_changes_nothing_in_the_end(seed: int) -> None:
    random_ = random.Random(seed)
    world = World()

    def fail(when: str, name: str) -> None:
        if random_.random() < 0.2:
            raise TierUnavailable(f"{name} failed {when} it happened")

    world.driver.hook = fail
    for _ in range(4):
        live(world, random_)
        world = World(world.access, world.driver, world.rows, world.clock, world.committed)
    world.driver.hook = None
    store = world.open()
    run_until_idle(store)
    check(world, store)


def test_puts_that_go_on_while_a_hole_is_filled_meet_it_without_a_seam() -> None:
    for live_first in (0, 1, 2, 3):
        world = World()
        store = world.open()
        world.commit_and_put(store, "T", 0, "a")
        store.sync()
        for _ in range(3):
            world.commit("T", 0, "a")  # Committed, and then the power goes.
        world = after_power_cut(world, random.Random(live_first))
        store = world.open()
        late = world.commit("T", 0, "a")
        if live_first == 0:
            store.put_request(late)
        elif live_first == 1:
            run_until_idle(store)
            store.put_request(late)
        elif live_first == 2:
            walk = world.rebuild

            def interrupted(queue, offset):  # type: ignore[no-untyped-def]
                for request in walk(queue, offset):  # noqa: B023
                    yield request
                    store.put_request(late)  # noqa: B023

            store._upkeep._rebuild = interrupted
        run_until_idle(store)
        assert world.indexed_items(store) == world.expected_items()


@pytest.mark.parametrize("seed", range(3))
def test_a_disk_that_is_lost_at_any_call_is_made_good_from_the_tier(seed: int) -> None:
    for at in random.Random(seed).sample(range(300), 40):
        random_ = random.Random(f"{seed} {at}")
        world = World()
        live(world, random_)
        Cut(world, at)
        with suppress(PowerCut):
            live(world, random_)
        world.driver.hook = world.rows.hook = None
        world = World(driver=world.driver, rows=world.rows, clock=world.clock, committed=world.committed)
        store = world.open()
        run_until_idle(store)
        check(world, store)

"""A TieredStore with all its threads: readers while things leave, producers while it fails, deletions in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import SETTINGS
from servers.faulty_driver import Down, Fault, FaultyDriver, SeededFaults
from tiermq import GetStatus, Message
from tiermq.errors import TierUnavailable
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.retry import RetryingDriver, RetryPolicy
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey
from tiermq.tier.tiered_store import TieredStore

T = "orders"
BUSY: dict[str, Any] = {
    **SETTINGS,
    "tiered_store_group_commit_timeout": 0,
    "tier_dispatch_interval": 20,
    "tier_manifest_interval": 50,
    "file_reserved_time": 0,  # Whatever is proven may go.
}


def run_all(*works: Callable[[], None]) -> None:
    """Each in a thread of its own; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread's outermost edge
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_readers_see_every_message_once_in_order_while_files_are_evicted_under_them(tmp_path: Path) -> None:
    total = 3_000
    done = threading.Event()
    with TieredStore.open(tmp_path, driver=MemoryDriver(), **BUSY) as store:

        def produce() -> None:
            for number in range(total):
                assert store.put(Message(T, b"%d" % number)).ok

        def evict() -> None:
            while not done.is_set():
                store.clean_now()

        def consume(page_size: int) -> Callable[[], None]:
            def work() -> None:
                offset, expected = 0, 0
                while expected < total:
                    page = store.get(T, 0, offset, page_size, group=f"g{page_size}")
                    for message in page.messages:
                        assert int(message.body) == message.queue_offset == expected
                        expected += 1
                    assert page.next_offset == expected or page.count == 0, page
                    offset = max(offset, expected)

            return work

        def readers() -> None:
            try:
                run_all(produce, consume(32), consume(7), consume(1))
            finally:
                done.set()

        run_all(readers, evict)
        assert store.flush_to_tier(60)
        store.clean_now()
        assert store.local.min_offset(T, 0) > 0
        assert store.get(T, 0, 0).status is GetStatus.FOUND


def test_everything_arrives_once_through_a_back_end_that_fails_all_the_time(tmp_path: Path) -> None:
    faults = SeededFaults(7, {Fault.BEFORE: 0.1, Fault.AFTER: 0.1})
    inner = MemoryDriver()
    faulty = FaultyDriver(inner, faults)
    driver = RetryingDriver(faulty, RetryPolicy(), wait=lambda _: None)
    with TieredStore.open(tmp_path / "a", driver=driver, **BUSY) as store:
        for number in range(1_000):
            assert store.put(Message(T, b"%d" % number, number % 2, keys=[f"k{number}"])).ok
        assert store.flush_to_tier(120), store.status()
        faulty.plan = None
    with TieredStore.open(tmp_path / "b", driver=inner, restore=True, **BUSY) as store:
        for queue_id in (0, 1):
            found: list[int] = []
            while len(found) < 500:
                found += [int(m.body) for m in store.get(T, queue_id, len(found)).messages]
            assert found == list(range(queue_id, 1_000, 2))
        assert [m.body for m in store.query(T, "k321").messages] == [b"321"]


def test_a_back_end_that_comes_and_goes_is_caught_up_with_by_itself(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    with TieredStore.open(tmp_path, driver=driver, **BUSY) as store:
        for number in range(300):
            if number % 50 == 0:
                driver.plan = Down() if number % 100 == 0 else None
            assert store.put(Message(T, b"%d" % number)).ok
        driver.plan = None
        assert store.flush_to_tier(120), store.status()
        file = store.tier.files.find(T, 0)
        assert file is not None
        assert (file.min_offset, file.commit_offset, file.gaps()) == (0, 300, [])


def test_waiting_for_a_queue_that_is_refused_ends(tmp_path: Path) -> None:
    driver = MemoryDriver()
    key = QueueKey("DefaultCluster", "broker-a", T, 0)
    driver.put_object(manifest_name(key), b'{"version": 99}')
    with TieredStore.open(tmp_path, driver=driver, **BUSY) as store:
        assert store.put(Message(T, b"x")).ok
        assert store.put(Message("other", b"x")).ok
        assert not store.flush_to_tier()
        tier: Any = store.status()["tier"]
        assert list(tier["troubles"]) == ["orders-0"]


def test_a_topic_can_be_deleted_and_made_again_while_it_is_uploaded(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path, driver=MemoryDriver(), **BUSY) as store:
        for life in range(5):
            for number in range(100):
                result = store.put(Message(T, b"%d %d" % (life, number)))
                assert result.queue_offset == number
            if life % 2:
                assert store.flush_to_tier(60)
            assert store.delete_topics([T]) == 1
            assert T not in store.topics()
        assert store.put(Message(T, b"last")).queue_offset == 0
        assert store.flush_to_tier(60), store.status()
        file = store.tier.files.find(T, 0)
        assert file is not None
        assert (file.min_offset, file.commit_offset) == (0, 1)
        assert [m.body for m in store.get(T, 0, 0).messages] == [b"last"]


def test_a_tier_that_is_down_at_the_start_is_used_when_it_comes_back(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver(), Down())
    with TieredStore.open(tmp_path, driver=driver, **BUSY) as store:
        assert store.put(Message(T, b"x")).ok
        assert not store.flush_to_tier(0.5)
        driver.plan = None
        assert store.flush_to_tier(60), store.status()
    driver.plan = Down()
    with pytest.raises(TierUnavailable):
        TieredStore.open(tmp_path / "new", driver=driver, restore=True, **BUSY)

"""The engine with its threads: fair over thousands of queues, bounded in its end, and no caller waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from servers.faulty_driver import Down, FaultyDriver
from small_store import on_disk
from tier.dispatch.dispatch_world import BROKER, CLUSTER, DispatchWorld
from tiermq import Message
from tiermq.metrics import Registry
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.engine import DispatchEngine, EngineSettings
from tiermq.tier.dispatch.local_source import LocalStoreSource
from tiermq.tier.dispatch.plan import DispatchConfig
from tiermq.tier.dispatch.ready_queue import BackOff
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.contract import Buffer, TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueName, SegmentKey

QUICK = EngineSettings(back_off=BackOff(1, 20), breaker_failures_max=3, breaker_rest_ms=5, worker_count=3)


class Broker:
    """A store on the real disk, the machine's clock, and an engine with threads."""

    def __init__(self, path: Path, driver: TierDriver, config: DispatchConfig | None = None) -> None:
        self.store: LocalStore = on_disk(path / "store", mapped_file_size_commit_log=1 << 20)
        self.metadata = MetadataStore(path / "tier.db")
        self.files = FlatFileStore(driver, self.metadata, CLUSTER, BROKER, self.store._parts.clock)
        writer = QueueWriter(self.metadata, ManifestStore(driver, "threads"))
        self.engine = DispatchEngine(
            self.files, LocalStoreSource(self.store), writer, config=config, settings=QUICK, registry=Registry()
        )

    def put(self, count: int, topic: str = "T", queue_id: int = 0) -> None:
        for _ in range(count):
            assert self.store.put(Message(topic, b"body", queue_id)).ok

    def close(self) -> None:
        self.engine.stop()
        self.store.close()
        self.metadata.close()


@pytest.fixture
def driver() -> FaultyDriver:
    return FaultyDriver(MemoryDriver())


@pytest.fixture
def broker(tmp_path: Path, driver: FaultyDriver) -> Iterator[Broker]:
    made = Broker(tmp_path, driver)
    yield made
    driver.plan = None
    made.close()


def test_flushing_waits_until_everything_is_there(broker: Broker) -> None:
    broker.engine.start()
    for queue_id in range(20):
        broker.put(50, "T", queue_id)
    assert broker.engine.flush(60)
    assert [broker.files.find("T", n).commit_offset for n in range(20)] == [50] * 20  # type: ignore[union-attr]


def test_messages_go_by_themselves_while_producers_put(tmp_path: Path) -> None:
    broker = Broker(tmp_path, PosixDriver(tmp_path / "tier"), DispatchConfig(group_commit_count=20))
    broker.engine.start()
    producers = [threading.Thread(target=broker.put, args=(300, "T", number)) for number in range(3)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert broker.engine.flush(60)
    for number in range(3):
        file = broker.files.find("T", number)
        assert file is not None
        assert (file.min_offset, file.commit_offset) == (0, 300)
    broker.close()


def test_an_outage_in_the_middle_delays_and_loses_nothing(broker: Broker, driver: FaultyDriver) -> None:
    broker.engine.start()
    broker.put(50)
    assert broker.engine.flush(60)
    driver.plan = Down()
    broker.put(50)
    assert not broker.engine.flush(0.05)
    driver.plan = None
    assert broker.engine.flush(60)
    assert broker.files.find("T", 0).commit_offset == 100  # type: ignore[union-attr]


def test_a_flush_goes_on_while_a_queue_passes_from_its_rest_into_the_line(
    broker: Broker, driver: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, released = threading.Event(), threading.Event()
    flushed: list[bool] = []
    turns = broker.engine._turns
    push = turns.push
    asked = threading.Event()

    def hold(names: Iterable[QueueName]) -> None:
        if threading.current_thread() is flushing:
            push(names)
            asked.set()
            return
        if asked.is_set() and not entered.is_set() and not turns.busy and not len(turns):
            entered.set()
            released.wait(60)
        push(names)

    broker.engine.start()
    driver.plan = Down()
    broker.put(50)
    assert not broker.engine.flush(0.05)
    flushing = threading.Thread(target=lambda: flushed.append(broker.engine.flush(60)))
    monkeypatch.setattr(turns, "push", hold)
    flushing.start()
    assert entered.wait(60)
    flushing.join(0.5)
    assert flushed == [], "the queue was on its way"
    driver.plan = None
    released.set()
    flushing.join()
    assert flushed == [True]


class HangingDriver(MemoryDriver):
    """A back end that takes a write and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        self.entered.set()
        self.released.wait()
        return super().write(key, position, data)


def test_bug_20_stopping_is_bounded_even_when_a_request_never_returns(tmp_path: Path) -> None:
    driver = HangingDriver()
    broker = Broker(tmp_path, driver, DispatchConfig(group_commit=False))
    broker.put(5)
    broker.store.flush()
    broker.engine.start()
    assert driver.entered.wait(60)
    assert not broker.engine.stop(timeout_s=0.05)
    assert not broker.files.close(timeout_s=0.01)
    driver.released.set()
    for worker in broker.engine._workers:
        worker.join()
    assert broker.engine.stop()
    broker.close()


def test_bug_20_a_back_end_that_is_down_does_not_keep_the_engine_from_stopping(
    broker: Broker, driver: FaultyDriver
) -> None:
    broker.engine.start()
    broker.put(5)
    assert broker.engine.flush(60)
    driver.plan = Down()
    broker.put(5)
    assert not broker.engine.flush(0.02)
    assert broker.engine.stop(60)
    assert not any(thread.is_alive() for thread in broker.engine._workers)


def test_pausing_waits_for_the_turn_under_way(broker: Broker) -> None:
    broker.engine.start()
    broker.put(5)
    assert broker.engine.flush(60)
    assert broker.engine.pause(60)
    broker.put(5)
    assert not broker.engine.flush(0.02)
    broker.engine.resume()
    assert broker.engine.flush(60)


def test_among_two_thousand_queues_a_busy_one_starves_no_other(tmp_path: Path) -> None:
    world = DispatchWorld(
        tmp_path,
        config=DispatchConfig(group_commit_count=10, group_commit_timeout_ms=0),
        store_settings={"mapped_file_size_commit_log": 16 << 20, "mapped_file_size_consume_queue": 20_000},
    )
    world.metadata._database._writer.execute("PRAGMA synchronous = OFF")  # Ten thousand syncs prove nothing here.
    quiet = [(f"T{number % 40}", number) for number in range(2_000)]
    batch = [Message(topic, b"x", queue_id) for topic, queue_id in quiet]
    world.store.put_many([Message("busy", b"x", 0) for _ in range(4_000)])
    world.store.put_many(batch)
    world.source.settle()
    world.clock.advance_ms(10)
    order: list[tuple[str, int]] = []
    take = world.engine._turns.take
    world.engine._turns.take = lambda: order.append(found) or found if (found := take()) else None  # type: ignore[method-assign,func-returns-value]
    world.engine.tick()
    turns = 0
    while any((file := world.files.find(*name)) is None or file.commit_offset < 1 for name in quiet):
        assert world.engine.step()
        turns += 1
    assert turns <= 2 * 2_001 + 2, "one turn to begin and one to upload, for everybody"
    assert order.count(("busy", 0)) <= 4
    assert world.files.find("busy", 0).commit_offset < 4_000  # type: ignore[union-attr]
    while world.engine.step():
        pass
    assert world.files.find("busy", 0).commit_offset == 4_000  # type: ignore[union-attr]


def test_a_flush_waits_for_what_is_stored_and_not_yet_recorded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the write of a batch and its rows, its messages are not in the index, either."""
    stored, released = threading.Event(), threading.Event()
    flushed: list[bool] = []
    record = broker.metadata.record_commit

    def hold(*arguments: object) -> None:
        stored.set()
        released.wait(60)
        record(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.metadata, "record_commit", hold)
    broker.engine.start()
    broker.put(50)
    flushing = threading.Thread(target=lambda: flushed.append(broker.engine.flush(60)))
    flushing.start()
    assert stored.wait(60)
    file = broker.files.find("T", 0)
    assert file is not None
    assert (file.commit_offset, file.is_settled) == (50, False)
    assert not broker.engine._has_reached(("T", 0), 50)
    released.set()
    flushing.join()
    assert flushed == [True]
    assert file.is_settled

"""A store that knows less than its tier gives no number out twice: it takes the tier's history over, or refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import BrokerWorld
from servers.faulty_driver import Down, FaultyDriver
from simulation.manual_clock import ManualClock
from small_store import SIZES
from tier.tiered_world import bodies, sent
from tiermq import Message
from tiermq.errors import StoreDamaged, TierError
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.tiered_store import NotUploaded
from tiermq.tier.verify.verify import verify_tier

METADATA = Path("config") / "tieredStoreMetadata.db"


@pytest.fixture(params=["memory", "directory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerWorld:
    inner = MemoryDriver(clock=ManualClock()) if request.param == "memory" else PosixDriver(tmp_path / "tier")
    return BrokerWorld(tmp_path, FaultyDriver(inner))


def backed_up(world: BrokerWorld, first: int = 300, later: int = 400) -> Path:
    """A broker with a backup of its whole disk that is older than what it acknowledged and its tier has."""
    world.open()
    world.put(first)
    assert world.store.flush_to_tier()
    world.close()
    backup = world.disk.with_name("backup")
    shutil.copytree(world.disk, backup)
    world.open()
    world.put(later)
    world.put(5, "made-later")
    assert world.store.flush_to_tier()
    world.close()
    return backup


def with_older_metadata(world: BrokerWorld, later: int, not_uploaded: int = 0) -> None:
    """A closed broker whose metadata are older than its disk and its tier."""
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    world.close()
    old = (world.disk / METADATA).read_bytes()
    world.open()
    world.put(later)
    assert world.store.flush_to_tier()
    if not_uploaded:
        world.put(not_uploaded)
    world.close()
    (world.disk / METADATA).unlink()
    (world.disk / METADATA).write_bytes(old)


def use(world: BrokerWorld, backup: Path) -> None:
    shutil.rmtree(world.disk)
    shutil.copytree(backup, world.disk)


def test_an_old_disk_under_a_newer_tier_takes_its_history_over_and_goes_on_behind_it(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    use(world, backed_up(world))
    world.open()
    assert "knows less than its tier" in caplog.text
    assert bodies(world) == sent(world)
    assert bodies(world, "made-later") == sent(world, "made-later")
    assert [message.queue_offset for message in world.store.query("orders", "key-500").messages] == [499]
    world.put(50)
    assert world.sent["orders", 0][-1].offset == 749
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    assert "are not in this store" not in caplog.text
    for _ in range(2):
        world.close()
        world.open()
    assert bodies(world) == sent(world)
    assert verify_tier(world.driver).is_clean
    world.bury()


def test_messages_that_the_old_disk_had_not_copied_yet_are_the_tiers_and_there_once(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    world.put(60)
    world.close()
    backup = world.disk.with_name("backup")
    shutil.copytree(world.disk, backup)
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    world.close()
    use(world, backup)
    world.open()
    world.put(10)
    assert [message.offset for message in world.sent["orders", 0][-10:]] == list(range(260, 270))
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    assert verify_tier(world.driver).is_clean
    world.bury()


def test_old_metadata_under_a_newer_disk_and_tier_are_read_from_the_tier_again(world: BrokerWorld) -> None:
    with_older_metadata(world, later=300, not_uploaded=20)
    world.open()
    world.put(10)
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    assert verify_tier(world.driver).is_clean
    world.bury()


def test_an_empty_disk_in_the_place_of_a_lost_one_is_refused_with_what_to_do(world: BrokerWorld) -> None:
    backed_up(world)
    shutil.rmtree(world.disk)
    with pytest.raises(StoreDamaged, match=r"orders-0 \(tier 700, local 0\).*tier restore .*restore=True") as caught:
        world.open()
    assert "another brokerName" in str(caught.value)
    world.open(restore=True)
    assert bodies(world) == sent(world)
    world.bury()


def test_a_disk_that_gave_numbers_of_the_tier_out_already_is_refused(world: BrokerWorld) -> None:
    use(world, backed_up(world))
    healthy = world.driver.plan
    world.driver.plan = Down()
    world.open()  # The tier could not say how far it reaches.
    assert world.store.put(Message("orders", b"another message 300")).queue_offset == 300
    world.driver.plan = healthy
    world.clock.advance_ms(120_000)
    assert not world.store.flush_to_tier()
    [reported] = world.store.status()["tier"]["fenced"].values()  # type: ignore[index]
    assert "older than its tier" in reported or "not the local one" in reported
    world.close()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"message 300 of orders-0 is not the one"):
            world.open()
    assert verify_tier(world.driver).is_clean
    world.bury()


def forked(world: BrokerWorld) -> None:
    """Messages 5 to 9 are others in the tier, and the disk has 5 to 14: nothing shows in the ends alone."""
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.close()
    backup = world.disk.with_name("backup")
    shutil.copytree(world.disk, backup)
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.close()
    use(world, backup)
    world.driver.plan = Down()
    world.open()
    for number in range(10):
        assert world.store.put(Message("orders", b"another message %d" % number)).queue_offset == 5 + number
    world.close()
    world.driver.plan = None
    world.clock.advance_ms(120_000)


def test_messages_of_a_forked_queue_are_counted_as_never_uploaded(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    forked(world)
    for _ in range(2):  # A start does not change it.
        world.open()
        assert not world.store.flush_to_tier()
        caplog.clear()
        assert world.store.close() == NotUploaded(queues=1, messages=10, stopped=10)
        assert "closed with 10 messages that only" in caplog.text
        assert "uploaded after the next start" not in caplog.text
        world.clock.advance_ms(120_000)
    world.bury()


def test_an_ordinary_start_changes_nothing_and_lists_once(world: BrokerWorld) -> None:
    world.open()
    world.put(300)
    assert world.store.flush_to_tier()
    world.put(20)
    world.kill()
    listed: list[str] = []
    original = world.driver.list_segments

    def noted(prefix: str = "") -> Any:
        listed.append(prefix)
        return original(prefix)

    world.driver.list_segments = noted
    world.open()
    assert len(listed) == 1
    assert world.store.restored is None
    world.put(20)
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    world.bury()


def test_a_store_whose_tier_a_job_writes_refuses_an_older_copy_of_its_disk(world: BrokerWorld) -> None:
    use(world, backed_up(world))
    with pytest.raises(StoreDamaged, match=r"orders-0 \(tier 700, local 300\).*tierDispatchEnable=true"):
        world.open(tier_dispatch_enable=False)
    world.open()
    assert bodies(world) == sent(world)
    world.close()
    world.open(tier_dispatch_enable=False)
    assert bodies(world) == sent(world)
    world.bury()


def test_segments_that_a_job_has_written_and_not_recorded_yet_are_no_older_copy(world: BrokerWorld) -> None:
    with_older_metadata(world, later=100)
    world.open(tier_dispatch_enable=False)
    assert bodies(world) == sent(world)
    world.bury()


def files_of(disk: Path) -> dict[str, bytes]:
    """What a store knows of its tier, by file."""
    return {path.name: path.read_bytes() for path in (disk / "config").glob("tieredStoreMetadata*")}


def restored(world: BrokerWorld, count: int = 100) -> None:
    """A directory that was restored from the tier, and not opened yet."""
    world.open()
    world.put(count)
    assert world.store.flush_to_tier()
    world.close()
    shutil.rmtree(world.disk)
    world.open(restore=True)
    world.close()
    for path in world.disk.iterdir():
        if path.name != "config":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_restored_directory_is_not_opened_without_its_tier(world: BrokerWorld) -> None:
    restored(world)
    with pytest.raises(
        StoreDamaged, match=r"its numbering continues there .*orders-0 \(tier 100, local 0\).*--tier URL"
    ):
        LocalStore.open(world.disk, **SIZES)
    world.open()
    world.put(1)
    assert world.sent["orders", 0][-1].offset == 100
    assert bodies(world) == sent(world)
    world.close()
    # Its own messages are behind the tier's by now: no number would be given twice.
    with LocalStore.open(world.disk, **SIZES) as store:
        assert store.max_offset("orders", 0) == 101
    world.bury()


def test_metadata_that_cannot_be_read_do_not_let_a_store_open_without_its_tier(world: BrokerWorld) -> None:
    restored(world)
    (world.disk / METADATA).write_bytes(b"no database" * 100)
    with pytest.raises(
        StoreDamaged, match=r"tieredStoreMetadata.db: expected the store's tier metadata.* move the file away"
    ):
        LocalStore.open(world.disk, **SIZES)
    (world.disk / METADATA).unlink()
    LocalStore.open(world.disk, **SIZES).close()


@pytest.mark.parametrize("own", [1, 40, 150], ids=["one", "fewer than the tier", "more than the tier"])
def test_a_directory_that_was_used_without_its_tier_is_refused_with_it(world: BrokerWorld, own: int) -> None:
    restored(world)
    known = world.disk / METADATA
    known.rename(known.with_name("aside"))  # Says to begin another history.
    with LocalStore.open(world.disk, **SIZES) as store:
        for number in range(own):
            assert store.put(Message("orders", b"forgot %d" % number)).queue_offset == number
    known.with_name("aside").rename(known)
    before = files_of(world.disk)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"message \d+ of orders-0 is not the one .* or without its tier"):
            world.open()
        assert files_of(world.disk).keys() == before.keys()
    world.bury()


def test_a_refused_start_leaves_what_the_store_knows_of_its_tier(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    use(world, backed_up(world))
    with LocalStore.open(world.disk, **SIZES) as store:
        assert store.put(Message("orders", b"another message 300")).queue_offset == 300
    before = files_of(world.disk)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"message 300 of orders-0 is not the one"):
            world.open()
        assert files_of(world.disk).keys() == before.keys()
    with MetadataStore(world.disk / METADATA) as known:
        assert [queue.max_offset for queue in known.queues() if queue.key.topic == "orders"] == [300]
    assert "damaged" not in caplog.text
    assert "gone" not in caplog.text
    world.bury()


def test_a_history_that_is_taken_over_leaves_the_old_metadata_as_replaced(world: BrokerWorld) -> None:
    use(world, backed_up(world))
    world.open()
    world.close()
    assert {"tieredStoreMetadata.db", "tieredStoreMetadata.db.replaced"} <= files_of(world.disk).keys()
    assert not any("damaged" in name for name in files_of(world.disk))


def other_tier(world: BrokerWorld) -> FaultyDriver:
    """An empty tier in the place of the one that the store was copied to."""
    world.open()
    world.put(100)
    world.put(5, "made-later")
    assert world.store.flush_to_tier()
    world.close()
    driver = world.driver = FaultyDriver(MemoryDriver(clock=world.clock))
    return driver


@pytest.mark.parametrize("by_job", [False, True])
def test_a_store_is_not_opened_on_another_tier_and_writes_nothing_there(world: BrokerWorld, by_job: bool) -> None:
    empty = other_tier(world)
    with pytest.raises(TierError, match=r"expected the history that .* found 0; nothing was written.*--forget-tier"):
        world.open(tier_dispatch_enable=not by_job)
    assert list(empty.list_objects()) == []
    assert list(empty.list_segments()) == []


def test_another_tier_that_answers_later_gets_nothing_and_is_reported(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    empty = other_tier(world)
    healthy, empty.plan = empty.plan, Down()
    world.open()
    world.put(10)
    assert not world.store.flush_to_tier()
    empty.plan = healthy
    for _ in range(3):
        world.clock.advance_ms(120_000)
        assert not world.store.flush_to_tier()
    assert list(empty.list_objects()) == []
    assert list(empty.list_segments()) == []
    assert "expected the history that" in str(world.store.trouble)
    assert caplog.text.count("nothing is written to the tier by this process") == 1
    world.close()


def test_a_topic_that_is_put_to_while_its_deletion_waits_is_no_other_history(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    healthy, world.driver.plan = world.driver.plan, Down()
    with pytest.raises(TierError):
        world.store.delete_topics(["orders"])
    assert world.store.put(Message("orders", b"of the next topic")).queue_offset == 0
    world.close()
    world.driver.plan = healthy
    world.open()
    world.close()
    world.driver.plan = Down()
    with LocalStore.open(world.disk, **SIZES) as store:
        assert store.max_offset("orders", 0) == 1

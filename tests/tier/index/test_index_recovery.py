"""Opening an index directory: ours after any stop, RocketMQ's, an old one, and one whose record is lost."""

from __future__ import annotations

import logging
import random
import zlib
from dataclasses import replace

import pytest

from servers.faulty_driver import Down, FaultyDriver
from tier.index.index_world import DIRECTORY, EVER, NOW_MS, TINY, PowerCut, World, run_until_idle
from tiermq.errors import StoreDamaged, TierUnavailable
from tiermq.tier.index.compacted_index import IndexState
from tiermq.tier.index.index_recovery import RECORD_NAME, recover_files
from tiermq.tier.index.index_write_file import IndexWriteFile

RECORD = f"{DIRECTORY}/{RECORD_NAME}"


def rocketmq_file(world: World, name: str, begin_ms: int, *keys: int, capacity: int = 6) -> None:
    """A local file as RocketMQ leaves it: no record beside it."""
    file = IndexWriteFile.create(world.access, DIRECTORY, begin_ms, 5, capacity)
    for offset, key_hash in enumerate(keys):
        file.put([key_hash], 7, 0, offset, 10, begin_ms)
    file.sync()
    file.close()
    world.access.rename(f"{DIRECTORY}/{begin_ms}", f"{DIRECTORY}/{name}")
    world.access.sync_directory(DIRECTORY)


def names(world: World) -> set[str]:
    return {info.name for info in world.access.list_files(DIRECTORY)}


@pytest.mark.parametrize("legacy", ["0000", "1111"])
def test_a_file_of_an_old_name_is_adopted_under_its_begin_time(legacy: str) -> None:
    world = World()
    rocketmq_file(world, legacy, NOW_MS - 7000, 3, 4)
    store = world.open()
    assert store.states() == [(NOW_MS - 7000, IndexState.UNSEALED)]
    assert str(NOW_MS - 7000) in names(world)
    assert legacy not in names(world)


def test_an_old_name_is_adopted_also_beside_our_own_record() -> None:
    world = World()
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    store.close()
    rocketmq_file(world, "0000", NOW_MS - 7000, 3, 4)
    assert [begin for begin, _ in world.open().states()] == [NOW_MS - 7000, NOW_MS + 1000]


def test_a_file_of_an_old_name_without_a_begin_time_is_deleted() -> None:
    world = World()
    world.access.create(f"{DIRECTORY}/0000", 28 + 40 + 32 * 6)
    world.access.create(f"{DIRECTORY}/1111", 10)
    assert world.open().states() == []
    assert names(world) == {RECORD_NAME}


def test_rocketmq_s_files_are_adopted_and_what_it_committed_counts_as_indexed() -> None:
    world = World()
    rocketmq_file(world, str(NOW_MS - 7000), NOW_MS - 7000, 1, 2, 3, 4, 5)
    rocketmq_file(world, str(NOW_MS - 6000), NOW_MS - 6000, 3)
    world.commit("T", 0, "k")
    store = world.open()
    assert [state for _, state in store.states()] == [IndexState.SEALED, IndexState.UNSEALED]
    assert store.hole_count == 0
    run_until_idle(store)
    assert [state for _, state in store.states()] == [IndexState.UPLOAD, IndexState.UNSEALED]


def test_bug_26_files_without_items_are_deleted_and_never_uploaded() -> None:
    world = World()
    for begin_ms in (NOW_MS - 3, NOW_MS - 2, NOW_MS - 1):
        rocketmq_file(world, str(begin_ms), begin_ms)
    store = world.open()
    assert store.states() == []
    assert store.close(upload_open=True)
    assert names(world) == {RECORD_NAME}
    assert world.driver.calls["write"] == 0


def test_a_file_of_another_size_is_left_alone_and_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    rocketmq_file(world, "12345", 12345, 3, capacity=9)
    with caplog.at_level(logging.ERROR):
        assert world.open().states() == []
    assert "12345" in names(world)
    assert "left alone" in caplog.text


def test_bug_18_files_of_an_earlier_configuration_are_opened_by_their_own_shape() -> None:
    world = World()
    store = world.open()
    for _ in range(7):
        world.commit_and_put(store, "T", 0, "k")
    store.run_once()
    store.close()
    world.settings = replace(TINY, slots=11, capacity=30)
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    store.seal()
    world.commit_and_put(store, "T", 0, "k")
    store.seal()
    run_until_idle(store)
    assert [hit.tier_offset for hit in store.query("T", "k", 99, *EVER).hits] == [100 * n for n in range(8, -1, -1)]
    assert [row.size for row in world.rows.rows.values()] == [28 + 40 + 28 * 5, 28 + 40 + 28 * 3, 28 + 88 + 28]


def test_what_is_in_compacting_is_thrown_away() -> None:
    world = World()
    world.access.write_bytes(f"{DIRECTORY}/compacting/123", b"half a copy")
    world.open()
    assert world.access.list_files(f"{DIRECTORY}/compacting") == []


def test_a_local_file_that_has_a_row_is_removed() -> None:
    world = World()
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    sealed = store._table.entries()[0].begin_ms
    store.sync()
    store._upkeep._remove_local = lambda entry: (_ for _ in ()).throw(TierUnavailable("the power goes"))  # type: ignore[method-assign]
    store.run_once()
    assert str(sealed) in names(world)
    store = World(world.access, world.driver, world.rows, world.clock, world.committed).open()
    assert [state for _, state in store.states()] == [IndexState.UPLOAD, IndexState.UNSEALED]
    assert not [name for name in names(world) if name.startswith(str(sealed))]


def indexed(count: int = 14) -> World:
    """A world whose index is partly in the tier, and partly in the local files that were closed."""
    world = World()
    store = world.open()
    for n in range(count):
        world.commit_and_put(store, "T" if n % 2 else "U", 0, "k")
    run_until_idle(store)
    store.close()
    return world


def test_any_flipped_bit_of_the_record_is_reported_and_its_range_is_indexed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = indexed()
    sound, local = world.access.read_bytes(RECORD), sorted(names(world) - {RECORD_NAME})
    assert local
    files = {name: world.access.read_bytes(f"{DIRECTORY}/{name}") for name in local}
    chance = random.Random(96)
    for at in range(len(sound)):
        data = bytearray(sound)
        data[at] ^= 1 << chance.randrange(8)
        for name in names(world):
            world.access.remove(f"{DIRECTORY}/{name}")
        for name, content in files.items():
            world.access.write_bytes(f"{DIRECTORY}/{name}", content)
        world.access.write_bytes(RECORD, bytes(data))
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            store = world.open()
        assert "indexed again from the tier" in caplog.text, (at, bytes(data))
        complete = [store.is_complete]
        run_until_idle(store)
        assert world.indexed_items(store) == world.expected_items(), (at, bytes(data))
        assert [*complete, store.is_complete] == [False, True]
        store.close()


@pytest.mark.parametrize("damage", [None, b"", b"short"], ids=["gone", "empty", "short"])
def test_a_recorded_file_that_is_gone_or_damaged_is_reported_and_made_again_from_the_tier(
    damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = indexed()
    name = max(names(world) - {RECORD_NAME})
    world.access.remove(f"{DIRECTORY}/{name}")
    if damage is not None:
        world.access.write_bytes(f"{DIRECTORY}/{name}", damage)
    with caplog.at_level(logging.ERROR):
        store = world.open()
    assert name in caplog.text
    assert not store.is_complete
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()
    assert store.is_complete


@pytest.mark.parametrize("damage", [b"", b"{", bytes(512)], ids=["empty", "cut", "zeros"])
def test_an_unreadable_record_is_reported_and_does_not_keep_the_store_from_opening(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = indexed()
    world.access.write_bytes(RECORD, damage)
    with caplog.at_level(logging.ERROR):
        store = world.open()
    assert RECORD_NAME in caplog.text
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()


def test_a_damaged_record_of_a_sealed_file_costs_nothing_either() -> None:
    world = World()
    healthy = world.driver
    world.driver = FaultyDriver(healthy, Down())  # type: ignore[assignment]
    store = world.open()
    for _ in range(11):
        world.commit_and_put(store, "T", 0, "k")
    store.sync()
    store.close()
    sealed, *_ = sorted(name for name in names(world) if name.endswith("." + RECORD_NAME))
    data = bytearray(world.access.read_bytes(f"{DIRECTORY}/{sealed}"))
    data[len(data) // 2] ^= 1
    world.access.write_bytes(f"{DIRECTORY}/{sealed}", bytes(data))
    world.driver = healthy
    store = world.open()
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()


def test_a_record_of_a_newer_tiermq_is_left_alone() -> None:
    world = indexed()
    text = world.access.read_bytes(RECORD).rpartition(b',"crc32":')[0].replace(b'"version":1', b'"version":2') + b"}"
    world.access.write_bytes(RECORD, text[:-1] + b',"crc32":%d}' % zlib.crc32(text))
    before = names(world)
    with pytest.raises(StoreDamaged, match="newer TierMQ"):
        world.open()
    assert names(world) == before


def test_a_record_without_a_checksum_is_an_older_one_and_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    world = indexed()
    world.access.write_bytes(RECORD, world.access.read_bytes(RECORD).rpartition(b',"crc32":')[0] + b"}")
    with caplog.at_level(logging.ERROR):
        store = world.open()
    assert not caplog.text
    assert world.indexed_items(store) == world.expected_items()
    assert store.counts.filled == 0


def test_a_file_that_was_cut_by_a_crash_right_after_it_was_sealed_is_not_sealed() -> None:
    world = World()
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    store.sync()
    world.commit_and_put(store, "T", 0, "k")
    store.seal()

    def cut(operation: str, path: str) -> None:
        if operation == "write_bytes" and path == RECORD:
            raise PowerCut

    world.access.on_call = cut
    with pytest.raises(PowerCut):
        store.sync()
    world.access = world.access.crash(lambda path, page: True)
    store = world.open()
    assert [state for _, state in store.states()] == [IndexState.UNSEALED]
    store.seal()
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()
    world = lose_the_disk(world)
    store = world.open()
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()


def lose_the_disk(world: World) -> World:
    return World(driver=world.driver, rows=world.rows, clock=world.clock, committed=world.committed)


def test_after_the_disk_is_lost_the_tier_reports_where_indexing_goes_on() -> None:
    world = World()
    store = world.open()
    for n in range(14):
        world.commit_and_put(store, "T" if n % 2 else "U", 0, "k")
    run_until_idle(store)
    store.close()
    world = lose_the_disk(world)
    store = world.open()
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()
    assert store.counts.filled == 4  # Ten are in the tier; the others were only on the disk.


@pytest.mark.parametrize("put_before", [False, True])
def test_a_back_end_that_is_down_after_the_disk_is_lost_only_delays_that(put_before: bool) -> None:
    world = World()
    store = world.open()
    for _ in range(14):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    world = lose_the_disk(world)
    healthy = world.driver
    world.driver = FaultyDriver(healthy, Down())  # type: ignore[assignment]
    store = world.open()
    if put_before:
        world.commit_and_put(store, "T", 0, "k")
    store.run_once()
    assert store.counts.failures > 0
    store.close()
    world.driver = healthy
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()


def test_a_tier_that_was_never_indexed_is_indexed_from_its_beginning() -> None:
    world = World()
    for _ in range(8):
        world.commit("T", 0, "k")
    store = world.open()
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()


def test_an_uploaded_file_that_is_damaged_does_not_say_where_to_go_on() -> None:
    world = World()
    store = world.open()
    for _ in range(11):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    newest = max(world.rows.rows)
    world.driver.inner.delete(newest)
    world.driver.inner.write(newest, 0, [b"half"])
    world = lose_the_disk(world)
    store = world.open()
    run_until_idle(store)
    assert [hit.tier_offset for hit in store.query("T", "k", 99, *EVER).hits] == [100 * n for n in range(10, -1, -1)]


def test_recovery_opens_nothing_in_an_empty_place() -> None:
    world = World()
    found = recover_files(world.access, DIRECTORY, (), 5, 6)
    assert (found.record, found.files, found.had_files) == (None, (), False)

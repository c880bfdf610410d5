"""What every driver promises, as one suite: each back end's test file inherits it and says only how to open a driver.

A `Place` is somewhere to keep bytes; `place.open()` gives another driver of the same place, as another process would
have it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tiermq.errors import (
    BadTierName,
    IllegalRange,
    ManifestConflict,
    SegmentConflict,
    SegmentMissing,
    SegmentSealed,
)
from tiermq.message.crc import crc32
from tiermq.tier.driver.contract import Buffer, TierDriver
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, broker_directory

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    open: Callable[[], TierDriver]


def fresh_queue(topic: str = "orders") -> QueueKey:
    """A queue that no test has used: places may be shared between tests, as buckets are."""
    return QueueKey("DefaultCluster", f"broker-{next(_numbers)}", topic, 3)


def fresh_segment(base: int = 0, segment_type: SegmentType = SegmentType.COMMIT_LOG) -> SegmentKey:
    return fresh_queue().segment(segment_type, base)


def pattern(length: int, salt: int = 0) -> bytes:
    """Bytes in which every shift shows."""
    return bytes((number * 7 + number // 251 + salt) % 256 for number in range(length))


class SegmentConformance:
    """The contract of segments."""

    @pytest.fixture
    def driver(self, place: Place) -> TierDriver:
        return place.open()

    def test_asking_about_a_segment_that_is_not_there_answers_and_makes_nothing(self, driver: TierDriver) -> None:
        key = fresh_segment()
        assert driver.size(key) == 0
        assert not driver.is_sealed(key)
        with pytest.raises(SegmentMissing):
            driver.read(key, 0, 1)
        with pytest.raises(SegmentMissing):
            driver.seal(key)
        driver.delete(key)
        assert list(driver.list_segments(key.queue.directory)) == []

    def test_what_was_written_is_read_back_from_every_position(self, driver: TierDriver) -> None:
        key, data = fresh_segment(), pattern(100)
        for start, stop in [(0, 30), (30, 31), (31, 100)]:
            driver.write(key, start, [data[start:stop]])
        assert driver.size(key) == 100
        for position, length in [(0, 100), (0, 1), (99, 1), (29, 3), (30, 1), (10, 80)]:
            read = driver.read(key, position, length)
            assert read == data[position : position + length]
            assert read.readonly

    def test_buffers_of_every_kind_are_joined_in_order(self, driver: TierDriver) -> None:
        key = fresh_segment()
        driver.write(key, 0, [b"one", bytearray(b"two"), memoryview(b"three")])
        driver.write(key, 11, [memoryview(b"-four-")[1:5]])
        assert bytes(driver.read(key, 0, 15)) == b"onetwothreefour"

    def test_another_driver_sees_what_was_acknowledged(self, place: Place, driver: TierDriver) -> None:
        key, other = fresh_segment(), place.open()
        for number in range(5):
            driver.write(key, number * 10, [pattern(10, number)])
            assert other.size(key) == number * 10 + 10
            assert other.read(key, number * 10, 10) == pattern(10, number)

    def test_a_write_that_is_repeated_changes_nothing(self, place: Place, driver: TierDriver) -> None:
        key = fresh_segment()
        driver.write(key, 0, [b"0123456789"])
        driver.write(key, 10, [b"abcde"])
        for again in (driver, place.open()):
            again.write(key, 10, [b"abcde"])
            again.write(key, 0, [b"0123456789"])
            again.write(key, 3, [b"3456"])
        assert driver.size(key) == 15
        assert bytes(driver.read(key, 0, 15)) == b"0123456789abcde"

    def test_bug_05_a_write_that_is_partly_there_adds_only_what_is_missing(self, place: Place) -> None:
        key = fresh_segment()
        place.open().write(key, 0, [b"01234"])
        for driver in (place.open(), place.open()):
            driver.write(key, 2, [b"23456789"])
        driver.write(key, 0, [b"0123456789ab"])
        assert driver.size(key) == 12
        assert bytes(driver.read(key, 0, 12)) == b"0123456789ab"

    def test_other_bytes_at_a_written_position_are_a_conflict(self, place: Place, driver: TierDriver) -> None:
        key = fresh_segment()
        driver.write(key, 0, [b"0123456789"])
        for position, data in [(0, b"0123456780"), (9, b"x"), (9, b"xabc"), (0, b"x")]:
            for writer in (driver, place.open()):
                with pytest.raises(SegmentConflict, match="Another writer"):
                    writer.write(key, position, [data])
        assert driver.size(key) == 10
        assert bytes(driver.read(key, 0, 10)) == b"0123456789"

    def test_a_write_may_leave_no_hole(self, place: Place, driver: TierDriver) -> None:
        key = fresh_segment()
        for position in (1, 100, -1):
            with pytest.raises(IllegalRange):
                driver.write(key, position, [b"x"])
        assert driver.size(key) == 0
        assert list(driver.list_segments(key.queue.directory)) == []
        driver.write(key, 0, [b"0123456789"])
        with pytest.raises(IllegalRange, match="end 10, found position 11"):
            place.open().write(key, 11, [b"x"])
        assert driver.size(key) == 10

    def test_nothing_to_write_is_nothing(self, driver: TierDriver) -> None:
        key = fresh_segment()
        driver.write(key, 0, [])
        driver.write(key, 0, [b"", b""])
        assert driver.size(key) == 0

    def test_a_range_outside_of_the_segment_is_refused_and_never_shortened(
        self, place: Place, driver: TierDriver
    ) -> None:
        key = fresh_segment()
        driver.write(key, 0, [b"0123456789"])
        for sealed in (False, True):
            if sealed:
                driver.seal(key)
            for reader in (driver, place.open()):
                for position, length in [(0, 11), (9, 2), (10, 1), (50, 5), (-1, 2), (0, 0), (3, -1)]:
                    with pytest.raises(IllegalRange):
                        reader.read(key, position, length)

    def test_a_sealed_segment_is_read_as_before_and_written_never_again(self, place: Place, driver: TierDriver) -> None:
        key, data = fresh_segment(1_073_741_775), pattern(60)
        reader, writer = place.open(), place.open()
        for start in range(0, 60, 20):
            driver.write(key, start, [data[start : start + 20]])
        assert reader.read(key, 10, 30) == data[10:40]
        assert writer.size(key) == 60
        driver.seal(key)
        driver.seal(key)
        place.open().seal(key)
        for any_driver in (driver, reader, writer, place.open()):
            assert any_driver.read(key, 10, 30) == data[10:40]
            assert any_driver.size(key) == 60
            assert any_driver.is_sealed(key)
            with pytest.raises(SegmentSealed, match="next segment"):
                any_driver.write(key, 60, [b"x"])
            with pytest.raises(SegmentSealed):
                any_driver.trim(key, 20)
        [info] = driver.list_segments(key.queue.directory)
        assert (info.key, info.size, info.sealed, info.part_count, info.damage) == (key, 60, True, 0, None)

    def test_merging_parts_changes_neither_bytes_nor_who_may_write(self, place: Place) -> None:
        key, data = fresh_segment(), pattern(400)
        driver, reader, writer = place.open(), place.open(), place.open()
        for start in range(0, 300, 5):
            driver.write(key, start, [data[start : start + 5]])
        assert reader.read(key, 3, 290) == data[3:293]
        assert writer.size(key) == 300
        place.open().merge(key)
        place.open().merge(key)
        for each in (driver, reader, writer, place.open()):
            assert each.read(key, 3, 290) == data[3:293]
            assert (each.size(key), each.is_sealed(key)) == (300, False)
        writer.write(key, 290, [data[290:350]])
        with pytest.raises(SegmentConflict):
            driver.write(key, 300, [b"not what is there"])
        driver.write(key, 350, [data[350:]])
        [info] = reader.list_segments(key.queue.directory)
        assert (info.size, info.sealed, info.damage) == (400, False, None)
        driver.seal(key, crc32=crc32(data))
        assert place.open().merge(key) == 0
        assert place.open().read(key, 0, 400) == data
        driver.delete(key)
        assert list(driver.list_segments(key.queue.directory)) == []

    @pytest.mark.parametrize("is_sealed", [False, True])
    def test_a_damaged_range_is_written_again_in_place(self, place: Place, is_sealed: bool) -> None:
        key, data = fresh_segment(), pattern(100)
        driver = place.open()
        for start, stop in [(0, 30), (30, 31), (31, 100)]:
            driver.write(key, start, [data[start:stop]])
        if is_sealed:
            driver.seal(key, crc32=crc32(data))
        wrong = bytes(byte ^ 0xFF for byte in data[25:60])
        driver.rewrite(key, 25, wrong)
        for reader in (driver, place.open()):
            assert reader.reread(key, 0, 100) == data[:25] + wrong + data[60:]
        driver.rewrite(key, 25, data[25:60])
        for reader in (driver, place.open()):
            assert reader.reread(key, 0, 100) == data
            assert reader.read(key, 10, 80) == data[10:90]
            assert (reader.size(key), reader.is_sealed(key)) == (100, is_sealed)
        for position, length in [(90, 11), (100, 1), (-1, 2)]:
            with pytest.raises(IllegalRange):
                driver.rewrite(key, position, bytes(length))
        with pytest.raises(SegmentMissing):
            driver.rewrite(fresh_segment(), 0, b"x")
        if not is_sealed:
            driver.write(key, 100, [b"more"])
            assert driver.reread(key, 98, 6) == data[98:] + b"more"

    def test_a_segment_of_one_write_is_sealed_too(self, place: Place, driver: TierDriver) -> None:
        key = fresh_segment(segment_type=SegmentType.INDEX)
        driver.write(key, 0, [b"whole"])
        driver.seal(key)
        assert bytes(place.open().read(key, 0, 5)) == b"whole"

    def test_a_deleted_segment_is_gone_and_its_name_free(self, place: Place, driver: TierDriver) -> None:
        for seal_it in (False, True):
            key = fresh_segment()
            for start in (0, 5):
                driver.write(key, start, [b"01234"])
            if seal_it:
                driver.seal(key)
            place.open().delete(key)
            driver.delete(key)
            for any_driver in (driver, place.open()):
                assert any_driver.size(key) == 0
                assert not any_driver.is_sealed(key)
                with pytest.raises(SegmentMissing):
                    any_driver.read(key, 0, 1)
            assert list(driver.list_segments(key.queue.directory)) == []
            driver.write(key, 0, [b"late"])
            assert bytes(place.open().read(key, 0, 4)) == b"late"

    def test_a_tail_is_trimmed_and_written_again(self, place: Place, driver: TierDriver) -> None:
        key = fresh_segment()
        driver.trim(key, 0)
        driver.write(key, 0, [b"keep"])
        driver.write(key, 4, [b"torn"])
        driver.write(key, 8, [b"more"])
        for size in (13, -1):
            with pytest.raises(IllegalRange):
                driver.trim(key, size)
        driver.trim(key, 12)
        driver.trim(key, 4)
        driver.trim(key, 4)
        assert driver.size(key) == 4
        driver.write(key, 4, [b"other"])
        assert bytes(place.open().read(key, 0, 9)) == b"keepother"

    @pytest.mark.parametrize("is_sealed", [False, True])
    def test_a_segment_is_replaced_whole_and_stays_what_it_was(self, place: Place, is_sealed: bool) -> None:
        key, old, new = fresh_segment(), pattern(90), pattern(120, salt=3)
        driver = place.open()
        for start in (0, 30, 60):
            driver.write(key, start, [old[start : start + 30]])
        if is_sealed:
            driver.seal(key)
        # The new bytes may come from the old ones, which are there until the new ones are whole.
        pieces: list[Buffer] = [new[:60], driver.read(key, 0, 30), new[90:]]
        for _ in range(2):  # Again, as after a crash whose end is unknown.
            kept = driver.replace(key, pieces, "damaged-17")
            assert kept is not None
            assert kept.startswith(f"{key.path}.damaged-17")
        expected = new[:60] + old[:30] + new[90:]
        for each in (driver, place.open()):
            assert each.size(key) == 120
            assert each.read(key, 0, 120) == expected
            assert each.is_sealed(key) == is_sealed
        (info,) = driver.list_segments(key.queue.directory)
        assert (info.key, info.size, info.sealed, info.damage) == (key, 120, is_sealed, None)
        assert driver.list_objects(key.queue.directory) == []
        if is_sealed:
            with pytest.raises(SegmentSealed):
                driver.write(key, 120, [b"more"])
        else:
            driver.write(key, 120, [b"more"])
            assert place.open().read(key, 118, 6) == expected[118:] + b"more"

    def test_an_open_segment_is_replaced_by_one_of_its_size_and_grows_on(self, place: Place) -> None:
        key, new = fresh_segment(), pattern(60, salt=3)
        driver = place.open()
        for start in (0, 30):
            driver.write(key, start, [pattern(30)])
        for old in (pattern(30) * 2, new):  # Again, as after a crash whose end is unknown.
            assert bytes(driver.read(key, 0, 60)) == old
            assert driver.replace(key, [new[:20], new[20:]], "damaged-17", old_size=60)
        driver.write(key, 60, [b"more"])
        assert bytes(place.open().read(key, 0, 64)) == new + b"more"
        driver.seal(key)
        assert bytes(place.open().read(key, 0, 64)) == new + b"more"

    def test_a_segment_that_is_not_there_is_made_by_replacing_it(self, place: Place) -> None:
        key, driver = fresh_segment(), place.open()
        assert driver.replace(key, [b"made"], "damaged-17") is None
        driver.write(key, 4, [b" late"])
        assert bytes(place.open().read(key, 0, 9)) == b"made late"

    @pytest.mark.parametrize("old_size", [0, 3, 9])
    def test_a_segment_that_has_changed_since_is_not_replaced(self, place: Place, old_size: int) -> None:
        key, driver = fresh_segment(), place.open()
        driver.write(key, 0, [b"as it is"])
        with pytest.raises(SegmentConflict, match=f"expected {old_size} bytes to replace, found 8"):
            driver.replace(key, [b"instead"], "damaged-1", old_size=old_size)
        assert bytes(place.open().read(key, 0, 8)) == b"as it is"
        assert driver.replace(key, [b"instead"], "damaged-1", old_size=8)
        assert bytes(place.open().read(key, 0, 7)) == b"instead"

    def test_nothing_replaces_nothing_and_a_name_that_could_be_mistaken_is_refused(self, driver: TierDriver) -> None:
        key = fresh_segment()
        driver.write(key, 0, [b"old"])
        with pytest.raises(IllegalRange):
            driver.replace(key, [], "damaged-17")
        for aside in ("", "sealed", "parts/00000000000000000000", "damaged-1/../x"):
            with pytest.raises(BadTierName):
                driver.replace(key, [b"new"], aside)
        assert bytes(driver.read(key, 0, 3)) == b"old"

    def test_listing_is_sorted_and_keeps_to_its_prefix(self, driver: TierDriver) -> None:
        queue = fresh_queue()
        other = QueueKey(queue.cluster, queue.broker, "orders-2", 3)
        keys = [queue.segment(kind, base) for kind in SegmentType for base in (0, 20, 4_000)]
        for key in keys:
            driver.write(key, 0, [b"x" * (key.base + 1)])
        driver.seal(keys[0])
        driver.write(other.segment(SegmentType.INDEX, 0), 0, [b"x"])
        driver.put_object(queue.object_name("manifest"), b"{}")
        found = list(driver.list_segments(queue.directory + "/"))
        assert [info.key for info in found] == sorted(keys, key=lambda key: key.path)
        assert {info.key: info.size for info in found} == {key: key.base + 1 for key in keys}
        assert [info.key for info in found if info.sealed] == [keys[0]]
        assert all(info.modified_ms > 1_600_000_000_000 for info in found)
        everything = list(driver.list_segments(broker_directory(queue.cluster, queue.broker) + "/"))
        assert len(everything) == len(keys) + 1
        assert [info.key for info in driver.list_segments(keys[4].path[:-1])] == [keys[4]]
        assert list(driver.list_segments("no such thing/at all")) == []

    @pytest.mark.parametrize("topic", ["%RETRY%group_a", "a|b", "TopicTest-_1"])
    def test_every_name_that_a_topic_may_have_is_stored_under_itself(self, place: Place, topic: str) -> None:
        key = fresh_queue(topic).segment(SegmentType.CONSUME_QUEUE, 2000)
        driver = place.open()
        driver.write(key, 0, [b"units"])
        assert [info.key for info in place.open().list_segments(key.queue.directory)] == [key]
        driver.seal(key)
        assert bytes(place.open().read(key, 0, 5)) == b"units"

    def test_a_range_larger_than_any_request_is_whole(self, place: Place) -> None:
        key, driver = fresh_segment(), place.open()
        data = pattern(1 << 20) * 5
        for start in (0, len(data), 2 * len(data), 3 * len(data)):
            driver.write(key, start, [data])
        assert driver.read(key, 17, 4 * len(data) - 40) == (data * 4)[17:-23]
        driver.seal(key)
        assert place.open().read(key, 17, 4 * len(data) - 40) == (data * 4)[17:-23]

    def test_of_writers_that_race_for_a_position_one_wins_and_nothing_is_torn(self, place: Place) -> None:
        key, rounds = fresh_segment(), 12
        barrier = threading.Barrier(4)
        # Different lengths: a name that said more than the position would let two of them win.
        blocks = [bytes([65 + number]) * (50 + number * 25) for number in range(4)]

        def race(number: int) -> list[int]:
            driver, won = place.open(), []
            try:
                for _ in range(rounds):
                    barrier.wait()
                    position = driver.size(key)
                    barrier.wait()
                    try:
                        driver.write(key, position, [blocks[number]])
                        won.append(position)
                    except SegmentConflict:
                        assert driver.size(key) > position
            except BaseException:
                barrier.abort()  # The others must not wait for this one.
                raise
            return won

        with ThreadPoolExecutor(4) as pool:
            races = [pool.submit(race, number) for number in range(4)]
        failures = [each.exception() for each in races]
        for error in failures:  # Of the writer that ended the race for the others.
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        winners = [each.result() for each in races]
        owner = {position: number for number, won in enumerate(winners) for position in won}
        assert sum(map(len, winners)) == len(owner) == rounds
        expected = b"".join(blocks[number] for _, number in sorted(owner.items()))
        assert place.open().size(key) == len(expected)
        assert place.open().read(key, 0, len(expected)) == expected

    def test_bug_06_readers_beside_a_writer_read_only_true_bytes(self, place: Place) -> None:
        key, driver = fresh_segment(), place.open()
        data, step = pattern(4000), 100
        driver.write(key, 0, [data[:step]])
        done = threading.Event()
        written = [step]

        def read_on(seed: int) -> int:
            reader, reads = (place.open() if seed % 2 else driver), 0
            while not done.is_set() or reads == 0:
                end = written[0]
                position = (reads * 37 + seed * 11) % end
                assert reader.read(key, position, end - position) == data[position:end]
                reads += 1
            return reads

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read_on, seed) for seed in range(4)]
            try:
                for start in range(step, len(data), step):
                    driver.write(key, start, [data[start : start + step]])
                    written[0] = start + step
                driver.seal(key)
            finally:
                done.set()
            assert all(reader.result() > 0 for reader in readers)


class ObjectConformance:
    """The contract of small objects."""

    @pytest.fixture
    def name(self) -> str:
        return fresh_queue().object_name("manifest")

    def test_an_object_is_absent_until_it_is_put_and_after_it_is_deleted(self, place: Place, name: str) -> None:
        driver = place.open()
        assert driver.get_object(name) is None
        driver.delete_object(name)
        driver.put_object(name, b"one")
        version = driver.put_object(name, b"two")
        found = place.open().get_object(name)
        assert found is not None
        assert (found.data, found.version) == (b"two", version)
        driver.delete_object(name)
        driver.delete_object(name)
        assert place.open().get_object(name) is None

    def test_an_object_is_replaced_only_by_who_knows_its_version(self, place: Place, name: str) -> None:
        driver, other = place.open(), place.open()
        first = driver.put_object(name, b"first", expected=None)
        with pytest.raises(ManifestConflict, match="Read it again and retry"):
            other.put_object(name, b"also first", expected=None)
        second = other.put_object(name, b"second", expected=first)
        assert second != first
        with pytest.raises(ManifestConflict):
            driver.put_object(name, b"late", expected=first)
        assert driver.get_object(name) == other.get_object(name)
        driver.delete_object(name)
        with pytest.raises(ManifestConflict):
            other.put_object(name, b"of something deleted", expected=second)
        assert driver.get_object(name) is None

    def test_a_put_that_finds_its_own_bytes_has_succeeded(self, place: Place, name: str) -> None:
        driver = place.open()
        first = driver.put_object(name, b"writer 7, first", expected=None)
        assert driver.put_object(name, b"writer 7, first", expected=None) == first
        second = driver.put_object(name, b"writer 7, second", expected=first)
        assert driver.put_object(name, b"writer 7, second", expected=first) == second

    def test_a_counter_of_many_threads_counts_exactly(self, place: Place, name: str) -> None:
        place.open().put_object(name, b"0")

        def count(number: int) -> None:
            driver, done = place.open(), 0
            while done < 5:
                found = driver.get_object(name)
                assert found is not None
                value = int(found.data.split()[0]) + 1
                try:
                    # The writer's name makes its bytes its own.
                    driver.put_object(name, f"{value} by {number}".encode(), expected=found.version)
                    done += 1
                except ManifestConflict:
                    continue

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        found = place.open().get_object(name)
        assert found is not None
        assert int(found.data.split()[0]) == 20

    def test_objects_are_listed_by_prefix_and_segments_are_none(self, place: Place) -> None:
        driver, queue = place.open(), fresh_queue()
        driver.write(queue.segment(SegmentType.COMMIT_LOG, 0), 0, [b"x"])
        names = [queue.object_name(stem) for stem in ("manifest", "b", "a")]
        for name in names:
            driver.put_object(name, b"{}")
        assert driver.list_objects(queue.directory + "/") == sorted(names)
        assert driver.list_objects(queue.directory + "/m") == names[:1]
        assert set(names) <= set(driver.list_objects())
        assert driver.list_objects("nowhere/") == []

    @pytest.mark.parametrize(
        "prefix", ["\0", "a\0b/c", "a/\0", "../", "../../a", "./", "a/../", "/", "//", "a//b", "x" * 300]
    )
    def test_nothing_is_listed_below_what_cannot_begin_a_name(self, place: Place, prefix: str) -> None:
        driver, queue = place.open(), fresh_queue()
        driver.write(queue.segment(SegmentType.COMMIT_LOG, 0), 0, [b"x"])
        driver.put_object(queue.object_name("manifest"), b"{}")
        assert driver.list_objects(prefix) == []
        assert list(driver.list_segments(prefix)) == []

    def test_an_object_with_timers_is_kept_like_a_small_one_and_is_no_segment(self, place: Place) -> None:
        driver, queue = place.open(), fresh_queue()
        name = f"{queue.directory}.timers/2027-01-02/15_7.tiermq.timers"
        driver.put_object(name, bytes(range(256)) * 4_096, expected=None)
        with pytest.raises(ManifestConflict):
            driver.put_object(name, b"others", expected=None)
        found = place.open().get_object(name)
        assert found is not None
        assert found.data == bytes(range(256)) * 4_096
        assert driver.list_objects(f"{queue.directory}.timers/") == [name]
        assert list(driver.list_segments(f"{queue.directory}.timers/")) == []
        driver.delete_object(name)
        assert driver.get_object(name) is None

    @pytest.mark.parametrize("name", ["manifest.json", "../up.tiermq.json", "/abs.tiermq.json", "a//b.tiermq.json"])
    def test_a_name_that_could_be_mistaken_is_refused(self, place: Place, name: str) -> None:
        driver = place.open()
        for call in (driver.get_object, driver.delete_object, lambda bad: driver.put_object(bad, b"{}")):
            with pytest.raises(BadTierName):
                call(name)


class DriverConformance(SegmentConformance, ObjectConformance):
    """Everything."""

"""ObjectStoreDriver step by step: what each call costs, and what dying, lying or damage at any step leaves behind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from obstore.store import MemoryStore

from tier.driver.conformance import fresh_segment, pattern
from tier.driver.objects import URL, TestRequests, objects_driver, paths_in
from tiermq.errors import (
    CorruptSegment,
    IllegalRange,
    SegmentConflict,
    SegmentMissing,
    SegmentSealed,
    TierUnavailable,
)
from tiermq.message.crc import crc32
from tiermq.tier.driver.object_requests import Fetched, MultipartTag, PastTheEnd, is_md5_of
from tiermq.tier.driver.object_store import READ_CHUNK_BYTES, ObjectStoreDriver
from tiermq.tier.driver.part_log import part_path

KEY = fresh_segment()
DATA = pattern(60)


def written(store: MemoryStore, *, step: int = 20) -> ObjectStoreDriver:
    driver = objects_driver(store)
    for start in range(0, len(DATA), step):
        driver.write(KEY, start, [DATA[start : start + step]])
    return driver


def spent(driver: ObjectStoreDriver, call: Callable[[], object]) -> dict[str, int]:
    """The requests that a call costs, by kind."""
    before = driver.requests.counts
    call()
    return {
        kind: count - before.get(kind, 0)
        for kind, count in driver.requests.counts.items()
        if count != before.get(kind, 0)
    }


def test_a_write_to_a_known_segment_is_one_request() -> None:
    driver = written(MemoryStore())
    assert spent(driver, lambda: driver.write(KEY, 60, [b"x", b"y"])) == {"put": 1}
    assert spent(driver, lambda: driver.write(KEY, 62, [])) == {}


def test_the_first_write_looks_whether_there_is_something() -> None:
    driver = objects_driver(MemoryStore())
    assert spent(driver, lambda: driver.write(KEY, 0, [b"x"])) == {"list": 1, "head": 1, "put": 1}


def test_a_range_of_a_sealed_segment_is_one_request_even_for_a_stranger() -> None:
    store = MemoryStore()
    driver = written(store)
    driver.seal(KEY)
    for reader in (driver, objects_driver(store)):
        assert spent(reader, partial(reader.read, KEY, 10, 45)) == {"get": 1}


def test_a_range_of_an_open_segment_is_one_request_for_each_part_that_it_touches() -> None:
    driver = written(MemoryStore())
    assert spent(driver, lambda: driver.read(KEY, 10, 5)) == {"get": 1}
    assert spent(driver, lambda: driver.read(KEY, 10, 45)) == {"get": 3}


def test_a_long_range_of_one_object_is_asked_for_in_pieces() -> None:
    store, data = MemoryStore(), b"x" * (2 * READ_CHUNK_BYTES + 1)
    driver = objects_driver(store)
    driver.write(KEY, 0, [data])
    driver.seal(KEY)
    assert spent(driver, lambda: driver.read(KEY, 0, len(data))) == {"get": 3}
    with pytest.raises(IllegalRange):
        objects_driver(store).read(KEY, 5, len(data))


def test_a_range_that_is_little_longer_than_a_piece_is_one_request() -> None:
    store, data = MemoryStore(), b"x" * (2 * READ_CHUNK_BYTES)
    driver = objects_driver(store)
    driver.write(KEY, 0, [data])
    driver.seal(KEY)
    assert spent(driver, lambda: driver.read(KEY, 100, READ_CHUNK_BYTES * 3 // 2)) == {"get": 1}


def test_an_answer_that_was_cut_is_worth_another_try_and_no_illegal_range(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = written(MemoryStore())
    driver.seal(KEY)

    def cut(*_place: object) -> None:
        raise PastTheEnd

    monkeypatch.setattr(driver.requests, "fetch_range", cut)
    with pytest.raises(TierUnavailable, match="was cut"):
        driver.read(KEY, 10, 45)
    with pytest.raises(IllegalRange):
        driver.read(KEY, 10, 51)


def test_sealing_copies_one_part_and_merges_many() -> None:
    one, many = MemoryStore(), MemoryStore()
    driver = written(one, step=60)
    assert spent(driver, lambda: driver.seal(KEY)) == {"list": 1, "put": 1, "get": 2, "copy": 1, "head": 1, "delete": 1}
    driver = written(many)
    assert spent(driver, lambda: driver.seal(KEY)) == {
        "list": 1,
        "put": 1,
        "get": 4,
        "upload": 1,
        "head": 1,
        "delete": 1,
    }
    for store in (one, many):
        assert paths_in(store) == [KEY.path, part_path(KEY.path, 60)]
        assert store.get(KEY.path).bytes() == DATA


@pytest.mark.crash
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("step", [20, 60])
def test_dying_at_any_request_of_a_seal_loses_nothing_and_the_next_seal_goes_on(landed: bool, step: int) -> None:
    deaths = 0
    while True:
        store = MemoryStore()
        written(store, step=step)
        dying = objects_driver(store, die_at=deaths + 1, landed=landed)
        try:
            dying.seal(KEY)
        except TierUnavailable:
            deaths += 1
        else:
            break
        stranger = objects_driver(store)
        assert stranger.size(KEY) == 60
        assert objects_driver(store).read(KEY, 5, 50) == DATA[5:55]
        [info] = stranger.list_segments()
        assert (info.size, info.damage) == (60, None)
        if stranger.is_sealed(KEY):
            with pytest.raises(SegmentSealed):
                stranger.write(KEY, 60, [b"x"])
        stranger.seal(KEY)
        assert paths_in(store) == [KEY.path, part_path(KEY.path, 60)]
        assert objects_driver(store).read(KEY, 0, 60) == DATA
    assert deaths >= 5


@pytest.mark.crash
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_dying_at_any_request_of_a_delete_never_shows_other_bytes(landed: bool, sealed: bool) -> None:
    deaths = 0
    while True:
        store = MemoryStore()
        driver = written(store)
        if sealed:
            driver.seal(KEY)
        try:
            objects_driver(store, die_at=deaths + 1, landed=landed).delete(KEY)
        except TierUnavailable:
            deaths += 1
        else:
            break
        stranger = objects_driver(store)
        size = stranger.size(KEY)
        assert size in (0, 60)
        if size:
            assert stranger.read(KEY, 0, size) == DATA
        stranger.delete(KEY)
        assert paths_in(store) == []
    assert deaths >= 3


@pytest.mark.crash
@pytest.mark.parametrize("landed", [False, True])
def test_dying_at_any_request_of_a_trim_leaves_no_hole(landed: bool) -> None:
    for die_at in range(1, 5):
        store = MemoryStore()
        written(store, step=10)
        with pytest.raises(TierUnavailable):
            objects_driver(store, die_at=die_at, landed=landed).trim(KEY, 20)
        stranger = objects_driver(store)
        size = stranger.size(KEY)
        assert 20 <= size <= 60
        assert stranger.read(KEY, 0, size) == DATA[:size]


def test_a_part_is_never_cut_in_two() -> None:
    driver = written(MemoryStore())
    with pytest.raises(IllegalRange, match="never torn"):
        driver.trim(KEY, 30)
    assert driver.size(KEY) == 60


def test_a_lost_answer_is_settled_by_reading_what_is_there() -> None:
    store = MemoryStore()
    written(store)
    unlucky = objects_driver(store, die_at=2, landed=True)  # The listing is answered, the answer to the put is lost.
    with pytest.raises(TierUnavailable):
        unlucky.write(KEY, 60, [b"landed"])
    again = objects_driver(store)
    again.write(KEY, 60, [b"landed"])
    assert again.size(KEY) == 66


def test_a_stale_listing_cannot_make_a_writer_overwrite_or_fork() -> None:
    store = MemoryStore()
    written(store)
    driver = objects_driver(store)
    assert isinstance(driver.requests, TestRequests)
    driver.requests.listed = lambda found: [stat for stat in found if not stat.path.endswith("40")]
    assert driver.size(KEY) == 40
    with pytest.raises(SegmentConflict):
        driver.write(KEY, 40, [b"not what is there"])
    driver.write(KEY, 40, [DATA[40:]])
    driver.write(KEY, 60, [b"next"])
    assert objects_driver(store).read(KEY, 0, 64) == DATA + b"next"


def test_a_stale_listing_that_lags_in_the_middle_is_asked_for_again() -> None:
    store = MemoryStore()
    written(store)
    driver = objects_driver(store)
    assert isinstance(driver.requests, TestRequests)
    answers = iter([1, 0])
    driver.requests.listed = lambda found: found[:1] + found[2:] if next(answers) else found
    assert driver.size(KEY) == 60


def test_a_sleeping_writer_loses_against_the_mark_even_after_the_parts_are_gone() -> None:
    store = MemoryStore()
    sleeper = written(store)
    objects_driver(store).seal(KEY)
    with pytest.raises(SegmentSealed):
        sleeper.write(KEY, 60, [b"too late"])
    assert objects_driver(store).size(KEY) == 60


def test_two_sealers_make_one_object() -> None:
    store = MemoryStore()
    first = written(store)
    second = objects_driver(store)
    assert second.size(KEY) == 60
    first.seal(KEY)
    second.seal(KEY)
    assert store.get(KEY.path).bytes() == DATA


def test_a_write_that_slips_in_before_the_mark_is_part_of_the_seal() -> None:
    store = MemoryStore()
    writer, sealer = written(store), objects_driver(store)
    assert isinstance(sealer.requests, TestRequests)
    answers = iter([True, False])

    def before_the_last_write(found: list[Any]) -> list[Any]:
        if next(answers):
            writer.write(KEY, 60, [b"slipped in"])
        return found

    sealer.requests.listed = before_the_last_write
    sealer.seal(KEY)
    assert store.get(KEY.path).bytes() == DATA + b"slipped in"


def test_a_part_that_was_cut_is_corruption_and_not_other_bytes() -> None:
    store = MemoryStore()
    reader = written(store)
    store.put(part_path(KEY.path, 20), b"short")
    with pytest.raises(CorruptSegment, match="expected 20 bytes"):
        reader.read(KEY, 15, 30)
    calls: tuple[Callable[[ObjectStoreDriver], object], ...] = (
        lambda driver: driver.size(KEY),
        lambda driver: driver.read(KEY, 0, 5),
        lambda driver: driver.seal(KEY),
    )
    for call in calls:
        with pytest.raises(CorruptSegment, match="a hole: the next part is at 40"):
            call(objects_driver(store))
    [info] = objects_driver(store).list_segments()
    assert info.size == 25
    assert info.damage is not None
    assert KEY.path not in paths_in(store)


def test_a_part_that_is_gone_is_corruption_when_others_follow() -> None:
    store = MemoryStore()
    reader = written(store)
    store.delete(part_path(KEY.path, 20))
    for driver in (reader, objects_driver(store)):
        with pytest.raises(CorruptSegment, match="Bytes up to 20 are sound"):
            driver.read(KEY, 0, 60)
    objects_driver(store).delete(KEY)
    assert paths_in(store) == []


def test_a_seal_stops_when_a_part_is_not_what_was_listed() -> None:
    store = MemoryStore()
    written(store)
    sealer = objects_driver(store)
    assert isinstance(sealer.requests, TestRequests)
    real = sealer.requests.fetch

    def cut(path: str, start: int = 0, length: int | None = None) -> Fetched | None:
        store.put(part_path(KEY.path, 40), b"short")
        return real(path, start, length)

    sealer.requests.fetch = cut  # type: ignore[method-assign]
    with pytest.raises(CorruptSegment):
        sealer.seal(KEY)
    assert KEY.path not in paths_in(store)


def test_an_object_put_there_by_others_is_a_sealed_segment() -> None:
    store = MemoryStore()
    store.put(KEY.path, DATA)
    driver = objects_driver(store)
    assert driver.is_sealed(KEY)
    with pytest.raises(SegmentSealed):
        objects_driver(store).write(KEY, 60, [b"x"])
    with pytest.raises(SegmentSealed):
        objects_driver(store).write(KEY, 0, [b"x"])
    assert driver.read(KEY, 0, 60) == DATA


def test_leftover_parts_of_a_sealed_segment_are_garbage() -> None:
    store = MemoryStore()
    written(store)
    store.put(KEY.path, DATA)
    store.put(part_path(KEY.path, 60), b"")
    store.put(part_path(KEY.path, 20), b"other bytes altogether")
    driver = objects_driver(store)
    assert driver.read(KEY, 0, 60) == DATA
    [info] = driver.list_segments()
    assert (info.sealed, info.part_count, info.size) == (True, 3, 60)
    driver.seal(KEY)
    assert paths_in(store) == [KEY.path, part_path(KEY.path, 60)]


def test_a_reader_whose_segment_was_deleted_gets_an_error() -> None:
    store = MemoryStore()
    reader = written(store)
    objects_driver(store).delete(KEY)
    with pytest.raises(SegmentMissing):
        reader.read(KEY, 0, 10)


def test_a_closed_driver_reports_so() -> None:
    driver = written(MemoryStore())
    driver.close()
    driver.close()
    with pytest.raises(TierUnavailable, match="closed"):
        driver.read(KEY, 0, 60)


class _Spoiling(TestRequests):
    """A store that keeps another bit of the merged object than it was sent, and says that all is well."""

    def upload(self, path: str, chunks: Iterable[memoryview]) -> None:
        data = bytearray(b"".join(chunks))
        data[len(data) // 2] ^= 1
        super().upload(path, [memoryview(data)])

    def copy(self, source: str, target: str) -> bool:
        found = self.fetch(source)
        assert found is not None
        self.upload(target, [found.data])
        return True


@pytest.mark.parametrize("step", [20, 60])
@pytest.mark.parametrize("known", [True, False])
def test_parts_stay_when_the_merged_object_is_not_equal(step: int, known: bool) -> None:
    store = MemoryStore()
    written(store, step=step)
    crc = crc32(DATA) if known else None
    with pytest.raises(CorruptSegment, match="No part was deleted"):
        ObjectStoreDriver(_Spoiling(store), URL).seal(KEY, crc32=crc)
    assert KEY.path not in paths_in(store)
    healthy = objects_driver(store)
    assert healthy.read(KEY, 0, 60) == DATA
    healthy.seal(KEY, crc32=crc)
    assert paths_in(store) == [KEY.path, part_path(KEY.path, 60)]
    assert store.get(KEY.path).bytes() == DATA


def test_a_merge_of_parts_that_rotted_is_refused_and_nothing_goes() -> None:
    store = MemoryStore()
    written(store)
    store.put(part_path(KEY.path, 20), b"?" * 20)
    with pytest.raises(CorruptSegment):
        objects_driver(store).seal(KEY, crc32=crc32(DATA))
    assert part_path(KEY.path, 20) in paths_in(store)


def test_a_seal_that_died_before_it_compared_compares_before_the_parts_go() -> None:
    store = MemoryStore()
    written(store)
    store.put(part_path(KEY.path, 60), b"")  # The mark, and an object that is not what the parts were.
    store.put(KEY.path, b"?" * 60)
    with pytest.raises(CorruptSegment):
        objects_driver(store).seal(KEY, crc32=crc32(DATA))
    objects_driver(store).seal(KEY, crc32=crc32(DATA))
    assert store.get(KEY.path).bytes() == DATA


def test_an_entity_tag_is_a_checksum_only_where_it_is_the_md5_of_the_bytes() -> None:
    digits = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    assert is_md5_of(f'"{digits}"', DATA)
    for tag in ("", '"0x8DCAFE"', f'"{digits[:-1]}0"' if digits[-1] != "0" else f'"{digits[:-1]}1"', f'"{digits}-2"'):
        assert not is_md5_of(tag, DATA)
    multipart = MultipartTag()
    for start in range(0, len(DATA), 7):
        multipart.add(memoryview(DATA)[start : start + 7])
    whole = hashlib.md5(hashlib.md5(DATA, usedforsecurity=False).digest(), usedforsecurity=False).hexdigest()
    assert multipart.matches(f'"{whole}-1"')

"""Bundles step by step: what they cost, what dying at any request leaves, two writers, damage, and the repair of it."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from obstore.store import MemoryStore

from simulation.manual_clock import ManualClock
from tier.driver.conformance import pattern
from tier.driver.objects import URL, TestRequests, paths_in
from tiermq.clock import HOUR_MS
from tiermq.errors import BundlesFenced, CorruptSegment, SegmentConflict, SegmentMissing, TierUnavailable
from tiermq.message.crc import crc32
from tiermq.tier.driver import bundle, object_store
from tiermq.tier.driver.contract import BundleUpkeep, ChunkRange, SegmentWrite, TierDriver
from tiermq.tier.driver.object_requests import ObjectStat
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, broker_directory

BROKER = broker_directory("c", "broker-a")
KEYS = [QueueKey("c", "broker-a", f"quiet-{number}", 0).segment(SegmentType.COMMIT_LOG, 0) for number in range(3)]
DATA = pattern(400)
STEP = 10


def opened(store: MemoryStore, *, hours: int = 0, die_at: int | None = None, landed: bool = False) -> ObjectStoreDriver:
    clock = ManualClock(time.time_ns() // 1_000_000 + hours * HOUR_MS)
    return ObjectStoreDriver(TestRequests(store, die_at=die_at, landed=landed), URL, clock=clock)


def owner(store: MemoryStore, *, hours: int = 0) -> ObjectStoreDriver:
    driver = opened(store, hours=hours)
    driver.fence_bundles(BROKER, create=True)
    return driver


def write(driver: TierDriver, number: int, keys: list[SegmentKey] = KEYS) -> list[bool]:
    """The bytes of that step, of all segments in one bundle."""
    at = number * STEP
    return driver.write_bundle([SegmentWrite(key, at, [DATA[at : at + STEP]]) for key in keys])


def bundles_in(store: MemoryStore) -> list[str]:
    return [path for path in paths_in(store) if "/bundles.tiermq/" in path]


def content(driver: TierDriver, key: SegmentKey) -> bytes:
    size = driver.size(key)
    return bytes(driver.read(key, 0, size)) if size else b""


def spent(driver: ObjectStoreDriver, call: Callable[[], object]) -> dict[str, int]:
    before = driver.requests.counts
    call()
    return {kind: n - before.get(kind, 0) for kind, n in driver.requests.counts.items() if n != before.get(kind, 0)}


def test_many_segments_cost_one_put_and_a_repeated_write_none() -> None:
    driver = owner(MemoryStore())
    write(driver, 0)
    assert spent(driver, lambda: write(driver, 1)) == {"put": 1}
    assert spent(driver, lambda: [driver.write(key, STEP, [DATA[STEP : 2 * STEP]]) for key in KEYS]) == {}
    assert spent(driver, lambda: driver.read(KEYS[0], STEP, STEP)) == {"get": 1}


def test_a_tier_without_bundles_costs_no_request_more_and_gets_no_object() -> None:
    store = MemoryStore()
    driver = opened(store)
    driver.fence_bundles(BROKER, create=False)
    driver.write(KEYS[0], 0, [DATA])
    assert not bundles_in(store)
    assert spent(opened(store), lambda: None) == {}
    stranger = opened(store)
    assert spent(stranger, lambda: stranger.size(KEYS[0])) == {"list": 1}


def test_a_reader_needs_a_get_for_each_bundle_once_and_then_one_for_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MERGE_RUN", 8)
    store = MemoryStore()
    driver = owner(store)
    for number in range(20):
        write(driver, number)
    live = 20 % 8 + 1  # Merged ones are one.
    reader = opened(store)
    assert spent(reader, lambda: reader.read(KEYS[0], 0, 100))["get"] <= live + 8
    assert spent(reader, lambda: reader.read(KEYS[0], 0, 20)) == {"get": 1}


def test_merged_bundles_are_few_and_the_superseded_ones_go_after_six_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MERGE_RUN", 4)
    store = MemoryStore()
    driver = owner(store)
    for number in range(11):
        write(driver, number)
    assert len(bundles_in(store)) > 12
    later = owner(store, hours=7)
    for number in range(11, 15):
        write(later, number)
    assert len(bundles_in(store)) <= 7, "what was superseded by the last merge stays"
    for key in KEYS:
        assert content(opened(store), key) == content(driver, key) == DATA[: 15 * STEP]


def test_a_segment_with_much_in_bundles_gets_a_part_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "UNPACKED_BYTES", 5 * STEP)
    monkeypatch.setattr(bundle, "MERGE_RUN", 4)
    store = MemoryStore()
    driver = owner(store)
    for number in range(12):
        write(driver, number)
    assert [path for path in paths_in(store) if path.startswith(KEYS[0].path) and "-0" in path]
    for key in KEYS:
        assert content(opened(store), key) == DATA[: 12 * STEP]
    [info] = opened(store).list_segments(KEYS[1].path)
    assert (info.size, info.sealed, info.damage) == (12 * STEP, False, None)


# Two writers


def test_an_earlier_owner_writes_no_bundle_after_the_next_one_has_fenced() -> None:
    store = MemoryStore()
    stale, new = owner(store), opened(store)
    write(stale, 0)
    new.fence_bundles(BROKER, create=False)
    before = paths_in(store)
    with pytest.raises(BundlesFenced, match="another process"):
        write(stale, 1)
    assert paths_in(store) == before
    write(new, 1)
    for key in KEYS:
        assert content(opened(store), key) == DATA[: 2 * STEP]
    stale.fence_bundles(BROKER, create=False)
    with pytest.raises(SegmentConflict):
        stale.write_bundle([SegmentWrite(KEYS[0], STEP, [b"other"])])


def test_fences_that_were_merged_keep_an_earlier_owner_out_all_the_same() -> None:
    """As those of jobs that found nothing quiet to copy: the merged bundle has no range that would stop a writer."""
    store = MemoryStore()
    stale = owner(store)
    write(stale, 0)
    for _ in range(3):
        owner(store).write(KEYS[0], STEP, [DATA[STEP : 5 * STEP]])
    opened(store).tend_bundles(BROKER, BundleUpkeep((2, 4), ()))
    assert [path for path in bundles_in(store) if "-" in path.rpartition("/")[2]], "the fences are merged"
    before = paths_in(store)
    with pytest.raises(BundlesFenced, match="another process"):
        write(stale, 1)
    assert paths_in(store) == before
    assert content(opened(store), KEYS[0]) == DATA[: 5 * STEP]


def test_without_a_fence_no_bundle_is_written() -> None:
    store = MemoryStore()
    with pytest.raises(BundlesFenced):
        write(opened(store), 0)
    assert not bundles_in(store)


def test_a_part_of_a_stale_writer_does_not_count_where_the_owner_has_a_range() -> None:
    store = MemoryStore()
    stale = opened(store)
    stale.write(KEYS[0], 0, [DATA[:STEP]])
    new = owner(store)
    write(new, 1, KEYS[:1])
    stale.write(KEYS[0], STEP, [b"stale bytes, longer than a step"])  # Its view ends there.
    write(new, 2, KEYS[:1])
    for driver in (new, opened(store)):
        assert content(driver, KEYS[0]) == DATA[: 3 * STEP]
    new.write(KEYS[0], 3 * STEP, [DATA[3 * STEP : 5 * STEP]])
    new.seal(KEYS[0])
    assert content(opened(store), KEYS[0]) == DATA[: 5 * STEP]


def test_cuts_of_another_process_do_not_fence_the_owner() -> None:
    store = MemoryStore()
    driver = owner(store)
    write(driver, 0)
    opened(store).delete(KEYS[2])
    write(driver, 1, KEYS[:2])
    assert content(opened(store), KEYS[1]) == DATA[: 2 * STEP]
    assert opened(store).size(KEYS[2]) == 0


def test_a_segment_that_is_deleted_and_begun_again_has_none_of_its_earlier_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundle, "MERGE_RUN", 3)
    store = MemoryStore()
    driver = owner(store)
    for number in range(5):
        write(driver, number)
    driver.seal(KEYS[0])
    for key in KEYS[:2]:
        driver.delete(key)
        with pytest.raises(SegmentMissing):
            opened(store).read(key, 0, 1)
    for _ in range(2):
        driver.write_bundle([SegmentWrite(key, driver.size(key), [b"new"]) for key in KEYS[:2]])
    for key in KEYS[:2]:
        assert content(opened(store), key) == b"newnew"
    assert content(opened(store), KEYS[2]) == DATA[: 5 * STEP]


def test_a_writer_that_was_suspended_for_hours_looks_before_it_takes_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be free again: the bundle that had it was merged, and deleted."""
    monkeypatch.setattr(bundle, "MERGE_RUN", 3)
    store = MemoryStore()
    stale = owner(store)
    write(stale, 0)
    new = owner(store)
    write(new, 1)
    for number in range(2, 9):
        write(owner(store, hours=7), number)
    assert f"{1:020d}" not in {path.rpartition("/")[2] for path in bundles_in(store)}
    clock = stale._clock
    assert isinstance(clock, ManualClock)
    clock.advance_ms(7 * HOUR_MS)
    before = paths_in(store)
    with pytest.raises(SegmentConflict):
        stale.write_bundle([SegmentWrite(KEYS[0], STEP, [b"other"])])
    assert paths_in(store) == before


def test_a_driver_that_was_suspended_for_hours_names_no_chunk_that_was_deleted() -> None:
    store = MemoryStore()
    stale = owner(store)
    for number in range(4):
        write(stale, number, KEYS[1:])
    name = stale.put_chunk(BROKER, DATA[:STEP])
    # By the tasks of a compaction: they write no ranges, and so are no fence.
    opened(store, hours=7).tend_bundles(BROKER, BundleUpkeep((0, 4), ()))
    assert not [path for path in paths_in(store) if path.endswith(name)]
    clock = stale._clock
    assert isinstance(clock, ManualClock)
    clock.advance_ms(7 * HOUR_MS)
    before = bundles_in(store)
    for _ in range(2):
        with pytest.raises(SegmentMissing, match=f"expected the chunk {name} that a task wrote"):
            stale.commit_chunks(BROKER, [ChunkRange(KEYS[0], 0, STEP, name, 0)], {})
    assert bundles_in(store) == before
    kept = stale.put_chunk(BROKER, DATA[:STEP])
    stale.commit_chunks(BROKER, [ChunkRange(KEYS[0], 0, STEP, kept, 0)], {})
    assert content(opened(store), KEYS[0]) == DATA[:STEP]


# Dying


@dataclass(frozen=True)
class Act:
    """A call, and whether its effect is seen as a whole or (a deletion, a trim) as any shorter segment."""

    call: Callable[[TierDriver], object]
    is_whole: bool = True


def bundled(number: int, keys: list[SegmentKey]) -> Act:
    return Act(lambda driver: write(driver, number, keys))


SCRIPT = [
    *[bundled(number, KEYS) for number in range(6)],
    Act(lambda driver: driver.write(KEYS[0], 6 * STEP, [DATA[6 * STEP : 8 * STEP]])),
    Act(lambda driver: write(driver, 8, KEYS[:1])),
    Act(lambda driver: driver.trim(KEYS[1], 3 * STEP), is_whole=False),
    Act(lambda driver: write(driver, 3, KEYS[1:2])),
    Act(lambda driver: driver.seal(KEYS[2])),
    Act(lambda driver: driver.merge(KEYS[0])),
    Act(lambda driver: driver.delete(KEYS[1]), is_whole=False),
    Act(lambda driver: write(driver, 9, KEYS[:1])),
    Act(lambda driver: write(driver, 0, KEYS[1:2])),
]


def states() -> list[dict[SegmentKey, bytes]]:
    """The contents before each act and after the last one."""
    driver = owner(MemoryStore())
    found = [dict.fromkeys(KEYS, b"")]
    for act in SCRIPT:
        act.call(driver)
        found.append({key: content(driver, key) for key in KEYS})
    return found


@pytest.mark.crash
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("hours", [0, 7])
def test_dying_at_any_request_leaves_what_was_before_or_after_and_the_next_owner_goes_on(
    monkeypatch: pytest.MonkeyPatch, landed: bool, hours: int
) -> None:
    monkeypatch.setattr(bundle, "MERGE_RUN", 3)
    monkeypatch.setattr(object_store, "UNPACKED_BYTES", 4 * STEP)
    expected = states()
    deaths = 0
    while True:
        store = MemoryStore()
        driver = opened(store, hours=hours, die_at=deaths + 1, landed=landed)
        done = -1
        try:
            driver.fence_bundles(BROKER, create=True)
            for done, act in enumerate(SCRIPT):  # noqa: B007 - where it died
                act.call(driver)
        except TierUnavailable:
            deaths += 1
        else:
            break
        act, before = SCRIPT[max(done, 0)], expected[max(done, 0)]
        after = before if done < 0 else expected[done + 1]
        next_owner = owner(store, hours=hours)
        found = {key: content(next_owner, key) for key in KEYS}
        if act.is_whole:
            assert found in (before, after), (deaths, done)
        else:
            for key in KEYS:
                assert before[key].startswith(found[key])
                assert found[key].startswith(after[key])
        infos = {info.key: info for info in opened(store).list_segments()}
        for key, data in found.items():
            assert (infos[key].size if key in infos else 0) == len(data)
            assert key not in infos or infos[key].damage is None
        for again in SCRIPT[max(done, 0) :]:
            again.call(next_owner)
        assert {key: content(opened(store), key) for key in KEYS} == expected[-1], (deaths, done)
    assert deaths > 60


# Damage


def spoil(store: MemoryStore, path: str, at: int) -> None:
    data = bytearray(bytes(store.get(path).bytes()))
    data[at] ^= 0xFF
    store.put(path, bytes(data))


def lose(store: MemoryStore, path: str) -> None:
    store.delete(path)


@pytest.mark.parametrize("harm", [lose, lambda store, path: spoil(store, path, -1), lambda s, p: spoil(s, p, -40)])
def test_a_lost_or_damaged_bundle_is_an_error_and_never_a_shorter_segment(
    harm: Callable[[MemoryStore, str], None],
) -> None:
    store = MemoryStore()
    driver = owner(store)
    driver.write(KEYS[0], 0, [DATA[:STEP]])
    write(driver, 1, KEYS[:1])
    write(driver, 0, KEYS[1:])
    write(driver, 2, KEYS[:1])
    harm(store, bundles_in(store)[1])
    for key in KEYS:
        with pytest.raises(CorruptSegment, match="repair"):
            opened(store).size(key)
        with pytest.raises(CorruptSegment):
            opened(store).read(key, 0, STEP)
    assert all(info.damage for info in opened(store).list_segments())

    fixer = opened(store)
    assert fixer.repair_bundles(BROKER, "damaged-1") == [bundles_in(store)[1]]
    with pytest.raises(CorruptSegment, match="hole"):
        fixer.size(KEYS[0])
    fixer.replace(KEYS[0], [DATA[: 3 * STEP]], "damaged-1")
    for key in KEYS[1:]:
        assert content(opened(store), key) == DATA[:STEP]
    assert content(opened(store), KEYS[0]) == DATA[: 3 * STEP]
    go_on = owner(store)
    write(go_on, 3, KEYS[:1])
    assert content(opened(store), KEYS[0]) == DATA[: 4 * STEP]


def test_damaged_bytes_of_a_range_are_rewritten_in_place() -> None:
    store = MemoryStore()
    driver = owner(store)
    write(driver, 0)
    spoil(store, bundles_in(store)[1], STEP + 3)
    assert content(opened(store), KEYS[1]) != DATA[:STEP]
    opened(store).rewrite(KEYS[1], 2, DATA[2:STEP])
    for key in KEYS:
        assert content(opened(store), key) == DATA[:STEP]


# Merges that overlap


def merged_by_threes(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Bundles 0-2, 3-5, 6-8 and 9."""
    monkeypatch.setattr(bundle, "MERGE_RUN", 3)
    monkeypatch.setattr(bundle, "MERGE_RATIO", 0)
    store = MemoryStore()
    driver = owner(store)
    for number in range(9):
        write(driver, number)
    wider = [
        path for path in bundles_in(store) if path.endswith(("0000-00000000000000000005", "-00000000000000000008"))
    ]
    store.delete([path for path in wider if "006-" not in path])
    return store


def later(store: MemoryStore, hours: int, born: dict[str, int]) -> ObjectStoreDriver:
    """At so many hours from now; `born`: objects by the hour at which they were made, others now."""
    driver = opened(store, hours=hours)

    def listed(found: list[ObjectStat]) -> list[ObjectStat]:
        return [
            replace(each, modified_ms=each.modified_ms + HOUR_MS * born.setdefault(each.path, hours)) for each in found
        ]

    assert isinstance(driver.requests, TestRequests)
    driver.requests.listed = listed
    return driver


def test_two_merges_at_once_of_overlapping_groups_leave_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a task whose executor was suspended: its driver has been replaced, and merges other ones."""
    store = merged_by_threes(monkeypatch)
    born = dict.fromkeys(paths_in(store), 0)
    suspended, other = later(store, 7, born), later(store, 7, born)
    create = suspended.requests.create
    begun: list[str] = []

    def create_later(path: str, data: bytes) -> str | None:
        if not begun:
            begun.append(path)
            other.tend_bundles(BROKER, BundleUpkeep((0, 5), ()))
        return create(path, data)

    monkeypatch.setattr(suspended.requests, "create", create_later)
    suspended.tend_bundles(BROKER, BundleUpkeep((3, 8), ()))
    assert len(begun) == 1
    ends = {path.rpartition("/")[2][20:] for path in bundles_in(store)}
    assert {"-00000000000000000005", "-00000000000000000008"} <= ends, "both have merged"
    for hours in (7, 14, 21):
        driver = later(store, hours, born)
        for key in KEYS:
            assert content(driver, key) == DATA[: 9 * STEP]
        driver.tend_bundles(BROKER, BundleUpkeep((0, 9), ()))
    last = later(store, 28, born)
    last.fence_bundles(BROKER, create=True)
    for number in range(9, 12):
        write(last, number)
    left = [path.rpartition("/")[2] for path in bundles_in(store)]
    assert not [name for name in left if name.startswith(f"{3:020d}")], "what is superseded for good is deleted"
    assert content(later(store, 28, born), KEYS[0]) == DATA[: 12 * STEP]


def test_what_was_superseded_a_moment_ago_stays_for_readers_that_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However old it is."""
    store = merged_by_threes(monkeypatch)
    born = dict.fromkeys(paths_in(store), 0)
    reader = opened(store)
    assert content(reader, KEYS[0]) == DATA[: 9 * STEP]
    later(store, 7, born).tend_bundles(BROKER, BundleUpkeep((0, 5), ()))
    assert bytes(reader.read(KEYS[0], 0, 9 * STEP)) == DATA[: 9 * STEP]


# Forged bundles


def forged(store: MemoryStore, change: Callable[[dict[str, Any]], object]) -> None:
    """A bundle whose checksum is right, and whose directory is not."""
    path = [each for each in bundles_in(store) if "chunk-" not in each][-1]
    data = bytes(store.get(path).bytes())
    _, _, length = bundle.FOOTER.unpack(data[-bundle.FOOTER.size :])
    end = len(data) - bundle.FOOTER.size - length
    body = json.loads(zlib.decompress(data[end : end + length]))
    made = change(body)
    packed = made if isinstance(made, bytes) else zlib.compress(json.dumps(body).encode())
    store.put(path, data[:end] + packed + bundle.FOOTER.pack(bundle.MAGIC, crc32(packed), len(packed)))


def _range(at: int, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["ranges"][0].__setitem__(at, value)


def _cut(*cut: object) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["cuts"].append(list(cut))


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no zlib": lambda _body: b"no zlib",
    "cut off": lambda body: zlib.compress(json.dumps(body).encode())[:-4],
    "unpacks to much": lambda _body: zlib.compress(b" " * 5_000),
    "nested": lambda _body: zlib.compress(b"[" * 4_000),
    "a list": lambda _body: zlib.compress(b"[1]"),
    "version": lambda body: body.update(version="1"),
    "session": lambda body: body.update(session=7),
    "fence": lambda body: body.update(fence="yes"),
    "ranges": lambda body: body.update(ranges={"a": 1}),
    "notes": lambda body: body.update(notes={"queue": 5}),
    "range of five": lambda body: body["ranges"].append("abcde"),
    "segment": _range(0, ["a"]),
    "position": _range(1, "0"),
    "negative position": _range(1, -1),
    "length": _range(2, -1),
    "length beyond the object": _range(2, 1 << 40),
    "offset": _range(3, 0.5),
    "offset beyond the object": _range(3, 1 << 40),
    "joined": _range(4, "no"),
    "cut": _cut("quiet-0/0", "b", False),
    "segment of a cut": _cut(["a"], 1, False),
    "chunk that climbs": lambda body: body["ranges"][0].append("../../other/secret"),
    "chunk that is a bundle": lambda body: body["ranges"][0].append("00000000000000000001"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_bundle_is_damage_in_words(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "DIRECTORY_BYTES_MAX", 4_500)
    store = MemoryStore()
    driver = owner(store)
    write(driver, 0)
    write(driver, 1)
    forged(store, FORGED[what])
    reader = opened(store)
    found = list(reader.list_segments())
    assert all(info.damage for info in found)
    assert found
    with pytest.raises(CorruptSegment, match="expected a bundle"):
        reader.size(KEYS[0])
    assert opened(store).repair_bundles(BROKER, "damaged-1")
    assert opened(store).size(KEYS[0]) == STEP


@pytest.mark.parametrize("name", ["9" * 20, f"{5:020d}-{'9' * 20}", f"{1 << 61:020d}"])
def test_an_object_with_an_absurd_number_is_no_bundle_and_hides_none(name: str) -> None:
    store = MemoryStore()
    driver = owner(store)
    write(driver, 0)
    store.put(f"{BROKER}/bundles.tiermq/{name}", b"")
    other = owner(store)
    for number in range(1, 4):
        write(other, number)
    for key in KEYS:
        assert content(opened(store), key) == DATA[: 4 * STEP]
    assert opened(store).repair_bundles(BROKER, "damaged-1") == []


def test_a_large_hole_in_the_numbers_is_filled_by_one_object() -> None:
    store = MemoryStore()
    write(owner(store), 0)
    last = bundles_in(store)[-1]
    moved = f"{BROKER}/bundles.tiermq/{1 << 30:020d}"
    store.put(moved, bytes(store.get(last).bytes()))
    store.delete(last)
    with pytest.raises(CorruptSegment, match=f"expected bundle 1, found {1 << 30}"):
        opened(store).size(KEYS[0])
    assert opened(store).repair_bundles(BROKER, "damaged-1") == [
        f"{BROKER}/bundles.tiermq/{1:020d}-{(1 << 30) - 1:020d}"
    ]
    for key in KEYS:
        assert content(opened(store), key) == DATA[:STEP]


def test_a_chunk_that_is_shorter_than_its_bundle_says_is_damage_of_its_segments_alone() -> None:
    store = MemoryStore()
    driver = owner(store)
    chunks = [driver.put_chunk(BROKER, DATA[:STEP]) for _ in range(2)]
    ranges = [ChunkRange(key, 0, STEP, chunk, 0) for key, chunk in zip(KEYS, chunks, strict=False)]
    driver.commit_chunks(BROKER, ranges, {})
    store.put(f"{BROKER}/bundles.tiermq/{chunks[0]}", DATA[: STEP - 1])
    reader = opened(store)
    assert content(reader, KEYS[1]) == DATA[:STEP]
    with pytest.raises(CorruptSegment, match="a shorter one"):
        reader.size(KEYS[0])

"""The local index file: its bytes, its limits, its chains, its end."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from simulation.simulated_files import SimulatedFileAccess
from tier.index.chain_walk import rearrange_by_chain
from tiermq.errors import DiskFull, StoreClosed, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.java_hash import java_hash
from tiermq.tier.index import index_write_file
from tiermq.tier.index.index_item import MAGIC_BEGIN, MAGIC_END, index_hash, open_file_bytes
from tiermq.tier.index.index_write_file import IndexWriteFile, check_shape

BEGIN_MS = 1_700_000_000_000
EVER = (0, 2**62)
SLOTS, CAPACITY = 5, 20


def create(access: SimulatedFileAccess | None = None, capacity: int = CAPACITY) -> IndexWriteFile:
    return IndexWriteFile.create(access or SimulatedFileAccess(), "/index", BEGIN_MS, SLOTS, capacity)


def put(file: IndexWriteFile, *hashes: int, offset: int = 0, ms: int = BEGIN_MS, topic_id: int = 1) -> bool:
    return file.put(hashes, topic_id, 2, offset, 123, ms)


def selected(file: IndexWriteFile, key_hash: int, max_count: int = 99, times: tuple[int, int] = EVER) -> list[int]:
    found = file.select(key_hash, max_count, *times)
    assert found is not None
    return [item.tier_offset for item in found.items]


def test_a_new_file_has_rocketmq_s_size_and_header() -> None:
    access = SimulatedFileAccess()
    file = create(access)
    data = access.read_bytes(f"/index/{BEGIN_MS}")
    assert len(data) == open_file_bytes(SLOTS, CAPACITY) == 28 + 40 + 640
    assert data[:28] == struct.pack(">iqqii", MAGIC_BEGIN, BEGIN_MS, 0, 0, 0)
    assert file.facts().item_count == 0


def test_items_slots_and_header_lie_where_the_format_reports() -> None:
    access = SimulatedFileAccess()
    file = create(access)
    assert put(file, 7, offset=1000, ms=BEGIN_MS + 2500, topic_id=2**32 + 9)
    assert put(file, 12, offset=2000, ms=BEGIN_MS - 2500)
    data = access.read_bytes(f"/index/{BEGIN_MS}")
    assert data[:28] == struct.pack(">iqqii", MAGIC_BEGIN, BEGIN_MS, BEGIN_MS + 2500, 1, 2)
    assert data[28 + 8 * 2 : 28 + 8 * 3] == struct.pack(">ii", 2, 0)
    first, second = 28 + 40 + 32, 28 + 40 + 64
    assert data[first : first + 32] == struct.pack(">iiiqiii", 7, 9, 2, 1000, 123, 2, 0)
    assert data[second : second + 32] == struct.pack(">iiiqiii", 12, 1, 2, 2000, 123, -2, 1)


def test_twenty_items_of_room_take_nineteen_and_then_the_file_reports_that_it_ended() -> None:
    file = create()
    assert all(put(file, n, offset=n) for n in range(18))
    assert file.header.magic == MAGIC_BEGIN
    assert put(file, 18, offset=18)
    assert not put(file, 19, offset=19)
    assert (file.header.magic, file.header.item_count, file.header.slot_count) == (MAGIC_END, 19, 5)


def test_a_message_whose_keys_do_not_all_fit_leaves_no_trace() -> None:
    access = SimulatedFileAccess()
    file = create(access)
    for n in range(17):
        put(file, n, offset=n)
    before = access.read_bytes(file.path)
    assert not put(file, 1, 2, 3, offset=99)
    assert access.read_bytes(file.path) == before
    assert put(file, 1, 2, offset=99)


def test_one_key_uses_one_slot_and_five_topics_of_three_messages_use_five() -> None:
    file = create()
    for topic in range(5):
        for n in range(3):
            put(file, topic, offset=n)
    assert (file.header.slot_count, file.header.item_count) == (5, 15)


def test_keys_of_one_message_that_share_a_slot_are_chained_and_all_found() -> None:
    file = create()
    put(file, 3, 8, 13, 3 + 5 * 7, offset=50)
    assert [selected(file, key_hash) for key_hash in (3, 8, 13, 38, 18)] == [[50], [50], [50], [50], []]


def test_bug_12_the_key_whose_hash_has_no_absolute_value_is_indexed_and_found() -> None:
    key = "ajvakuzm"
    assert java_hash("T#" + key) == -(2**31)
    file = create()
    assert put(file, index_hash("T", key), offset=77)
    assert selected(file, index_hash("T", key)) == [77]
    assert len(file.compact()) == 28 + 40 + 28


def test_items_come_newest_first_and_say_when_there_are_more() -> None:
    file = create()
    for n in range(10):
        put(file, 3, offset=n)
        put(file, 8, offset=n)
    assert selected(file, 3, 4) == [9, 8, 7, 6]
    answers = [file.select(3, max_count, *EVER) for max_count in (9, 10)]
    assert [answer and answer.has_more for answer in answers] == [True, False]


def test_more_than_512_items_in_a_chain_do_not_hide_the_oldest() -> None:
    file = create(capacity=2000)
    put(file, 8, offset=1)
    for n in range(1500):
        put(file, 3, offset=n)
    assert selected(file, 8) == [1]


def test_a_time_range_takes_every_item_that_may_lie_in_it() -> None:
    file = create()
    for second in (-2, 0, 2):
        put(file, 3, offset=second + 10, ms=BEGIN_MS + 1000 * second + 500)
    assert selected(file, 3, times=(BEGIN_MS + 2999, BEGIN_MS + 9999)) == [12]
    assert selected(file, 3, times=(BEGIN_MS + 3000, BEGIN_MS + 9999)) == []
    assert selected(file, 3, times=(0, BEGIN_MS - 1000)) == [8]
    assert selected(file, 3, times=(BEGIN_MS + 100, BEGIN_MS + 100)) == [10]


def test_a_damaged_chain_ends() -> None:
    file = create()
    put(file, 3, offset=1)
    put(file, 3, offset=2)
    struct.pack_into(">i", file._buffer, 28 + 40 + 32 + 28, 2)  # The older one leads back to the newer.
    assert selected(file, 3) == [2, 1]


def test_concurrent_puts_are_exact() -> None:
    file = create(capacity=4000)
    threads = [
        threading.Thread(target=lambda topic=topic: [put(file, topic + n, offset=n) for n in range(300)])
        for topic in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.header.item_count == 3000
    chains = [sum(len(selected(file, key_hash)) for key_hash in range(slot, 310, 5)) for slot in range(5)]
    assert sum(chains) == 3000


def test_opening_again_restores_counts_times_and_topics(tmp_path: Path) -> None:
    access = OsFileAccess()
    file = IndexWriteFile.create(access, str(tmp_path), BEGIN_MS, SLOTS, CAPACITY)
    put(file, 3, offset=1, ms=BEGIN_MS - 9000, topic_id=4)
    put(file, 4, offset=2, ms=BEGIN_MS + 9000, topic_id=5)
    facts = file.facts()
    assert (facts.oldest_ms, facts.newest_ms, facts.topic_ids) == (BEGIN_MS - 9000, BEGIN_MS + 9000, frozenset({4, 5}))
    file.sync()
    file.close()
    again = IndexWriteFile.open(access, str(tmp_path), facts)
    assert again.facts() == facts
    assert (selected(again, 3), selected(again, 4)) == ([1], [2])
    again.close()


def test_bug_19_an_adopted_file_knows_its_end_from_the_end_field() -> None:
    access = SimulatedFileAccess()
    file = create(access)
    put(file, 3, offset=1, ms=BEGIN_MS + 7_777_777)
    put(file, 3, offset=2, ms=BEGIN_MS + 1)
    file.close()
    adopted = IndexWriteFile.adopt(access, "/index", str(BEGIN_MS), SLOTS, CAPACITY)
    assert adopted.facts().newest_ms == BEGIN_MS + 7_777_777
    assert BEGIN_MS - 999 <= adopted.facts().oldest_ms <= BEGIN_MS + 1


@pytest.mark.parametrize("end_ms", [0, BEGIN_MS + 1000, BEGIN_MS + 10**9])
def test_an_adopted_header_of_another_moment_than_its_items_is_not_believed(end_ms: int) -> None:
    access = SimulatedFileAccess()
    file = create(access)
    put(file, 3, offset=1, ms=BEGIN_MS + 50_500)
    struct.pack_into(">q", file._buffer, 12, end_ms)
    file.close()
    adopted = IndexWriteFile.adopt(access, "/index", str(BEGIN_MS), SLOTS, CAPACITY)
    assert BEGIN_MS + 50_500 <= adopted.facts().newest_ms < BEGIN_MS + 52_000


def test_a_foreign_file_is_not_adopted() -> None:
    access = SimulatedFileAccess()
    create(access).close()
    with pytest.raises(StoreDamaged):
        IndexWriteFile.adopt(access, "/index", str(BEGIN_MS), SLOTS + 1, CAPACITY)
    access.rename(f"/index/{BEGIN_MS}", "/index/5")
    with pytest.raises(StoreDamaged, match="begin time"):
        IndexWriteFile.adopt(access, "/index", "5", SLOTS, CAPACITY)


def test_a_full_disk_is_noticed_before_a_byte_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_write_file, "RESERVE_ITEMS", 1)
    access = SimulatedFileAccess(capacity_bytes=8192)
    file = create(access, capacity=2000)
    with pytest.raises(DiskFull):
        all(put(file, n, offset=n) for n in range(1999))
    count = file.header.item_count
    assert 0 < count < 1999
    file.sync()  # Raises when a byte lies where no block is.
    assert [selected(file, n) for n in range(count)] == [[n] for n in range(count)]


def test_no_file_is_left_when_there_is_no_room_for_a_new_one() -> None:
    access = SimulatedFileAccess(capacity_bytes=0)
    with pytest.raises(DiskFull):
        create(access)
    assert access.list_files("/index") == []


def test_the_compacted_form_is_what_a_walk_along_the_chains_gives() -> None:
    file = create(capacity=500)
    for n in range(400):
        put(file, n * n % 97, n % 13, offset=n) if n < 99 else put(file, n % 7, offset=n)
    data = file.compact()
    assert data == rearrange_by_chain(file._buffer, SLOTS)
    assert len(data) == 28 + 8 * SLOTS + 28 * file.header.item_count


def test_a_file_without_items_compacts_to_nothing() -> None:
    assert create().compact() == b""


def test_bug_24_a_reader_keeps_its_map_when_the_file_is_closed_under_it(tmp_path: Path) -> None:
    file = IndexWriteFile.create(OsFileAccess(), str(tmp_path), BEGIN_MS, SLOTS, CAPACITY)
    put(file, 3, offset=1)
    view = file._buffer  # As a select holds it.
    file.destroy()
    assert bytes(view[:4]) == struct.pack(">i", MAGIC_BEGIN)
    assert file.select(3, 9, *EVER) is None
    for use in (lambda: put(file, 3), file.facts, file.sync, file.compact):
        with pytest.raises(StoreClosed):
            use()
    file.close()


@pytest.mark.parametrize(("slots", "capacity"), [(0, 20), (5, 1), (2**28, 20), (5, 2**31 // 28)])
def test_impossible_shapes_are_refused(slots: int, capacity: int) -> None:
    with pytest.raises(StoreDamaged):
        check_shape(slots, capacity)

"""get: the whole table of statuses and next offsets, the limits of a page, filters, batch queues, removed files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from present import present
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, ROOT, body, killed, log_place, numbered, on_simulation, overwrite, put_all, read_all
from tiermq import GetStatus, Message
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.errors import CorruptRecord, StoreClosed
from tiermq.kernel import GetPage
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.java_hash import java_hash
from tiermq.message.message_filter import TagCodeFilter, TagFilter
from tiermq.store.local_store import LocalStore

BOTH = pytest.mark.parametrize("chosen", [None, TagFilter("*")], ids=["plain", "filtered"])
"""A plain get goes through the kernel, a filtered one through the collector: both keep the same table."""
GAPS = "%LMQ%gaps"
"""A light queue: its units lead to records of another topic."""


def seen(page: GetPage) -> tuple[object, ...]:
    return page.status, page.next_offset, page.min_offset, page.max_offset, page.data, page.suggest_slave


@given(st.lists(st.sampled_from(["A", "B", "C", ""]), min_size=1, max_size=130), st.data())
def test_a_filter_by_hash_alone_finds_what_the_filter_by_tag_finds(tags: list[str], data: st.DataObject) -> None:
    with on_simulation() as store:
        for number, tag in enumerate(tags):
            store.put(Message("T", body(number), 0, tags=tag))
        store.dispatch_now()
        for _ in range(5):
            offset = data.draw(st.integers(-1, len(tags) + 1))
            count = data.draw(st.integers(1, 40))
            expression = data.draw(st.sampled_from(["A", "B || C", "D"]))
            exact = store.get("T", 0, offset, count, message_filter=TagFilter(expression))
            quick = store.get("T", 0, offset, count, message_filter=TagCodeFilter(expression))
            assert quick.data == exact.data
            if exact.count < count and exact.count < 32:
                assert seen(quick) == seen(exact), "a full page may have looked a little further"


def test_a_filter_by_hash_alone_does_not_give_damaged_records_out() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        put_all(store, 3, tags="A")
        unit = store.unit_at("T", 0, 1)
        assert unit is not None
        file, position = log_place(unit[0])
        overwrite(access, file, position + 4, b"xxxx")
        assert store.get("T", 0, 0, message_filter=TagCodeFilter("A")).next_offset == 1
        with pytest.raises(CorruptRecord, match="not the record"):
            store.get("T", 0, 1, message_filter=TagCodeFilter("A"))


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with on_simulation() as opened:
        put_all(opened, 120)
        yield opened


# The table


@BOTH
def test_trap_22_an_unknown_queue_has_no_match_and_is_not_made_by_asking(
    store: LocalStore, chosen: TagFilter | None
) -> None:
    """Trap 22: in the original a read of any name leaves a queue behind."""
    for topic, queue_id in (("Unknown", 0), ("T", 5)):
        page = store.get(topic, queue_id, 7, message_filter=chosen)
        assert (page.status, page.next_offset, page.count) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0)
    assert store.topics() == {"T": [0]}


@BOTH
def test_an_empty_queue_has_no_message(chosen: TagFilter | None) -> None:
    with on_simulation() as store:
        store._parts.queues.find_or_create("T", 0)
        page = store.get("T", 0, 3, message_filter=chosen)
        assert (page.status, page.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


@BOTH
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (120, GetStatus.OFFSET_OVERFLOW_ONE, 120),
        (121, GetStatus.OFFSET_OVERFLOW_BADLY, 120),
        (2**62, GetStatus.OFFSET_OVERFLOW_BADLY, 120),
        (2**80, GetStatus.OFFSET_OVERFLOW_BADLY, 120),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (-(2**80), GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 32),
        (119, GetStatus.FOUND, 120),
    ],
)
def test_the_table_of_offsets(
    store: LocalStore, chosen: TagFilter | None, offset: int, status: GetStatus, next_offset: int
) -> None:
    page = store.get("T", 0, offset, message_filter=chosen)
    assert (page.status, page.next_offset, page.min_offset, page.max_offset) == (status, next_offset, 0, 120)


@BOTH
def test_below_the_oldest_message_the_next_offset_is_the_oldest(chosen: TagFilter | None) -> None:
    clock = ManualClock()
    with on_simulation(SimulatedFileAccess(clock=clock), clock=clock) as store:
        put_all(store, 200)
        clock.advance_ms(100 * 3_600_000)
        assert store.clean_now().log_files > 0
        oldest = store.min_offset("T", 0)
        assert oldest > 0
        page = store.get("T", 0, 0, message_filter=chosen)
        assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, oldest)
        assert store.get("T", 0, oldest, message_filter=chosen).messages[0].queue_offset == oldest


@BOTH
def test_a_page_ends_with_its_queue_file_and_the_next_one_goes_on(store: LocalStore, chosen: TagFilter | None) -> None:
    page = store.get("T", 0, 40, message_filter=chosen)
    assert (page.next_offset, page.count) == (50, 10)
    assert [message.body for message in page.messages] == numbered(10, 40)


@BOTH
def test_a_place_without_a_message_is_passed_over(chosen: TagFilter | None) -> None:
    with on_simulation() as store:
        results = put_all(store, 5)
        queue = store._parts.queues.find_or_create(GAPS, 0)
        for at, result in zip((0, 1, 10, 11), results, strict=False):
            queue.append(DispatchRequest(result.physical_offset, result.size, 0, at, result.store_timestamp_ms))
        found = []
        offset = 0
        while (page := store.get(GAPS, 0, offset, message_filter=chosen)).status is not GetStatus.OFFSET_OVERFLOW_ONE:
            assert page.next_offset > offset
            found += page.messages
            offset = page.next_offset
        assert [message.body for message in found] == numbered(4)


@BOTH
def test_a_queue_file_of_nothing_but_gaps_leads_on_to_the_next_file(chosen: TagFilter | None) -> None:
    with on_simulation() as store:
        results = put_all(store, 2)
        queue = store._parts.queues.find_or_create(GAPS, 0)
        queue.append(DispatchRequest(results[0].physical_offset, results[0].size, 0, 0, 1))
        queue.append(DispatchRequest(results[1].physical_offset, results[1].size, 0, 120, 1))
        offset, found = 0, []
        for _ in range(10):
            page = store.get(GAPS, 0, offset, message_filter=chosen)
            if page.status is GetStatus.OFFSET_OVERFLOW_ONE:
                break
            assert page.next_offset > offset
            found += page.messages
            offset = page.next_offset
        assert (offset, [message.body for message in found]) == (121, numbered(2))


@BOTH
def test_messages_whose_log_file_is_gone_are_reported_as_being_removed(chosen: TagFilter | None) -> None:
    clock = ManualClock()
    with on_simulation(SimulatedFileAccess(clock=clock), clock=clock) as store:
        put_all(store, 200)
        first = store._parts.log.files.files[0]
        store._parts.log.files._drop([first])  # The file went; the queue was not corrected yet.
        page = store.get("T", 0, 0, message_filter=chosen)
        assert (page.status, page.count, page.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 0, 50)
        removed = LOG_BYTES // 132
        page = store.get("T", 0, removed - 10, message_filter=chosen)
        assert page.status is GetStatus.FOUND
        assert page.messages[0].queue_offset * 132 >= LOG_BYTES - 132
        first.close()


@BOTH
def test_a_unit_that_points_to_other_bytes_is_an_error_and_never_data(chosen: TagFilter | None) -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    results = put_all(store, 10)
    overwrite(access, *log_place(results[3].physical_offset), b"\0\0\0\x10")
    page = store.get("T", 0, 0, message_filter=chosen)
    assert ([message.queue_offset for message in page.messages], page.next_offset) == ([0, 1, 2], 3)
    with pytest.raises(CorruptRecord):
        store.get("T", 0, 3, message_filter=chosen)
    assert store.get("T", 0, 4, message_filter=chosen).count == 6
    store.close()


@BOTH
def test_what_the_store_found_when_it_was_opened_is_given_out_only_if_its_checksum_holds(
    chosen: TagFilter | None,
) -> None:
    """A broker sends the bytes of a page as they are, and RocketMQ's clients do not look at the checksum."""
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        results = put_all(store, 10)
    overwrite(access, *log_place(results[3].physical_offset + 90), b"\xff")
    with on_simulation(access) as store:
        page = store.get("T", 0, 0, message_filter=chosen)
        assert (page.count, page.next_offset) == (3, 3)
        with pytest.raises(CorruptRecord):
            store.get("T", 0, 3, message_filter=chosen)
        assert [message.queue_offset for message in store.get("T", 0, 4, message_filter=chosen).messages][:1] == [4]


def test_a_damaged_body_is_an_error_when_the_message_is_decoded() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    results = put_all(store, 10)
    overwrite(access, *log_place(results[3].physical_offset + 90), b"\xff")
    page = store.get("T", 0, 0)
    with pytest.raises(CorruptRecord):
        _ = page.messages
    with pytest.raises(CorruptRecord, match=str(results[3].physical_offset)):
        store.message_at(results[3].physical_offset)
    store.close()


def test_a_closed_store_answers_a_get_with_an_error() -> None:
    store = on_simulation()
    put_all(store, 1)
    store.close()
    with pytest.raises(StoreClosed):
        store.get("T", 0, 0)


# Limits


@BOTH
@pytest.mark.parametrize(("asked", "count"), [(32, 32), (20, 20), (10, 10), (1, 1), (0, 1), (-5, 1)])
def test_as_many_messages_as_asked_for_and_always_one(
    store: LocalStore, chosen: TagFilter | None, asked: int, count: int
) -> None:
    """Item 12."""
    page = store.get("T", 0, 0, asked, message_filter=chosen)
    assert (page.count, page.next_offset, len(page.messages)) == (count, count, count)


@BOTH
@pytest.mark.parametrize("asked", [33, 2**31 - 1, 2**31, 2**62, 2**63, 2**70])
def test_trap_23_however_many_are_asked_for_nothing_overflows(
    store: LocalStore, chosen: TagFilter | None, asked: int
) -> None:
    """Trap 24: more than the transfer limit never come in one page."""
    assert store.get("T", 0, 0, asked, message_filter=chosen).count == 32


@BOTH
def test_the_transfer_limits_in_memory(chosen: TagFilter | None) -> None:
    with on_simulation(
        max_transfer_count_on_message_in_memory=7, max_transfer_bytes_on_message_in_memory=132 * 5 + 50
    ) as store:
        put_all(store, 20)
        assert store.get("T", 0, 0, 32, message_filter=chosen).count == 5
    with on_simulation(max_transfer_count_on_message_in_memory=7) as store:
        put_all(store, 20)
        assert store.get("T", 0, 0, 32, message_filter=chosen).count == 7


@BOTH
def test_the_transfer_limits_on_disk(chosen: TagFilter | None) -> None:
    settings: dict[str, Any] = {
        "access_message_in_memory_max_ratio": 0
    }  # Nothing but the very end counts as in memory.
    with on_simulation(**settings) as store:
        put_all(store, 20)
        page = store.get("T", 0, 0, 32, message_filter=chosen)
        assert (page.count, page.suggest_slave) == (8, True)
    with on_simulation(max_transfer_bytes_on_message_in_disk=132 * 3 + 50, **settings) as store:
        put_all(store, 20)
        assert store.get("T", 0, 0, 32, message_filter=chosen).count == 3


@BOTH
@pytest.mark.parametrize(
    ("max_bytes", "count"), [(132 * 4, 4), (132 * 4 - 1, 3), (200, 1), (100, 1), (1, 1), (-1, 1), (2**40, 32)]
)
def test_max_bytes_is_clamped_and_the_first_message_always_comes(
    store: LocalStore, chosen: TagFilter | None, max_bytes: int, count: int
) -> None:
    assert store.get("T", 0, 0, 32, max_bytes, message_filter=chosen).count == count


@BOTH
def test_a_first_message_beyond_every_limit_comes_alone(chosen: TagFilter | None) -> None:
    with on_simulation(max_transfer_bytes_on_message_in_memory=100) as store:
        put_all(store, 3, size=5000)
        page = store.get("T", 0, 0, 32, 100, message_filter=chosen)
        assert (page.count, page.next_offset) == (1, 1)


@BOTH
def test_trap_25_a_page_that_found_nothing_suggests_no_slave(store: LocalStore, chosen: TagFilter | None) -> None:
    for offset in (-1, 120, 500):
        assert not store.get("T", 0, offset, message_filter=chosen).suggest_slave
    assert not store.get("Unknown", 0, 0, message_filter=chosen).suggest_slave
    assert not store.get("T", 0, 0, message_filter=TagFilter("none")).suggest_slave


# Filters


def test_a_filter_compares_the_tag_s_code_and_then_the_tag() -> None:
    """Trap 47: "Aa" and "BB" have one hash."""
    assert java_hash("Aa") == java_hash("BB")
    with on_simulation() as store:
        for number in range(30):
            store.put(Message("T", body(number), tags=("Aa", "BB", "Cc")[number % 3]))
        store.dispatch_now()
        page = store.get("T", 0, 0, message_filter=TagFilter("Aa"))
        assert (page.status, page.count, page.next_offset) == (GetStatus.FOUND, 10, 30)
        assert {message.tags for message in page.messages} == {"Aa"}
        assert store.get("T", 0, 0, message_filter=TagFilter("Aa || BB")).count == 20


def test_a_filter_that_matches_nothing_goes_on_behind_what_was_examined(store: LocalStore) -> None:
    page = store.get("T", 0, 0, message_filter=TagFilter("none"))
    assert (page.status, page.next_offset, page.data) == (GetStatus.NO_MATCHED_MESSAGE, 50, b"")


def test_a_filter_examines_no_more_units_than_allowed() -> None:
    with on_simulation(max_filter_message_size=20 * 12) as store:
        put_all(store, 50)
        assert store.get("T", 0, 0, 1, message_filter=TagFilter("none")).next_offset == 12
        assert store.get("T", 0, 0, 20, message_filter=TagFilter("none")).next_offset == 20


def test_a_filter_sees_messages_without_a_tag_as_not_matching(store: LocalStore) -> None:
    assert store.get("T", 0, 0, message_filter=TagFilter("t")).status is GetStatus.NO_MATCHED_MESSAGE


def test_ext_units_are_filtered_by_the_tag_that_they_keep() -> None:
    """Item 26."""
    with on_simulation(enable_consume_queue_ext=True) as store:
        for number in range(10):
            store.put(Message("T", body(number), tags=f"t{number % 2}"))
        store.dispatch_now()
        page = store.get("T", 0, 0, message_filter=TagFilter("t1"))
        assert [message.body for message in page.messages] == numbered(10)[1::2]
        queue = store._parts.queues.find("T", 0)
        assert isinstance(queue, ConsumeQueue)
        units = [present(queue.ext_unit_of(unit[2])) for unit in present(queue.iterate_from(0))]
        assert [unit.tags_code for unit in units] == [java_hash(f"t{number % 2}") for number in range(10)]
        assert all(unit.store_timestamp_ms > 0 for unit in units)
        assert store.get("T", 0, 0).count == 10


# Batch queues


@pytest.fixture
def batches() -> Iterator[LocalStore]:
    """Ten inner batches of 20 messages each."""
    with on_simulation(batch_topics=["B"]) as opened:
        for first in range(0, 200, 20):
            elements = [BatchElement(0, body(first + at, 20), b"") for at in range(20)]
            opened.put(Message("B", encode_client_batch(elements), sys_flag=0xC0, properties={"INNER_NUM": "20"}))
        opened.dispatch_now()
        yield opened


@pytest.mark.parametrize("offset", [0, 1, 19, 20, 39, 100, 199])
def test_any_offset_inside_a_batch_finds_it_and_the_next_one_begins_behind(batches: LocalStore, offset: int) -> None:
    """Item 32."""
    page = batches.get("B", 0, offset, 20)
    assert (page.status, page.count) == (GetStatus.FOUND, 20)
    assert page.next_offset == offset // 20 * 20 + 20
    assert page.messages[0].queue_offset == offset // 20 * 20


@pytest.mark.parametrize(("asked", "count"), [(1, 20), (39, 20), (40, 40), (60, 60), (79, 60)])
def test_inner_messages_count_towards_the_limit(batches: LocalStore, asked: int, count: int) -> None:
    """Item 32: 39 gives one batch, 60 three. The transfer limit of 32 is looked at before each batch."""
    batches._parts.reader._limits.memory_count = 1000
    assert batches.get("B", 0, 0, asked).count == count


def test_the_first_batch_comes_whatever_the_limit_of_bytes(batches: LocalStore) -> None:
    size = batches.get("B", 0, 0, 20).messages[0].size
    assert batches.get("B", 0, 0, 200, 100).count == 20
    batches._parts.reader._limits.memory_count = 1000
    assert batches.get("B", 0, 0, 200, size * 2 + 10).count == 40


def test_trap_51_an_offset_outside_of_a_batch_queue_never_leads_back_to_zero(batches: LocalStore) -> None:
    assert batches.get("B", 0, 200).status is GetStatus.OFFSET_OVERFLOW_ONE
    page = batches.get("B", 0, 900)
    assert (page.status, page.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 200)
    assert len(read_all(batches, "B")) == 10


def test_a_batch_queue_survives_its_own_file_rolls_and_a_kill() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access, batch_topics=["B"])
    for number in range(60):  # Twenty units to a file.
        store.put(Message("B", body(number)))
    store.dispatch_now()
    assert [message.body for message in read_all(store, "B")] == numbered(60)
    with on_simulation(killed(access), batch_topics=["B"]) as after:
        assert [message.body for message in read_all(after, "B")] == numbered(60)
        assert after.put(Message("B", b"next")).queue_offset == 60
    store.close()
    assert access.exists(f"{ROOT}/batchconsumequeue/B/0")


# Statistics of gets


def test_gets_are_counted_by_what_they_found(store: LocalStore) -> None:
    reader = store._parts.reader
    before = (reader.found_count, reader.missed_count, reader.transferred_count)
    store.get("T", 0, 0, 10)
    store.get("T", 0, 0, 10, message_filter=TagFilter("none"))
    store.get("T", 0, 120)
    store.get("Unknown", 0, 0)
    after = (reader.found_count, reader.missed_count, reader.transferred_count)
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == (1, 3, 10)


def test_a_page_reports_what_it_is(store: LocalStore) -> None:
    page = store.get("T", 0, 0, 2)
    assert repr(page) == "GetPage(status=FOUND, count=2, next_offset=2)"
    assert page.messages is page.messages

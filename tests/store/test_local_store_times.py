"""Finding messages by time, by key, by place and by id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import body, on_simulation, put_all
from tiermq import Message
from tiermq.errors import StoreClosed, StoreError
from tiermq.message.ids import decode_message_id
from tiermq.message.properties import encode_properties
from tiermq.store.local_store import LocalStore

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[LocalStore]:
    """120 messages, two of each store time, ten milliseconds apart; five log files, three queue files."""
    with on_simulation(SimulatedFileAccess(clock=clock), clock=clock, mapped_file_size_commit_log=4096) as opened:
        for number in range(120):
            opened.put(Message("T", body(number), keys=f"k{number}", tags=f"t{number % 3}"))
            if number % 2:
                clock.advance_ms(10)
        opened.dispatch_now()
        yield opened


# By time


@pytest.mark.parametrize("at", [0, 1, 24, 25, 59])
def test_the_lower_boundary_is_the_first_message_at_or_after_a_time(store: LocalStore, at: int) -> None:
    """Item 4."""
    time_ms = START_MS + at * 10
    assert store.offset_at("T", 0, time_ms) == 2 * at
    assert store.offset_at("T", 0, time_ms - 2) == 2 * at
    assert store.offset_at("T", 0, time_ms + 1) == 2 * at + 2


@pytest.mark.parametrize("at", [0, 1, 24, 25, 59])
def test_the_upper_boundary_is_the_last_message_at_or_before_a_time(store: LocalStore, at: int) -> None:
    time_ms = START_MS + at * 10
    assert store.offset_at("T", 0, time_ms, "upper") == 2 * at + 1
    assert store.offset_at("T", 0, time_ms + 9, "upper") == 2 * at + 1


def test_times_outside_of_the_queue_give_its_ends(store: LocalStore) -> None:
    assert store.offset_at("T", 0, START_MS - 20_000) == 0
    assert store.offset_at("T", 0, START_MS - 20_000, "upper") == 0
    assert store.offset_at("T", 0, START_MS + 10_000_000) == 120
    assert store.offset_at("T", 0, START_MS + 10_000_000, "upper") == 119
    assert store.offset_at("T", 0, 0) == 0
    assert store.offset_at("T", 0, 2**62) == 120


def test_an_unknown_queue_has_offset_zero_at_every_time(store: LocalStore) -> None:
    """Item 4."""
    assert store.offset_at("Unknown", 0, START_MS) == 0
    assert store.offset_at("T", 9, START_MS, "upper") == 0


def test_an_unknown_boundary_is_an_error(store: LocalStore) -> None:
    with pytest.raises(ValueError):
        store.offset_at("T", 0, START_MS, "middle")  # type: ignore[arg-type]


def test_trap_26_times_of_removed_messages_give_the_oldest_that_is_left(store: LocalStore, clock: ManualClock) -> None:
    store.flush_queues()
    store.flush()
    clock.advance_ms(100 * 3_600_000)
    assert store.clean_now().log_files > 0
    oldest = store.min_offset("T", 0)
    assert oldest > 0
    assert store.offset_at("T", 0, START_MS) == oldest
    assert store.offset_at("T", 0, START_MS, "upper") == oldest
    assert store.earliest_time("T", 0) == START_MS + oldest // 2 * 10


def test_the_store_time_of_each_message(store: LocalStore) -> None:
    """Item 5."""
    assert [store.store_time_of("T", 0, at) for at in range(120)] == [START_MS + at // 2 * 10 for at in range(120)]
    assert store.store_time_of("T", 0, 120) == -1
    assert store.store_time_of("T", 0, -1) == -1
    assert store.store_time_of("Unknown", 0, 0) == -1


def test_store_times_of_records_with_hosts_of_either_family(clock: ManualClock) -> None:
    for host in ("1.2.3.4:5", "[::1]:5"):
        with on_simulation(clock=clock, store_host=host) as store:
            store.put(Message("T", b"", born_host="1.2.3.4:5"))
            store.put(Message("T", b"", born_host="[::1]:5"))
            store.dispatch_now()
            assert [store.store_time_of("T", 0, at) for at in (0, 1)] == [clock.now_ms()] * 2


def test_the_earliest_time_is_that_of_the_oldest_message(store: LocalStore) -> None:
    assert (store.earliest_time("T", 0), store.earliest_time("Unknown", 0)) == (START_MS, -1)


def test_a_batch_queue_answers_by_time_too(clock: ManualClock) -> None:
    with on_simulation(clock=clock, batch_topics=["B"]) as store:
        for number in range(50):
            store.put(Message("B", body(number)))
            clock.advance_ms(10)
        store.dispatch_now()
        assert [store.offset_at("B", 0, START_MS + at * 10) for at in (0, 7, 49)] == [0, 7, 49]
        assert store.offset_at("B", 0, START_MS + 71) == 8
        assert store.offset_at("B", 0, START_MS + 71, "upper") == 8  # As RocketMQ's batch queues: the next one.
        assert store.store_time_of("B", 0, 7) == START_MS + 70


# By place


def test_the_place_of_each_message_leads_to_it(store: LocalStore) -> None:
    """Item 3."""
    for at in (0, 57, 119):
        message = store.message_at(store.physical_offset_of("T", 0, at))
        assert message is not None
        assert (message.queue_offset, message.body) == (at, body(at))
        assert store.message_at(message.physical_offset, message.size) == message


@pytest.mark.parametrize("offset", [-1, 2**40, 2**62, -(2**62)])
def test_nothing_is_outside_of_the_log(store: LocalStore, offset: int) -> None:
    """Item 3."""
    assert store.message_at(offset) is None
    assert store.message_at(store.max_physical_offset) is None
    assert store.message_at(0, 10**9) is None


def test_a_message_is_found_by_its_id_for_both_families_of_hosts() -> None:
    for host in ("1.2.3.4:10911", "[2001:db8::1]:10911"):
        with on_simulation(store_host=host) as store:
            results = put_all(store, 3)
            for number, result in enumerate(results):
                assert result.message_id is not None
                found = store.stored_at(decode_message_id(result.message_id).physical_offset)
                assert found is not None
                assert (found.body, found.message_id) == (body(number), result.message_id)


# By key


def test_a_key_finds_its_message_and_no_other(store: LocalStore) -> None:
    page = store.query("T", "k77")
    assert [message.body for message in page.messages] == [body(77)]
    assert page.last_update_timestamp_ms == START_MS + 590
    assert page.last_update_physical_offset == store.physical_offset_of("T", 0, 119)
    assert store.query("T", "k").messages == []
    assert store.query("U", "k77").messages == []


def test_trap_47_keys_with_one_hash_do_not_find_each_other() -> None:
    with on_simulation() as store:
        for number, key in enumerate(["Aa", "BB"] * 20):
            store.put(Message("T", body(number), keys=key))
        store.dispatch_now()
        assert [m.keys for m in store.query("T", "Aa", max_messages=10).messages] == [["Aa"]] * 10
        assert [m.body for m in store.query("T", "BB", max_messages=64).messages] == [body(n) for n in range(1, 40, 2)]


def test_a_key_whose_hash_is_the_smallest_int_is_found() -> None:
    """Trap 47: |-2^31| is negative; such keys are kept under hash 0."""
    with on_simulation() as store:
        store.put(Message("T", b"x", keys="polygenelubricants"))
        store.dispatch_now()
        assert len(store.query("T", "polygenelubricants").messages) == 1


def test_every_key_and_the_unique_key_find_a_message() -> None:
    with on_simulation() as store:
        store.put(Message("T", b"x", keys=["a", "b"], properties={"UNIQ_KEY": "u"}))
        store.put(Message("T", b"y", encoded_properties=encode_properties({"KEYS": "  c   d "})))
        store.put(Message("T", "ü".encode(), keys="schlüssel"))
        store.dispatch_now()
        found = {
            key: [m.body for m in store.query("T", key).messages] for key in ("a", "b", "u", "c", "d", "schlüssel")
        }
        assert found == {"a": [b"x"], "b": [b"x"], "u": [b"x"], "c": [b"y"], "d": [b"y"], "schlüssel": ["ü".encode()]}


def test_a_query_gives_the_newest_messages_oldest_first(clock: ManualClock) -> None:
    with on_simulation(clock=clock) as store:
        put_all(store, 100, keys="k")
        assert [m.queue_offset for m in store.query("T", "k", max_messages=10).messages] == list(range(90, 100))
        assert len(store.query("T", "k", max_messages=10_000).messages) == 64
        assert store.query("T", "k", max_messages=0).messages == []


def test_a_time_range_is_kept_to_the_millisecond(store: LocalStore, clock: ManualClock) -> None:
    """Trap 10: the index knows seconds, the record knows milliseconds."""
    assert len(store.query("T", "k50", START_MS + 250, START_MS + 250).messages) == 1
    assert store.query("T", "k50", START_MS + 251, START_MS + 10_000).messages == []
    assert store.query("T", "k50", 0, START_MS + 249).messages == []
    clock.advance_ms(2_345)
    store.put(Message("T", b"late", keys="late"))
    store.dispatch_now()
    now = clock.now_ms()
    assert len(store.query("T", "late", now, now).messages) == 1
    assert store.query("T", "late", now + 1).messages == []


def test_trap_09_entries_of_a_rolled_index_file_are_found_at_their_own_time(clock: ManualClock) -> None:
    with on_simulation(clock=clock, max_index_num=10) as store:
        for number in range(35):
            store.put(Message("T", body(number), keys=f"k{number}"))
            clock.advance_ms(61_000)
        store.dispatch_now()
        for number in range(35):
            at = START_MS + number * 61_000
            assert [m.body for m in store.query("T", f"k{number}", at, at).messages] == [body(number)], number


def test_trap_11_a_hit_whose_record_is_gone_does_not_hide_the_others(clock: ManualClock) -> None:
    with on_simulation(SimulatedFileAccess(clock=clock), clock=clock, mapped_file_size_commit_log=4096) as store:
        put_all(store, 100, keys="k")
        store.flush()
        store.flush_queues()
        clock.advance_ms(100 * 3_600_000)
        store.clean_now()
        oldest = store.min_offset("T", 0)
        assert oldest > 0
        found = store.query("T", "k", max_messages=64).messages
        assert [m.queue_offset for m in found] == list(range(max(oldest, 36), 100))


def test_a_store_without_an_index_reports_so() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access, message_index_enable=False) as store:
        put_all(store, 3, keys="k")
        with pytest.raises(StoreError, match="message_index_enable"):
            store.query("T", "k")
        assert access.list_files("/store/index") == []


def test_everything_is_an_error_once_the_store_is_closed() -> None:
    store = on_simulation()
    put_all(store, 1, keys="k")
    store.close()
    for ask in (
        lambda: store.query("T", "k"),
        lambda: store.message_at(0),
        lambda: store.min_offset("T", 0),
        lambda: store.max_offset("T", 0),
        lambda: store.offset_at("T", 0, 0),
        lambda: store.store_time_of("T", 0, 0),
        lambda: store.delete_topics(["T"]),
        lambda: store.dispatch_now(),
        lambda: store.flush(),
        lambda: store.clean_now(),
        lambda: store.verify_log(),
        lambda: store.when_durable(0, lambda status: None),
    ):
        with pytest.raises(StoreClosed):
            ask()

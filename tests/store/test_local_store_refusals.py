"""What a store refuses to put: the status, and that nothing was written and no queue offset consumed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, bodies, on_simulation, put_all
from tiermq import Message, PutResult, PutStatus
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.properties import encode_properties
from tiermq.store.local_store import LocalStore

PUT_OK = PutStatus.PUT_OK
ILLEGAL = PutStatus.MESSAGE_ILLEGAL
BIG = 8 * 1024 * 1024  # A log file that holds a message of the largest size.


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with on_simulation(batch_topics=["Batch"]) as opened:
        yield opened


@pytest.fixture(scope="module")
def big_store() -> Iterator[LocalStore]:
    with on_simulation(mapped_file_size_commit_log=BIG) as opened:
        yield opened


def refused(store: LocalStore, message: Message) -> PutStatus:
    """The status of a put that must leave no trace."""
    before = (store.max_physical_offset, store.max_offset(message.topic, message.queue_id, committed=False))
    result = store.put(message)
    assert not result.ok
    assert (result.physical_offset, result.queue_offset, result.size, result.message_id) == (-1, -1, 0, None)
    after = (store.max_physical_offset, store.max_offset(message.topic, message.queue_id, committed=False))
    assert after == before
    return result.status


def test_properties_of_32768_bytes_are_refused_and_consume_no_queue_offset(store: LocalStore) -> None:
    """Item 6."""
    assert refused(store, Message("T", b"x", encoded_properties=b"p" * 32768)) is PutStatus.PROPERTIES_SIZE_EXCEEDED
    result = store.put(Message("T", b"x"))
    assert result.queue_offset == 0
    store.dispatch_now()
    assert store.max_offset("T", 0) == 1


def test_a_body_of_more_than_four_mebibytes_is_refused(big_store: LocalStore) -> None:
    """Item 7."""
    assert refused(big_store, Message("T", bytes(4_194_305))) is ILLEGAL


def test_the_largest_body_topic_and_properties_are_accepted_together(big_store: LocalStore) -> None:
    """Item 8."""
    largest = Message("t" * 127, bytes(4_194_304), encoded_properties=b"p" * 32767)
    result = big_store.put(largest)
    assert result.status is PUT_OK
    assert result.size == 91 + 127 + 4_194_304 + 32767
    stored = big_store.message_at(result.physical_offset)
    assert stored is not None
    assert (len(stored.body), stored.topic, len(stored.encoded_properties)) == (4_194_304, "t" * 127, 32767)


@pytest.mark.parametrize(
    ("body_bytes", "properties_bytes", "status"),
    [
        (4_194_305, 0, ILLEGAL),
        (4_194_304 + 65_536, 0, ILLEGAL),
        (4_194_304, 32_768, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (4_194_305, 32_768, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (1, 70_000, PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_the_limits_of_a_record(
    big_store: LocalStore, body_bytes: int, properties_bytes: int, status: PutStatus
) -> None:
    """Item 8."""
    message = Message("T", bytes(body_bytes), encoded_properties=b"p" * properties_bytes)
    assert refused(big_store, message) is status


def test_the_crc_property_counts_towards_the_limit_of_properties() -> None:
    with on_simulation(enabled_append_prop_crc=True, mapped_file_size_commit_log=BIG) as store:
        fits = encode_properties({"k": "v" * (32767 - 20 - 3)})
        assert len(fits) == 32747
        assert store.put(Message("T", b"x", encoded_properties=fits)).ok
        too_large = encode_properties({"k": "v" * (32767 - 20 - 2)})
        assert refused(store, Message("T", b"x", encoded_properties=too_large)) is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_the_largest_message_size_can_be_raised_and_lowered_while_running(store: LocalStore) -> None:
    """Item 9."""
    hundred = Message("T", bytes(100))
    assert store.put(hundred).ok
    store.set_max_message_size(99)
    assert refused(store, hundred) is ILLEGAL
    assert [result.status for result in store.put_many([hundred, Message("T", bytes(99))])] == [ILLEGAL, PUT_OK]
    assert store.queue("T").put(bytes(100)).status is ILLEGAL
    store.set_max_message_size(100)
    assert store.put(hundred).ok
    store.set_max_message_size(9)  # Ignored, as RocketMQ does.
    assert store.put(hundred).ok


@pytest.mark.parametrize(
    "topic",
    [
        "a b",
        "a/b",
        "../escape",
        ".",
        "a.b",
        "ä",
        "t" * 128,
        "%RETRY%" + "g" * 249,
        "%DLQ%" + "g" * 251,
        "a\x00b",
        "\ud800",
    ],
)
def test_an_illegal_topic_name_is_refused(store: LocalStore, topic: str) -> None:
    assert refused(store, Message(topic, b"x")) is ILLEGAL
    assert store.topics() == {}


@pytest.mark.parametrize("topic", ["t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "a|b-c_d%"])
def test_a_legal_topic_name_is_accepted_and_read_back(store: LocalStore, topic: str) -> None:
    assert store.put(Message(topic, b"x")).ok
    store.dispatch_now()
    assert bodies(store, topic) == [b"x"]


def test_trap_12_a_topic_that_needs_two_length_bytes_is_refused_when_only_version_one_may_be_written() -> None:
    with on_simulation(auto_message_version_on_topic_len=False) as store:
        assert refused(store, Message("%RETRY%" + "g" * 200, b"x")) is ILLEGAL
        put_all(store, 3)
        assert len(bodies(store)) == 3


def test_a_queue_handle_for_an_illegal_topic_is_an_error(store: LocalStore) -> None:
    with pytest.raises(IllegalMessage, match="legal topic"):
        store.queue("not/legal")


def test_trap_01_a_message_larger_than_a_file_is_refused_and_burns_no_file(store: LocalStore) -> None:
    put_all(store, 1)
    before = (store.max_physical_offset, len(store._parts.log.files.files))
    too_large = LOG_BYTES - 8 - 91 - 1 + 1
    for _ in range(3):
        assert refused(store, Message("T", bytes(too_large))) is ILLEGAL
    assert (store.max_physical_offset, len(store._parts.log.files.files)) == before
    assert store.put(Message("T", bytes(too_large - 1))).ok


def test_a_message_of_exactly_a_file_less_eight_bytes_fits_an_empty_file(store: LocalStore) -> None:
    result = store.put(Message("T", bytes(LOG_BYTES - 8 - 91 - 1)))
    assert (result.status, result.physical_offset, result.size) == (PUT_OK, 0, LOG_BYTES - 8)
    following = store.put(Message("T", b"next"))
    assert following.physical_offset == LOG_BYTES


def test_a_closed_store_accepts_nothing() -> None:
    store = on_simulation()
    put_all(store, 1)
    handle = store.queue("T")
    store.close()
    message = Message("T", b"x")
    unavailable = PutStatus.SERVICE_NOT_AVAILABLE
    assert store.put(message).status is unavailable
    assert [result.status for result in store.put_many([message, message])] == [unavailable] * 2
    assert handle.put(b"x").status is unavailable
    batch = Message("T", encode_client_batch([BatchElement(0, b"x", b"")]))
    assert [result.status for result in store.put_batch(batch)] == [unavailable]
    assert store.put(Message("T", b"x", properties={"INNER_MULTI_DISPATCH": "a"})).status is unavailable


@pytest.mark.parametrize("sync", [True, False])
def test_a_closed_store_accepts_nothing_in_either_flush_mode(sync: bool) -> None:
    store = on_simulation(flush_disk_type="SYNC_FLUSH" if sync else "ASYNC_FLUSH", background=True)
    store.close()
    assert store.put(Message("T", b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert [r.status for r in store.put_many([Message("T", b"x")])] == [PutStatus.SERVICE_NOT_AVAILABLE]


# Inner batches


def inner(topic: str = "Batch", sys_flag: int = 0xC0, **properties: str) -> Message:
    body = encode_client_batch([BatchElement(0, b"a", b""), BatchElement(0, b"b", b"")])
    return Message(topic, body, sys_flag=sys_flag, properties=properties)


@pytest.mark.parametrize(
    "message",
    [
        inner(INNER_NUM="2", sys_flag=0),
        inner(INNER_NUM="2", sys_flag=0x40),
        inner(),
        inner("Simple", INNER_NUM="2"),
        inner(INNER_NUM="many"),
        inner(INNER_NUM="-1"),
        inner(INNER_NUM="32768"),
        inner(INNER_NUM="99999999999999999999"),
        inner("Simple", INNER_NUM="x", sys_flag=0),
    ],
    ids=["no flag", "half a flag", "no number", "simple topic", "no digits", "negative", "too many", "huge", "plain"],
)
def test_an_inner_batch_whose_flag_property_and_topic_disagree_is_refused(store: LocalStore, message: Message) -> None:
    """Item 32, table 2.7."""
    assert refused(store, message) is ILLEGAL


def test_a_client_s_inner_base_does_not_stop_the_dispatch_of_others(store: LocalStore) -> None:
    poison = [Message("T", b"x", properties={"INNER_BASE": value}) for value in ("text", "-1", "9" * 30)]
    poison += [Message("Batch", b"x", properties={"INNER_BASE": "text"})]
    for message in poison:
        store.put(message)
    put_all(store, 2, "After")
    assert len(bodies(store, "After")) == 2
    assert store.dispatched_where == store.max_physical_offset


def test_bits_that_describe_hosts_are_the_store_s_own(store: LocalStore) -> None:
    """A client that copies the flags of a message from an IPv6 host must not make an unreadable record."""
    for flag in (0x10, 0x20, 0x30):
        assert store.put(Message("T", b"copied", sys_flag=flag)).ok
    store.dispatch_now()
    assert bodies(store) == [b"copied"] * 3
    assert store.verify_log() == 3


# Classic batches


def batch_of(*elements: BatchElement, **fields: object) -> Message:
    return Message("T", encode_client_batch(elements), **fields)  # type: ignore[arg-type]


def refused_batch(store: LocalStore, envelope: Message) -> set[PutStatus]:
    before = (store.max_physical_offset, store.max_offset("T", 0, committed=False))
    results = store.put_batch(envelope)
    assert (store.max_physical_offset, store.max_offset("T", 0, committed=False)) == before
    assert results.end_offset == -1
    assert all(result.physical_offset == -1 for result in results)
    return {result.status for result in results}


ELEMENTS = [BatchElement(0, b"a", b""), BatchElement(0, b"b", b"")]


@pytest.mark.parametrize("sys_flag", [4, 8, 12])
def test_a_transactional_batch_is_refused(store: LocalStore, sys_flag: int) -> None:
    assert refused_batch(store, batch_of(*ELEMENTS, sys_flag=sys_flag)) == {ILLEGAL}


def test_a_delayed_batch_is_refused(store: LocalStore) -> None:
    assert refused_batch(store, batch_of(*ELEMENTS, properties={"DELAY": "3"})) == {ILLEGAL}
    assert store.put_batch(batch_of(*ELEMENTS, properties={"DELAY": "0"})).all_ok


def test_a_batch_body_beyond_the_message_size_is_refused(store: LocalStore) -> None:
    """Item 7."""
    store.set_max_message_size(100)
    assert refused_batch(store, batch_of(*[BatchElement(0, bytes(20), b"")] * 10)) == {ILLEGAL}


def test_a_batch_that_no_file_can_hold_is_refused_whole(store: LocalStore) -> None:
    assert refused_batch(store, batch_of(*[BatchElement(0, bytes(1000), b"")] * 20)) == {ILLEGAL}


def test_a_batch_with_one_illegal_element_is_refused_whole(store: LocalStore) -> None:
    put_all(store, 1)
    for bad in (b"INNER_NUM\x012\x02", b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"):
        assert refused_batch(store, batch_of(ELEMENTS[0], BatchElement(0, b"b", bad))) == {ILLEGAL}


def test_a_batch_to_an_illegal_topic_is_refused_whole(store: LocalStore) -> None:
    envelope = Message("a/b", encode_client_batch(ELEMENTS))
    assert {result.status for result in store.put_batch(envelope)} == {ILLEGAL}


def test_a_batch_whose_body_is_no_batch_raises(store: LocalStore) -> None:
    with pytest.raises(CorruptRecord):
        store.put_batch(Message("T", b"not a batch"))
    assert store.max_physical_offset == 0


def test_an_empty_batch_stores_nothing(store: LocalStore) -> None:
    results = store.put_batch(Message("T", b""))
    assert (len(results), results.end_offset, store.max_physical_offset) == (0, -1, 0)


# A full disk


def test_a_put_on_a_full_disk_is_refused_and_accepted_again_once_there_is_room() -> None:
    access = SimulatedFileAccess(capacity_bytes=40 * 1024)
    with on_simulation(access, clock=ManualClock()) as store:
        results = []
        while True:
            results.append(store.put(Message("T", bytes(1000))))
            if not results[-1].ok:
                break
        assert results[-1].status in (PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.SERVICE_NOT_AVAILABLE)
        assert not store.put(Message("T", bytes(1000))).ok
        access.capacity_bytes = 1024 * 1024
        again = store.put(Message("T", bytes(1000)))
        assert again.ok
        assert again.queue_offset == len(results) - 1
        store.dispatch_now()
        assert len(bodies(store)) == len(results)


def test_a_refused_put_result_reports_why_in_words() -> None:
    assert repr(PutResult(ILLEGAL)) == "PutResult(status=MESSAGE_ILLEGAL, queue_offset=-1, physical_offset=-1, size=0)"

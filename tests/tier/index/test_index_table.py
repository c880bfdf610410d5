"""The table of files: what a put changes, what a moment shows, and what the rooms around it may rely on."""

from __future__ import annotations

from present import present
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.tier.index.compacted_index import IndexState
from tiermq.tier.index.index_coverage import Hole, QueueTail
from tiermq.tier.index.index_item import index_hash
from tiermq.tier.index.index_request import IndexRequest, PutOutcome
from tiermq.tier.index.index_table import Filled, IndexTable, hashes_of

NOW_MS = 1_700_000_000_000


def new_table(clock: ManualClock | None = None) -> IndexTable:
    return IndexTable(SimulatedFileAccess(), "/index", 5, 6, clock or ManualClock(NOW_MS))


def request(offset: int, *keys: str, topic_id: int = 1) -> IndexRequest:
    return IndexRequest("T", topic_id, 0, keys, offset, 10, NOW_MS)


def test_no_file_is_made_before_the_first_key() -> None:
    table = new_table()
    table.put(request(0))
    assert table.entries() == ()
    table.put(request(10, "k"))
    assert [entry.state for entry in table.entries()] == [IndexState.UNSEALED]


def test_begin_times_are_unique_and_grow_also_when_the_clock_goes_back() -> None:
    clock = ManualClock(NOW_MS)
    table = new_table(clock)
    for n in range(3):
        table.put(request(10 * n, "k"))
        table.seal_current()
        clock.advance_ms(-1000)
    assert [entry.begin_ms for entry in table.entries()] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]


def test_a_moment_is_true_of_files_and_coverage_and_counts_every_change() -> None:
    table = new_table()
    versions = {present(table.moment()).version}
    for n in range(7):
        table.put(request(10 * n, "k"))
        moment = present(table.moment())
        versions.add(moment.version)
        assert sum(facts.item_count for _, facts in moment.files) == n + 1
        assert moment.record.queues == (("T", 1, 0, 10 * n + 10, ()),)
    assert len(versions) == 8
    assert [entry.begin_ms for entry in moment.sealed] == [NOW_MS]
    assert table.put(request(0, "k")) is PutOutcome.ALREADY_INDEXED
    assert present(table.moment()).version == moment.version


def test_a_sealed_file_remembers_what_was_indexed_then_and_not_what_came_later() -> None:
    table = new_table()
    table.put(request(0, "k"))
    table.seal_current()
    table.put(request(10, "k"))
    sealed = table.entries()[0].sealed_record
    assert sealed is not None
    assert sealed.queues == (("T", 1, 0, 10, ()),)
    assert [facts.item_count for facts in sealed.files] == [1]


def test_there_is_nothing_to_seal_before_the_first_key() -> None:
    assert new_table().seal_current() is False


def test_reading_back_fills_the_hole_and_nothing_else() -> None:
    table = new_table()
    table.coverage.of("T", 1, 0).end = 20
    table.coverage.expect([QueueTail("T", 1, 0, 60)])
    table.put(request(50, "live"))
    assert table.holes() == [(("T", 0), 20)]
    name = ("T", 0)
    assert table.fill(name, request(10, "earlier")) is Filled.TAKEN  # Passed over: it is indexed.
    assert table.fill(name, request(20, "a")) is Filled.TAKEN
    assert table.fill(name, request(30, "b", topic_id=2)) is Filled.BEHIND  # Another life of the topic.
    assert table.fill(name, request(30, "b")) is Filled.TAKEN
    assert table.coverage.queues[name].holes == [Hole(40, 50)]
    assert table.fill(name, request(50, "live")) is Filled.BEHIND
    table.close_hole(name)
    assert table.holes() == []
    table.close_hole(name)
    entry = table.entries()[0]
    assert entry.local is not None
    assert entry.local.facts().item_count == 3


def test_holes_are_unknown_while_the_base_is() -> None:
    table = new_table()
    table.coverage.is_base_known = False
    table.put(request(50, "live"))
    assert table.holes() == []


def test_a_record_read_back_that_no_file_can_take_is_passed_over() -> None:
    table = new_table()
    table.coverage.expect([QueueTail("T", 1, 0, 60)])
    assert table.fill(("T", 0), request(0, *"abcdefgh")) is Filled.TAKEN
    assert table.holes() == [(("T", 0), 10)]


def test_a_shut_table_takes_nothing() -> None:
    table = new_table()
    table.put(request(0, "k"))
    table.shut()
    assert table.put(request(10, "k")) is PutOutcome.SHUTDOWN
    assert table.entries() == ()
    assert table.fill(("T", 0), request(10, "k")) is Filled.CLOSING
    assert table.moment() is None  # A record of it would claim what no file holds.


def test_each_key_is_hashed_once_with_its_topic() -> None:
    assert hashes_of(IndexRequest("TopicTest", 1, 0, ["MessageKey", "", "MessageKey"], 0, 1, 0)) == (638347386,)
    keys = ["ajvakuzm", "中文", "a" * 99]  # The first has no absolute value.
    assert hashes_of(IndexRequest("T", 1, 0, keys, 0, 1, 0)) == tuple(index_hash("T", key) for key in keys)

"""What is indexed of a queue: ends, holes, repetitions, and the record that keeps them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import StoreDamaged
from tiermq.tier.index.index_coverage import OPEN, Coverage, CoverageRecord, Hole, QueueCoverage, QueueTail
from tiermq.tier.index.index_write_file import FileFacts

FACTS = FileFacts(1_700_000_000_000, 5, 20, 3, 2, 1_600_000_000_000, 1_700_000_001_000, frozenset({4, -7}))


def test_puts_in_order_move_the_end_and_leave_no_hole() -> None:
    queue = QueueCoverage(1)
    for offset in (0, 100, 200):
        assert queue.admit(offset)
        queue.note_put(offset, 100)
    assert (queue.end, queue.holes) == (300, [])
    assert not queue.admit(200)


def test_the_first_put_beyond_the_end_leaves_a_hole_and_later_ones_do_not() -> None:
    queue = QueueCoverage(1, end=100)
    queue.note_put(300, 50)
    queue.note_put(500, 50)
    assert (queue.end, queue.holes) == (550, [Hole(100, 300)])


def test_the_first_put_closes_an_open_hole_where_it_is() -> None:
    queue = QueueCoverage(1, end=100)
    queue.open_hole()
    queue.open_hole()
    assert queue.holes == [Hole(100, OPEN)]
    queue.note_filled(100, 50)
    assert (queue.end, queue.holes) == (150, [Hole(150, OPEN)])
    queue.note_put(200, 10)
    assert (queue.end, queue.holes) == (210, [Hole(150, 200)])
    assert (queue.wants(149), queue.wants(150), queue.wants(199), queue.wants(200)) == (False, True, True, False)
    queue.note_filled(150, 50)
    assert queue.holes == []


def test_a_put_right_behind_what_was_filled_leaves_no_hole() -> None:
    queue = QueueCoverage(1, end=100)
    queue.open_hole()
    queue.note_filled(100, 50)
    queue.note_put(150, 10)
    assert (queue.end, queue.holes) == (160, [])


def test_a_live_queue_gets_no_open_hole() -> None:
    queue = QueueCoverage(1)
    queue.note_put(0, 10)
    queue.open_hole()
    assert queue.holes == []


def test_a_queue_of_another_topic_id_begins_again() -> None:
    coverage = Coverage()
    coverage.of("T", 1, 0).end = 500
    assert coverage.of("T", 1, 0).end == 500
    assert coverage.of("T", 2, 0).end == 0


def test_holes_are_expected_only_where_more_is_committed_than_indexed() -> None:
    coverage = Coverage()
    coverage.of("T", 1, 0).end = 500
    coverage.of("T", 1, 1).end = 500
    coverage.expect(
        [QueueTail("T", 1, 0, 500), QueueTail("T", 1, 1, 501), QueueTail("N", 2, 0, 9), QueueTail("E", 3, 0, 0)]
    )
    holes = {name: queue.holes for name, queue in coverage.queues.items() if queue.holes}
    assert holes == {("T", 1): [Hole(500, OPEN)], ("N", 0): [Hole(0, OPEN)]}
    assert coverage.hole_count == 2


def test_what_an_earlier_life_indexed_is_learned_behind_the_first_puts() -> None:
    base = Coverage()
    base.of("T", 1, 0).end = 500
    base.of("T", 1, 1).end = 700
    base.of("T", 1, 2).end = 100
    base.of("T", 1, 3).holes = [Hole(2, 5), Hole(7, OPEN)]
    base.of("T", 1, 3).end = 7
    base.of("again", 1, 0).end = 100
    base.of("added", 1, 0).end = 100
    base.of("quiet", 1, 0).holes = [Hole(3, 9)]
    base.of("named", 1, 0).end = 100
    coverage = Coverage(is_base_known=False)
    for queue_id, first in ((0, 500), (1, 900), (2, 100), (3, 20)):
        coverage.of("T", 1, queue_id).note_put(first, 10)
    coverage.of("again", 2, 0).note_put(0, 10)
    coverage.of("added", 1, 0).note_put(0, 10)
    coverage.of("named", 1, 0)
    coverage.begin_from(base)
    assert coverage.is_base_known
    found = {name: (queue.end, queue.holes) for name, queue in coverage.queues.items()}
    assert found == {
        ("T", 0): (510, []),
        ("T", 1): (910, [Hole(700, 900)]),
        ("T", 2): (110, []),
        ("T", 3): (30, [Hole(2, 5), Hole(7, 20)]),
        ("again", 0): (10, []),
        ("added", 0): (10, []),
        ("quiet", 0): (0, [Hole(3, 9)]),
        ("named", 0): (100, []),
    }


names = st.text(min_size=1, max_size=5)
numbers = st.integers(0, 2**62)
holes = st.lists(st.tuples(numbers, st.one_of(numbers, st.just(OPEN))).map(Hole._make), max_size=2)
queues = st.dictionaries(st.tuples(names, numbers), st.builds(QueueCoverage, numbers, numbers, holes), max_size=4)


@given(queues, st.booleans(), numbers)
def test_a_record_comes_back_as_it_went(known: dict[tuple[str, int], QueueCoverage], is_known: bool, base: int) -> None:
    record = CoverageRecord.of(Coverage(known, is_base_known=is_known), [FACTS], base)
    again = CoverageRecord.decode(record.encode(), "here")
    assert again == record
    assert again.coverage().queues == known
    assert again.coverage().is_base_known is is_known


def test_the_record_of_this_version_looks_like_this_for_ever() -> None:
    coverage = Coverage()
    coverage.of("T", 7, 3).end = 500
    coverage.of("T", 7, 3).holes = [Hole(1, 2), Hole(500, OPEN)]
    assert json.loads(CoverageRecord.of(coverage, [FACTS], 99).encode()) == {
        "version": 1,
        "next_base": 99,
        "is_base_known": True,
        "files": [
            {
                "begin_ms": 1_700_000_000_000, "slots": 5, "capacity": 20, "item_count": 3, "slot_count": 2,
                "oldest_ms": 1_600_000_000_000, "newest_ms": 1_700_000_001_000, "topic_ids": [-7, 4],
            }
        ],
        "queues": [["T", 7, 3, 500, [[1, 2], [500, None]]]],
    }  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"version":1}',
        b'{"version":1,"next_base":0,"is_base_known":1,"files":[{}],"queues":[]}',
    ],
)
def test_what_is_no_record_is_refused_with_its_place(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="/here"):
        CoverageRecord.decode(data, "/here")


def test_a_record_of_a_newer_program_is_refused() -> None:
    with pytest.raises(StoreDamaged, match="newer"):
        CoverageRecord.decode(b'{"version":2}', "/here")


def test_what_rocketmq_indexed_is_doubtful_until_it_is_read_again() -> None:
    coverage = Coverage()
    coverage.take_as_indexed([QueueTail("T", 1, 0, 300), QueueTail("U", 2, 0, 0)])
    assert (coverage.hole_count, coverage.is_complete(), coverage.is_complete("T")) == (0, False, False)
    assert coverage.is_complete("U"), "nothing was committed there"
    assert not coverage.queues["T", 0].admit(200), "its records are not new for that"
    assert (coverage.reindex(), coverage.reindex()) == (1, 0)
    queue = coverage.queues["T", 0]
    assert queue.holes == [Hole(0, 300)]
    for offset in (0, 100, 200):
        assert queue.wants(offset)
        queue.note_filled(offset, 100)
    assert (queue.end, coverage.is_complete("T"), coverage.is_complete()) == (300, True, True)


def test_reindexing_keeps_the_holes_behind() -> None:
    coverage = Coverage()
    coverage.take_as_indexed([QueueTail("T", 1, 0, 300)])
    coverage.expect([QueueTail("T", 1, 0, 500)])
    coverage.reindex()
    queue = coverage.queues["T", 0]
    assert queue.holes == [Hole(0, 300), Hole(300, OPEN)]
    queue.note_filled(0, 300)
    queue.note_filled(300, 200)
    assert (queue.end, queue.holes) == (500, [Hole(500, OPEN)])


def test_doubt_survives_its_record_and_a_late_beginning() -> None:
    base = Coverage()
    base.take_as_indexed([QueueTail("T", 1, 0, 300), QueueTail("U", 2, 5, 40)])
    record = CoverageRecord.decode(CoverageRecord.of(base, [FACTS], 7).encode(), "here")
    assert record == CoverageRecord.of(base, [FACTS], 7)
    later = Coverage(is_base_known=False)
    later.of("T", 1, 0).note_put(400, 10)
    later.begin_from(record.coverage())
    assert (later.queues["T", 0].doubtful_end, later.queues["U", 5].doubtful_end) == (300, 40)
    assert later.queues["T", 0].holes == [Hole(300, 400)]
    assert later.reindex() == 2


def test_a_record_without_doubt_is_as_it_always_was() -> None:
    assert b"doubtful" not in CoverageRecord.of(Coverage({("T", 0): QueueCoverage(1, 10)}), []).encode()


@pytest.mark.parametrize("doubtful", [5, [1], [["T", "x", 3]], [["T", 0]], {"T": 1}])
def test_a_damaged_doubt_is_damage(doubtful: object) -> None:
    record = json.loads(CoverageRecord.of(Coverage(), []).encode())
    with pytest.raises(StoreDamaged):
        CoverageRecord.decode(json.dumps({**record, "doubtful": doubtful}).encode(), "here")

"""Which messages a table has, as ranges."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tiermq.tables.commit_journal import ExportedRanges, queue_of, queue_text, total
from tiermq.tier.names import QueueKey

QUEUE = QueueKey("c", "b", "orders", 3)
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(RANGES, st.integers(0, 60), st.integers(0, 60))
def test_ranges_say_exactly_what_a_set_of_offsets_reports(ranges: list[tuple[int, int]], begin: int, end: int) -> None:
    made, offsets = ExportedRanges(), set()
    for low, high in ranges:
        made.add(QUEUE, low, high)
        offsets |= set(range(low, high))
    missing = [offset for low, high in made.missing(QUEUE, begin, end) for offset in range(low, high)]
    assert missing == [offset for offset in range(begin, end) if offset not in offsets]
    assert made.messages == len(offsets)
    assert made.end(QUEUE) == (max(offsets) + 1 if offsets else None)
    assert made.overlaps(QUEUE, begin, end) == any(offset in offsets for offset in range(begin, end))
    assert total(made.of(QUEUE)) == len(offsets)
    made.remove(QUEUE, begin, end)
    assert [each for low, high in made.of(QUEUE) for each in range(low, high)] == sorted(offsets - {*range(begin, end)})
    assert made.queues() == ([QUEUE] if made.messages else [])


@given(RANGES)
def test_ranges_come_back_from_json_as_they_were_and_joined(ranges: list[tuple[int, int]]) -> None:
    made = ExportedRanges({QUEUE: ranges})
    assert ExportedRanges.of_json(made.as_json()) == made
    kept = made.of(QUEUE)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(kept))


def test_a_copy_does_not_change_with_its_original() -> None:
    made = ExportedRanges({QUEUE: [(0, 5)]})
    copy = made.copy()
    made.add(QUEUE, 5, 9)
    assert (copy.of(QUEUE), made.of(QUEUE)) == ([(0, 5)], [(0, 9)])


def test_the_text_of_a_queue_is_read_back() -> None:
    assert queue_of(queue_text(QUEUE)) == QUEUE

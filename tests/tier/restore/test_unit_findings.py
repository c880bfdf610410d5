"""What is collected over all chunks of a queue."""

from __future__ import annotations

from tier.metadata.metadata_samples import log_key, units_key
from tiermq.tier.metadata.metadata_values import EntrySpacing, Segment, TimeEntry
from tiermq.tier.queue.units import UnitChunk
from tiermq.tier.restore.queue_discovery import UnitFindings

LOGS = [Segment(log_key(0), 50), Segment(log_key(50), 50)]
UNITS = [Segment(units_key(0), 60), Segment(units_key(60), 140)]


def chunk(begin: int, end: int, **odd: list[int]) -> UnitChunk:
    """Ten bytes for each message."""
    offsets = range(begin, end)
    return UnitChunk(begin, end, offsets, [10 * n for n in offsets], [10] * len(offsets), **odd)


def collected(last_entry: TimeEntry | None = None) -> UnitFindings:
    found = UnitFindings(LOGS, UNITS, last_entry, EntrySpacing(messages_max=4))
    for piece in (chunk(0, 4), chunk(4, 10)):
        found.take(piece)
    return found


def test_each_segment_knows_its_first_and_last_record_across_chunks() -> None:
    found = collected()
    pairs = [(pair[0].queue_offset, pair[1].queue_offset) for pair in (*found.log_ends, *found.unit_ends) if pair]
    assert pairs == [(0, 4), (5, 9), (0, 2), (3, 9)]


def test_samples_are_spread_across_chunks() -> None:
    assert [place.queue_offset for place in collected().samples] == [0, 4, 8]
    assert [place.queue_offset for place in collected(TimeEntry(-2, 0, -20)).samples] == [2, 6]


def test_every_wanted_record_is_wanted_once_and_in_order() -> None:
    assert [place.queue_offset for place in collected().wanted_records()] == [0, 2, 3, 4, 5, 8, 9]


def test_the_end_is_where_records_end_and_odd_units_before_it_are_remembered() -> None:
    found = UnitFindings(LOGS, UNITS, None, EntrySpacing())
    found.take(UnitChunk(0, 10, [0, 5], [0, 50], [10, 10], bad=[3, 8], beyond=[4, 9], blank=[6, 7]))
    assert found.good_end(10) == 8
    assert found.bad_before(8) == [3, 4]

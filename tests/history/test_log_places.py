"""Between known places, messages are alike; at known places, nothing is guessed."""

from __future__ import annotations

from tiermq.history.catalog import QueueHistory
from tiermq.history.time_ranges import LogPlaces
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType

KEY = QueueKey("c", "b", "t", 0)


def queue(*entries: TimeEntry) -> QueueHistory:
    logs = (
        Segment(KEY.segment(SegmentType.COMMIT_LOG, 1000), 1000, begin_offset=10, end_offset=20),
        Segment(KEY.segment(SegmentType.COMMIT_LOG, 2000), 3000, begin_offset=20, end_offset=40),
    )
    return QueueHistory(KEY, cold_min=10, cold_max=40, logs=logs, time_entries=entries)


def test_places_are_exact_where_segments_and_entries_know_them() -> None:
    places = LogPlaces(queue(TimeEntry(30, 0, 4500)))
    assert [places.place(at) for at in (0, 10, 20, 30, 40, 99)] == [1000, 1000, 2000, 4500, 5000, 5000]
    assert places.place(25) == 3250
    assert places.bytes_of(20, 30) == 2500


def test_a_cut_moves_to_a_known_place_that_is_near() -> None:
    places = LogPlaces(queue(TimeEntry(30, 0, 4500)))
    assert places.offset_at(4400, 200) == 30
    assert places.offset_at(2100, 200) == 20
    assert places.offset_at(3250, 200) == 25
    assert (places.offset_at(0, 0), places.offset_at(9999, 0)) == (10, 40)


def test_a_part_of_the_log_is_widened_to_known_places() -> None:
    places = LogPlaces(queue(TimeEntry(30, 0, 4500)))
    assert places.around(2100, 4400) == ((20, 30), (2000, 4500))
    assert places.around(2000, 4500) == ((20, 30), (2000, 4500))
    assert places.around(4501, 5000) == ((30, 40), (4500, 5000))


def test_an_entry_that_does_not_ascend_is_passed_over() -> None:
    places = LogPlaces(queue(TimeEntry(30, 0, 17)))
    assert places.place(30) == 3500

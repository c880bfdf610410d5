"""Which segments count, when listing and manifest do not say the same."""

from __future__ import annotations

from tier.metadata.metadata_samples import QUEUE, log_key, units_key
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.restore.queue_discovery import Choice, choose_segments
from tiermq.tier.restore.restore_report import Finding


def info(key: SegmentKey, size: int, sealed: bool = False, damage: str | None = None) -> SegmentInfo:
    return SegmentInfo(key, size, sealed, 0, 77, damage)


def choose(infos: list[SegmentInfo], *rows: Segment) -> Choice:
    return choose_segments(infos, QueueManifest(QUEUE, segments=rows), SegmentType.COMMIT_LOG)


def findings(choice: Choice) -> list[Finding]:
    return [remark.finding for remark in choice.remarks]


def test_a_row_is_kept_where_the_listing_agrees() -> None:
    known = Segment(log_key(0), 100, SegmentStatus.NEW, 1, 2, 3, crc32=9, begin_offset=4, end_offset=5)
    choice = choose([info(log_key(0), 100)], known)
    assert (choice.live, choice.agrees, choice.remarks) == ([known], True, [])


def test_a_segment_that_grew_keeps_its_row_but_not_its_checksum() -> None:
    choice = choose([info(log_key(0), 150)], Segment(log_key(0), 100, crc32=9))
    assert (choice.live[0].size, choice.live[0].crc32, choice.agrees) == (150, None, True)


def test_without_a_manifest_the_listing_is_all_there_is() -> None:
    choice = choose_segments([info(log_key(0), 100, sealed=True)], None, SegmentType.COMMIT_LOG)
    assert choice.live == [Segment(log_key(0), 100, SegmentStatus.SEALED, created_ms=77, sealed_ms=77)]
    assert not choice.agrees


def test_a_missing_head_has_expired_and_a_missing_middle_is_lost() -> None:
    rows = [Segment(log_key(base), 100) for base in (0, 100, 200)]
    head = choose([info(log_key(100), 100), info(log_key(200), 100)], *rows)
    assert (findings(head), head.agrees) == ([Finding.MISSING_SEGMENT], True)
    middle = choose([info(log_key(0), 100), info(log_key(200), 100)], *rows)
    assert (findings(middle), middle.agrees) == ([Finding.MISSING_SEGMENT, Finding.HOLE], False)


def test_a_segment_that_was_announced_and_never_written_is_not_missed() -> None:
    choice = choose([info(log_key(0), 100)], Segment(log_key(0), 100), Segment(log_key(100), 0))
    assert (findings(choice), choice.agrees) == ([], True)


def test_a_damaged_segment_is_reported() -> None:
    choice = choose([info(log_key(0), 100, damage="a part is missing")], Segment(log_key(0), 100))
    assert (findings(choice), choice.remarks[0].text) == ([Finding.DAMAGED_SEGMENT], "a part is missing")


def test_units_at_an_impossible_base_are_orphans() -> None:
    choice = choose_segments([info(units_key(13), 100)], None, SegmentType.CONSUME_QUEUE)
    assert (choice.live, findings(choice)) == ([], [Finding.ORPHAN])

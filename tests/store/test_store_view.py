"""A store directory, read-only, by offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.consumequeue import unit
from tiermq.store.store_files import FileKind, StoreFile, classify
from tiermq.store.store_view import FileRun, QueueView, StoreView

GOLDEN = Path(__file__).parent.parent / "golden"


def queue_in(folder: Path, *files: tuple[int, bytes]) -> QueueView:
    folder = folder / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    found = []
    for base, data in files:
        path = folder / f"{base:020d}"
        path.write_bytes(data)
        found.append(classify(path))
    return QueueView(found)


def test_a_record_is_found_by_its_physical_offset_and_nothing_between_records() -> None:
    with StoreView.open(GOLDEN / "rocketmq-5.3.3-clean" / "store") as view:
        head = view.log.head_at(0)
        assert head is not None
        assert view.log.head_at(head.size) is not None
        assert view.log.head_at(1) is None
        assert view.log.head_at(10**12) is None
        assert view.log.properties_of(0, head).endswith(b"\x02")
        assert view.ended_cleanly


def test_the_end_of_the_log_is_the_end_of_its_last_record() -> None:
    with StoreView.open(GOLDEN / "rocketmq-5.3.3-clean" / "store") as view:
        ends = [found.physical_offset + found.size for queue in view.queues.values() for _, found in queue.units()]
        assert view.log.end_offset() == max(ends)


def test_bounds_of_a_queue_leave_out_what_the_log_no_longer_has(tmp_path: Path) -> None:
    units = b"".join(unit.encode(100 * number, 100, 0) for number in range(6))
    queue = queue_in(tmp_path, (0, units[:80]), (80, units[80:] + bytes(40)))
    assert queue.bounds(0) == (0, 6)
    assert queue.bounds(250) == (3, 6)
    assert queue.bounds(10_000) == (6, 6)
    queue.close()


def test_places_that_only_keep_the_numbering_are_no_units(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, (0, unit.PRE_BLANK * 2 + unit.encode(0, 50, 0) + bytes(20)))
    assert [offset for offset, _ in queue.units()] == [2]
    assert queue.unit_at(0) is None
    assert queue.unit_at(2) == unit.Unit(0, 50, 0)
    assert queue.unit_at(3) is None
    assert queue.unit_at(-1) is None
    assert queue.bounds(0) == (2, 3)
    queue.close()


def test_an_empty_queue_has_equal_bounds(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, (400, bytes(80)))
    assert queue.bounds(0) == (20, 20)
    queue.close()


def test_gaps_and_odd_sizes_are_layout_problems(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, (0, bytes(80)), (80, bytes(60)), (240, bytes(80)))
    problems = queue.layout_problems()
    assert len(problems) == 2
    assert "60" in problems[0]
    assert "160" in problems[1]
    queue.close()


def test_a_file_deleted_since_it_was_listed_is_left_out(tmp_path: Path) -> None:
    run = FileRun([StoreFile(tmp_path / ("0" * 20), FileKind.COMMIT_LOG, 0)])
    assert run.files == []
    assert run.find(0) is None
    assert run.min_offset == 0


def test_batch_queues_know_their_bounds() -> None:
    with StoreView.open(GOLDEN / "rocketmq-5.3.3-batches" / "store") as view:
        batches = [queue for queue in view.queues.values() if queue.is_batch]
        assert batches
        for queue in batches:
            units = list(queue.batch_units())
            assert queue.bounds(0) == (units[0].base_offset, units[-1].end_offset)
            assert queue.bounds(10**12) == (0, 0)


def test_a_crashed_store_did_not_end_cleanly() -> None:
    with StoreView.open(GOLDEN / "rocketmq-5.3.3-crashed" / "store") as view:
        assert not view.ended_cleanly


@pytest.mark.parametrize("store", ["rocketmq-5.3.3-clean", "rocketmq-5.3.3-crashed"])
def test_files_of_the_real_rocketmq_have_a_sound_layout(store: str) -> None:
    with StoreView.open(GOLDEN / store / "store") as view:
        assert view.log.layout_problems() == []
        assert [queue.layout_problems() for queue in view.queues.values() if queue.layout_problems()] == []

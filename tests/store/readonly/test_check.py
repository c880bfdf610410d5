"""`check_store` finds every contradiction between log, queues and index, and none where there is none."""

from __future__ import annotations

import gc
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from small_store import on_disk
from tiermq import Message
from tiermq.clock import EVER_MS
from tiermq.consumequeue import batch_unit, unit
from tiermq.errors import StoreError
from tiermq.index.index_file import ENTRY, ENTRY_BYTES, HEADER_BYTES
from tiermq.message.layout import QUEUE_OFFSET_AT
from tiermq.store.readonly.check import CheckReport, check_store
from tiermq.store.readonly.dump import dump
from tiermq.store.readonly.log import LogItem, walk_log_file
from tiermq.store.readonly.mapped_run import ReadOnlyMap

GOLDEN = Path(__file__).parents[2] / "golden"
STORES = sorted(path.name for path in GOLDEN.iterdir() if (path / "store").is_dir())
PAYMENTS = Path("consumequeue/payments/0/00000000000000000000")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy of a store that the real RocketMQ closed in order."""
    return Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-clean" / "store", tmp_path / "store"))


@contextmanager
def changed(path: Path) -> Iterator[bytearray]:
    data = bytearray(path.read_bytes())
    yield data
    path.write_bytes(data)


def kinds(report: CheckReport) -> Counter[str]:
    return Counter(finding.kind for finding in report.problems)


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_the_real_rocketmq_is_clean(name: str) -> None:
    report = check_store(GOLDEN / name / "store")
    assert report.problems == []
    assert report.notes == []
    assert report.counts["units"] >= report.counts["records"] > 0  # A message may enter several queues.
    assert (report.counts["index_entries"] > 0) == any((GOLDEN / name / "store" / "index").glob("*"))


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a store directory"):
        check_store(tmp_path)


def test_a_flipped_body_byte_is_found(store: Path) -> None:
    with changed(store / "commitlog" / "00000000000000000000") as data:
        data[100] ^= 1
    report = check_store(store)
    assert kinds(report) == {"log": 1}
    assert not report.is_clean


def test_a_unit_that_leads_to_another_record_is_found_from_both_sides(store: Path) -> None:
    with changed(store / PAYMENTS) as data:
        data[0:20], data[20:40] = data[20:40], data[0:20]
    found = kinds(check_store(store))
    assert found["unit_wrong"] == 4  # Two records miss their unit, two units miss their record.
    assert found["unit_order"] == 1


def test_an_erased_unit_and_everything_behind_it_is_missed(store: Path) -> None:
    with changed(store / PAYMENTS) as data:
        data[300:320] = bytes(20)
    found = kinds(check_store(store))
    assert found["unit_missing"] == 1


def test_a_wrong_tags_code_is_found(store: Path) -> None:
    with changed(store / PAYMENTS) as data:
        offset, size, tags = unit.UNIT.unpack_from(data, 0)
        unit.UNIT.pack_into(data, 0, offset, size, tags + 1)
    assert kinds(check_store(store)) == {"tags": 1}


def test_an_ext_address_without_an_ext_unit_is_found(store: Path) -> None:
    with changed(store / PAYMENTS) as data:
        offset, size, _ = unit.UNIT.unpack_from(data, 0)
        unit.UNIT.pack_into(data, 0, offset, size, unit.ext_address(0))
    assert kinds(check_store(store)) == {"ext": 1}


def test_a_lost_queue_is_a_missing_unit_for_each_of_its_records(store: Path) -> None:
    units = sum(1 for row in dump(store / "consumequeue" / "payments") if row["kind"] == "unit")
    shutil.rmtree(store / "consumequeue" / "payments")
    assert kinds(check_store(store)) == {"unit_missing": units}


def test_a_record_that_claims_another_queue_offset_is_found(store: Path) -> None:
    with changed(store / "commitlog" / "00000000000000000000") as data:
        data[QUEUE_OFFSET_AT + 7] += 1
    assert kinds(check_store(store))["unit_wrong"] >= 1


def test_a_key_missing_from_the_index_is_found(store: Path) -> None:
    last = sorted((store / "index").iterdir())[-1]
    last.unlink()
    found = kinds(check_store(store))
    assert set(found) == {"key_missing"}


def test_an_index_entry_of_a_foreign_key_is_found(store: Path) -> None:
    first = sorted((store / "index").iterdir())[0]
    with changed(first) as data:
        at = HEADER_BYTES + 50 * 4 + 2 * ENTRY_BYTES
        key_hash, offset, seconds, previous = ENTRY.unpack_from(data, at)
        # The same slot, so that only the comparison with the record can tell.
        ENTRY.pack_into(data, at, (key_hash + 50) % 2**31, offset, seconds, previous)
    found = kinds(check_store(store, slot_count=50))
    assert found["index_wrong"] == 1
    assert found["key_missing"] == 1


def test_an_index_entry_that_leads_between_records_is_found(store: Path) -> None:
    first = sorted((store / "index").iterdir())[0]
    with changed(first) as data:
        at = HEADER_BYTES + 50 * 4 + 2 * ENTRY_BYTES
        key_hash, offset, seconds, previous = ENTRY.unpack_from(data, at)
        ENTRY.pack_into(data, at, key_hash, offset + 1, seconds, previous)
    assert kinds(check_store(store, slot_count=50))["index_wrong"] == 1


def test_a_missing_log_file_leaves_units_and_entries_that_lead_nowhere(store: Path) -> None:
    (store / "commitlog" / "00000000000000065536").unlink()
    found = kinds(check_store(store))
    assert found["layout"] == 1
    assert found["unit_wrong"] > 0
    assert found["index_wrong"] > 0


def test_the_last_log_file_of_a_killed_store_is_missed_when_it_is_gone(store: Path) -> None:
    (store / "abort").write_text("4711")
    assert check_store(store).is_clean
    while check_store(store).is_clean:  # The files behind the last that has records are only prepared.
        max((store / "commitlog").iterdir()).unlink()
    assert kinds(check_store(store))["log_file_missing"] == 1


def test_a_full_file_that_lost_its_blank_end_is_found(store: Path) -> None:
    (blank,) = [row for row in dump(store / "commitlog" / "00000000000000000000") if row["kind"] == "blank"]
    with changed(store / "commitlog" / "00000000000000000000") as data:
        data[blank["physical_offset"] :] = bytes(blank["size"])
    report = check_store(store)
    assert [finding.where for finding in report.problems] == ["00000000000000000000"]
    assert "without a blank record" in report.problems[0].text


def test_a_file_that_a_running_store_fills_up_during_the_walk_is_no_problem(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store / "commitlog" / "00000000000000000000"
    (blank,) = [row for row in dump(first) if row["kind"] == "blank"]
    end = bytearray(first.read_bytes())[blank["physical_offset"] :]
    with changed(first) as data:
        data[blank["physical_offset"] :] = bytes(blank["size"])
    walk = walk_log_file

    def filling_up(file: ReadOnlyMap, base_offset: int, start: int = 0) -> Iterator[LogItem]:
        yield from walk(file, base_offset, start)
        if base_offset == 0:
            with first.open("r+b") as stream:
                stream.seek(blank["physical_offset"])
                stream.write(end)

    monkeypatch.setattr("tiermq.store.readonly.check.walk_log_file", filling_up)
    assert check_store(store).problems == []


def test_deleted_old_log_files_are_no_problem_but_expired_units(store: Path) -> None:
    (store / "commitlog" / "00000000000000000000").unlink()
    report = check_store(store)
    assert report.problems == []
    assert report.counts["units_expired"] > 0


def test_what_the_next_start_repairs_is_only_noted_of_a_store_that_crashed(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "payments")
    sorted((store / "index").iterdir())[-1].unlink()
    (store / "abort").write_text("4711")
    report = check_store(store)
    assert report.is_clean
    assert {finding.kind for finding in report.notes} == {"unit_missing", "key_missing"}


def test_a_torn_end_behind_the_last_dispatched_record_is_noted(store: Path) -> None:
    last = [path for path in sorted((store / "commitlog").iterdir()) if path.read_bytes()[:8] != bytes(8)][-1]
    with changed(last) as data:
        end = len(bytes(data).rstrip(b"\0"))
        data[end : end + 30] = b"\x00\x00\x01\x00garbage that is no record"[:30].ljust(30, b"x")
    report = check_store(store)
    assert report.is_clean
    assert [finding.kind for finding in report.notes] == ["torn_end"]


def test_a_missing_batch_unit_is_found(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-batches" / "store", tmp_path / "store"))
    path = next((store / "batchconsumequeue").rglob("0" * 20))
    with changed(path) as data:
        data[0 : len(data)] = bytes(len(data))
    found = kinds(check_store(store))
    assert found["unit_missing"] > 0
    assert set(found) == {"unit_missing"}


def test_a_message_that_lost_its_place_in_a_light_queue_is_found(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-light-queues" / "store", tmp_path / "store"))
    light = next(path for path in (store / "consumequeue").iterdir() if path.name.startswith("%LMQ%"))
    units = sum(1 for row in dump(light) if row["kind"] == "unit")
    shutil.rmtree(light)
    assert kinds(check_store(store)) == {"unit_missing": units}


def test_a_lite_topic_that_has_expired_and_begun_again_is_no_damage(tmp_path: Path) -> None:
    name = "%LMQ%$T$ann"
    for puts_again in (False, True):
        with on_disk(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as store:
            store.put(Message("T", b"x", properties={"INNER_MULTI_DISPATCH": name}))
            store.dispatch_now()
            assert store.drop_light_queue(name, EVER_MS)
            if puts_again:
                store.put(Message("T", b"x", properties={"INNER_MULTI_DISPATCH": name}))
                store.dispatch_now()
            assert store.max_offset(name, 0) == puts_again
        assert kinds(check_store(tmp_path)) == {}


def test_a_unit_of_a_light_queue_that_leads_to_a_message_of_others_is_found(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-light-queues" / "store", tmp_path / "store"))
    light = next(path for path in (store / "consumequeue").iterdir() if path.name.startswith("%LMQ%"))
    light.rename(light.with_name("%LMQ%another"))
    assert kinds(check_store(store))["unit_wrong"] > 0


def test_a_damaged_ext_unit_is_found(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-ext-units" / "store", tmp_path / "store"))
    path = next((store / "consumequeue_ext").rglob("0" * 20))
    with changed(path) as data:
        data[9] ^= 1  # The last byte of the first unit's tags code.
    assert kinds(check_store(store)) == {"tags": 1}


def test_a_batch_unit_of_the_wrong_size_is_found(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-batches" / "store", tmp_path / "store"))
    path = next((store / "batchconsumequeue").rglob("0" * 20))
    with changed(path) as data:
        first = batch_unit.decode(data)
        data[0:46] = batch_unit.encode(first._replace(batch_size=first.batch_size + 1))
    assert kinds(check_store(store)) == {"unit_wrong": 1}


def test_records_that_two_index_files_hold_are_found_without_being_called_missing(store: Path) -> None:
    first = sorted((store / "index").iterdir())[0]
    shutil.copy(first, store / "index" / f"{int(first.name) + 1:017d}")
    assert kinds(check_store(store)) == {"index_order": 1}


def test_a_damaged_index_file_is_found_and_the_rest_still_checked(store: Path) -> None:
    first = sorted((store / "index").iterdir())[0]
    first.write_bytes(b"\xff" * 100)
    found = kinds(check_store(store))
    assert found["index"] == 1
    assert found["key_missing"] > 0


def test_progress_covers_the_log_and_all_queues(store: Path) -> None:
    walked: list[int] = []
    check_store(store, progress=walked.append)
    tops = (store / "commitlog", store / "consumequeue")
    assert sum(walked) == sum(path.stat().st_size for top in tops for path in top.rglob("*") if path.is_file())


def test_a_report_becomes_plain_values(store: Path) -> None:
    with changed(store / PAYMENTS) as data:
        data[0:20] = unit.encode(0, 1, 0)
    values = check_store(store).to_dict()
    assert values["clean"] is False
    assert values["problem_count"] == len(values["problems"]) > 0
    assert set(values["problems"][0]) == {"kind", "where", "text"}


def test_only_the_first_thousand_findings_are_kept_and_all_are_counted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.store.readonly.check.FINDINGS_KEPT_MAX", 3)
    shutil.rmtree(store / "consumequeue")
    report = check_store(store)
    assert len(report.problems) == 3
    assert report.problem_count == report.counts["records"]


def test_a_check_leaves_no_map_of_the_directory_behind(store: Path) -> None:
    """Also without a collection: the directory's file system may be unmounted next."""
    gc.disable()
    try:
        check_store(store)
        assert str(store) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()

"""Numbers of a store directory, against what the real RocketMQ said about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tiermq.errors import StoreError
from tiermq.store.readonly.check import check_store
from tiermq.store.readonly.stat import stat_store

GOLDEN = Path(__file__).parents[2] / "golden"
STORES = sorted(path.name for path in GOLDEN.iterdir() if (path / "store").is_dir())


@pytest.mark.parametrize("name", STORES)
def test_the_quick_numbers_agree_with_a_full_walk(name: str) -> None:
    stat = stat_store(GOLDEN / name / "store")
    report = check_store(GOLDEN / name / "store")
    assert stat.index_entries == report.counts["index_entries"]
    assert stat.log_files == report.counts["log_files"]
    assert len(stat.queues) == report.counts["queues"]
    if not any(queue.kind == "batch" for queue in stat.queues):
        assert stat.messages == report.counts["units"] - report.counts["units_expired"]
    assert stat.checkpoint["physic_msg_timestamp_ms"] > 0


def test_queue_ends_are_those_that_the_broker_returned_to_its_producers() -> None:
    sent = [json.loads(line) for line in (GOLDEN / "rocketmq-5.3.3-clean" / "manifest.jsonl").read_text().splitlines()]
    ends: dict[tuple[str, int], int] = {}
    for row in sent:
        if row["kind"] == "sent" and row["result"]["status"] == "SEND_OK":
            key = (row["topic"], row["result"]["queue"])
            ends[key] = max(ends.get(key, 0), row["result"]["offset"] + 1)
    stat = stat_store(GOLDEN / "rocketmq-5.3.3-clean" / "store")
    assert {(queue.topic, queue.queue_id): queue.max_offset for queue in stat.queues} == ends


def test_numbers_become_plain_values() -> None:
    values = stat_store(GOLDEN / "rocketmq-5.3.3-crashed" / "store").to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["ended_cleanly"] is False
    assert values["disk_bytes_total"] == sum(values["disk_bytes"].values()) > 0


def test_damaged_small_files_do_not_stop_the_numbers(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-clean" / "store", tmp_path / "store"))
    (store / "checkpoint").write_bytes(b"short")
    for path in (store / "index").iterdir():
        path.write_bytes(b"no index")
    stat = stat_store(store)
    assert stat.checkpoint == {}
    assert stat.index_entries == 0
    assert stat.messages == 200


def test_a_folder_that_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=str(tmp_path)):
        stat_store(tmp_path)


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    stat = stat_store(tmp_path)
    assert (stat.messages, stat.log_max_offset, stat.log_file_bytes) == (0, 0, 0)

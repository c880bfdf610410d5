"""Files of a store directory as rows."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tiermq.consumequeue import ext_unit, unit
from tiermq.store.readonly.dump import ROW_KINDS, dump

GOLDEN = Path(__file__).parents[2] / "golden"
CLEAN = GOLDEN / "rocketmq-5.3.3-clean"
STORES = sorted(path.name for path in GOLDEN.iterdir() if (path / "store").is_dir())


def manifest(store: str, kind: str) -> list[dict[str, object]]:
    lines = (GOLDEN / store / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


@pytest.mark.parametrize("store", STORES)
def test_every_file_of_a_real_store_is_shown_without_damage(store: str) -> None:
    rows = list(dump(GOLDEN / store / "store"))
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["damage"] == 0
    assert set(kinds) <= set(ROW_KINDS)
    assert kinds["unit"] + kinds["batch_unit"] >= kinds["record"] > 0  # A message may enter several queues.
    assert kinds["checkpoint"] == 1
    assert kinds["lock"] == (GOLDEN / store / "store" / "lock").exists()
    assert all(json.loads(json.dumps(row)) == row for row in rows)


def test_the_records_shown_are_the_messages_that_the_real_consumer_read() -> None:
    shown = {
        (row["topic"], row["queue_id"], row["queue_offset"]): row["message_id"]
        for row in dump(CLEAN / "store" / "commitlog")
        if row["kind"] == "record"
    }
    sent = manifest(CLEAN.name, "sent")
    assert len(sent) > 100
    for message in sent:
        result = message["result"]
        assert isinstance(result, dict)
        if result["status"] == "SEND_OK":
            assert shown[message["topic"], result["queue"], result["offset"]] == result["offset_id"]


def test_a_single_file_is_shown_by_its_own_name() -> None:
    path = CLEAN / "store" / "consumequeue" / "payments" / "0" / "00000000000000000320"
    rows = list(dump(path))
    assert rows[0]["file"] == path.name
    assert [row["queue_offset"] for row in rows] == list(range(16, 32))
    assert {(row["topic"], row["queue_id"]) for row in rows} == {("payments", 0)}


def test_damage_becomes_a_row_and_the_rest_is_still_shown(tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / "00000000000000000000"
    path.parent.mkdir()
    data = bytearray((CLEAN / "store" / "commitlog" / path.name).read_bytes())
    whole = sum(1 for row in dump(CLEAN / "store" / "commitlog" / path.name) if row["kind"] == "record")
    data[100] ^= 0xFF
    path.write_bytes(data)
    rows = list(dump(path))
    assert [row["kind"] for row in rows].count("damage") == 1
    assert rows[0]["error"]
    assert [row["kind"] for row in rows].count("record") == whole - 1


def test_a_hole_in_a_queue_and_an_impossible_unit_are_damage(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    good = unit.encode(0, 100, 7)
    (folder / "00000000000000000000").write_bytes(good + bytes(20) + good + bytes(20))
    assert [row["kind"] for row in dump(folder / "00000000000000000000")] == ["unit", "damage"]
    (folder / "00000000000000000080").write_bytes(unit.PRE_BLANK + unit.UNIT.pack(-5, 1, 0) + good + bytes(20))
    kinds = [row["kind"] for row in dump(folder / "00000000000000000080")]
    assert kinds == ["pre_blank_unit", "damage", "unit"]


def test_ext_units_are_shown_with_the_offset_that_a_unit_refers_to_them_by(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue_ext" / "t" / "0"
    folder.mkdir(parents=True)
    first, second = ext_unit.ExtUnit(1, 10, b"\x01\x02"), ext_unit.ExtUnit(2, 20)
    path = folder / "00000000000000000100"
    path.write_bytes(ext_unit.encode(first) + ext_unit.encode(second) + ext_unit.END_OF_FILE + bytes(30))
    rows = list(dump(path))
    assert [(row["ext_offset"], row["tags_code"], row["bit_map"]) for row in rows] == [(100, 1, "0102"), (122, 2, "")]
    path.write_bytes(ext_unit.EXT_SIZE.pack(5) + bytes(30))
    assert [row["kind"] for row in dump(path)] == ["damage"]


def test_a_unit_with_an_ext_address_reports_where_it_leads(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes(unit.encode(0, 100, unit.ext_address(48)))
    assert [row["ext_offset"] for row in dump(folder)] == [48]


def test_an_undecodable_config_file_and_a_short_checkpoint_are_damage(tmp_path: Path) -> None:
    shutil.copytree(CLEAN / "store", tmp_path / "store")
    (tmp_path / "store" / "config" / "topics.json").write_bytes(b'{"torn":')
    (tmp_path / "store" / "checkpoint").write_bytes(bytes(8))
    damaged = [row["file"] for row in dump(tmp_path / "store") if row["kind"] == "damage"]
    assert damaged == ["checkpoint", "config/topics.json"]


def test_the_abort_file_names_the_process_that_left_it() -> None:
    rows = [row for row in dump(GOLDEN / "rocketmq-5.3.3-crashed" / "store") if row["kind"] == "abort"]
    assert all(isinstance(row["process_id"], int) for row in rows if row["file"] == "abort")
    assert any(row["file"] == "abort" for row in rows)


def test_an_index_file_is_shown_with_its_header_and_entries() -> None:
    rows = list(dump(sorted((CLEAN / "store" / "index").iterdir())[0]))
    assert rows[0]["kind"] == "index_header"
    assert rows[0]["slots"] == 50
    assert len(rows) - 1 == rows[0]["entry_count"] - 1

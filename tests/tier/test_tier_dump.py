"""Files of a tier as rows: what each one is, what it holds, and where it is damaged."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from tier.verify_world import sound_world
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import bare_driver, open_driver
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseRole
from tiermq.tier.metadata.broker_state import BrokerStateWriter
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.metadata.manifest_changes import ManifestChanges, changes_name, encode_changes
from tiermq.tier.names import KEYS_STEM, SegmentType, broker_directory, index_queue
from tiermq.tier.tier_dump import (
    TIER_ROW_KINDS,
    TierFileKind,
    classify_tier_file,
    dump_tier,
    list_tier_files,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "rocketmq-5.3.3-tier"


def rows(root: Path) -> list[dict[str, Any]]:
    return [row for file in list_tier_files(root) for row in dump_tier(file, file.path.name)]


def our_tier(path: Path) -> Path:
    """A tier of ours in a directory: segments, manifests, a lease, a companion."""
    world = sound_world(path)
    root = path / "tier"
    driver = PosixDriver(root)
    for info in world.driver.list_segments():
        driver.write(info.key, 0, [world.driver.read(info.key, 0, info.size)])
        if info.sealed:
            driver.seal(info.key)
    for name in world.driver.list_objects():
        driver.put_object(name, world.driver.get_object(name).data)
    world.close()
    return root


def test_a_tier_of_the_real_rocketmq_dumps_without_damage() -> None:
    found = Counter(row["kind"] for row in rows(GOLDEN / "tier"))
    assert found == {"record": 116, "unit": 116, "tier_index_header": 5, "tier_index_item": 280}


def test_a_tier_of_ours_shows_its_small_objects_too(tmp_path: Path) -> None:
    found = rows(our_tier(tmp_path))
    counts = Counter(row["kind"] for row in found)
    assert (counts["manifest"], counts["lease"], counts["companion"], counts["damage"]) == (3, 1, 1, 0)
    manifest = next(row for row in found if row["kind"] == "manifest" and row["topic"] == "orders")
    assert manifest["maxOffset"] == 30
    assert set(counts) <= set(TIER_ROW_KINDS)


def test_the_parts_of_an_object_store_are_shown_by_their_place(tmp_path: Path) -> None:
    driver = bare_driver(f"{(tmp_path / 'objects').as_uri()}?driver=object", {})
    world = sound_world(tmp_path)
    (key,) = (info.key for info in world.driver.list_segments() if info.key.topic == "payments" and info.key.type == 0)
    data = bytes(world.driver.read(key, 0, world.driver.size(key)))
    size = int.from_bytes(data[:4], "big")
    driver.write(key, 0, [data[:size]])
    driver.write(key, size, [data[size:]])
    found = rows(tmp_path / "objects")
    assert [row["queue_offset"] for row in found] == [0, 1, 2, 3, 4]
    world.close()


def object_tier(path: Path) -> Path:
    """The same tier as objects: sealed segments keep their seal marks."""
    world = sound_world(path)
    root = path / "objects"
    driver = bare_driver(f"{root.as_uri()}?driver=object", {})
    for info in world.driver.list_segments():
        driver.write(info.key, 0, [bytes(world.driver.read(info.key, 0, info.size))])
        if info.sealed:
            driver.seal(info.key)
    for name in world.driver.list_objects():
        driver.put_object(name, world.driver.get_object(name).data)
    world.close()
    return root


def test_the_seal_marks_of_an_object_tier_are_no_damage(tmp_path: Path) -> None:
    found = rows(object_tier(tmp_path))
    assert [row for row in found if "error" in row] == []
    marks = [row for row in found if row["kind"] == "seal_mark"]
    (of_index,) = [row for row in marks if row["type"] == "index"]
    (index,) = [path for path in (tmp_path / "objects").rglob("INDEX/*") if len(path.name) == 28]
    assert of_index["position"] == index.stat().st_size
    assert Counter(row["kind"] for row in found)["tier_index_header"] == 1
    assert set(Counter(row["kind"] for row in found)) <= set(TIER_ROW_KINDS)


def test_an_index_file_in_parts_is_read_as_one_when_it_has_ended(tmp_path: Path) -> None:
    root = object_tier(tmp_path)
    whole = [row for row in rows(root) if row["kind"].startswith("tier_index_")]
    (path,) = [path for path in root.rglob("INDEX/*") if len(path.name) == 28]
    data = path.read_bytes()
    path.unlink()
    parts = path.with_name(path.name + ".parts")
    for at in range(0, len(data), 100):
        (parts / f"{at:020d}").write_bytes(data[at : at + 100])
    found = [row for row in rows(root) if row["kind"].startswith("tier_index_")]
    reported = [row for row in found if row["kind"] == "tier_index_part"]
    assert sum(row["bytes"] for row in reported) == len(data)
    nameless = [{**row, "file": ""} for row in found if row["kind"] != "tier_index_part"]
    assert nameless == [{**row, "file": ""} for row in whole]
    (parts / f"{len(data):020d}").unlink()  # Before its mark is there, it is an upload that has not ended.
    under_way = [row for row in rows(root) if row["kind"].startswith("tier_index_") or "error" in row]
    assert [row["kind"] for row in under_way] == ["tier_index_part"] * len(reported)
    (parts / f"{200:020d}").unlink()
    (row,) = [row for row in rows(root) if "error" in row]
    assert "found a hole" in row["error"]


def test_tables_leases_and_staged_keys_of_a_broker_are_no_damage(tmp_path: Path) -> None:
    driver = open_driver(tmp_path.as_uri())
    lease = BrokerLease(driver, "c", "b", "a broker")
    lease.acquire()
    writer = BrokerStateWriter(driver, "c", "b", lease, "a broker", clock=ManualClock())
    writer.write({"topics": b'{"topicConfigTable":{"orders":{"topicName":"orders"}}}'}, is_last=True)
    driver.put_object(f"{broker_directory('c', 'b')}/lease-master.tiermq.json", seal_document({"epoch": 3}, 1))
    index = index_queue("c", "b")
    driver.put_object(f"{index.directory}/{KEYS_STEM}1.tiermq.json", bytes(48))
    found = {Path(row["file"]).name: row for row in rows(tmp_path)}
    assert found["state-topics.tiermq.json"]["content"]["document"]["topicConfigTable"].keys() == {"orders"}
    assert found["lease-master.tiermq.json"]["content"] == {"epoch": 3}
    assert found["keys-1.tiermq.json"]["keys"] == 2
    assert [row for row in found.values() if "error" in row] == []
    path = next(tmp_path.rglob("state-topics*"))
    path.write_bytes(path.read_bytes().replace(b"orders", b"0rders"))
    assert [row["file"] for row in rows(tmp_path) if "error" in row] == [path.name]


def test_what_a_repair_put_aside_is_not_shown(tmp_path: Path) -> None:
    root = our_tier(tmp_path)
    before = rows(root)
    for path in sorted(root.rglob("*.tiermq.json")):
        path.with_name(path.name.replace(".tiermq", ".damaged-1700000000000.tiermq")).write_bytes(b"{")
    assert rows(root) == before


def test_an_open_index_file_shows_its_chains(tmp_path: Path) -> None:
    directory = tmp_path / "tiered_index_file"
    directory.mkdir()
    file = IndexWriteFile.create(OsFileAccess(), str(directory), 1_700_000_000_000, 5, 20)
    assert file.put([7, 12], 3, 1, 100, 50, 1_700_000_005_000)
    file.close()
    header, first, second = rows(tmp_path)
    assert (header["form"], header["slots"], header["item_count"]) == ("open", 5, 2)
    assert (first["key_hash"], first["tier_offset"], first["previous"], first["store_ms"]) == (
        7,
        100,
        0,
        1_700_000_005_000,
    )
    assert second["previous"] == 1
    data = bytearray((directory / "1700000000000").read_bytes())
    struct.pack_into(">i", data, 28 + 8 * 5 + 32 * 2 + 28, 9)
    (directory / "1700000000000").write_bytes(data)
    assert [row["kind"] for row in rows(tmp_path)].count("damage") == 1


def test_an_open_index_file_of_the_real_rocketmq_needs_its_slots_reported(tmp_path: Path) -> None:
    directory = tmp_path / "tiered_index_file"
    shutil.copytree(GOLDEN / "open_index", directory)
    files = list_tier_files(tmp_path)
    assert {file.kind for file in files} == {TierFileKind.OPEN_INDEX}
    assert [row["kind"] for row in dump_tier(files[0], "x")] == ["damage"]
    found = [row for file in files for row in dump_tier(file, "x", slot_count=16)]
    assert Counter(row["kind"] for row in found)["damage"] == 0
    assert Counter(row["kind"] for row in found)["tier_index_item"] > 100


@pytest.mark.parametrize(
    ("kind", "at"),
    [(SegmentType.COMMIT_LOG, 95), (SegmentType.COMMIT_LOG, 4), (SegmentType.CONSUME_QUEUE, 8), (SegmentType.INDEX, 0),
     (SegmentType.INDEX, 27), (SegmentType.INDEX, 30)],
)  # fmt: skip
def test_damage_is_a_row_with_an_error(tmp_path: Path, kind: SegmentType, at: int) -> None:
    root = our_tier(tmp_path)
    name = file_of(root, kind)
    data = bytearray(name.read_bytes())
    data[at] ^= 0x80
    name.write_bytes(data)
    found = [row for row in rows(root) if "error" in row]
    assert found
    assert all(row["kind"] == "damage" for row in found)


def file_of(root: Path, kind: SegmentType) -> Path:
    return sorted(path for path in root.rglob(f"{kind.name}/*") if len(path.name) == 28)[0]


def test_what_jobs_and_timers_add_to_a_tier_is_shown(tmp_path: Path) -> None:
    driver = open_driver(tmp_path.as_uri())
    BrokerLease(driver, "c", "b", "a broker", role=LeaseRole.DELIVERY).acquire()
    driver.put_object(changes_name("c", "b"), encode_changes(ManifestChanges(7, queues={("orders", 0): 7})))
    found = {row["kind"]: row for row in rows(tmp_path)}
    assert (found["lease"]["owner"], found["changes"]["queues"]) == ("a broker", [["orders", 0, 7]])


@pytest.mark.parametrize("name", ["manifest", "lease"])
def test_a_small_object_that_cannot_be_read_is_damage(tmp_path: Path, name: str) -> None:
    root = our_tier(tmp_path)
    path = sorted(root.rglob(f"{name}.tiermq.json"))[0]
    good = path.read_bytes()
    newer = seal_document(json.loads(good)["body"], 9)
    for data, reported in ((newer, "newer TierMQ"), (good.replace(b'"version":1', b'"version":9'), "checksum")):
        path.write_bytes(data)
        (row,) = [row for row in rows(root) if "error" in row]
        assert reported in row["error"]


@pytest.mark.parametrize(
    "name",
    ["readme.txt", "00000000000000000000", "a/b/COMMIT_LOG/cfcd208400000000000000000001", "COMMIT_LOG/x.sealed"],
)
def test_what_is_no_file_of_a_tier_is_not_taken_for_one(tmp_path: Path, name: str) -> None:
    assert classify_tier_file(tmp_path / name) is None


def test_an_end_mark_is_shown_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "x" / "broker" / "orders" / "0" / "COMMIT_LOG" / "cfcd208400000000000000000000"
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack(">iIq", 16, 0xCBD43194, 1234))
    assert [(row["kind"], row["newest_store_timestamp_ms"]) for row in rows(tmp_path)] == [("end_mark", 1234)]

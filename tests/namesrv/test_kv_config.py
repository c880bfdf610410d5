"""Key-value settings outlive the process, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiermq.errors import RequestRefused, StoreDamaged
from tiermq.namesrv import kv_config
from tiermq.namesrv.kv_config import NAMESPACES_MAX, ORDER_TOPIC_CONFIG, VALUE_BYTES_MAX, KvConfig


def test_what_was_put_is_there_after_a_restart_and_what_was_deleted_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "kvConfig.json")
    first = KvConfig(path)
    first.put(ORDER_TOPIC_CONFIG, "orders", "broker-a:4")
    first.put(ORDER_TOPIC_CONFIG, "payments", "broker-a:8")
    first.put("other", "ключ", "значение")
    assert first.delete(ORDER_TOPIC_CONFIG, "orders")
    assert not first.delete(ORDER_TOPIC_CONFIG, "orders")
    assert not first.delete("nowhere", "orders")
    again = KvConfig(path)
    assert again.namespace(ORDER_TOPIC_CONFIG) == {"payments": "broker-a:8"}
    assert again.get("other", "ключ") == "значение"
    assert again.get("other", "none") is None
    assert again.namespace("nowhere") is None


def test_the_file_has_rocketmq_s_form(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    KvConfig(str(path)).put("n", "k", "v")
    assert json.loads(path.read_text()) == {"configTable": {"n": {"k": "v"}}}


def test_a_torn_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KvConfig(str(path))
    kv.put("n", "k", "1")
    kv.put("n", "k", "2")
    path.write_bytes(path.read_bytes()[:20])
    assert KvConfig(str(path)).get("n", "k") == "1"


def test_a_file_that_is_damaged_beyond_its_backup_is_said_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b'{"configTable":[1]}')
    with pytest.raises(StoreDamaged):
        KvConfig(str(path))
    assert path.read_bytes() == b'{"configTable":[1]}'


def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    kv = KvConfig(str(tmp_path / "kvConfig.json"))
    kv.put("n", "k", "1")
    (tmp_path / "kvConfig.json.tmp").mkdir()  # In the way of the next write.
    with pytest.raises(OSError):
        kv.put("n", "k", "2")
    assert kv.get("n", "k") == "1"


def test_without_a_path_everything_is_in_memory() -> None:
    kv = KvConfig()
    kv.put("n", "k", "1")
    assert kv.get("n", "k") == "1"


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [("n" * 256, "k", "v"), ("n", "é" * 128, "v"), ("n", "k", "v" * (VALUE_BYTES_MAX + 1))],
)
def test_a_name_or_value_that_is_too_long_is_refused(namespace: str, key: str, value: str) -> None:
    kv = KvConfig()
    with pytest.raises(RequestRefused, match="at most"):
        kv.put(namespace, key, value)
    assert kv.namespace(namespace) is None


@pytest.mark.parametrize(
    ("bound", "most"), [("NAMESPACES_MAX", 3), ("KEYS_MAX", 3), ("TABLE_BYTES_MAX", 3 * len("n0kv"))]
)
def test_settings_do_not_grow_beyond_their_bounds_and_can_still_be_changed(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(kv_config, bound, most)
    kv = KvConfig()
    for at in range(3):
        kv.put(f"n{at}", "k", "v")
    with pytest.raises(RequestRefused, match="at most"):
        kv.put("n3", "k", "v")
    kv.put("n0", "k", "w")
    assert kv.get("n0", "k") == "w"
    assert kv.namespace("n3") is None


def test_a_file_beyond_the_bounds_is_read_and_may_shrink(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(json.dumps({"configTable": {f"n{at}": {"k": "v"} for at in range(NAMESPACES_MAX + 9)}}))
    kv = KvConfig(str(path))
    kv.put("n0", "k", "w")
    assert kv.delete("n0", "k")
    with pytest.raises(RequestRefused):
        kv.put("another", "k", "v")


def test_a_value_that_is_too_long_is_refused_by_its_own_size() -> None:
    with pytest.raises(RequestRefused, match="at most 65536 bytes, found 65537 bytes: shorten it"):
        KvConfig().put("n", "k", "v" * 65_537)


def test_a_full_table_takes_new_namespaces_when_others_were_emptied(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KvConfig(str(path))
    for at in range(NAMESPACES_MAX):
        kv.put(f"n{at}", "k", "v")
    for at in range(NAMESPACES_MAX):
        assert kv.delete(f"n{at}", "k")
    kv.put("fresh", "k", "v")
    assert json.loads(path.read_text()) == {"configTable": {"fresh": {"k": "v"}}}


def test_namespaces_that_rocketmq_left_empty_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(json.dumps({"configTable": {f"n{at}": {} for at in range(NAMESPACES_MAX)}}))
    kv = KvConfig(str(path))
    kv.put("fresh", "k", "v")
    assert (kv.get("fresh", "k"), kv.namespace("n0")) == ("v", None)

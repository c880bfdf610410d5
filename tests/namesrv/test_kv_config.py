"""Key-value settings outlive the process, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiermq.errors import StoreDamaged
from tiermq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig


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

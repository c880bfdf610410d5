"""Configuration files with one generation of backup. On both file systems."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from files.conftest import World
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess


def test_a_configuration_keeps_its_predecessor(world: World) -> None:
    path = f"{world.root}/config/topics.json"
    assert world.access.read_config(path, json.loads) is None
    for version in (1, 2, 3):
        world.access.write_config(path, json.dumps({"version": version}).encode())
    assert world.access.read_config(path, json.loads) == {"version": 3}
    assert json.loads(world.access.read_bytes(path + ".bak")) == {"version": 2}
    assert [info.name for info in world.access.list_files(os.path.dirname(path))] == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("damage", [b"", b'{"version": ', b"\xff\xfe"])
def test_a_damaged_configuration_is_deleted_and_its_backup_used(world: World, damage: bytes) -> None:
    path = f"{world.root}/config/topics.json"
    world.access.write_config(path, b'{"version": 1}')
    world.access.write_config(path, b'{"version": 2}')
    world.access.write_bytes(path, damage)
    assert world.access.read_config(path, json.loads) == {"version": 1}
    assert not world.access.exists(path)
    world.access.write_config(path, b'{"version": 3}')
    assert json.loads(world.access.read_bytes(path + ".bak")) == {"version": 1}


def test_a_configuration_without_a_readable_backup_is_left_for_a_human(world: World) -> None:
    path = f"{world.root}/config/topics.json"
    world.access.write_bytes(path, b"{")
    with pytest.raises(StoreDamaged, match="topics.json: expected a readable configuration"):
        world.access.read_config(path, json.loads)
    assert world.access.read_bytes(path) == b"{"
    world.access.write_bytes(path, b"")
    assert world.access.read_config(path, json.loads) is None


def test_an_empty_configuration_without_a_backup_counts_as_none_and_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{world.root}/config/topics.json"
    world.access.write_bytes(path, b"")
    assert world.access.read_config(path, json.loads) is None
    assert "topics.json is empty, and there is no .bak beside it: it counts as no file" in caplog.text
    caplog.clear()
    assert world.access.read_config(path, json.loads) is None
    assert caplog.text == ""


def test_a_configuration_that_is_a_directory_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "topics.json").mkdir()
    with pytest.raises(StoreDamaged, match=r"topics.json: expected a configuration file, found a directory"):
        OsFileAccess().read_config(str(tmp_path / "topics.json"), json.loads)

"""Seals of small files: a bad bit is distinguished from an edit, and a file without a seal is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess, is_seal_broken, seal_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed file of settings, with its predecessor beside it."""
    path = tmp_path / "consumerOffset.json"
    for offset in (7, 12):
        OsFileAccess().write_config(str(path), json.dumps({"billing": offset}).encode())
    with path.open("r+b") as file:
        if not seal_file(file.fileno(), path.read_bytes()):
            pytest.skip("this file system keeps no extended attributes")
    return path


def go_bad(path: Path) -> None:
    """One bit, as a disk loses it: without a write to the file."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[data.index(b"billing")] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_bad_bit_in_settings_is_reported_and_the_state_before_is_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A group of another name was made of it, and the offsets of the real one were lost silently."""
    assert OsFileAccess().read_config(str(path), json.loads) == {"billing": 12}
    go_bad(path)
    assert OsFileAccess().read_config(str(path), json.loads) == {"billing": 7}
    assert "the disk is damaged" in caplog.text


def test_settings_that_went_bad_without_a_predecessor_are_damage(path: Path) -> None:
    path.with_name(path.name + ".bak").unlink()
    go_bad(path)
    with pytest.raises(StoreDamaged, match="the disk is damaged"):
        OsFileAccess().read_config(str(path), json.loads)


def test_an_edit_in_place_is_no_damage(path: Path) -> None:
    path.write_text('{"billing": 99}')
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert OsFileAccess().read_config(str(path), json.loads) == {"billing": 99}


def test_a_file_without_a_seal_is_believed(tmp_path: Path) -> None:
    other = tmp_path / "topics.json"
    other.write_bytes(b"{}")
    assert not is_seal_broken(str(other), b"{}")
    assert not is_seal_broken(str(other), b"anything")
    assert not is_seal_broken(str(tmp_path / "missing"), b"")


def test_a_file_is_trusted_where_python_has_no_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("setxattr", "getxattr"):
        monkeypatch.delattr(os, name)
    OsFileAccess().write_bytes(path := str(tmp_path / "topics.json"), b"{}")
    assert not is_seal_broken(path, b"other")

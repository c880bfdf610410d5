"""The real mapped region: failed syncs, short writes, descriptors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from present import present
from simulation.descriptor_limit import descriptors_below
from tiermq.errors import StoreClosed, StoreDamaged, StoreError
from tiermq.files import system_calls
from tiermq.files.os_file_access import OsFileAccess


def test_a_failed_sync_is_never_followed_by_one_that_claims_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    region.write(0, b"lost?")
    with monkeypatch.context() as broken:

        def fail(_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            region.sync()
    with pytest.raises(StoreError, match="an earlier sync failed"):
        region.sync()
    region.close()


def test_a_failed_sync_through_the_map_is_as_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    region.close_descriptor()
    region.sync()
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(system_calls, "sync_pages", fail)
        with pytest.raises(OSError, match="Input/output"):
            region.sync()
    with pytest.raises(StoreError, match="an earlier sync failed"):
        region.sync()
    region.close()


def test_a_closed_region_without_a_descriptor_is_not_synced(tmp_path: Path) -> None:
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    region.close_descriptor()
    region.close()
    with pytest.raises(StoreClosed):
        region.sync()


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: whole(descriptor, bytes(data[:7]), at))
    region.write(100, bytes(range(1, 101)))
    assert bytes(present(region.buffer)[100:200]) == bytes(range(1, 101))
    region.close()


def test_zeroing_works_where_holes_cannot_be_punched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "punch_hole", lambda *_: False)
    region = OsFileAccess().create(str(tmp_path / "file"), 1 << 20)
    region.write(0, b"\xff" * 10_000)
    region.write(900_000, b"\xff" * 10_000)
    region.zero(5000, (1 << 20) - 5000)
    assert bytes(present(region.buffer)) == b"\xff" * 5000 + bytes((1 << 20) - 5000)
    assert os.stat(tmp_path / "file").st_blocks * 512 < 1 << 19, "holes stay holes"
    region.close()


def test_a_file_replaced_under_us_is_not_mistaken_for_ours(tmp_path: Path) -> None:
    access = OsFileAccess()
    region = access.create(str(tmp_path / "file"), 4096)
    region.close_descriptor()
    (tmp_path / "other").write_bytes(bytes(4096))
    os.replace(tmp_path / "other", tmp_path / "file")
    for call in (region.sync, lambda: region.reserve(0, 4096)):
        with pytest.raises(StoreDamaged, match="found another one under its name"):
            call()
    region.close()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    access = OsFileAccess()
    regions = [access.create(str(tmp_path / str(number)), 4096) for number in range(10)]
    assert len(descriptors_below(tmp_path)) == 10
    for region in regions:
        region.close_descriptor()
    assert descriptors_below(tmp_path) == [], "also of those that Python's maps would keep"
    for region in regions:
        present(region.buffer)[:5] = b"bytes"
        region.sync()
    assert descriptors_below(tmp_path) == [], "a sync needs none"
    for region in regions:
        region.close()
    assert descriptors_below(tmp_path) == []


def test_holes_are_no_data(tmp_path: Path) -> None:
    region = OsFileAccess().create(str(tmp_path / "00"), 64 << 20)
    assert region.data_ranges() == []
    region.write(32 << 20, b"x")
    [(start, end)] = region.data_ranges()
    assert start <= 32 << 20 < end
    assert end - start <= 1 << 20
    region.close()


def test_a_file_system_that_does_not_know_its_holes_has_data_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = OsFileAccess().create(str(tmp_path / "00"), 1 << 20)

    def refuse(_descriptor: int, _position: int, _whence: int) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "lseek", refuse)
    assert region.data_ranges() == [(0, 1 << 20)]
    region.close()


def test_a_region_without_a_descriptor_is_synced_by_a_new_one_where_the_map_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    region.close_descriptor()
    monkeypatch.setattr(system_calls, "ON_LINUX", False)
    monkeypatch.delattr(system_calls, "sync_pages")
    synced: list[int] = []
    monkeypatch.setattr(system_calls, "sync_data", synced.append)
    region.sync()
    assert len(synced) == 1
    region.close()

"""Operating-system errors, said in our words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from simulation.descriptor_limit import descriptors_left
from tiermq.errors import DiskFull, ReadOnlyStore, TooManyOpenFiles
from tiermq.files import system_calls
from tiermq.files.os_errors import translated
from tiermq.files.os_file_access import OsFileAccess


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, ReadOnlyStore),
        (errno.EROFS, ReadOnlyStore),
        (errno.EDQUOT, DiskFull),
        (errno.EFBIG, DiskFull),
        (errno.EIO, OSError),
    ],
)
def test_system_errors_are_reported_in_our_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[OSError]
) -> None:
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(expected) as caught:
        region.reserve(0, 4096)
    assert type(caught.value) is expected
    region.close()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, ["all ", " of this process open", "hard limit", "ulimit -n"]),
        (errno.ENFILE, ["of this machine open", "fs.file-max"]),
        (errno.ENOMEM, ["one more memory map", " in use", "vm.max_map_count", "ulimit -v"]),
    ],
)
def test_a_limit_is_named_with_what_is_in_use_and_what_raises_it(number: int, said: list[str]) -> None:
    with pytest.raises(TooManyOpenFiles) as caught, translated("create a file", "/store/file"):
        raise OSError(number, os.strerror(number))
    assert [part for part in ("/store/file: expected", "create a file", *said) if part not in str(caught.value)] == []


def test_a_limit_is_reported_also_when_nothing_is_left_to_look_with() -> None:
    unknown = pytest.raises(TooManyOpenFiles, match="an unknown number of an unknown number in use")
    with descriptors_left(0), unknown, translated("map a file", "/store/file"):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    with descriptors_left(0), pytest.raises(TooManyOpenFiles, match="ulimit -n"):
        OsFileAccess().list_files("/")


def test_a_map_that_the_kernel_refuses_is_reported_in_our_words_and_the_file_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    path = str(tmp_path / "file")
    with monkeypatch.context() as refusing:
        refusing.setattr(system_calls, "map_file", refuse)
        with pytest.raises(TooManyOpenFiles, match="max_map_count"):
            OsFileAccess().create(path, 4096)
    OsFileAccess().create(path, 4096).close()

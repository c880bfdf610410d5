"""Operating-system errors, said in our words."""

from __future__ import annotations

import errno
import os

import pytest

from tiermq.errors import DiskFull, ReadOnlyStore
from tiermq.files.os_file_access import OsFileAccess


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EACCES, ReadOnlyStore), (errno.EROFS, ReadOnlyStore), (errno.EDQUOT, DiskFull), (errno.EIO, OSError)],
)
def test_system_errors_are_said_in_our_words(tmp_path, monkeypatch, number, expected):
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(expected) as caught:
        region.reserve(0, 4096)
    assert type(caught.value) is expected
    region.close()

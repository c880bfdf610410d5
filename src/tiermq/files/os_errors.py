"""Operating-system errors, said in the words of our own error tree."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tiermq.errors import DiskFull, ReadOnlyStore

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_PERMISSION = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextmanager
def translated(action: str, path: str) -> Iterator[None]:
    """No room becomes DiskFull, no permission becomes ReadOnlyStore, anything else stays the OSError it is."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFull(
                f"{path}: expected room on the file system to {action}, found none ({error.strerror}). "
                "Free space, raise the quota, or let cleaning delete expired files."
            ) from error
        if error.errno in _NO_PERMISSION:
            raise ReadOnlyStore(
                f"{path}: expected permission to {action}, found {error.strerror}. "
                "Open the store as a user who may write there, or mount the file system writable."
            ) from error
        raise

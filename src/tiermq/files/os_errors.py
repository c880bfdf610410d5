"""Translation of operating-system errors to TierMQ's error tree."""

from __future__ import annotations

import errno
import resource
from types import TracebackType

from tiermq.errors import DiskFull, ReadOnlyStore, StoreError, TooManyOpenFiles

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_PERMISSION = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

_MAPS = "/proc/self/maps"
_MAPS_MAX = "/proc/sys/vm/max_map_count"
_FILES_MAX = "/proc/sys/fs/file-max"


class translated:  # noqa: N801 - used as a function is, and half as expensive as a generator: a start has 100,000
    """ENOSPC becomes DiskFull, no permission ReadOnlyStore, a reached limit TooManyOpenFiles.

    EFBIG, a limit on the size of files, becomes DiskFull too. Other errors stay OSError.
    """

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            named = _named(error, self._action, self._path)
            if named is not None:
                raise named from error


def _named(error: OSError, action: str, path: str) -> StoreError | None:
    if error.errno in _NO_ROOM:
        return DiskFull(
            f"{path}: expected room on the file system to {action}, found none ({error.strerror}). "
            "Free space, raise the quota, or let cleaning delete expired files."
        )
    if error.errno == errno.EFBIG:
        return DiskFull(
            f"{path}: expected room to {action}, found that this process or file system allows no file of "
            "that size. Raise the limit with `ulimit -f` before the start or LimitFSIZE= of the service."
        )
    if error.errno in _NO_PERMISSION:
        return ReadOnlyStore(
            f"{path}: expected permission to {action}, found {error.strerror}. "
            "Open the store as a user who may write there, or mount the file system writable."
        )
    limit = limit_reached(error.errno)
    if limit is None:
        return None
    return TooManyOpenFiles(f"{path}: expected {limit} Nothing was written by this attempt to {action}; try it again.")


def limit_reached(number: int | None) -> str | None:
    """The limit of an error number, how much of it is in use, and how to raise it. None for other errors."""
    if number == errno.EMFILE:
        # The kernel returns this only when every number below the limit is in use, so the limit is also the count;
        # counting would need a descriptor.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"a free file descriptor, found all {soft} of this process open (hard limit {hard}). "
            "Raise the limit with `ulimit -n` before the start, LimitNOFILE= of the service, or `prlimit --nofile`."
        )
    if number == errno.ENFILE:
        return (
            f"a free file descriptor, found all {_number_in(_FILES_MAX)} of this machine open. "
            "Raise `sysctl fs.file-max`, or stop what holds them (`lsof`)."
        )
    if number == errno.ENOMEM:
        limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
        memory = "no limit" if limit_bytes == resource.RLIM_INFINITY else f"a limit of {limit_bytes} bytes"
        return (
            f"room for one more memory map, found {_count_of_maps()} of {_number_in(_MAPS_MAX)} in use, and {memory} "
            "on address space. Raise `sysctl vm.max_map_count` or `ulimit -v`, or make files larger and fewer."
        )
    return None


def maps_max() -> int | None:
    """How many memory maps a process may have; None where that is not known."""
    text = _number_in(_MAPS_MAX)
    return int(text) if text.isdigit() else None


def _number_in(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:  # There may be no descriptor left, or no /proc.
        return "an unknown number"


def _count_of_maps() -> str:
    try:
        with open(_MAPS) as file:
            return str(sum(1 for _ in file))
    except OSError:  # As above.
        return "an unknown number"

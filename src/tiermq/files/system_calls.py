"""Memory and file calls that Python lacks, or has only in a form that holds the interpreter lock.

`mmap.madvise` and `mmap.flush` stall every thread of the process while the kernel works; the same calls through
ctypes do not. A function that returns a bool is an optimization, or its caller has a fallback: True when the kernel did
it; `errno` is ignored. All other functions raise OSError.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
from typing import Any

MADV_RANDOM = 1
MADV_WILLNEED = 3
MADV_DONTNEED = 4
MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels answer EINVAL.

_TMPFS_MAGIC = 0x01021994
_STATFS_BYTES = 256  # More than struct statfs has on any system; its first word is the type.
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_MS_SYNC = 4
_REPORTS_SYNC_ERRORS = (5, 8)
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_NO_HOLES = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV})

_libc = ctypes.CDLL(None, use_errno=True)


def _function(name: str, *argument_types: Any, result: Any = ctypes.c_int) -> Any:
    """A C function that returns int, or `result`; None where the C library lacks it."""
    function = getattr(_libc, name, None)
    if function is not None:
        function.argtypes = argument_types
        function.restype = result
    return function


_madvise = _function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_fstatfs = _function("fstatfs", ctypes.c_int, ctypes.c_void_p)
_mlock = _function("mlock", ctypes.c_void_p, ctypes.c_size_t)
_msync = _function("msync", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MMAP_TYPES = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_mmap = _function("mmap64", *_MMAP_TYPES, result=ctypes.c_void_p) or _function(
    "mmap", *_MMAP_TYPES, result=ctypes.c_void_p
)
_syncfs = _function("syncfs", ctypes.c_int)
_fallocate = _function("fallocate64", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64) or _function(
    "fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
)


def _pin(buffer: Any, start: int) -> ctypes.c_char | None:
    """A C object at byte `start`; while it lives the map cannot be closed. None for a read-only map."""
    try:
        return ctypes.c_char.from_buffer(buffer, start)
    except (TypeError, ValueError):  # Read-only, or already closed.
        return None


def advise(buffer: Any, start: int, length: int, advice: int) -> bool:
    """madvise over the pages that hold `length` bytes at `start`."""
    aligned = start - start % mmap.PAGESIZE
    pinned = _pin(buffer, aligned)
    if pinned is None or _madvise is None:
        return False
    return bool(_madvise(ctypes.addressof(pinned), start + length - aligned, advice) == 0)


def lock_pages(buffer: Any, length: int) -> bool:
    """mlock the first `length` bytes."""
    pinned = _pin(buffer, 0)
    return pinned is not None and _mlock is not None and _mlock(ctypes.addressof(pinned), length) == 0


def map_file(descriptor: int, size: int, *, shared: bool) -> mmap.mmap:
    """A writable map of a file that keeps no descriptor; what is written reaches the file only when it is `shared`.

    Python before 3.13 always duplicates the descriptor of a map. So Python creates an anonymous map, which has none,
    and mmap with MAP_FIXED replaces it by the file's pages; closing and the count of views stay Python's. A failure
    leaves the anonymous map unchanged: the kernel checks its limits before it replaces.
    """
    if sys.version_info >= (3, 13):
        access = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
        return mmap.mmap(descriptor, size, access=access, trackfd=False)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    place = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE, prot=protection)
    flags = _MAP_FIXED | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    if _mmap(address, size, protection, flags, descriptor, 0) == _MAP_FAILED:
        number = ctypes.get_errno()
        place.close()
        raise OSError(number, os.strerror(number))
    return place


def sync_pages(buffer: Any, size: int) -> None:
    """fdatasync of the file behind a shared map, without a descriptor. Raises the kernel's error.

    The map refers to the file as it was opened, so an error of an earlier write-back is reported here too.
    """
    pinned = ctypes.c_char.from_buffer(buffer)
    if _msync(ctypes.addressof(pinned), size, _MS_SYNC) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_file_system(descriptor: int) -> bool:
    """Sync the file system that holds an open file. False where a failed write-back would not be reported: Linux
    before 5.8, other systems. Raises the kernel's error.
    """
    if _syncfs is None or _release() < _REPORTS_SYNC_ERRORS:
        return False
    if _syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


def _release() -> tuple[int, ...]:
    """Of the Linux that runs: (6, 1). (0, 0) for a text of another form, or another system."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release) if sys.platform == "linux" else None
    return (int(found[1]), int(found[2])) if found else (0, 0)


_tmpfs_by_device: dict[int, bool] = {}
"""Asked once for each device: a store opens ten thousand files."""


def is_tmpfs(descriptor: int, device: int) -> bool:
    """Whether a file is on tmpfs, where even reading a hole through a map allocates a block."""
    found = _tmpfs_by_device.get(device)
    if found is None:
        found = _tmpfs_by_device[device] = _ask_tmpfs(descriptor)
    return found


def _ask_tmpfs(descriptor: int) -> bool:
    facts = ctypes.create_string_buffer(_STATFS_BYTES)
    if _fstatfs is None or _fstatfs(descriptor, ctypes.addressof(facts)) != 0:
        return False
    return ctypes.c_long.from_buffer(facts).value == _TMPFS_MAGIC


def punch_hole(descriptor: int, start: int, length: int) -> bool:
    """Free the blocks; the bytes read as zero. False where the file system has no holes; raises other errors."""
    if _fallocate is None:
        return False
    if _fallocate(descriptor, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, start, length) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_HOLES:
        return False
    raise OSError(number, os.strerror(number))

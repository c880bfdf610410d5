"""Memory and file calls that Python lacks, on one system or on all, or has only in a form that holds the interpreter
lock.

Written for Linux, with other calls of POSIX where `os` has none of Linux' (macOS). Numbers and structures of C are
Linux' own: `ON_LINUX` guards each whose value differs elsewhere.

`mmap.madvise` and `mmap.flush` stall every thread of the process while the kernel works; the same calls through
ctypes do not. A function that returns a bool is an optimization, or its caller has a fallback: True when the kernel did
it; `errno` is ignored. All other functions raise OSError.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import sys
from typing import Any

ON_LINUX = sys.platform == "linux"

MADV_RANDOM = 1
MADV_WILLNEED = 3
MADV_DONTNEED = 4
MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels answer EINVAL.

_TMPFS_MAGIC = 0x01021994
_STATFS_BYTES = 256  # More than struct statfs has on any Linux; its first word is the type.
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_MS_SYNC = 4  # On macOS that number invalidates pages.
_REPORTS_SYNC_ERRORS = (5, 8)
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_NO_HOLES = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV})
_NO_FULL_SYNC = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOTTY, errno.EINVAL})
_BLOCK_BYTES = 4096
_ZERO_BLOCK = bytes(_BLOCK_BYTES)

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

    Python before 3.13 always duplicates the descriptor of a map, and on other systems the map then keeps it. On Linux
    Python creates an anonymous map, which has none,
    and mmap with MAP_FIXED replaces it by the file's pages; closing and the count of views stay Python's. A failure
    leaves the anonymous map unchanged: the kernel checks its limits before it replaces.
    """
    access = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size, access=access, trackfd=False)
    if not ON_LINUX:
        return mmap.mmap(descriptor, size, access=access)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    place = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE, prot=protection)
    flags = _MAP_FIXED | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    if _mmap(address, size, protection, flags, descriptor, 0) == _MAP_FAILED:
        number = ctypes.get_errno()
        place.close()
        raise OSError(number, os.strerror(number))
    return place


def reserve_blocks(descriptor: int, start: int, length: int) -> None:
    """Disk blocks for the range, so that a store to a map of it cannot fail. Raises OSError on a full disk.

    Only the caller writes to the range meanwhile. Where there is no such call, zeros are written over zeros: a block
    with another byte is on the disk already.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, length)
        return
    position, end = start, start + length
    while position < end:
        size = min(_BLOCK_BYTES - position % _BLOCK_BYTES, end - position)
        is_zero = not os.pread(descriptor, size, position).strip(b"\0")
        if is_zero and os.pwrite(descriptor, _ZERO_BLOCK[:size], position) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += size


def sync_data(descriptor: int) -> None:
    """Make a file's bytes and its length durable. Raises the system's error."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        sync_file(descriptor)


def sync_file(descriptor: int) -> None:
    """Make a file durable, or the names in a directory. Raises the system's error."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # fsync of macOS leaves the bytes in the drive's cache.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def read_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """Read at a position; how many bytes, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], position)
    data = os.pread(descriptor, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def processor_count() -> int:
    """How many processors this process may use; all of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sync_pages(buffer: Any, size: int) -> None:
    """fdatasync of the file behind a shared map, without a descriptor; on Linux alone. Raises the kernel's error.

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
    found = re.match(r"(\d+)\.(\d+)", os.uname().release) if ON_LINUX else None
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
    if not ON_LINUX:  # Its structure is larger there.
        return False
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

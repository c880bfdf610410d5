"""Keeps the heap of a long-running process as large as what it holds.

glibc gives up to eight heaps per processor to threads, and each keeps what its threads once needed: a broker of fifty
threads that held 30 MB of Python objects and a 32 MB read cache had 250 MB of them after ten minutes. Two heaps serve
threads that the interpreter lets run one at a time, and buffers of a megabyte go back to the system when they are
freed. Whoever set one of glibc's own variables (`MALLOC_ARENA_MAX`, …) knows better, and is left alone.
"""

from __future__ import annotations

import ctypes
import os

M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
ARENAS = 2
OWN_MAP_BYTES = 1 << 20
"""Buffers of this size are maps of their own; glibc's own threshold grows with what it has seen, up to 32 MB."""


def limit_heaps() -> bool:
    """Call before threads start. False where there is nothing to do: another C library, or settings of the user."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_ARENA_MAX, ARENAS)) and bool(mallopt(M_MMAP_THRESHOLD, OWN_MAP_BYTES))

"""What another process is doing with a store directory, found out without disturbing it.

    abort file   lock                          state
    none         free                          CLOSED      closed in order, or never opened
    none         held                          RECOVERING  being opened (or being closed: it is CLOSED in a moment)
    there        free                          CRASHED     its process died; what the files say was not checked since
    there        held by the one who wrote it  RUNNING
    there        held by another process       RECOVERING  opened after a crash, and not through with the check

A store writes its process id into its abort file once it has recovered. Where the id of the lock's holder cannot be
learned (another machine, another container) or the abort file has none (old brokers), a held lock means RUNNING.

The lock is asked about, never taken. A store that this very process has open is known from a table, and its lock file
is not even opened: closing it would drop the lock.
"""

from __future__ import annotations

import enum
import fcntl
import os
import struct
from pathlib import Path

from tiermq.errors import StoreNotRecovered
from tiermq.files.store_lock import LOCKED_BYTES, is_held_here

_FLOCK = struct.Struct("hhqqi")  # l_type, l_whence, l_start, l_len, l_pid, as Linux has it on 64 bits.
_NOBODY = 0
_SOMEBODY = -1


class StoreState(enum.Enum):
    """See the module."""

    RUNNING = "running"
    CLOSED = "closed"
    CRASHED = "crashed"
    RECOVERING = "recovering"


def store_state(root: Path) -> StoreState:
    """What the directory's files say now; the next moment may differ."""
    holder = _lock_holder(root / "lock")
    owner = _abort_owner(root / "abort")
    if owner is None:
        return StoreState.CLOSED if holder == _NOBODY else StoreState.RECOVERING
    if holder == _NOBODY:
        return StoreState.CRASHED
    return StoreState.RUNNING if holder == _SOMEBODY or owner in (0, holder) else StoreState.RECOVERING


def require_recovered(root: Path) -> StoreState:
    """The state, if what the files say can be believed. Raises StoreNotRecovered."""
    state = store_state(root)
    if state is StoreState.CRASHED:
        raise StoreNotRecovered(
            f"{root}: expected a store that runs or was closed, found one whose process died: the ends of its files "
            "were not checked since. Open it once (start its broker, or use --recover), then try again"
        )
    if state is StoreState.RECOVERING:
        raise StoreNotRecovered(
            f"{root}: expected a store that runs or was closed, found one that is being opened; try again when it runs"
        )
    return state


def _abort_owner(path: Path) -> int | None:
    """The process that the abort file names, 0 when it names none, None when there is no such file."""
    try:
        text = path.read_bytes()[:20].strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else 0


def _lock_holder(path: Path) -> int:
    """The process that holds the lock, or one of the two constants."""
    if is_held_here(str(path)):
        return os.getpid()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _NOBODY
    except PermissionError:
        return _SOMEBODY  # Whoever cannot even read the file cannot be told more.
    try:
        # A shared lock would do for asking: it collides with the exclusive one, and needs no right to write.
        question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, LOCKED_BYTES, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK:
        return _NOBODY
    return process if process > 0 else _SOMEBODY

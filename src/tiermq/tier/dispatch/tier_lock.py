"""TierLock: who, of all processes on this machine, writes what a store directory knows of its tier.

The embedded dispatcher and a job take turns; two at once would both write the tier's index files, which lie in the
store's own directory and know no lease. The lease settles the same between machines, by time; this settles it at once,
and is given back by the kernel however a process ends.

The file `config/tier.lock` holds one line that says who it is. It is never removed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tiermq.errors import StoreLocked
from tiermq.files.os_errors import translated

NAME = "tier.lock"


class TierLock:
    """A held lock. `release` may be called any number of times."""

    def __init__(self, root: Path, owner: str) -> None:
        """Raises StoreLocked, naming the owner, when another one has it, in this process or elsewhere."""
        path = root / "config" / NAME
        with translated("lock the tier", str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(self._descriptor, 1_000, 0).decode("utf-8", "replace").strip()
                self.release()
                raise StoreLocked(
                    f"{path}: {owner} wants to copy this store into its tier, but {holder or 'another process'} does "
                    "that; stop it first, or let it go on"
                ) from error
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{owner} (process {os.getpid()})\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

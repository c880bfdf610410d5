"""NewNames: files whose names become durable later, together, instead of one by one when they are made.

A store may get a thousand queues at once. Each is a file in a directory of its own: with every name durable at once
they cost three waits for the disk each, on the thread that makes messages visible. Nothing is lost without them, since
nobody may call a byte of a file durable before its name is: `sync` comes before that.

Invariant: when `sync(path)` returns, every directory from the file's up to `root` holds what leads to it.
Threads: any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from tiermq.files.file_access import FileAccess, Region


class NewNames:
    """See the module. `root` exists, and its own name is durable."""

    def __init__(self, access: FileAccess, root: str) -> None:
        self._access = access
        self._root = os.path.abspath(root)
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()

    @property
    def changed(self) -> frozenset[str]:
        """Directories that hold names which may not be durable."""
        with self._lock:
            return frozenset(self._changed)

    def create(self, path: str, size: int) -> Region:
        """A new file below `root`; see `FileAccess.create_unsynced`."""
        region = self._access.create_unsynced(path, size)
        self.doubt(path)
        return region

    def doubt(self, path: str) -> None:
        """Nobody knows whether the name of a file is durable: the next `sync` of it makes it so."""
        with self._lock:
            self._changed.update(self._directories(path))

    def sync(self, path: str) -> None:
        """Make the name of a file durable. The file's own bytes and length are its region's to sync, before."""
        with self._sync_lock:  # Whoever finds a directory unchanged must know that its sync is through.
            for directory in self._directories(path):
                with self._lock:
                    if directory not in self._changed:
                        continue
                    self._changed.discard(directory)  # Before the sync: what changes meanwhile is not covered.
                try:
                    self._access.sync_directory(directory)
                except FileNotFoundError:
                    continue  # It was removed, and the names in it.
                except BaseException:
                    with self._lock:
                        self._changed.add(directory)
                    raise

    def _directories(self, path: str) -> Iterator[str]:
        directory = os.path.dirname(os.path.abspath(path))
        while directory.startswith(self._root):
            yield directory
            parent = os.path.dirname(directory)
            if parent == directory:
                return
            directory = parent

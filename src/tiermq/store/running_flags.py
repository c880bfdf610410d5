"""RunningFlags: why a store does not accept reads or writes right now, one bit each, by RocketMQ's numbers."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable


class Flag(enum.IntFlag):
    """A reason. The store is writable when only NOT_READABLE is set, or none. The last three are TierMQ's own."""

    NOT_READABLE = 1
    NOT_WRITEABLE = 1 << 1
    WRITE_LOGICS_QUEUE_ERROR = 1 << 2
    WRITE_INDEX_FILE_ERROR = 1 << 3
    DISK_FULL = 1 << 4
    FENCED = 1 << 5
    LOGIC_DISK_FULL = 1 << 6
    SLAVE = 1 << 16
    FEW_REPLICAS = 1 << 17
    DRAINING = 1 << 18


_FORBIDS_WRITING = (
    Flag.NOT_WRITEABLE
    | Flag.WRITE_LOGICS_QUEUE_ERROR
    | Flag.WRITE_INDEX_FILE_ERROR
    | Flag.DISK_FULL
    | Flag.FENCED
    | Flag.LOGIC_DISK_FULL
    | Flag.SLAVE
    | Flag.FEW_REPLICAS
    | Flag.DRAINING
)


_WORDS = {
    Flag.NOT_READABLE: "it may not be read",
    Flag.NOT_WRITEABLE: "its log could not be written",
    Flag.WRITE_LOGICS_QUEUE_ERROR: "a consume queue could not be written",
    Flag.WRITE_INDEX_FILE_ERROR: "its key index could not be written",
    Flag.DISK_FULL: "its disk is full",
    Flag.FENCED: "another process has its broker, and it takes messages again only once it is started again",
    Flag.LOGIC_DISK_FULL: "the disk of its consume queues is full",
    Flag.SLAVE: "it is a slave, which copies its master: send to the master",
    Flag.FEW_REPLICAS: "fewer replicas are in sync than minInSyncReplicas",
    Flag.DRAINING: "its role is about to change",
}


class RunningFlags:
    """Changed under `_lock` by any thread; `on_change` is called after each change with whether writing is allowed."""

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._lock = threading.Lock()
        self._on_change = on_change
        self.bits = Flag(0)
        self._details: dict[Flag, str] = {}

    def set(self, flag: Flag, detail: str = "") -> bool:
        """True when the flag was not set before. `detail`: an explanation for operators."""
        self._details[flag] = detail
        return self._move(flag, Flag(0))

    def clear(self, flag: Flag) -> bool:
        """True when the flag was set before."""
        return self._move(Flag(0), flag)

    def _move(self, added: Flag, removed: Flag) -> bool:
        with self._lock:  # Held during the callback: callbacks must come in the order of changes.
            bits = (self.bits | added) & ~removed
            moved = bits != self.bits
            self.bits = bits
            if moved:
                self._on_change(self.writeable)
        return moved

    @property
    def readable(self) -> bool:
        return not self.bits & Flag.NOT_READABLE

    @property
    def writeable(self) -> bool:
        return not self.bits & _FORBIDS_WRITING

    def names(self) -> list[str]:
        """The active reasons, by name."""
        return [flag.name for flag in Flag if flag in self.bits and flag.name is not None]

    def words(self, of: Flag | None = None) -> str:
        """The active reasons, or those `of` these, as text; empty when there is none."""
        bits = self.bits if of is None else self.bits & of
        details = {flag: self._details.get(flag, "") for flag in Flag if flag in bits}
        return "; ".join(f"{_WORDS[flag]}: {detail}" if detail else _WORDS[flag] for flag, detail in details.items())

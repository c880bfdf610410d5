"""The memory of the sides' processes while they work, looked at twenty times a second by a thread of its own.

Whole resident memory counts pages of mapped store files too; `own` is the anonymous part. Children count with their
parent. Who the children are is asked when a round begins, because finding them reads the whole process table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from benchmarks import process_tree
from benchmarks.compare.results import Memory

INTERVAL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """What processes hold at one moment."""

    resident_bytes: int = 0
    own_bytes: int = 0

    def most(self, other: Held) -> Held:
        return Held(max(self.resident_bytes, other.resident_bytes), max(self.own_bytes, other.own_bytes))


def held(pids: list[int]) -> Held:
    """The memory of processes now; one that has ended holds nothing."""
    resident = own = 0
    for pid in pids:
        try:
            status = (process_tree.PROC / str(pid) / "status").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
            continue
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                resident += int(line.split()[1]) * 1024
            elif line.startswith("RssAnon:"):
                own += int(line.split()[1]) * 1024
    return Held(resident, own)


class MemoryWatch:
    """Peaks per side and per round. `pids` is read again every time: a side may start another process each round.

    The lock guards the peaks and the lists of processes; the thread samples, the runner reads.
    """

    def __init__(self, pids: Mapping[str, int], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._pids = pids
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._members: dict[int, list[int]] = {}
        self._peaks: dict[str, Held] = {}
        self._round: dict[str, Held] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def begin(self) -> None:
        """A round begins: forget what the last one held, and see which children there are."""
        with self._lock:
            self._round.clear()
            self._members.clear()
        self.sample()

    def end(self, side: str) -> Held:
        """The most that a side held since `begin`."""
        self.sample()
        with self._lock:
            return self._round.get(side, Held())

    def sample(self) -> None:
        """Look now."""
        with self._lock:
            for side, pid in dict(self._pids).items():
                if pid not in self._members:
                    self._members[pid] = [process.pid for process in process_tree.tree(pid)]
                now = held(self._members[pid])
                self._peaks[side] = self._peaks.get(side, Held()).most(now)
                self._round[side] = self._round.get(side, Held()).most(now)

    def _run(self) -> None:
        while not self._over.wait(self._interval_seconds):
            self.sample()

    def settled(self, most_seconds: float = 3.0) -> dict[str, Memory]:
        """Peaks, and what stays without work: the first value that four looks in a row agree on within 1 %."""
        deadline = time.monotonic() + most_seconds
        recent = [self._now()]
        while time.monotonic() < deadline and not _is_calm(recent):
            self._over.wait(self._interval_seconds)
            recent = [*recent[-3:], self._now()]
        with self._lock:
            return {
                side: Memory(
                    self._peaks.get(side, last).resident_bytes,
                    self._peaks.get(side, last).own_bytes,
                    last.resident_bytes,
                    last.own_bytes,
                )
                for side, last in recent[-1].items()
                if self._peaks.get(side, last).resident_bytes
            }

    def _now(self) -> dict[str, Held]:
        return {
            side: held([process.pid for process in process_tree.tree(pid)]) for side, pid in dict(self._pids).items()
        }


def _is_calm(recent: list[dict[str, Held]]) -> bool:
    if len(recent) < 4:
        return False
    for side in recent[-1]:
        values = [each[side].resident_bytes for each in recent if side in each]
        if max(values) - min(values) > max(values) // 100:
            return False
    return True

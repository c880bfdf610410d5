"""A process and everything below it, by what the kernel reports: processor time, memory of its own.

Spark is a driver, a JVM and Python workers, so the time of one process says nothing of what a scan cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One process as it was when it was looked at. `ended_ticks` is the time of children that it has waited for."""

    pid: int
    parent: int
    name: str
    ticks: int
    ended_ticks: int


def tree(root: int | None = None) -> list[Process]:
    """The process `root` (this one, by default) and all its descendants."""
    found = {process.pid: process for process in _all()}
    root = os.getpid() if root is None else root
    wanted, members = [root], []
    while wanted:
        pid = wanted.pop()
        if pid in found:
            members.append(found[pid])
        wanted.extend(each.pid for each in found.values() if each.parent == pid)
    return members


def cpu_seconds(root: int | None = None) -> float:
    """Processor time of the whole tree so far, with that of descendants that have ended and were waited for."""
    return sum(process.ticks + process.ended_ticks for process in tree(root)) / TICKS_PER_SECOND


def all_cpu_seconds() -> float:
    """Processor time that was not idle of the whole machine so far, with what its host took away."""
    line = (PROC / "stat").read_text(encoding="utf-8").splitlines()[0]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen, *_ = map(int, line.split()[1:])
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS_PER_SECOND


def own_bytes(pid: int) -> int:
    """Memory of a process' own: not files that it maps, whose pages the kernel takes back when it likes."""
    return _status_bytes(pid, "RssAnon")


def own_peak_bytes(pid: int) -> int:
    """The most that a process ever held, pages of mapped files among it."""
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, field: str) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _all() -> Iterator[Process]:
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
            continue
        name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
        fields = rest.split()  # The third field of `stat` on: state, parent, ...
        yield Process(
            int(entry.name), int(fields[1]), name, int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        )

"""What a reader needs to judge the figures: the machine, the programs and their versions, how busy it was.

No name of a machine, no path.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tiermq
from benchmarks import process_tree, report
from benchmarks.compare import peer_process
from benchmarks.compare.places import Grounds
from tiermq.kernel import KERNEL


def describe(grounds: Grounds, rocketmq_version: str) -> dict[str, Any]:
    """The environment of a run that begins now."""
    machine = report.describe_machine(grounds.mapped)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": machine["cpu"],
        "processors": len(os.sched_getaffinity(0)),
        "memory": f"{_memory_bytes() / (1 << 30):.1f} GiB",
        "system": machine["system"],
        **grounds.describe(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "java": java_version(),
        "java_heap": f"-Xmx{peer_process.HEAP}, HotSpot's own choice of collector and compilers",
        "rocketmq": rocketmq_version,
        "tiermq": " ".join(filter(None, [tiermq.__version__, _commit()])),
        "tiermq_kernel": KERNEL,
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


class Others:
    """What processes that are neither this one nor its descendants use of the processors, from now on."""

    def __init__(self) -> None:
        self._before_s, self._began_s = self._spent_s(), time.monotonic()

    def processors(self) -> float:
        """How many of them, on the mean so far. Time that a host takes away counts too."""
        spent_s = self._spent_s() - self._before_s
        return max(0.0, spent_s / max(time.monotonic() - self._began_s, 1e-9))

    def _spent_s(self) -> float:
        return process_tree.all_cpu_seconds() - process_tree.cpu_seconds()


def is_busy(look_s: float = 1.0) -> bool:
    """Whether others use a tenth of the processors or more already."""
    others = Others()
    time.sleep(look_s)
    return others.processors() > 0.1 * len(os.sched_getaffinity(0))


def java_version() -> str:
    """The first line that the `java` of the path prints about its version."""
    try:
        reported = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "none"
    lines = (reported.stderr or reported.stdout).splitlines()
    return lines[0].strip() if lines else "unknown"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    """The checkout's commit, "" where it is none; whether files differ from it."""
    root = Path(__file__).resolve().parent.parent.parent
    asked = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=, changed since"]
    try:
        reported = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # No git here.
        return ""
    return f"(commit {reported.stdout.strip()})" if reported.returncode == 0 else ""

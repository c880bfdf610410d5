"""What a reader needs to judge the figures: the machine, the programs and their versions, how busy it was.

No name of a machine, no path.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tiermq
from benchmarks import report
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


def is_busy() -> bool:
    """Whether others use more than half of the processors already."""
    return os.getloadavg()[0] > 0.5 * len(os.sched_getaffinity(0))


def java_version() -> str:
    """The first line that the `java` of the path tells about itself."""
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

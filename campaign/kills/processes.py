"""The processes that descend from one of ours, by what they are. No others are ever looked for, or killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def descendants(process: int) -> list[int]:
    """Every process below this one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # It ended meanwhile.
            children.setdefault(parent, []).append(int(entry.name))
    found = [process]
    for each in found:
        found += sorted(children.get(each, []))
    return found[1:]


def kind_of(process: int) -> str:
    """What a process of a Spark application is: jvm, executor, worker; "" for any other, and for one that is gone."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if any("CoarseGrainedExecutorBackend" in word for word in words):
        return "executor"
    if os.path.basename(words[0]) == "java":
        return "jvm"
    return "worker" if any("daemon" in word for word in words) else ""


def kill(process: int) -> bool:
    """SIGKILL; False when it was gone already."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True

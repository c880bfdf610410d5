"""What a process holds while it works: its own memory, its file handles, its threads; and whether that is flat."""

from __future__ import annotations

import os
import statistics
import threading
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
EVERY_S = 1.0
SAMPLES_MIN = 300
"""With fewer, nothing is said about growth: a process needs some minutes to have used everything once."""
GROWTH_MAX = 1.15
SLACK = {"memory_mb": 8.0, "open_files": 8.0, "threads": 2.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    memory_mb: float
    open_files: float
    threads: float


def look(pid: int) -> Sample:
    """Raises FileNotFoundError, ProcessLookupError when the process is gone."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "Threads"):
            found[name] = int(value.split()[0])
    return Sample(found["RssAnon"] / 1024, len(os.listdir(f"/proc/{pid}/fd")), found["Threads"])


class Watch:
    """A thread that looks every second. Mapped files are not counted: the system takes their pages back."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.samples.append(look(self._pid))

    def stop(self) -> None:
        """No more looks."""
        self._ended.set()
        self._thread.join()

    def peaks(self) -> dict[str, float]:
        """The largest of each."""
        return {name: max((getattr(each, name) for each in self.samples), default=0.0) for name in SLACK}


def growth(samples: list[Sample]) -> list[str]:
    """What grew between the second third of the time and the last, in words."""
    if len(samples) < SAMPLES_MIN:
        return []
    third = len(samples) // 3
    reported = []
    for name, slack in SLACK.items():
        middle = statistics.median(getattr(each, name) for each in samples[third : 2 * third])
        late = statistics.median(getattr(each, name) for each in samples[2 * third :])
        if late > middle * GROWTH_MAX and late > middle + slack:
            reported.append(f"{name} grew from {middle:.0f} to {late:.0f} while the load stayed the same")
    return reported

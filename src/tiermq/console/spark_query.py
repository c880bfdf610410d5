"""SparkQuery: one query of the console on Spark, in a process of its own: a session takes memory, and seconds to start.

The process leads a group, with Spark's JVM in it. Whichever way the query ends, the group was killed before `run`
returns: nothing is left behind by a console that stops, nor by a client that leaves.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from tiermq.clock import Clock
from tiermq.console.query_runs import RunningQuery

KILL_S = 5.0
"""After SIGTERM the group has so long to end."""
ERRORS_KEPT_BYTES = 64 << 10
STAGE = re.compile(rb"\[Stage (\d+):[^\]]*\((\d+) \+ \d+\) / (\d+)\]")
"""Spark's own bar of progress."""
SHOW_PROGRESS = ("--conf", "spark.ui.showConsoleProgress=true")


@dataclass(frozen=True, slots=True)
class Stage:
    """How far Spark is: a query has several stages, one after the other."""

    number: int
    tasks_done: int
    tasks: int


class SparkQuery:
    """See the module. `run` is called once; the other methods by any thread."""

    def __init__(self, query: str, words: Sequence[str], clock: Clock) -> None:
        self.query = query
        self.running: RunningQuery | None = None
        """Ends it, with a reason; set while it runs."""
        self.began_ms = clock.now_ms()
        self.stage: Stage | None = None
        self._words = words
        self._clock = clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ends_at: float | None = None
        self._errors = b""

    @property
    def process_id(self) -> int | None:
        """Also the number of its group; None before it began."""
        process = self._process
        return None if process is None else process.pid

    def run(self) -> str:
        """What the process prints. Raises SparkFailed."""
        with self._lock:
            if self._ends_at is not None:
                raise SparkFailed("it was ended before it began")
            process = self._process = subprocess.Popen(
                [*self._words, *SHOW_PROGRESS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        errors = threading.Thread(target=self._read_errors, args=(process.stderr,), name="console-spark", daemon=True)
        errors.start()
        assert process.stdout is not None
        try:
            printed = process.stdout.read()
        finally:
            self._end_group(process)
            errors.join()
            process.stdout.close()
        if process.returncode:
            lines = [line.strip() for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
            reasons = [line for line in lines if line.startswith("Error: ")] or lines
            raise SparkFailed(reasons[-1].removeprefix("Error: ") if reasons else "Spark ended without a reason")
        return printed.decode()

    def _end_group(self, process: subprocess.Popen[bytes]) -> None:
        if hasattr(os, "waitid"):  # Until it is reaped, the group's number is its own. macOS cannot wait so.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with self._lock:
            process.wait()

    def _read_errors(self, stream: IO[bytes]) -> None:
        with stream:
            while data := os.read(stream.fileno(), 1 << 16):  # A bar has no end of its line.
                self._errors = (self._errors + data)[-ERRORS_KEPT_BYTES:]
                if found := STAGE.findall(self._errors):
                    self.stage = Stage(*map(int, found[-1]))

    def interrupt(self) -> None:
        """End it; by force when it was asked to a while ago."""
        now = self._clock.monotonic()
        with self._lock:
            first = self._ends_at is None
            if first:
                self._ends_at = now + KILL_S
            process = self._process
            if process is None or process.returncode is not None:
                return
            if first or now >= (self._ends_at or 0):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM if first else signal.SIGKILL)

    def to_dict(self, now_ms: int) -> dict[str, Any]:
        stage = self.stage
        return {
            "query": self.query,
            "beganMs": self.began_ms,
            "tookMs": max(0, now_ms - self.began_ms),
            "stage": None if stage is None else stage.number,
            "tasksDone": None if stage is None else stage.tasks_done,
            "tasks": None if stage is None else stage.tasks,
        }


class SparkFailed(Exception):
    """The process ended with an error; the text is the reason."""

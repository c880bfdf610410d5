"""Processes that load a machine's disk and say what they do, stopped for the moment of a copy."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_POLL_S = 0.001


class Victim:
    """A process and every whole line that it said. Used by one thread."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._rest = b""
        self.lines: list[str] = []
        self._counts: Counter[str] = Counter()

    def listen(self, acknowledgements: int, word: str = "A") -> None:
        """Until so many more lines begin with that word. Raises RuntimeError when the process ended before."""
        goal = acknowledgements + self._counts[word]
        while self._counts[word] < goal:
            select.select([self._output], [], [])
            if not self._drain():
                raise RuntimeError(f"the victim ended by itself with {self._process.wait()}")

    def stop(self) -> None:
        """Nothing goes on in it when this returns; what it said by then was heard."""
        stop(self._process.pid)
        self._drain()

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._drain()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _drain(self) -> bool:
        """Take what is in the pipe; False at its end."""
        while True:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            *whole, self._rest = (self._rest + data).split(b"\n")
            self.lines += [line.decode() for line in whole]
            self._counts.update(line[:1].decode() for line in whole)


def stop(process: int) -> None:
    """SIGSTOP, and wait until every thread of the process has come to a halt: one may be inside a sync."""
    os.kill(process, signal.SIGSTOP)
    while any(_state(task) not in "TtZX" for task in Path(f"/proc/{process}/task").iterdir()):
        time.sleep(_POLL_S)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"  # It ended meanwhile.

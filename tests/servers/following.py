"""`tiermq follow` as a process, for tests: its events, its end, and what it has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

QUICK = {
    "tiered_store_group_commit_timeout": 100,
    "tier_dispatch_interval": 100,
    "master_sync_interval": 200,
}


class Following:
    """One observer. Used by one thread."""

    def __init__(self, store: Path, *words: str, **settings: object) -> None:
        self.store = store
        self.errors = store.with_name(f"{store.name}.errors")
        config = store.with_name(f"{store.name}.toml")
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in {**QUICK, **settings}.items()))
        self._command = [sys.executable, "-m", "tiermq.cli", "follow", str(store), "-c", str(config), "--json", *words]
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}
        self._last: dict[str, Any] = {}

    def start(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._last = {}
        self.ready = self._event()
        assert self.ready["event"] == "ready"

    def _event(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended: {self.errors.read_text()[-4000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def progress(self, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The report of progress of which that is so: the last one, or a later one."""
        while not (self._last and is_so(self._last)):
            told = self._event()
            if told["event"] == "progress":
                self._last = told
        return self._last

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        assert self._end(signal.SIGTERM) == 0, self.errors.read_text()[-4000:]

    def _end(self, number: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        process.communicate()
        return process.returncode

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

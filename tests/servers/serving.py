"""`tiermq serve` in a process of its own: started when its ready line came, ended by a signal, started again.

with Serving(tmp_path / "store") as broker:
    client_of(broker.name_server)
    broker.kill()           # no chance to write anything more
    broker.start()          # the same store, the same ports
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from servers.loopback import free_ports

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 6_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
}
"""Of the store: `LocalStore.open(served.store, **SIZES)` opens it when the broker has ended."""


class Serving:
    """One broker with its name server. Used by one thread."""

    def __init__(self, store: Path, *words: str, **settings: object) -> None:
        """`settings` are the store's and the broker's, by name; `words` go to the command."""
        self.store = store
        self.errors = store.with_name(f"{store.name}.errors")
        config = store.with_name(f"{store.name}.toml")
        told = {**SIZES, "bind_address": "127.0.0.1", "broker_name": "b1", **settings}
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
        self.port, self._name_server_port = free_ports(2)
        ports = ["--port", str(self.port), "--namesrv-port", str(self._name_server_port)]
        self._command = [sys.executable, "-m", "tiermq.cli", "serve", str(store), "-c", str(config), "--json"]
        self._command += [*(ports if "--namesrv" not in words else ports[:2]), *words]
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    @property
    def name_server(self) -> str:
        return str(self.ready["nameServer"])

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    def start(self) -> None:
        """Returns when it serves. Raises AssertionError with what it said when it cannot."""
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no ready line; it said: {self.said()}")
        self.ready = json.loads(line)

    def terminate(self) -> None:
        """What an operator does: it must answer what was asked, close the store and end well."""
        code = self._end(signal.SIGTERM)
        assert code == 0, f"expected a clean end, found exit code {code}: {self.said()}"

    def kill(self) -> None:
        """What a crash does."""
        self._end(signal.SIGKILL)

    def said(self) -> str:
        """What it wrote to its standard error."""
        return self.errors.read_text()[-4000:]

    def _end(self, number: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        process.communicate()
        return process.returncode

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.terminate()
        else:
            self.kill()

"""Server commands in processes of their own: started when the ready line came, ended by a signal, started again.

with Serving(tmp_path / "store") as broker:
    client_of(broker.name_server)
    broker.kill()           # no chance to write anything more
    broker.start()          # the same store, the same ports
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from servers.loopback import free_ports
from servers.preloaded import Preloaded

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 6_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
}
"""Of the store: `LocalStore.open(served.store, **SIZES)` opens it when the broker has ended."""
QUICK: dict[str, Any] = {
    "tiered_store_group_commit_timeout": 100,
    "tier_dispatch_interval": 100,
    "clean_resource_interval": 200,
    "master_sync_interval": 200,
}
"""Of an observer."""


class ServerProcess:
    """One server command with a store. Used by one thread."""

    def __init__(
        self,
        command: str,
        store: Path,
        settings: dict[str, Any],
        words: list[str],
        constants: dict[str, int] | None = None,
    ) -> None:
        self.store = store
        self._constants = constants
        self.errors = store.with_name(f"{store.name}.errors")
        config = store.with_name(f"{store.name}.toml")
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        self._command = [command, str(store), "-c", str(config), "--json", *words]
        self.process: Preloaded | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> None:
        """Returns when it serves. Raises AssertionError with its log when it cannot."""
        with self.errors.open("ab") as errors:
            self.process = Preloaded(self._command, stderr=errors, constants=self._constants)
        self.ready = self.event()
        assert self.ready["event"] == "ready", f"expected the ready line, found {self.ready}"

    def event(self) -> dict[str, Any]:
        """Its next line on standard output."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended, and its log is: {self.log()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def terminate(self) -> None:
        """What an operator does: it must respond to open requests, close the store and end well."""
        code = self._end(signal.SIGTERM)
        assert code == 0, f"expected a clean end, found exit code {code}: {self.log()}"

    def kill(self) -> None:
        """What a crash does."""
        self._end(signal.SIGKILL)

    def log(self) -> str:
        """The end of its standard error."""
        return self.errors.read_text()[-4000:]

    def _end(self, number: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        process.communicate()
        return process.wait()

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


class Serving(ServerProcess):
    """`tiermq serve`: one broker with its name server."""

    def __init__(self, store: Path, *words: str, **settings: object) -> None:
        """`settings` are the store's and the broker's, by name; `words` go to the command."""
        self.port, self._name_server_port = free_ports(2)
        ports = ["--port", str(self.port), "--namesrv-port", str(self._name_server_port)]
        super().__init__(
            "serve",
            store,
            {**SIZES, "bind_address": "127.0.0.1", "broker_name": "b1", **settings},
            [*(ports if "--namesrv" not in words else ports[:2]), *words],
        )

    @property
    def name_server(self) -> str:
        return str(self.ready["nameServer"])

    @property
    def address(self) -> str:
        return str(self.ready["address"])


class Following(ServerProcess):
    """`tiermq follow`: one observer, and its progress."""

    def __init__(self, store: Path, *words: str, constants: dict[str, int] | None = None, **settings: object) -> None:
        """`constants`: see `Preloaded`."""
        super().__init__("follow", store, {**QUICK, **settings}, ["--progress-every", "0.5", *words], constants)
        self._last: dict[str, Any] = {}

    def start(self) -> None:
        self._last = {}
        super().start()

    def progress(self, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The report of progress for which that is true: the last one, or a later one."""
        while not (self._last and is_so(self._last)):
            self.next_progress()
        return self._last

    def next_progress(self) -> dict[str, Any]:
        """The next report of progress."""
        while (event := self.event())["event"] != "progress":
            pass
        self._last = event
        return event

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

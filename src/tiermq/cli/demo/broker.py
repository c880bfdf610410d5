"""The demo's broker: a real `tiermq serve`, in a process of its own, with a file of settings beside its store.

It is started, killed, started again and ended on the same directory, each time on free ports. Its ready line has
its address. It ends when the demo ends, for any reason: its standard input is a pipe without
data, and end of file means that the demo has ended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tiermq.cli.demo.orders import RECORD_BYTES, DemoFailed
from tiermq.files.file_access import PAGE_BYTES

DEMO_CLUSTER = "DefaultCluster"
BROKER = "demo"
COMPLAINT_MAX = 1_000
INDEX_FILES = 6
END_S = 30.0
_START = "from tiermq.cli.demo.broker import serve_while_wanted; serve_while_wanted()"
_LOG_FILE_BYTES_MIN, _LOG_FILE_BYTES_MAX = 256 << 10, 16 << 20
_LOG_FILES = 12
_NEVER_MS = 86_400_000
_NO_COMPLAINT = re.compile(r"\s|Traceback|WARNING|\S+ \S+ WARNING ")  # Of a stack, a JVM's, a broker's.


@dataclass(frozen=True, slots=True)
class Place:
    """The demo's directories."""

    store: Path
    tier: str
    table: Path

    @property
    def settings(self) -> Path:
        """The broker's file."""
        return self.store.parent / "broker.toml"


def store_settings(messages: int) -> dict[str, Any]:
    """Settings for about this number of messages: files so small that several are full and can be evicted."""
    log_file_bytes = min(max(messages * RECORD_BYTES // _LOG_FILES, _LOG_FILE_BYTES_MIN), _LOG_FILE_BYTES_MAX)
    return {
        "flush_disk_type": "SYNC_FLUSH",
        "mapped_file_size_commit_log": log_file_bytes // PAGE_BYTES * PAGE_BYTES,
        "mapped_file_size_consume_queue": 20 * 50_000,
        "max_hash_slot_num": 200_000,
        "max_index_num": 800_000,
        "file_reserved_time": 0,  # Full files may be evicted at once, if their copy in the tier is verified.
        "delete_file_batch_max": 1_000,
        "clean_resource_interval": _NEVER_MS,  # Files are evicted at the demo's request only.
    }


def tier_settings(messages: int) -> dict[str, Any]:
    """Settings for about this number of messages: segments and index files so small that several are full.

    A message has two keys: its order id, and the client's unique key.
    """
    keys = max(256, 2 * messages // INDEX_FILES)
    return {
        "tiered_store_commit_log_max_size": 16 << 20,
        "tiered_store_index_file_max_hash_slot_num": 2 * keys,
        "tiered_store_index_file_max_index_num": keys,
    }


def settings_text(place: Place, messages: int) -> str:
    """The broker's file: TOML, as `tiermq serve -c` reads it."""
    tables: dict[str, dict[str, Any]] = {
        "broker": {"bind_address": "127.0.0.1", "broker_cluster_name": DEMO_CLUSTER, "broker_name": BROKER},
        "store": {"store_path_root_dir": str(place.store), **store_settings(messages)},
        # A job uploads, and the broker follows it.
        "tier": {"tier_url": place.tier, "tier_dispatch_enable": False, **tier_settings(messages)},
    }
    lines = ["# The broker of `tiermq demo`: `tiermq serve -c` this file serves its store again."]
    for name, values in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


class BrokerProcess:
    """See the module. Used by one thread. Its output goes to the file `log`."""

    def __init__(self, settings: Path, log: Path) -> None:
        self._settings = settings
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.name_server = ""
        self.address = ""

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises DemoFailed with its output if it fails."""
        command = [sys.executable, "-c", _START, "serve", "-c", str(self._settings)]
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [*command, "--port", "0", "--namesrv-port", "0", "--json"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the demo's, which then ends its broker.
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self._give_up(process.wait())
        ready = json.loads(line)
        self.name_server, self.address = ready["nameServer"], ready["address"]

    def kill(self) -> None:
        """SIGKILL, at once. It has ended when `forget_killed` returns."""
        assert self._process is not None
        self._process.kill()

    def forget_killed(self) -> None:
        """Wait for the end of what was killed. Raises DemoFailed if it ended before the kill."""
        assert self._process is not None
        code = self._process.wait()
        if code != -signal.SIGKILL:
            self._give_up(code)
        self._close()

    def end(self) -> None:
        """SIGTERM, and wait for a clean end. Raises DemoFailed for an unclean end."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait()
        if code:
            self._give_up(code)
        self._close()

    def _give_up(self, code: int) -> NoReturn:
        self._close()
        raise DemoFailed(f"the broker ended with code {code}: {self.complaint}")

    @property
    def complaint(self) -> str:
        """Its last error; empty if none."""
        return complaint_of(self._log)

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the broker, however the demo ends."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._close()


def serve_while_wanted() -> None:
    """The child: `tiermq` with the arguments of this process, until a signal or the end of its parent."""
    from tiermq.cli.main import cli

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="demo-parent", daemon=True).start()
    cli(prog_name="tiermq")


def complaint_of(log: Path) -> str:
    """The last error in a log, without stacks and warnings; empty if none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = [line.strip() for line in lines if line.strip() and not _NO_COMPLAINT.match(line)]
    return " ".join(said)[-COMPLAINT_MAX:]

"""BrokerSupervisor: several brokers on one machine, a process each, under one name server (`serve --brokers N`).

    supervisor ── name server
       ├── tiermq serve DIR/0 --name NAME-0 --port P
       └── tiermq serve DIR/1 --name NAME-1 --port P+10

A broker uses little more than one core; N of them use N. Topics spread over them as over machines. A broker that ends
by itself, or that cannot start while another one can, is started again. Brokers get SIGTERM when the supervisor dies,
however it dies.

Threads: one per broker starts its process, reads its events and starts it again; the supervisor's lock guards what
they share.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.settings_file import FileSettings
from tiermq.errors import BadConfig
from tiermq.service import Service

PORTS_APART = 10
"""Room for the ports that a broker opens beside its own: VIP and HA."""
RESTART_FIRST_S = 1.0
RESTART_MOST_S = 30.0
_PR_SET_PDEATHSIG = 1
ONE_BROKER = ("broker_id", "lease", "standby", "read_only")
"""Options that are of one broker among its replicas: refused, also in a settings file."""
NUMBERED = ("directory", "name", "port", "grpc_port", "metrics_port")
"""Options from which each broker gets its own."""
OF_SUPERVISOR = (
    "brokers", "namesrv", "namesrv_port", "with_console", "console_port", "allow_changes", "hosts", "tables",
    "spark_master", "as_json", "supervised", "tls_key_password",
)  # fmt: skip
"""Options for the process that starts the brokers; of them it passes on an address, and a password by a variable."""
NOT_PASSED_ON = frozenset((*ONE_BROKER, *NUMBERED, *OF_SUPERVISOR))
_OWN_PATHS = ("store_path_commit_log", "read_only_commit_log_store_paths")
_log = logging.getLogger(__name__)

Announce = Callable[[str, dict[str, Any]], None]
"""Takes an event for people, and its values."""


def broker_commands(
    options: dict[str, Any],
    file: FileSettings,
    directory: Path,
    name_server: str,
    passed_on: Sequence[str],
    *,
    with_name_server: bool,
) -> list[list[str]]:
    """The command of each broker; `with_name_server`: it is the supervisor's. Raises BadConfig for settings that
    several brokers cannot share.
    """
    count: int = options["brokers"]
    if not hasattr(ctypes.CDLL(None), "prctl"):
        raise BadConfig(
            "--brokers: expected Linux, whose kernel ends the brokers of a supervisor that was killed, found "
            f"{sys.platform}: start each broker by a `tiermq serve` of its own"
        )
    for name in ONE_BROKER:
        if options[name]:
            raise BadConfig(f"--brokers: expected no --{name.replace('_', '-')}, which is of one broker, found it")
    one = BrokerConfig(**file.broker)
    if one.broker_id or one.read_only:
        raise BadConfig("--brokers: expected no brokerId and readOnly in the file, which are of one broker, found them")
    for name in _OWN_PATHS:
        if file.store.get(name):
            raise BadConfig(f"--brokers: expected no {name} in the file: each broker has its own below {directory}")
    if int(str(file.broker.get("ha_listen_port", -1))) > 0:
        raise BadConfig("--brokers: expected no haListenPort in the file, which is of one broker, found it")
    config = BrokerConfig(**{**file.broker, **({} if options["name"] is None else {"broker_name": options["name"]})})
    port = config.listen_port if options["port"] is None else options["port"]
    grpc_port = config.grpc_server_port if options["grpc_port"] is None else options["grpc_port"]
    metrics_port = config.metrics_port if options["metrics_port"] is None else options["metrics_port"]
    commands = []
    for number in range(count):
        words = ["serve", str(directory / str(number)), "--name", f"{config.broker_name}-{number}", "--json"]
        words += ["--port", str(port and port + number * PORTS_APART), "--namesrv", name_server, *passed_on]
        if with_name_server:
            words.append("--supervised")
        words += ["--grpc-port", str(grpc_port and grpc_port + number)]
        if metrics_port >= 0:
            words += ["--metrics-port", str(metrics_port and metrics_port + number)]
        commands.append([sys.executable, "-m", "tiermq.cli", *words])
    return commands


def check_several_brokers(directory: Path, count: int) -> None:
    """Brokers beside the stores that are there would hide their messages. Raises BadConfig."""
    if _is_store(directory):
        raise BadConfig(f"{directory}: expected a directory for {count} brokers, found the store of one broker")
    numbers = _numbered(directory)
    if numbers and max(numbers) >= count:
        raise BadConfig(
            f"{directory}: expected the stores of at most {count} brokers, found {max(numbers) + 1}: with --brokers "
            f"{count} the messages of the others could not be read"
        )


def check_one_broker(directory: Path) -> None:
    """One broker would start an empty store beside those of several. Raises BadConfig."""
    stores = [number for number in _numbered(directory) if _is_store(directory / str(number))]
    if not stores:
        return
    count = max(stores) + 1
    found = f"{directory}: expected the store of one broker, found those of {count} (from `--brokers {count}`)"
    if _is_store(directory):
        raise BadConfig(
            f"{found} beside one: messages of either could not be read; move commitlog, config and the rest of that "
            "one to a directory of its own"
        )
    raise BadConfig(
        f"{found}, whose messages could not be read: give --brokers {count}, or serve one of them: {directory}/0"
    )


def _numbered(directory: Path) -> list[int]:
    return [int(each.name) for each in directory.glob("[0-9]*") if each.is_dir() and each.name.isdigit()]


def _is_store(directory: Path) -> bool:
    return (directory / "commitlog").exists() or (directory / "config").exists()


class BrokerSupervisor:
    """See the module. One thread calls; each broker has a thread of its own."""

    def __init__(self, commands: Sequence[Sequence[str]], announce: Announce) -> None:
        self._announce = announce
        self._brokers = [_BrokerProcess(command, self) for command in commands]
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.has_started = self.is_ending = False
        self.messages_left = self.queues_left = 0

    def start(self) -> list[dict[str, Any]]:
        """Start all, and return the ready lines' values of those that run. Raises BadConfig when none can start."""
        for each in self._brokers:
            each.start()
        with self.changed:
            self.changed.wait_for(lambda: all(each.ready or each.exit_code is not None for each in self._brokers))
            ready = [each.ready for each in self._brokers if each.ready]
        if not ready:
            self.stop()
            names = " and ".join(each.name for each in self._brokers)
            raise BadConfig(f"{names}: expected to start, found the error above")
        return ready

    def keep_running(self) -> None:
        """Called when the start was announced: from now on brokers that have ended are started again."""
        with self.changed:
            self.has_started = True
            self.changed.notify_all()

    def hang_up(self) -> None:
        """Let every broker read accounts and certificates again."""
        with self._lock:
            for each in self._brokers:
                each.signal(signal.SIGHUP)

    def ask_to_stop(self) -> None:
        """Let all brokers end cleanly. Once: a second SIGTERM would end them at once."""
        with self.changed:
            if self.is_ending:
                return
            self.is_ending = True
            self.changed.notify_all()
            for each in self._brokers:
                each.signal(signal.SIGTERM)

    def stop(self) -> None:
        """End all brokers cleanly, at the same time."""
        self.ask_to_stop()
        for each in self._brokers:
            each.stop()

    def on_event(self, broker: _BrokerProcess, event: dict[str, Any]) -> None:
        """On a broker's thread."""
        kind = event.get("event")
        with self.changed:
            if kind == "ready":
                is_again, broker.ready = self.has_started, {**event, "processId": broker.process_id}
                self.changed.notify_all()
            elif kind == "ended":
                left = event.get("notUploaded", {})
                self.messages_left += left.get("messages", 0)
                self.queues_left += left.get("queues", 0)
        if kind == "ready" and is_again:
            self._announce(f"{broker.name} is back at {event['address']}", {"event": "restarted", "name": broker.name})

    def on_end(self, broker: _BrokerProcess) -> bool:
        """On a broker's thread: its process has ended. Whether to start another."""
        with self.changed:
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.has_started or self.is_ending)
            goes_on = not self.is_ending
        if goes_on:
            words = f"{broker.name} ended by itself, exit code {broker.exit_code}; starting it again"
            self._announce(words, {"event": "lost", "name": broker.name, "exitCode": broker.exit_code})
        return goes_on


class _BrokerProcess(Service):
    """One broker: its process, started again when it ends. The service's thread changes it, under the supervisor's
    lock where the supervisor reads.
    """

    def __init__(self, command: Sequence[str], owner: BrokerSupervisor) -> None:
        super().__init__(command[command.index("--name") + 1])
        self._command, self._owner = command, owner
        self._process: subprocess.Popen[str] | None = None
        self._rest_s = RESTART_FIRST_S
        self.ready: dict[str, Any] = {}
        self.exit_code: int | None = None

    def run_once(self) -> float:
        """Run the process until it ends. Seconds until it is started again."""
        end_with_this = partial(_end_with, os.getpid(), ctypes.CDLL(None).prctl)  # Found here: a fork cannot load.
        with self._owner.changed:
            if self._owner.is_ending:
                return 0.0
            # Not the terminal's Ctrl-C, which the supervisor gets; and never without the supervisor.
            # The service manager is notified by the supervisor alone.
            environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
            self._process = process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=end_with_this,
                env=environment,
            )
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._take(line)
        with self._owner.changed:
            self.exit_code, self._process = process.wait(), None
        if not self._owner.on_end(self):
            self.ask_to_stop()
            return 0.0
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, RESTART_MOST_S)
        return rest_s

    def _take(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            _log.warning("%s: %s", self.name, line.rstrip())
            return
        if event.get("event") == "ready":
            self._rest_s = RESTART_FIRST_S
        self._owner.on_event(self, event)

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def signal(self, number: int) -> None:
        """Under the supervisor's lock."""
        if self._process is not None:
            self._process.send_signal(number)


def _end_with(supervisor: int, prctl: Callable[[int, int], int]) -> None:
    """Between fork and exec: the kernel sends SIGTERM when the thread that started this process ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The supervisor ended before. In a container it may be process 1. No signal: until exec they are the supervisor's,
    # whose handler writes to a socket that both have.
    if os.getppid() != supervisor:
        os._exit(128 + signal.SIGTERM)

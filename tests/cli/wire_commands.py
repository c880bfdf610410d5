"""A broker for the commands that go over the wire, and a way to run them as their user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tiermq.cli.main import cli
from tiermq.client.cluster_client import Access, Route
from tiermq.testing import LocalBroker
from waiting import until


class Shell:
    """Runs `tiermq` with the broker's name server in the environment."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.environment = {"NAMESRV_ADDR": broker.name_server}

    def run(self, *words: str, code: int = 0, **more: Any) -> Result:
        result = CliRunner().invoke(cli, words, env=self.environment, **more)
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    def wait_for_topic(self, name: str, *, is_writable: bool = True) -> None:
        """Until the name server knows a topic that came by itself, or was changed: the broker tells it by a thread of
        its own.
        """

        def is_known() -> bool:
            found = self.route(name)
            return found is not None and bool(found.writable) == is_writable

        until(is_known)

    def route(self, topic: str) -> Route | None:
        return Access(self.broker.name_server).run(lambda cluster: cluster.find_route(topic))

    def lines(self, *words: str) -> list[str]:
        return self.run(*words).stdout.splitlines()

    def json(self, *words: str) -> Any:
        return self.json_of(*words)

    def json_of(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def json_lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.lines(*words, "--json")]


@contextmanager
def shell(path: Path, **settings: Any) -> Iterator[Shell]:
    with LocalBroker(path / "store", **settings) as broker:
        yield Shell(broker)


@contextmanager
def process(*words: str) -> Iterator[dict[str, Any]]:
    """A server command, and the values of its ready line; it must end cleanly."""
    environment = {**os.environ, "NAMESRV_ADDR": ""}
    command = [sys.executable, "-m", "tiermq.cli", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGTERM)
            child.stdout.read()
        assert child.wait() == 0

"""RocketMQ's own Java clients as processes that do one job each: `java/ClientJob.java`, `java/Load.java`.

client.run(bodies=[…], topic="T", group="P")     → what it told, event by event
with client.standing(receive=3, …) as events:     a consumer that stays in its group until the block ends
load(kind="send", threads=64, bytes=128, messages=100_000, topic="T")
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.rocketmq import Distribution
from servers.loopback import stop

Event = dict[str, Any]


class JavaClient:
    """Jobs against the cluster of one name server. A JVM each."""

    def __init__(self, distribution: Distribution, name_server: str, scratch: Path) -> None:
        self._distribution = distribution
        self._name_server = name_server
        self._scratch = scratch

    def run(self, **job: Any) -> list[Event]:
        """What the job told, without its end. Raises AssertionError with the Java errors when it ends badly."""
        with self._started("ClientJob", job) as process:
            return list(self._events(process))

    @contextmanager
    def standing(self, **job: Any) -> Iterator[Iterator[Event]]:
        """Its events as they come; the consumer leaves when the block ends."""
        with self._started("ClientJob", {**job, "standing": True}) as process:
            yield self._events(process)

    def load(self, **job: Any) -> Event:
        """One job of the load: messages, failed, seconds, averageMs, maxMs."""
        with self.loading() as load:
            return load(**job)

    @contextmanager
    def loading(self) -> Iterator[Callable[..., Event]]:
        """The same for many jobs, done by one JVM that stays warm."""
        with self._started("Load") as process:

            def load(**job: Any) -> Event:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps({"nameServer": self._name_server, **job}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line, f"the load ended early: {self.errors()}"
                reported: Event = json.loads(line)
                return reported

            yield load

    @contextmanager
    def _started(self, main_class: str, job: dict[str, Any] | None = None) -> Iterator[subprocess.Popen[str]]:
        reported = [] if job is None else [json.dumps({"nameServer": self._name_server, **job})]
        command = self._distribution.java(self._scratch, main_class, *reported, heap="256m")
        with (self._scratch / "client.errors").open("ab") as errors:
            process = subprocess.Popen(
                command,
                cwd=self._scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            try:
                with process.stdin:
                    yield process
                process.wait()
            finally:
                stop(process)

    def _events(self, process: subprocess.Popen[str]) -> Iterator[Event]:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if "done" in event:
                return
            yield event
        process.wait()
        raise AssertionError(f"the client ended with {process.returncode}: {self.errors()}")

    def errors(self) -> str:
        """The end of what its JVMs wrote to their standard error: each failed send with its exception."""
        return (self._scratch / "client.errors").read_text()[-3000:]


def received(events: list[Event]) -> list[Event]:
    return [event["received"] for event in events if "received" in event]


def bodies(events: list[Event]) -> list[str]:
    return [message["body"] for message in received(events)]

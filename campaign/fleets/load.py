"""SteadyLoad: RocketMQ's own producer on all brokers of a fleet (`interop/java/SteadyLoad.java`), and its answers.

    load.start("topic", "name", brokers, queues=2)
    load.wait(100)                  until so many more messages were acknowledged
    load.stop() -> Acknowledged     all of this load

Threads: one reads the program's output; the rest is used by one thread.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from interop.rocketmq import Distribution

BODY_BYTES_MAX = 1_500
PAUSE_MS = 10
"""Between two sends to a broker: a load that goes on while a process starts again must leave it a processor."""

Queue = tuple[str, int]
"""Broker and queue id."""


@dataclass(slots=True)
class Acknowledged:
    """One load. Number n of broker b has the key NAME-b-n."""

    topic: str
    name: str
    numbers: dict[Queue, dict[int, int]] = field(default_factory=dict)
    """By queue: offset, and the number of its message."""
    count: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    took_ns: list[int] = field(default_factory=list)
    """How long each send took."""

    def note(self, line: str) -> None:
        broker, queue, offset, number, took_ns = line.split()
        self.took_ns.append(int(took_ns))
        at = self.numbers.setdefault((broker, int(queue)), {})
        if at.setdefault(int(offset), int(number)) != int(number):
            self.problems.append(f"{broker} acknowledged offset {offset} of queue {queue} twice")
        self.count += 1

    def key(self, queue: Queue, offset: int) -> str:
        return f"{self.name}-{queue[0]}-{self.numbers[queue][offset]}"


class SteadyLoad:
    """See the module."""

    def __init__(self, distribution: Distribution, name_server: str, scratch: Path) -> None:
        self._changed = threading.Condition()
        self._current: Acknowledged | None = None
        self._is_over = False
        self._errors = (scratch / "load.errors").open("ab")
        self._process = subprocess.Popen(
            distribution.java(scratch, "SteadyLoad", name_server, heap="256m"),
            cwd=scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="steady-load", daemon=True)
        self._reader.start()

    def start(
        self,
        topic: str,
        name: str,
        brokers: Sequence[str],
        *,
        queues: int,
        pause_ms: int = PAUSE_MS,
        into: Acknowledged | None = None,
    ) -> None:
        """`into`: what notes the acknowledgements. A broker that is named several times has so many threads."""
        self._current = into or Acknowledged(topic, name)
        self._is_over = False
        self._tell(
            {"topic": topic, "name": name, "brokers": list(brokers), "queues": queues, "bytes": BODY_BYTES_MAX}
            | {"pauseMs": pause_ms}
        )

    def wait(self, more: int) -> None:
        """Raises AssertionError when the program ended."""
        with self._changed:
            assert self._current is not None
            goal = self._current.count + more
            self._changed.wait_for(lambda: self._process.poll() is not None or self._count() >= goal)
        assert self._process.poll() is None, "the producer's program ended"

    def stop(self) -> Acknowledged:
        self._tell({})
        with self._changed:
            self._changed.wait_for(lambda: self._process.poll() is not None or self._is_over)
            assert self._is_over, "the producer's program ended"
            found, self._current = self._current, None
        assert found is not None
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._errors.close()

    def _count(self) -> int:
        return 0 if self._current is None else self._current.count

    def _tell(self, job: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                assert self._current is not None
                if line.startswith("end "):
                    self._current.failed, self._is_over = int(line.split()[1]), True
                else:
                    self._current.note(line)
                self._changed.notify_all()
        with self._changed:
            self._process.wait()
            self._changed.notify_all()

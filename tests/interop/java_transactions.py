"""RocketMQ's own producer of transactions as a process: `java/Transactions.java`."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.rocketmq import Distribution
from servers.loopback import stop

Event = dict[str, Any]


class JavaTransactions:
    """One producer of a group, and what it was asked."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors
        self._sent: queue.Queue[Event | None] = queue.Queue()
        self.asked: queue.Queue[Event] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="java-transactions", daemon=True)
        self._reader.start()

    def send(self, topic: str, body: str, now: str, later: str = "unknown", **properties: str) -> Event:
        """One transaction. `now`, and `later` when it is asked: commit, rollback or unknown."""
        assert self._process.stdin is not None
        job = {"topic": topic, "body": body, "now": now, "later": later, "properties": properties}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        reported = self._sent.get()
        assert reported is not None, f"the producer ended: {self._errors.read_text()[-3000:]}"
        return reported

    def join(self) -> None:
        """Wait until everything that the process told is read."""
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "sent" in event:
                self._sent.put(event["sent"])
            else:
                self.asked.put(event["asked"])
        self._sent.put(None)


@contextmanager
def java_transactions(
    distribution: Distribution, name_server: str, scratch: Path, group: str = "PG"
) -> Iterator[JavaTransactions]:
    scratch.mkdir(parents=True, exist_ok=True)
    errors = scratch / "transactions.errors"
    command = distribution.java(scratch, "Transactions", name_server, group, heap="256m")
    with errors.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=scratch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None
    try:
        with process.stdin:
            made = JavaTransactions(process, errors)
            yield made
        process.wait()
        made.join()
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()

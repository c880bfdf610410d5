"""RocketMQ's own benchmark programs, unchanged, against any broker: `java/Official.java` runs and counts them.

    with_programs(fetch()) -> Distribution           the same jars, and rocketmq-example's beside them
    with Official(distribution, name_server, scratch) as official:
        official.run("Producer", "-t", "T", "-w", 64, "-s", 128, messages=100_000)

Producer, BatchProducer, Consumer, TransactionProducer, timer.TimerProducer and timer.TimerConsumer are the programs.
Of rocketmq-example registries hold few releases; its programs use nothing of their own release but the client's public
methods, so one release of them runs on the client of another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from interop.rocketmq import Distribution, cache_directory, copy_jars, pom_of_one
from servers.loopback import stop

ARTIFACT = "rocketmq-example"
PROGRAMS_VERSION = "5.5.0"
REPORT_INTERVAL_MS = 1_000
ENDLESS_SENDERS = {"BatchProducer": 64, "TransactionProducer": 32}
"""Programs whose threads send until they are killed, and how many threads they have unless told otherwise."""
ENDLESS = 1_000_000_000
_COLUMN = re.compile(r"([A-Z][A-Za-z0-9() ]*): *(-?[0-9.]+)")


@dataclass(frozen=True, slots=True)
class Reported:
    """What became of a run: counted by the client it used, and printed by the program itself."""

    messages: int
    failed: int
    """Attempts that failed, also those of a message that was stored in the end."""
    seconds: float
    said: tuple[str, ...]

    @property
    def last_report(self) -> dict[str, float]:
        """The columns of the program's last report, as it names them. Empty when it has printed none."""
        reports = [line for line in self.said if "TPS: " in line or line.startswith("[Complete]")]
        return {name.strip(): float(value) for name, value in _COLUMN.findall(reports[-1])} if reports else {}


def acknowledged(record: Path) -> dict[str, tuple[int, int]]:
    """Queue and offset of each message that the program has an acknowledgement of, by unique id."""
    if not record.exists():
        return {}
    lines = record.read_text().split("\n")[:-1]  # The last one may not be whole yet.
    return {unique: (int(queue), int(offset)) for unique, queue, offset in map(str.split, lines)}


def with_programs(distribution: Distribution) -> Distribution:
    """Fetches the programs where the cache lacks them. Raises `Unavailable`."""
    root = cache_directory() / f"{ARTIFACT}-{PROGRAMS_VERSION}"
    lib = root / "lib"
    if not lib.is_dir():
        copy_jars(root, lib, pom_of_one(ARTIFACT, PROGRAMS_VERSION), f"{ARTIFACT} {PROGRAMS_VERSION}")
    return dataclasses.replace(distribution, more=(lib,))


class Official:
    """One JVM that runs one program after the other, and so stays warm. A context manager, used by one thread."""

    def __init__(self, distribution: Distribution, name_server: str, scratch: Path) -> None:
        self._name_server = name_server
        self._error_log = scratch / "official.errors"
        with self._error_log.open("ab") as errors:
            self._process = subprocess.Popen(
                distribution.java(scratch, "Official", heap="512m"),
                cwd=scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def produce_until_killed(self, record: Path, *options: object) -> None:
        """Begin an endless Producer, whatever fails; `acknowledged` reads its record at any time, `kill` ends it."""
        words = ["-n", self._name_server, "-q", str(ENDLESS), *map(str, options)]
        job = {"program": "Producer", "arguments": words, "messages": ENDLESS, "endsByItself": True}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job | {"record": str(record), "failures": ENDLESS}) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()

    def run(self, program: str, *options: object, messages: int, batch: int = 1, reports: int = 0) -> Reported:
        """Until so many messages were acknowledged or consumed, and the program has then reported so often.

        A program that can count (Producer) is told to, and ends by itself. Reports begin when it is ten seconds old.
        """
        words = ["-n", self._name_server, *map(str, options)]
        if not program.startswith("timer."):
            words += ["-ri", str(REPORT_INTERVAL_MS)]
        job: dict[str, object] = {"program": program, "arguments": words, "messages": messages}
        job |= {"batch": batch, "reports": reports}
        if program == "Producer":
            words += ["-q", str(messages)]
            job["endsByItself"] = True
        elif program in ENDLESS_SENDERS:
            job["threads"] = int(words[words.index("-w") + 1]) if "-w" in words else ENDLESS_SENDERS[program]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):  # It has ended before, and why is told below.
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"{program} {' '.join(words)} ended early: {self._error_log.read_text()[-3000:]}")
        reported = json.loads(line)
        return Reported(reported["messages"], reported["failed"], reported["seconds"], tuple(reported["said"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdout:
            try:
                if error is None:
                    self._process.stdin.close()
                    self._process.wait()
            finally:
                stop(self._process)

"""A side in a process of its own: `prepare key=value …` once, then `run key=value …` per round, answered by one JSON
line each. Java sides speak it by `java/Rounds.java`, Python sides by `serve`.

    start_rocketmq(stack, "StorePut", ...)       a class of `java/rocketmq/`, compiled against RocketMQ's own jars
    start_tiermq(stack, "store_side", "Puts")    a class of a module here

Values hold no blanks. Both inherit the caller's processor affinity.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from benchmarks import broker_side
from benchmarks.report import Round

JAVA = Path(__file__).resolve().parent.parent / "java"
ROOT = Path(__file__).resolve().parent.parent.parent
HEAP = "2g"


class PeerFailed(RuntimeError):
    """A side ended, or answered something else than a round."""


class Peer:
    """One running side."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the peer.
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.pid = self._process.pid

    def prepare(self, **parameters: object) -> dict[str, Any]:
        """Build the work's files and data; what the side tells of them."""
        return self.ask("prepare", **parameters)

    def run(self, **parameters: object) -> Round:
        """One timed round."""
        told = self.ask("run", **parameters)
        return Round(told["messages"], told["bytes"], told["seconds"], told["cpu_seconds"])

    def ask(self, verb: str, **parameters: object) -> dict[str, Any]:
        """One request and its answer. Raises PeerFailed with what the side wrote to stderr."""
        stdin, stdout = self._pipes()
        request = " ".join([verb, *(f"{key}={value}" for key, value in parameters.items())])
        try:
            stdin.write(request + "\n")
            stdin.flush()
            line = stdout.readline()
            while line and not line.startswith("{"):  # RocketMQ's classes print now and then.
                line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise PeerFailed(f"{self.name} ended at '{request}':\n{self._log.read()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End it and wait for it."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # It may have ended already, which is all that is wanted.
            stdin.close()  # End of input is the request to quit.
        self._process.wait()
        stdout.close()
        self._log.close()

    def kill(self) -> None:
        """As a crash would end it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


# RocketMQ


@cache
def distribution() -> Any:
    """RocketMQ's jars. Ends the program with one line where they cannot be had."""
    return broker_side.distribution()


@cache
def _compiled() -> Path:
    """The classes of `java/rocketmq/`, compiled once per state of the sources."""
    jars = distribution()
    sources = [JAVA / "Rounds.java", *sorted((JAVA / "rocketmq").glob("*.java"))]
    digest = hashlib.sha256(jars.version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiermq-bench"
    classes = kept / f"rocketmq-{digest.hexdigest()[:16]}"
    if not classes.exists():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as fresh:
            command = ["javac", "-nowarn", "-cp", f"{jars.lib}/*", "-d", fresh, *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PeerFailed(f"javac refused RocketMQ's sides:\n{done.stderr}")
            shutil.copytree(fresh, classes, dirs_exist_ok=True)
    return classes


def start_rocketmq(stack: ExitStack, work: str, home: Path, heap: str = HEAP) -> Peer:
    """A class of `java/rocketmq/` that serves rounds, run as a server is run; what RocketMQ logs goes under `home`."""
    command = distribution().java(home, work, heap=heap)
    at = command.index("-cp") + 1
    command[at] = os.pathsep.join([str(_compiled()), command[at]])
    return stack.enter_context(Peer(f"RocketMQ's {work}", command))


# TierMQ


def start_tiermq(stack: ExitStack, module: str, work: str) -> Peer:
    """A class of `benchmarks.compare.<module>` that serves rounds."""
    command = [sys.executable, "-m", "benchmarks.compare.peer_process", module, work]
    return stack.enter_context(Peer(f"TierMQ's {work}", command))


class Served(Protocol):
    """A Python side, as `Rounds.Work` is a Java side."""

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        """Build files and data, once."""
        ...

    def reset(self, parameters: dict[str, str]) -> None:
        """Before every round, untimed."""
        ...

    def run(self, parameters: dict[str, str]) -> tuple[int, int]:
        """The timed part; messages and bytes."""
        ...

    def close(self) -> None: ...


def serve(work: Served) -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        verb, *words = line.split()
        parameters = dict(word.split("=", 1) for word in words)
        if verb == "prepare":
            print(json.dumps({"ready": True} | work.prepare(parameters)), flush=True)
            continue
        if verb != "run":
            raise SystemExit(f"expected prepare or run, found {verb!r}")
        work.reset(parameters)
        cpu_before, before = time.process_time(), time.perf_counter()
        messages, size = work.run(parameters)
        seconds, cpu_seconds = time.perf_counter() - before, time.process_time() - cpu_before
        told = {"messages": messages, "bytes": size, "seconds": seconds, "cpu_seconds": cpu_seconds}
        print(json.dumps(told), flush=True)
    work.close()


if __name__ == "__main__":
    serve(getattr(importlib.import_module(f"benchmarks.compare.{sys.argv[1]}"), sys.argv[2])())

"""A side of a benchmark in a process of its own, over stdin and stdout: `prepare key=value …` once, then
`run key=value …` per round, answered by one JSON line each. Values hold no blanks.

Java sides speak it by `java/Rounds.java`, Python sides by `compare.peer_process.serve`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.report import Round

JAVA = Path(__file__).parent / "java"
ENDING_SECONDS = 5


class PeerFailed(RuntimeError):
    """A side ended, or answered something else than a round."""


class Peer:
    """One running side. It inherits the caller's processor affinity, so pin before starting it."""

    def __init__(self, name: str, command: Sequence[str | Path]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the peer.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid

    def prepare(self, **parameters: object) -> dict[str, Any]:
        """Build the work's files and data; what the side reports of them."""
        return self.ask("prepare", **parameters)

    def run(self, **parameters: object) -> Round:
        """One timed round."""
        reported = self.ask("run", **parameters)
        return Round(reported["messages"], reported["bytes"], reported["seconds"], reported["cpu_seconds"])

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

    def end(self) -> None:
        """End it in the middle of what it does: no caller waits for a round any more."""
        self._process.terminate()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.close()

    def kill(self) -> None:
        """As a crash would end it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.end()


def kept_classes(name: str, javac: Sequence[str | Path], sources: Sequence[Path], salt: str) -> Path:
    """The class path of `sources`, compiled once per state of them and kept in a cache by their digest.

    Raises PeerFailed with what the compiler says.
    """
    digest = hashlib.sha256(salt.encode())
    for source in sources:
        digest.update(source.read_bytes())
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiermq-bench"
    classes = kept / f"{name}-{digest.hexdigest()[:16]}"
    if not classes.exists():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as fresh:
            done = subprocess.run([*javac, "-d", fresh, *sources], capture_output=True, text=True, check=False)
            if done.returncode:
                raise PeerFailed(f"javac refused the {name} sources:\n{done.stderr}")
            shutil.copytree(fresh, classes, dirs_exist_ok=True)
    return classes

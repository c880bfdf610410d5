"""RocketMQ's mqadmin as a process that is given many commands, and what it prints with what changes left out."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from interop.rocketmq import Distribution

END = "--- end of the command ---"
_NOISE = re.compile(r"\|-|^\s+at |^\s+\.\.\. \d+ more|^SLF4J|^RocketMQLog")
"""Lines of logs, and of where in mqadmin an error came from."""
_MASKS = (
    (re.compile(r"\b[0-9A-F]{32,}\b"), "<id>"),
    (re.compile(r"\b127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[,:.]\d{3})?"), "<time>"),
    (re.compile(r"\b1[789]\d{11}\b"), "<time>"),
    (re.compile(r"TPS: [\d.]+"), "TPS: <rate>"),
    (re.compile(r"[ \t]+"), " "),
)


class Mqadmin:
    """See the module. A context manager; `options` are the JVM's own, for TLS."""

    def __init__(self, distribution: Distribution, home: Path, name_server: str, options: str = "") -> None:
        self._name_server = name_server
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / "mqadmin.errors").open("ab")
        self._process = subprocess.Popen(
            distribution.java(home, "Mqadmin", heap="256m"),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "JAVA_TOOL_OPTIONS": options} if options else None,
        )

    def run(self, *words: str) -> str:
        """What the command prints, errors too, without the lines of logs."""
        return self._answer("\t".join((*words, "-n", self._name_server)))

    def commands(self) -> dict[str, str]:
        """Every command that it has, with what it says of it."""
        found = re.findall(r"^ {3}(\w+) +(\S.*)$", self._answer(""), re.MULTILINE)
        return {name: text.strip() for name, text in found}

    def _answer(self, line_of_words: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line_of_words + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.rstrip("\n") == END:
                return "\n".join(each for each in lines if not _NOISE.search(each)).strip()
            lines.append(line.rstrip())
        raise AssertionError(f"mqadmin ended within {line_of_words!r}: {lines}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def masked(said: str) -> str:
    """Without ids, addresses, times and the widths of columns; lines in the order of their text."""
    for pattern, instead in _MASKS:
        said = pattern.sub(instead, said)
    return "\n".join(sorted(line.strip() for line in said.splitlines() if line.strip()))

"""Both sides of a comparison as peers (`benchmarks.peer`), and the loop of a Python side that answers them.

start_rocketmq(stack, "StorePut", ...)       a class of `java/rocketmq/`, compiled against RocketMQ's own jars
start_tiermq(stack, "store_side", "Puts")    a class of a module here
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from benchmarks import broker_side
from benchmarks.peer import JAVA, Peer, PeerFailed, kept_classes

__all__ = ["HEAP", "JAVA", "Peer", "PeerFailed", "Served", "distribution", "serve", "start_rocketmq", "start_tiermq"]

HEAP = "2g"


# RocketMQ


@cache
def distribution() -> Any:
    """RocketMQ's jars. Ends the program with one line where they cannot be had."""
    return broker_side.distribution()


@cache
def _compiled() -> Path:
    jars = distribution()
    sources = [JAVA / "Rounds.java", *sorted((JAVA / "rocketmq").glob("*.java"))]
    return kept_classes("rocketmq", ["javac", "-nowarn", "-cp", f"{jars.lib}/*"], sources, jars.version)


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
        reported = {"messages": messages, "bytes": size, "seconds": seconds, "cpu_seconds": cpu_seconds}
        print(json.dumps(reported), flush=True)
    work.close()


if __name__ == "__main__":
    serve(getattr(importlib.import_module(f"benchmarks.compare.{sys.argv[1]}"), sys.argv[2])())

"""Faults on executors: a task that fails, a Python worker that dies, an executor that is killed, a slow copy of a task.

Executors import this module, so nothing here may need pytest. A fault is claimed by making a file, once for all
processes: `Fault(function, folder, ["executor", "worker", "twice"])` lets the first attempt of any task kill its
executor, the second its worker, the third fail, all in the middle of their work, and every further one do as it should,
but for the next attempt of the task that failed: it fails once more.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.posix import PosixDriver

_DRIVERS = (PosixDriver, ObjectStoreDriver)
_POLL_S = 0.02
_GIVEN_UP_S = 120.0


class Fault:
    """Runs tasks by `function`, with a fault for each of the first ones: after `after` reads or writes of the tier."""

    def __init__(self, function: Callable[[Any], Any], folder: str, kinds: Sequence[str], after: int = 2) -> None:
        self._function = function
        self._folder = folder
        self._kinds = tuple(kinds)
        self._after = after

    def __call__(self, task: Any) -> Any:
        kind = claimed_kind(self._folder, self._kinds, name_of(task))
        if not kind:
            return self._function(task)
        with counted(("read", "write"), self._after, lambda: _act(kind)):
            result = self._function(task)
        # The task was over before its fault: so it happens at its very end, when all is written and nothing reported.
        _act(kind)
        return result


class FaultRows:
    """The same for the rows of a DataFrame, by mapInArrow: faults come when a task has passed some of its rows on.

    The kind `driver` kills the processes `victims`: those of the application's driver. The kind `slow` waits until a
    second copy of the same task is there, as `Straggler` does.
    """

    def __init__(self, folder: str, kinds: Sequence[str], victims: Sequence[int] = ()) -> None:
        self._folder = folder
        self._kinds = tuple(kinds)
        self._victims = tuple(victims)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        kind = self._kind(TaskContext.get())
        for batch in batches:
            middle = batch.num_rows // 2
            yield batch.slice(0, middle)
            if kind:
                self._act(kind)
                kind = ""
            yield batch.slice(middle)

    def _kind(self, context: Any) -> str:
        partition = f"{context.stageId()}-{context.partitionId()}"
        if os.path.exists(os.path.join(self._folder, f"slow-{partition}")):
            claim(self._folder, "copy")
            return ""
        kind = claimed_kind(self._folder, self._kinds, partition)
        if kind == "slow":
            open(os.path.join(self._folder, f"slow-{partition}"), "x").close()
            claim(self._folder, "copy")
        return kind

    def _act(self, kind: str) -> None:
        if kind == "slow":
            wait_for(os.path.join(self._folder, "copy-1"))
        elif kind == "driver":
            for victim in self._victims:
                os.kill(victim, signal.SIGKILL)
        else:
            _act(kind)


class Straggler:
    """Runs tasks by `function`. The first copy of the first task stops half way, until a second copy of it is there.

    From then on both write the same at the same time. `folder` has `copy-N` for each copy that began.
    """

    def __init__(self, function: Callable[[Any], Any], folder: str, after: int = 2) -> None:
        self._function = function
        self._folder = folder
        self._after = after

    def __call__(self, task: Any) -> Any:
        name = name_of(task)
        first = not os.path.exists(os.path.join(self._folder, "slow"))
        if first:
            with open(os.path.join(self._folder, "slow.tmp" + str(os.getpid())), "w") as file:
                file.write(name)
            try:
                os.link(file.name, os.path.join(self._folder, "slow"))
            except FileExistsError:
                first = False
        with open(os.path.join(self._folder, "slow")) as file:
            is_slow_one = file.read() == name
        if not is_slow_one:
            return self._function(task)
        claim(self._folder, "copy")
        twin = os.path.join(self._folder, "copy-1")
        if not first:
            return self._function(task)
        with counted(("read", "write"), self._after, lambda: wait_for(twin)):
            result = self._function(task)
        wait_for(twin)  # A task that neither reads nor writes the tier so often waits with its answer.
        return result


def name_of(task: Any) -> str:
    """The same for every attempt of a task."""
    return f"{zlib.crc32(repr(task).encode()):08x}"


def claimed_kind(folder: str, kinds: Sequence[str], task: str) -> str:
    """The fault of this attempt: the next of `kinds`, the second one of a task that is to fail twice, or ""."""
    failed_once = os.path.join(folder, f"once-{task}")
    if os.path.exists(failed_once):
        return "raise" if claim(folder, f"again-{task}") == 0 else ""
    number = claim(folder, "attempt")
    kind = kinds[number] if number < len(kinds) else ""
    if kind == "twice":
        open(failed_once, "x").close()
    return kind


def claim(folder: str, name: str) -> int:
    """A number that no other call got, in any process: 0, 1, 2 and so on."""
    number = 0
    while True:
        try:
            os.close(os.open(os.path.join(folder, f"{name}-{number}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number


def wait_for(path: str) -> None:
    """Until a file is there."""
    given_up_at = time.monotonic() + _GIVEN_UP_S
    while not os.path.exists(path):
        if time.monotonic() > given_up_at:
            raise RuntimeError(f"expected {path} within {_GIVEN_UP_S} s")
        time.sleep(_POLL_S)


def kill_executor() -> None:
    """kill -9 of the executor that this Python worker belongs to, of its daemon, and of the worker itself."""
    daemon = os.getppid()
    executor = parent_of(daemon)
    for process in (executor, daemon, os.getpid()):
        os.kill(process, signal.SIGKILL)


def parent_of(process: int) -> int:
    with open(f"/proc/{process}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def java_of_executor(_task: Any) -> str:
    """The program that the JVM runs to which this Python worker belongs."""
    return os.readlink(f"/proc/{parent_of(os.getppid())}/exe")


def _act(kind: str) -> None:
    if kind == "executor":
        kill_executor()
    elif kind == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("this task fails, as it was asked to")


@contextmanager
def counted(names: Sequence[str], after: int, act: Callable[[], None]) -> Iterator[None]:
    """Let `act` happen once, before the call of one of these methods of a tier's driver that follows `after` others."""
    left = [after]
    kept = [(kind, name, getattr(kind, name)) for kind in _DRIVERS for name in names]

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                act()
            return real(*arguments, **options)

        return call

    for kind, name, real in kept:
        setattr(kind, name, counting(real))
    try:
        yield
    finally:
        for kind, name, real in kept:
            setattr(kind, name, real)

"""PySpark's daemon, which forks Python workers, without a traceback for a worker whose reader has closed.

When a query ends early (a limit that is reached, a stream that is stopped), the JVM closes the socket of a worker that
may still write. PySpark's daemon prints a traceback of that BrokenPipeError on the user's standard error and
ends the worker; one that has only its last bytes to write ends well, but prints a traceback, too. Here the worker ends,
and nothing is printed. Any other error is reported as before.

Workers that plan a read are forked by PySpark's own daemon, whatever the session sets (4.3). There the data source
calls `silence_broken_pipes` when it is first loaded, which is after the fork. What happens before, while such a worker
starts and reads its request, is PySpark's alone: no code of this package is in that process yet. The JVM would have to
close the socket in these milliseconds, as it does when a query is cancelled or Spark is stopped while it plans.

Nothing but PySpark's daemon is imported here: workers are forked from this process, which must have one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyspark.daemon

Worker = Callable[[Any, bool], int]


def is_hung_up() -> bool:
    """Whether the error being handled is that of a reader that has closed."""
    return isinstance(sys.exception(), BrokenPipeError | ConnectionResetError)


def quiet_print(*values: Any, **more: Any) -> None:
    """`print`, but nothing about a reader that has closed."""
    if not is_hung_up():
        print(*values, **more)


def without_listener(worker: Worker) -> Worker:
    """The same worker, whose end is an exit code where the other side has hung up."""

    def run(sock: Any, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


class _QuietTraceback(ModuleType):
    """The module `traceback`, whose `print_exc` prints nothing when the other side has hung up."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def print_exc(self) -> None:
        if not is_hung_up():
            self._real.print_exc()


def silence_broken_pipes() -> None:
    """In a worker that PySpark's own daemon forked: no traceback for a query that ended early. Elsewhere nothing."""
    daemon = sys.modules["__main__"]
    name = getattr(getattr(daemon, "__spec__", None), "name", None)
    printer = getattr(daemon, "traceback", None)
    if name == "pyspark.daemon" and isinstance(printer, ModuleType) and not isinstance(printer, _QuietTraceback):
        daemon.traceback = _QuietTraceback(printer)  # type: ignore[attr-defined] # A global of that module.
        daemon.print = quiet_print  # type: ignore[attr-defined]


def main() -> None:
    """What `python -m tiermq.spark.worker_daemon` does, which Spark starts."""
    pyspark.daemon.print = quiet_print
    pyspark.daemon.traceback = _QuietTraceback(pyspark.daemon.traceback)
    pyspark.daemon.worker = without_listener(pyspark.daemon.worker)
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()

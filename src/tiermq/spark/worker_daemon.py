"""PySpark's daemon, which forks Python workers, without a traceback for a worker that nobody listens to any more.

When a query ends early (a limit that is reached, a stream that is stopped), the JVM closes the socket of a worker that
may have something to say. PySpark's daemon prints a traceback of that BrokenPipeError on the user's standard error and
ends the worker. Here the worker ends, and nothing is printed. Any other error is told as before.

Workers of tasks only: those that plan a read are forked by PySpark's own daemon, whatever the session says (4.3), so a
stream that is stopped while it plans may still print one.

Nothing but PySpark's daemon is imported here: workers are forked from this process, which must have one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyspark.daemon

Worker = Callable[[Any, bool], int]


def without_listener(worker: Worker) -> Worker:
    """The same worker, whose end is an exit code where the other side has hung up."""

    def run(sock: Any, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


def main() -> None:
    """What `python -m tiermq.spark.worker_daemon` does, which Spark starts."""
    pyspark.daemon.worker = without_listener(pyspark.daemon.worker)
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()

"""QueryRuns: queries of DuckDB in the console's process, which may be a broker's: bounded in number, memory and time.

    with sources.queries.run(connection) as query:      the connection has the settings of `settings()`
        query.check()                                   between batches that Python reads

A query ends at its time limit, when its client has left, and when the console stops. Each is watched by a thread, which
interrupts the connection until the query has ended: DuckDB forgets an interrupt that comes between two statements.
Invariant: after `stop`, no query runs. A thread inside DuckDB at the end of the interpreter aborts the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadRequest

LOOK_S = 0.05
"""How often a query's watcher looks whether it has to end."""
STOP_S = 10.0
STOPPING = "the console is stopping"
client_has_left: ContextVar[threading.Event | None] = ContextVar("client_has_left", default=None)
"""Of the request that this thread answers."""


class TooManyQueries(BadRequest):
    """The console runs as many queries as it may: try again later."""


class QueryEnded(BadRequest):
    """A query was ended before its result."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Of queries in the console, or of other long work. `name` begins its errors, `many` is what it counts."""

    seconds: float = 30.0
    memory_mib: int = 256
    """Of each query."""
    count: int = 2
    name: str = "query"
    many: str = "queries"
    advice: str = (
        "give a begin time or a narrower condition, or run it with `tiermq sql` or on Spark with `tiermq pipeline sql`"
    )


SPARK_LIMITS = QueryLimits(
    seconds=3_600.0, count=1, many="query on Spark", advice="run it with `tiermq pipeline sql`, which has no limit"
)
VERIFY_LIMITS = QueryLimits(seconds=float("inf"), count=1, name="verification", many="verification")
"""It ends with the console, and not with its client: what it found is kept."""


class RunningQuery:
    """One query; `why` is set once it has to end."""

    def __init__(self, connection: Any | None, name: str, is_stopped: threading.Event) -> None:
        self._connection = connection
        self._name = name
        self._is_stopped = is_stopped
        self.why = ""
        self.has_ended = threading.Event()

    def interrupt(self, why: str) -> None:
        self.why = self.why or why
        if self._connection is not None:
            self._connection.interrupt()

    def check(self) -> None:
        """Raises QueryEnded."""
        if self._is_stopped.is_set():
            self.why = self.why or STOPPING
        if self.why:
            raise QueryEnded(f"{self._name}: {self.why}")


class QueryRuns:
    """See the module. Every method may be called by any thread."""

    def __init__(self, limits: QueryLimits | None = None, *, clock: Clock | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self.running_count = 0
        self._is_stopped = threading.Event()

    def settings(self) -> dict[str, str]:
        """DuckDB's configuration: a query reads registered tables: no files, no extensions, no other settings."""
        return {
            "enable_external_access": "false",
            "lock_configuration": "true",
            "threads": "1",
            "memory_limit": f"{self.limits.memory_mib}MiB",
            "temp_directory": "",
            "python_enable_replacements": "false",  # A name of the query is no variable of ours.
        }

    @contextmanager
    def run(self, connection: Any | None) -> Iterator[RunningQuery]:
        """Raises TooManyQueries, and QueryEnded in place of any error of a query that had to end.

        `connection` None: a search that Python makes, which looks by `check`.
        """
        name = self.limits.name
        with self._changed:
            if self._is_stopped.is_set():
                raise QueryEnded(f"{name}: {STOPPING}")
            if self.running_count >= self.limits.count:
                raise TooManyQueries(
                    f"{name}: expected at most {self.limits.count} {self.limits.many} at a time, and so many run: try "
                    "again later"
                )
            self.running_count += 1
        query = RunningQuery(connection, name, self._is_stopped)
        watcher = threading.Thread(
            target=self._watch, args=(query, client_has_left.get()), name="console-query-watch", daemon=True
        )
        try:
            watcher.start()
            yield query
        except Exception:
            query.check()
            raise
        finally:
            query.has_ended.set()
            if watcher.ident is not None:
                watcher.join()  # The connection may be closed from here on.
            with self._changed:
                self.running_count -= 1
                self._changed.notify_all()

    def _watch(self, query: RunningQuery, left: threading.Event | None) -> None:
        ends = self._clock.monotonic() + self.limits.seconds
        while not query.has_ended.wait(LOOK_S):
            if query.why:
                query.interrupt(query.why)
            elif self._is_stopped.is_set():
                query.interrupt(STOPPING)
            elif left is not None and left.is_set():
                query.interrupt("its client has left")
            elif self._clock.monotonic() >= ends:
                query.interrupt(
                    f"ended after {self.limits.seconds:g} s, which is the most that a page takes: {self.limits.advice}"
                )

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped.is_set()

    def stop(self) -> None:
        """End the queries that run, wait for them, and take no more."""
        self._is_stopped.set()
        with self._changed:
            self._changed.wait_for(lambda: not self.running_count, STOP_S)

"""Counters of scans, from the workers that read to the driver that asks.

    meter = ScanMeter(spark)
    messages(spark, tier=..., topic="orders", meter=meter).take(5)
    print(meter)                      # queues, segments and bytes planned, read, skipped; requests; rows
    meter.show_in(registry)           # the same as Prometheus counters

A worker sends its counters over a connection of its own before each batch of rows, and at its end. An accumulator of
Spark would arrive only with a task that was read to its end, which `take`, `limit` and `show` never do. A task that
Spark runs again counts again: these are numbers of work done, not of rows in a result.

    worker ─► "<token> 3 1 0 …\n"   the counters of this partition so far; the last line counts

The meter listens where the driver listens for its executors, and a connection whose first line lacks the meter's token
is closed. With Spark Connect the driver is on another machine than the program, so there is no meter there;
`explain_scan` reports the plan.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.history.scan_values import ScanCounters
from tiermq.pipeline.scan.explain import describe_counters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiermq.metrics import Registry

METER_OPTION = "scanMeter"
_HELP = {
    "queues": "Queues that scans planned to read.",
    "segments_planned": "Segments that plans read.",
    "segments_skipped": "Segments that plans left out.",
    "bytes_planned": "Bytes of messages that plans read.",
    "bytes_skipped": "Bytes of messages that plans left out.",
    "index_files_asked": "Index files in which keys were looked up.",
    "index_bytes_read": "Bytes read of index files.",
    "requests": "Requests to the tier.",
    "bytes_read": "Bytes read, of messages and of everything else.",
    "rows_read": "Messages read.",
    "rows_given": "Messages given as rows.",
    "hot_bytes_read": "Bytes of messages read from stores.",
    "cold_bytes_read": "Bytes of messages read from the tier.",
    "messages_lost": "Messages that were asked for and are not there: expired, gaps, deleted, corrupt.",
}
assert set(_HELP) == set(ScanCounters.__slots__)
LINE_BYTES_MAX = 4096
_CONNECT_S = 10.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reported:
    """One worker's connection: bytes that are no whole line yet, and the last line."""

    pending: bytes = b""
    last: ScanCounters = field(default_factory=ScanCounters)


class _Listener:
    """Takes what workers report. `lock` guards everything but the selector's wait."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_hex(16)
        self.lock = threading.Lock()
        self.socket = socket.create_server((host, 0), backlog=1024)
        self.socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.socket, selectors.EVENT_READ)
        self._live: dict[socket.socket, _Reported] = {}
        self._ended = ScanCounters()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="scan-meter", daemon=True).start()

    def close(self) -> None:
        """End the thread, which closes everything."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def counters(self) -> ScanCounters:
        """Everything that was sent before this call, also what no thread has read yet."""
        with self.lock:
            while self._take(self._selector.select(0)):
                pass
            total = ScanCounters()
            for each in (self._ended, *(reported.last for reported in self._live.values())):
                total += each
            return total

    def _run(self) -> None:
        while True:
            ready = self._selector.select()
            with self.lock:
                if any(key.fileobj is self._woken for key, _ in ready):
                    for each in (self.socket, self._wake, self._woken, *self._live):
                        each.close()
                    self._selector.close()
                    return
                self._take(ready)

    def _take(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Read what is there; whether anything was."""
        progressed = False
        for key, _ in ready:
            if key.fileobj is self.socket:
                with contextlib.suppress(BlockingIOError):
                    accepted, _address = self.socket.accept()
                    accepted.setblocking(False)
                    self._selector.register(accepted, selectors.EVENT_READ)
                    self._live[accepted] = _Reported()
                    progressed = True
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._live:
                progressed = self._read(key.fileobj) or progressed
        return progressed

    def _read(self, connection: socket.socket) -> bool:
        reported = self._live[connection]
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        lines = (reported.pending + data).split(b"\n")
        reported.pending = lines.pop()
        counters = [_counters_of(line, self.token) for line in lines]
        if not data or None in counters or len(reported.pending) > LINE_BYTES_MAX:
            if data:
                _log.warning("a connection to the scan meter did not speak as a worker does: closed")
            self._end(connection)
        for each in counters:
            reported.last = each or reported.last
        return True

    def _end(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        reported = self._live.pop(connection)
        self._ended += reported.last


def _counters_of(line: bytes, token: str) -> ScanCounters | None:
    words = line.decode("ascii", "replace").split(" ")
    numbers = words[1:]
    if not secrets.compare_digest(words[0], token) or len(numbers) != len(ScanCounters.__slots__):
        return None
    return ScanCounters(*map(int, numbers)) if all(number.isdecimal() for number in numbers) else None


class ScanMeter:
    """One set of counters for any number of scans. Lives on the driver."""

    def __init__(self, spark: SparkSession) -> None:
        context = getattr(spark, "_sc", None)
        if context is None:
            raise BadOption("with Spark Connect there is no meter, since workers cannot reach it; use explain_scan")
        conf = context.getConf()
        self._host = conf.get("spark.driver.host", "127.0.0.1")
        self._listener = _Listener(conf.get("spark.driver.bindAddress", self._host))
        weakref.finalize(self, self._listener.close)

    @property
    def counters(self) -> ScanCounters:
        """What all scans with this meter have done so far."""
        return self._listener.counters()

    @property
    def option(self) -> str:
        """The value of the option `scanMeter`, by which workers find the meter."""
        return json.dumps([self._host, self._listener.socket.getsockname()[1], self._listener.token])

    def show_in(self, registry: Registry) -> None:
        """Register each counter as `tiermq_scan_<name>_total`."""
        for name, help_text in _HELP.items():
            metric = registry.counter(f"tiermq_scan_{name}_total", help_text)
            metric.labels().set_function(self._reader(name))

    def _reader(self, name: str) -> Any:
        return lambda: float(getattr(self.counters, name))

    def __str__(self) -> str:
        return describe_counters(self.counters)


@contextlib.contextmanager
def reporting(option: str | None) -> Iterator[Callable[[ScanCounters], None]]:
    """In a worker: a function that sends counters to the meter of an option; without one it does nothing.

    A meter that cannot be reached is logged once, and the scan continues.
    """
    if option is None:
        yield lambda _counters: None
        return
    host, port, token = json.loads(option)
    try:
        connection = socket.create_connection((host, port), _CONNECT_S)
    except OSError as error:
        _log.warning("the scan meter at %s:%s cannot be reached, this task is not counted: %s", host, port, error)
        yield lambda _counters: None
        return

    def report(counters: ScanCounters) -> None:
        numbers = " ".join(str(getattr(counters, name)) for name in ScanCounters.__slots__)
        with contextlib.suppress(OSError):  # The program that owns the meter has ended.
            connection.sendall(f"{token} {numbers}\n".encode())

    with connection:
        yield report

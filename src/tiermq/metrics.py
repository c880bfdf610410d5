"""Metrics of a process: counters, gauges and histograms, in the text formats of Prometheus and OpenMetrics.

    store_puts = registry.counter("rocketmq_messages_in_total", "Messages put.", labels=("topic",))
    orders = store_puts.labels("orders")      # look a child up once, outside the loop
    orders.add(1)                             # cheap: one lock, one addition
    print(registry.render_prometheus())

Invariants: a name belongs to one metric for the life of its registry; a child exists from its first lookup and is
never dropped, so that a rate over it never jumps; reading never blocks an update for longer than one addition.
Every object may be used from any thread.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

LATENCY_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class CounterChild:
    """One number that only grows, counted here or read from a function at each rendering."""

    __slots__ = ("_lock", "_read", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: float = 0
        self._read: Callable[[], float] | None = None

    def set_function(self, read: Callable[[], float]) -> None:
        """Take the number from `read`, which must never go down."""
        self._read = read

    def add(self, amount: float = 1) -> None:
        if amount < 0:
            raise ValueError(f"a counter only grows, it was asked to add {amount}: use a gauge for what goes down")
        with self._lock:
            self._value += amount

    @property
    def value(self) -> float:
        return self._value if self._read is None else self._read()

    def samples(self) -> list[tuple[str, str, float]]:
        return [("", "", self.value)]


class GaugeChild:
    """One number that goes up and down, set by its owner or read from a function at each rendering."""

    __slots__ = ("_lock", "_read", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: float = 0
        self._read: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self._value = value

    def add(self, amount: float) -> None:
        with self._lock:
            self._value += amount

    def set_function(self, read: Callable[[], float]) -> None:
        """Call `read` at each rendering, in the rendering thread: it must be quick and must not block."""
        self._read = read

    @property
    def value(self) -> float:
        return self._value if self._read is None else self._read()

    def samples(self) -> list[tuple[str, str, float]]:
        return [("", "", self.value)]


class HistogramChild:
    """Count of values at or below each bound."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        at = bisect.bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Values that were counted elsewhere, by bucket, and their sum."""
        with self._lock:
            self._counts = [here + more for here, more in zip(self._counts, counts, strict=True)]
            self._sum += total

    @property
    def bounds(self) -> tuple[float, ...]:
        return self._bounds

    @property
    def counts(self) -> tuple[int, ...]:
        """Values in each bucket by itself; the last one is for those above every bound."""
        with self._lock:
            return tuple(self._counts)

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum(self) -> float:
        return self._sum

    def samples(self) -> list[tuple[str, str, float]]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        rows: list[tuple[str, str, float]] = []
        below = 0
        for bound, count in zip((*self._bounds, math.inf), counts, strict=True):
            below += count
            rows.append(("_bucket", f'le="{_number(bound)}"', below))
        return [*rows, ("_sum", "", total), ("_count", "", below)]


class _Sampled(Protocol):
    def samples(self) -> list[tuple[str, str, float]]:
        """Rows of (suffix of the name, extra label, value)."""
        ...


Child = TypeVar("Child", bound=_Sampled)


class Metric(Generic[Child]):
    """A named metric and its children, one for each combination of label values."""

    def __init__(self, kind: str, name: str, text: str, labels: Sequence[str], make: Callable[[], Child]) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a metric is named by letters, digits, '_' and ':', found {name!r}")
        for label in labels:
            if not _LABEL.fullmatch(label) or label.startswith("__") or label == "le":
                raise ValueError(f"metric {name}: a label is named by letters, digits and '_', found {label!r}")
        self.kind = kind
        self.name = name
        self.text = text
        self.label_names = tuple(labels)
        self._make = make
        self._children: dict[tuple[str, ...], Child] = {}
        self._in_order: list[tuple[str, ...]] = []
        self._lock = threading.Lock()

    def labels(self, *values: object) -> Child:
        """The child of these label values, in the order of the metric's label names."""
        child = self._children.get(values)  # type: ignore[arg-type] # Strings, mostly: then `values` is the key.
        if child is not None:
            return child
        key = tuple(str(value) for value in values)
        child = self._children.get(key)
        if child is None:
            if len(key) != len(self.label_names):
                raise ValueError(f"metric {self.name} has labels {self.label_names}, found values {key}")
            with self._lock:
                child = self._children.setdefault(key, self._make())
        return child

    def children(self) -> list[tuple[tuple[str, ...], Child]]:
        """Label values and child, in their order.

        Sorted again only where children were added: to sort tens of thousands holds every thread up.
        """
        with self._lock:
            if len(self._in_order) < len(self._children):
                self._in_order += itertools.islice(self._children, len(self._in_order), None)
                self._in_order.sort()
            return [(values, self._children[values]) for values in self._in_order]

    def render(self, *, is_open: bool = False) -> list[str]:
        """`is_open`: as OpenMetrics has it, where a counter's family is named without `_total`."""
        family = self.name.removesuffix("_total") if is_open and self.kind == "counter" else self.name
        lines = [f"# HELP {family} {_escaped(self.text, quotes=is_open)}", f"# TYPE {family} {self.kind}"]
        for values, child in self.children():
            own = [f'{name}="{_escaped(value)}"' for name, value in zip(self.label_names, values, strict=True)]
            for suffix, extra, value in child.samples():
                inside = ",".join([*own, extra] if extra else own)
                braces = f"{{{inside}}}" if inside else ""
                lines.append(f"{self.name}{suffix}{braces} {_number(value)}")
        return lines


class Registry:
    """The metrics of one process or one store, rendered in the order of their names."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric[Any]] = {}
        self._collectors: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Registry({len(self._metrics)} metrics)"

    def add_collector(self, collect: Callable[[], None]) -> None:
        """Call `collect` before each rendering, to update metrics that are costly to keep current."""
        self._collectors.append(collect)

    def counter(
        self, name: str, text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> Metric[CounterChild]:
        """A counter; `function`, for a counter without labels, returns the value at each rendering."""
        metric = self._register(Metric("counter", name, text, labels, CounterChild))
        if function is not None:
            metric.labels().set_function(function)
        return metric

    def gauge(
        self, name: str, text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> Metric[GaugeChild]:
        """A gauge; `function`, for a gauge without labels, returns the value at each rendering."""
        metric = self._register(Metric("gauge", name, text, labels, GaugeChild))
        if function is not None:
            metric.labels().set_function(function)
        return metric

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), bounds: Sequence[float] = LATENCY_SECONDS
    ) -> Metric[HistogramChild]:
        if not bounds or any(left >= right for left, right in itertools.pairwise(bounds)):
            raise ValueError(f"metric {name}: bounds are ascending and at least one, found {tuple(bounds)}")
        return self._register(Metric("histogram", name, text, labels, lambda: HistogramChild(bounds)))

    def _register(self, metric: Metric[Child]) -> Metric[Child]:
        with self._lock:
            if metric.name in self._metrics:
                raise ValueError(f"metric {metric.name} exists already: keep the object that made it and use that")
            self._metrics[metric.name] = metric
        return metric

    def render_prometheus(self) -> str:
        """All metrics in Prometheus' text format, version 0.0.4."""
        return "".join(f"{line}\n" for metric in self.collected() for line in metric.render())

    def collected(self) -> list[Metric[Any]]:
        """All metrics as they are now, in the order of their names."""
        for collect in list(self._collectors):
            collect()
        with self._lock:
            return [metric for _, metric in sorted(self._metrics.items())]


def render_openmetrics(registries: Sequence[Registry]) -> str:
    """The metrics of several registries in OpenMetrics' text format, version 1.0.0."""
    lines = [line for each in registries for metric in each.collected() for line in metric.render(is_open=True)]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def register_process(registry: Registry, **build: str) -> None:
    """What every process reports, under the names of Prometheus' client libraries; `build` are labels of build info.

    Read from /proc; where there is none, only CPU time and build info.
    """
    registry.gauge("tiermq_build_info", "1; the labels are what runs", tuple(build)).labels(*build.values()).set(1)
    registry.counter("process_cpu_seconds_total", "User and system CPU time.", function=time.process_time)
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return
    page_bytes, ticks_s = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")

    def field(number: int) -> int:
        # The second field is the program's name in brackets, which may hold spaces.
        return int(stat.read_text().rpartition(")")[2].split()[number - 3])

    booted_s = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    started_s = booted_s + field(22) / ticks_s
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "process_resident_memory_bytes": ("Resident memory.", lambda: field(24) * page_bytes),
        "process_virtual_memory_bytes": ("Virtual memory.", lambda: field(23)),
        "process_open_fds": ("Open file descriptors.", lambda: len(os.listdir("/proc/self/fd"))),
        "process_max_fds": (
            "The limit of open file descriptors.",
            lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
        "process_start_time_seconds": ("When the process was started.", lambda: started_s),
        "process_threads": ("Threads.", threading.active_count),
    }
    for name, (text, read) in gauges.items():
        registry.gauge(name, text, function=read)


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text

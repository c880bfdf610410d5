"""How many timers wait for each topic, in RocketMQ's `config/timermetrics`.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
     "timingCount":{"orders":{"count":12,"timeStamp":1700000000000}}}

A cancellation counts -1 from the moment it is taken in. The counts are for eyes: nothing is delivered by them, and
after a crash they are counted anew from the timer log. Threads: the timer service changes, any thread reads.
"""

from __future__ import annotations

import json
from typing import Any

from tiermq.errors import StoreDamaged
from tiermq.store.lenient_json import decode_lenient_json

FILE = "timermetrics"


class TimerMetrics:
    """Counts by topic."""

    def __init__(self, counts: dict[str, tuple[int, int]] | None = None, counter: int = 0) -> None:
        """`counts` is topic → (how many wait, when that changed last)."""
        self.changed = False
        self._counts = dict(counts or {})
        self._counter = counter

    def add(self, topic: str, number: int, now_ms: int) -> None:
        self._counts[topic] = (self._counts.get(topic, (0, 0))[0] + number, now_ms)
        self._counter += 1
        self.changed = True

    def counts(self) -> dict[str, int]:
        """Topic → how many wait, of topics for which some do."""
        return {topic: count for topic, (count, _) in sorted(self._counts.copy().items()) if count > 0}

    def encode(self, now_ms: int) -> bytes:
        document = {
            "dataVersion": {"counter": self._counter, "stateVersion": 0, "timestamp": now_ms},
            "timingCount": {
                topic: {"count": count, "timeStamp": changed_ms}
                for topic, (count, changed_ms) in sorted(self._counts.items())
            },
        }
        return json.dumps(document, separators=(",", ":")).encode()


def decode_timer_metrics(data: bytes) -> TimerMetrics:
    """Raises StoreDamaged for anything else."""
    document = decode_lenient_json(data, FILE)
    table = document.get("timingCount") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(_is_count(value) for value in table.values()):
        raise StoreDamaged(f"{FILE}: expected a timingCount of topics and counts, found {str(document)[:80]}")
    version = document.get("dataVersion")
    counter = version.get("counter", 0) if isinstance(version, dict) else 0
    counts = {topic: (value["count"], value.get("timeStamp", 0)) for topic, value in table.items()}
    return TimerMetrics(counts, counter if isinstance(counter, int) else 0)


def _is_count(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("count")) is int and type(value.get("timeStamp", 0)) is int

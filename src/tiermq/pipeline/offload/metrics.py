"""OffloadMetrics: what an operator of a continuous offload watches, as a file in Prometheus' text format.

The file is replaced after each wave, for the text-file collector of a node exporter. Each broker has its own labels.
Counts are those of the job (`Counts`): they do not fall when a broker is given up and begun again.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable

from tiermq.metrics import Registry
from tiermq.pipeline.offload.broker import OffloadBroker
from tiermq.pipeline.offload.wire_broker import WireBroker

LABELS = ("cluster", "broker")


class OffloadMetrics:
    """See the module. Belongs to the driver's thread."""

    def __init__(self) -> None:
        registry = self._registry = Registry()
        self._wave = registry.gauge("tiermq_offload_wave_timestamp_seconds", "when the last wave ended")
        self._failed = registry.gauge("tiermq_offload_waves_failed", "waves in a row that failed as a whole")
        self._numbers = {
            name: registry.gauge(f"tiermq_offload_{name}", text, LABELS)
            for name, text in (
                ("up", "1: the broker was reached by the last wave"),
                ("in_use", "1: another process holds the lease of the broker, so nothing of it was copied"),
                ("left_out", "1: nothing of the broker was copied by the last wave, for any reason"),
                ("messages", "messages copied by this job"),
                ("bytes", "bytes copied by this job"),
                ("gaps", "ranges that the broker deleted before they were copied"),
                ("gap_messages", "messages that the broker deleted before they were copied"),
                ("queues_refused", "queues that are not copied: their history differs from the tier's"),
                ("queues_failed", "queues of which the last wave could not copy all"),
                ("queues_in_danger", "queues whose oldest message that is not copied has a quarter of its time left"),
                ("retention_left_seconds", "the least time that a message in danger has left; -1: none is in danger"),
            )
        }

    def note(
        self,
        brokers: Iterable[OffloadBroker],
        troubles: Container[str],
        held: Container[str],
        missing: Iterable[tuple[str, str]],
    ) -> None:
        """What is known after a wave. `troubles` and `held` are paths; `missing` are (cluster, broker)."""
        for home in missing:
            for name, number in (("up", 0), ("in_use", 0), ("left_out", 1)):
                self._numbers[name].labels(*home).set(number)
        for broker in brokers:
            counts, origin = broker.counts, broker.place
            is_reached = origin.error is None if isinstance(origin, WireBroker) else broker.is_open
            numbers = {
                "up": int(is_reached),
                "in_use": int(origin.path in held),
                "left_out": int(not broker.is_open or origin.path in troubles),
                "messages": counts.messages,
                "bytes": counts.bytes,
                "gaps": counts.gaps,
                "gap_messages": counts.gap_messages,
                "queues_refused": len(broker.forks),
                "queues_failed": len(broker.problems),
                "queues_in_danger": len(broker.dangers),
                "retention_left_seconds": min((row["left_s"] for row in broker.dangers.values()), default=-1),
            }
            for name, number in numbers.items():
                self._numbers[name].labels(origin.cluster, origin.broker).set(number)

    def write(self, path: str, now_ms: int, failed_waves: int) -> None:
        """Replace the file. Raises OSError."""
        self._wave.labels().set(now_ms / 1000)
        self._failed.labels().set(failed_waves)
        partial = f"{path}.partial-{os.getpid()}"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(self._registry.render_prometheus())
        os.replace(partial, path)

"""OffloadMetrics: what an operator of a continuous offload watches, as a file in Prometheus' text format.

The file is replaced after each wave, for the text-file collector of a node exporter. Each broker has its own labels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tiermq.metrics import Registry
from tiermq.pipeline.offload.broker import OffloadBroker

LABELS = ("cluster", "broker")


class OffloadMetrics:
    """See the module. Belongs to the driver's thread."""

    def __init__(self) -> None:
        registry = self._registry = Registry()
        self._wave = registry.gauge("tiermq_offload_wave_timestamp_seconds", "when the last wave ended")
        self._numbers = {
            name: registry.gauge(f"tiermq_offload_{name}", text, LABELS)
            for name, text in (
                ("up", "1: the broker was reached by the last wave"),
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

    def write(self, path: str, brokers: Sequence[OffloadBroker], troubles: Mapping[str, str], now_ms: int) -> None:
        """Replace the file. Raises OSError."""
        for broker in brokers:
            counts, origin = broker.counts, broker.place
            numbers = {
                "up": int(broker.is_open and origin.path not in troubles),
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
        self._wave.labels().set(now_ms / 1000)
        partial = f"{path}.partial-{os.getpid()}"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(self._registry.render_prometheus())
        os.replace(partial, path)

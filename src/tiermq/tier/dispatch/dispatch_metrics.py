"""What dispatch shows to the outside: RocketMQ's metrics of the tier's dispatcher, told truthfully, and ours.

RocketMQ's have the labels that its users know. `dispatch_latency` is in seconds, as its name has always said.
"""

from __future__ import annotations

from collections.abc import Callable

from tiermq.metrics import Registry

COMMON = {"storage_type": "tiered", "storage_medium": "blob"}
_LABELS = (*COMMON, "topic", "queue_id", "file_type")


class DispatchMetrics:
    """Made once per registry. Counters are added to by the engine; gauges ask when they are shown."""

    def __init__(self, registry: Registry) -> None:
        self._behind = registry.gauge(
            "rocketmq_tiered_store_dispatch_behind", "Messages of a queue that are not in the tier yet.", _LABELS
        )
        self._latency = registry.gauge(
            "rocketmq_tiered_store_dispatch_latency", "Age of the oldest message not in the tier, in seconds.", _LABELS
        )
        self._messages = registry.counter(
            "rocketmq_tiered_store_messages_dispatch_total", "Messages committed to the tier.", _LABELS
        )
        self._failures = registry.counter("tiermq_dispatch_failures_total", "Turns that failed.", ("kind",))
        self.bytes = registry.counter("tiermq_dispatch_bytes_total", "Bytes of records committed to the tier.").labels()
        self.gaps = registry.counter("tiermq_dispatch_gaps_total", "Gaps recorded in the tier.").labels()
        self.gap_messages = registry.counter(
            "tiermq_dispatch_gap_messages_total", "Messages that were gone before they could be copied."
        ).labels()
        self._proofs = registry.counter(
            "tiermq_tier_proven_bytes_total",
            "Bytes whose copy in the tier was proven before local files went, by the back end's checksum or read back.",
            ("how",),
        )
        self.proof_failures = registry.counter(
            "tiermq_tier_proof_failures_total", "Ranges of the tier that were not what had been sent."
        ).labels()
        self.tier_repairs = registry.counter(
            "tiermq_tier_proof_repairs_total", "Of those, ranges that were written again and are right now."
        ).labels()
        self._registry = registry

    def watch_queue(self, topic: str, queue_id: int, behind: Callable[[], float], age_s: Callable[[], float]) -> None:
        """Show how far a queue is behind, from now on."""
        self._behind.labels(*COMMON.values(), topic, queue_id, "consume_queue").set_function(behind)
        self._latency.labels(*COMMON.values(), topic, queue_id, "consume_queue").set_function(age_s)

    def watch_engine(self, figures: dict[str, tuple[str, Callable[[], float]]]) -> None:
        for name, (text, read) in figures.items():
            self._registry.gauge(name, text, function=read)

    def dispatched(self, topic: str, queue_id: int, messages: int, size: int) -> None:
        self._messages.labels(*COMMON.values(), topic, queue_id, "commit_log").add(messages)
        self.bytes.add(size)

    def proven(self, how: str, size: int) -> None:
        self._proofs.labels(how).add(size)

    def failed(self, kind: str) -> None:
        self._failures.labels(kind).add()

    def failures(self, kind: str) -> float:
        return self._failures.labels(kind).value

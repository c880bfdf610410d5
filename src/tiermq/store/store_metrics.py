"""The store's figures in the metrics registry, under RocketMQ's names where it has one."""

from __future__ import annotations

from tiermq.metrics import Registry
from tiermq.store.assembly import Parts


def register_metrics(registry: Registry, parts: Parts) -> None:
    """Everything is read when it is asked for: a figure costs nothing while nobody looks."""
    figures = {
        "rocketmq_storage_size": ("bytes of the mapped commit log", lambda: parts.log.files.total_mapped_bytes),
        "rocketmq_storage_flush_behind_bytes": (
            "bytes of the commit log that are not durable yet",
            lambda: max(0, parts.log.max_offset - parts.log.files.flushed_where),
        ),
        "rocketmq_storage_dispatch_behind_bytes": ("bytes not dispatched yet", parts.reput.behind_bytes),
        "tiermq_store_puts_total": ("records put since the store was opened", lambda: parts.log.appender.puts),
        "tiermq_store_put_bytes_total": ("bytes put since the opening", lambda: parts.log.appender.stored_bytes),
        "tiermq_store_put_failures_total": ("messages that the log refused", lambda: parts.statistics.put_failures),
        "tiermq_store_flushes_total": ("flushes of the commit log", lambda: parts.flusher.flush_count),
        "tiermq_store_queue_gaps_total": ("queues found with lost messages", lambda: parts.dispatch.gap_count),
        "tiermq_store_writeable": ("1 when puts are accepted", lambda: float(parts.flags.writeable)),
    }
    for name, (text, read) in figures.items():
        registry.gauge(name, text).labels().set_function(read)

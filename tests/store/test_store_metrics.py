"""The store's figures in the registry: read when asked for, true at that moment."""

from __future__ import annotations

from small_store import on_simulation, put_all
from tiermq import LocalStore, Message
from tiermq.store.running_flags import Flag


def figure(store: LocalStore, name: str) -> float:
    lines = store.metrics.render_prometheus().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_figures_follow_the_store() -> None:
    with on_simulation() as store:
        assert figure(store, "tiermq_store_puts_total") == 0
        results = [store.put(Message("T", b"x")) for _ in range(3)]
        end = results[-1].end_offset
        assert figure(store, "tiermq_store_puts_total") == 3
        assert figure(store, "tiermq_store_put_bytes_total") == end
        assert figure(store, "rocketmq_storage_dispatch_behind_bytes") == end
        assert figure(store, "rocketmq_storage_flush_behind_bytes") == end
        assert figure(store, "rocketmq_storage_size") == store._parts.log.files.total_mapped_bytes
        store.dispatch_now()
        store.flush()
        assert figure(store, "rocketmq_storage_dispatch_behind_bytes") == 0
        assert figure(store, "rocketmq_storage_flush_behind_bytes") == 0
        assert figure(store, "tiermq_store_flushes_total") == 1
        assert figure(store, "tiermq_store_writeable") == 1
        store._parts.flags.set(Flag.FENCED)
        assert figure(store, "tiermq_store_writeable") == 0


def test_a_gap_in_a_queue_is_a_figure() -> None:
    with on_simulation() as store:
        put_all(store, 1)
        store.queue("T").next_offset = 9
        put_all(store, 1)
        assert figure(store, "tiermq_store_queue_gaps_total") == 1

"""What the tests of a history share: a broker whose past lies in a store and in a tier, and reading all of it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scenarios.broker_world import HOUR_MS, BrokerWorld, Sent
from tiermq.history.catalog import Catalog, read_catalog
from tiermq.history.key_lookup import plan_history
from tiermq.history.open_history import OpenHistory, open_history
from tiermq.history.reading import read_task
from tiermq.history.scan_values import (
    HistoryPlace,
    Loss,
    RecordRun,
    ScanCounters,
    ScanPlan,
    ScanRequest,
    ScanTask,
    StorePlace,
)
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage

Found = dict[tuple[str, int], list[StoredMessage]]


class HistoryWorld(BrokerWorld):
    """A broker, and histories of its tier, its store, or both. Call `bury` at the end."""

    def __init__(self, path: Path, driver: Any = None, **settings: Any) -> None:
        super().__init__(path, driver, **settings)
        self.histories: list[OpenHistory] = []

    def history(self, *, tier: bool = True, store: bool = True, broker: str = "") -> OpenHistory:
        stores = (StorePlace(str(self.disk), "DefaultCluster" if broker else "", broker),) if store else ()
        made = open_history(HistoryPlace(None, stores), clock=self.clock, driver=self.driver if tier else None)
        self.histories.append(made)
        return made

    def catalog(self, request: ScanRequest | None = None, **which: Any) -> Catalog:
        return read_catalog(self.history(**which), request)

    def flush_to_tier(self) -> None:
        self.store.flush_to_tier()

    def upload_index(self) -> None:
        """Let the key index of everything that is tiered lie in the tier."""
        index = self.store.tier.index
        assert index is not None
        index.seal()
        while not index.run_once():
            continue

    def evict_old(self) -> int:
        self.clock.advance_ms(73 * HOUR_MS)
        return self.evict()

    def bury(self) -> None:
        for history in self.histories:
            history.close()
        super().bury()


def read_plan(
    history: OpenHistory, plan: ScanPlan | Iterable[ScanTask], counters: ScanCounters | None = None,
    losses: list[Loss] | None = None,
) -> Found:  # fmt: skip
    """Every message of a plan, by topic and queue, in the order in which it came."""
    found: Found = defaultdict(list)
    for task in plan.tasks if isinstance(plan, ScanPlan) else plan:
        note = losses.append if losses is not None else None
        for run in read_task(history, task, counters if counters is not None else ScanCounters(), note):
            found[task.queue.topic, task.queue.queue_id] += messages_of(run)
    return dict(found)


def messages_of(run: RecordRun) -> list[StoredMessage]:
    """The records of a run, decoded one by one; each must lie where the run says."""
    found = []
    for start, size in zip(run.starts, run.sizes, strict=True):
        record = bytes(run.buffer[start : start + size])
        found.append(decode_record(record, expect_physical_offset=run.log_base + int(start)))
    return found


def read_all(catalog: Catalog, request: ScanRequest | None = None, **settings: Any) -> Found:
    """Plan and read; keys, times and tags are filtered by their pruning alone."""
    request = request or ScanRequest()
    return read_plan(catalog.history, plan_history(catalog, request, **settings))


def as_sent(found: Iterable[StoredMessage]) -> list[tuple[int, bytes]]:
    return [(message.queue_offset, message.body) for message in found]


def sent_of(messages: Iterable[Sent]) -> list[tuple[int, bytes]]:
    return [(message.offset, message.body) for message in messages]

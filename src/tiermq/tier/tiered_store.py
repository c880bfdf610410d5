"""TieredStore: a local store whose history goes on in a tier.

    with TieredStore.open("store", tier="s3://bucket/prefix") as store:
        store.put(Message("orders", b"...", keys=["order-42"]))
        store.tier_now()                       # everything committed so far is in the tier
        page = store.get("orders", 0, 0)       # from wherever it is

Writes go to the local store and never wait for the tier. Reads go where the read policy says (`tieredStorageLevel`); an
error of the tier is an error, unless the local store can answer. Local files go only once the tier has proof of its
copy. A back end that is down keeps nobody from opening, putting, reading what is local, or closing.

After the loss of the whole disk, `restore=True` rebuilds everything from the tier alone, and numbering goes on behind.
Threads: any thread may call anything but `open` and `close`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tiermq.clock import Clock, SystemClock
from tiermq.config import SETTINGS as STORE_SETTINGS
from tiermq.config import StoreConfig
from tiermq.consumequeue.boundary import Boundary
from tiermq.errors import BadConfig, StoreError, TierUnavailable
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import GetPage, Message, PutResults, QueueHandle
from tiermq.message.message_filter import MessageFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.metrics import Registry
from tiermq.service import Service
from tiermq.status import GetStatus
from tiermq.store.local_store import TIME_MAX_MS, LocalStore
from tiermq.store.querying import QueryPage
from tiermq.store.reading import PULL_BYTES_MAX
from tiermq.store.store_life import DEFAULT_HOST
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.metered import ProviderMetrics
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.fetch.merged_query import merge, query_cold
from tiermq.tier.fetch.read_policy import ReadFacts, Source, StorageLevel, choose
from tiermq.tier.fetch.tier_page import TierPage
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.restore import restore as restore_metadata
from tiermq.tier.metadata.restore_report import RestoreReport
from tiermq.tier.tier_assembly import TierParts, assemble_tier
from tiermq.tier.tier_config import SETTINGS as TIER_SETTINGS
from tiermq.tier.tier_config import TierConfig

UPKEEP_REST_S = 5.0
Page = GetPage | TierPage

_ASK_THE_TIER = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_OVERFLOW_BADLY,
    }
)


class TieredStore:
    """See the module. `local` is the store underneath; `tier` are the parts on top."""

    def __init__(self, local: LocalStore, tier: TierParts, registry: Registry, clock: Clock) -> None:
        self.local = local
        self.tier = tier
        self.metrics = registry
        self.restored: RestoreReport | None = None
        self.put = local.put
        self.put_many = local.put_many
        self._clock = clock
        self._level = tier.config.tiered_storage_level
        self._upkeep = _Upkeep(tier, clock)
        self._closed = False

    # Opening and closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        tier: str | None = None,
        restore: bool = False,
        config: StoreConfig | None = None,
        tier_config: TierConfig | None = None,
        clock: Clock | None = None,
        driver: TierDriver | None = None,
        store_host: str = DEFAULT_HOST,
        background: bool = True,
        **settings: Any,
    ) -> Self:
        """Open the store in `path` with the tier at URL `tier`.

        `settings` are RocketMQ's names in snake_case, of the local store and of the tier alike. `restore=True` reads
        the tier's own description into an empty store first; it raises TierUnavailable when the tier cannot be read,
        which opening without it never does. `background=False` starts no thread (see `LocalStore.open`).
        """
        clock = clock or SystemClock()
        local_settings, tier_settings = _parted(settings)
        if path is not None:
            tier_settings["store_path_root_dir"] = str(Path(path).absolute())
        if tier is not None:
            tier_settings["tier_url"] = tier
        tier_config = (tier_config or TierConfig()).with_settings(**tier_settings)
        if not tier_config.url and driver is None:
            raise BadConfig("a tiered store needs the URL of its tier, such as tier='s3://bucket/prefix'")
        registry = Registry()
        driver = driver or open_driver(tier_config.url, metrics=ProviderMetrics(registry), clock=clock)
        local = LocalStore.open(
            path, config=config, clock=clock, store_host=store_host, background=background, **local_settings
        )
        try:
            return cls._over(local, tier_config, driver, clock, registry, restore, background)
        except BaseException:
            local.close()
            raise

    @classmethod
    def _over(
        cls,
        local: LocalStore,
        config: TierConfig,
        driver: TierDriver,
        clock: Clock,
        registry: Registry,
        restore: bool,
        background: bool,
    ) -> Self:
        config.metadata_path.parent.mkdir(parents=True, exist_ok=True)
        metadata = MetadataStore(str(config.metadata_path), clock=clock)
        try:
            report = None
            if restore and metadata.is_empty():
                report = restore_metadata(
                    driver, metadata, cluster=config.broker_cluster_name, broker=config.broker_name, clock=clock
                )
            parts = assemble_tier(config, local, OsFileAccess(), driver, metadata, clock, registry)
        except BaseException:
            metadata.close()
            raise
        store = cls(local, parts, registry, clock)
        store.restored = report
        store._start(background)
        return store

    def _start(self, background: bool) -> None:
        tier = self.tier
        for file in tier.files:
            if file.initialised:
                # The tier may know messages that the local store lost: their numbers are taken.
                self.local.advance_queue(file.queue.topic, file.queue.queue_id, file.commit_offset)
        if tier.index is not None:
            tier.index.start(tier.queue_tails(), with_thread=background, catch_up=self.restored is not None)
        if tier.config.tier_evict_on_proof:
            self.local.add_eviction_veto(tier.engine.proof.must_stay)
        if background:
            tier.engine.start()
            self._upkeep.start()

    def close(self) -> None:
        """Upload what there is time for, then close the local store. A tier that is down does not hold it up."""
        if self._closed:
            return
        self._closed = True
        tier = self.tier
        timeout_s = tier.config.tier_close_timeout / 1000
        self._upkeep.stop()
        tier.engine.stop(timeout_s)
        if tier.index is not None:
            tier.index.close(timeout_s)
        tier.pool.shutdown(wait=True, cancel_futures=True)
        tier.files.close()
        self.local.close()
        tier.metadata.close()
        tier.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Putting: `put` and `put_many` are the local store's

    def put_batch(self, envelope: Message) -> PutResults:
        return self.local.put_batch(envelope)

    def queue(self, topic: str, queue_id: int = 0) -> QueueHandle:
        return self.local.queue(topic, queue_id)

    def tier_now(self, timeout_s: float | None = None) -> bool:
        """Upload everything that was put before, and wait; False when the time is over first."""
        self.local.dispatch_now()
        return self.tier.engine.flush(timeout_s)

    # Reading

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int = PULL_BYTES_MAX,
        message_filter: MessageFilter | None = None,
        *,
        group: str = "",
    ) -> Page:
        """A page of messages from wherever they are. Raises TierUnavailable when only the tier has them and is down."""

        def from_local() -> Page:
            return self.local.get(topic, queue_id, offset, max_messages, max_bytes, message_filter)

        def from_tier() -> Page:
            return self.tier.fetcher.get(topic, queue_id, offset, max_messages, max_bytes, message_filter, group=group)

        file = self._tiered(topic, queue_id)
        if self._level <= StorageLevel.NOT_IN_DISK:
            page = from_local()
            if file is None or page.status not in _ASK_THE_TIER or not self._holds(file, offset):
                return self._with_min(page, file, offset)
            return from_tier()
        if self._source_of(topic, queue_id, offset, file) is Source.LOCAL:
            return self._with_min(from_local(), file, offset)
        return self._or_local(from_tier, from_local, topic, queue_id, offset)

    def _tiered(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        """The queue in the tier, if reads may go there at all."""
        if self._level is StorageLevel.DISABLE or self.tier.filter.is_filtered(topic):
            return None
        file = self.tier.files.find(topic, queue_id)
        return file if file is not None and file.initialised else None

    @staticmethod
    def _holds(file: FlatMessageFile, offset: int) -> bool:
        return max(0, file.units.min_queue_offset) <= offset < file.commit_offset

    def _source_of(self, topic: str, queue_id: int, offset: int, file: FlatMessageFile | None) -> Source:
        local = self.local
        physical = local.physical_offset_of(topic, queue_id, offset)
        low, high = local.min_physical_offset, local.max_physical_offset
        window = local.memory_window_bytes
        facts = ReadFacts(
            tiered_topic=not self.tier.filter.is_filtered(topic),
            in_tier=file is not None,
            tier_commit_offset=-1 if file is None else file.commit_offset,
            local_is_empty=low < 0 or low >= high,
            offset_in_local=physical >= max(0, low),
            offset_in_memory=physical >= 0 and high - physical <= window,
        )
        return choose(self._level, offset, facts)

    def _or_local(
        self, from_tier: Callable[[], Page], from_local: Callable[[], Page], topic: str, queue_id: int, offset: int
    ) -> Page:
        """The tier's answer; when it has none and the local store has one, that."""
        try:
            page = from_tier()
        except TierUnavailable:
            if self.local.physical_offset_of(topic, queue_id, offset) < 0:
                raise
            return from_local()
        fallback = page.status in (GetStatus.OFFSET_FOUND_NULL, GetStatus.NO_MATCHED_LOGIC_QUEUE)
        if fallback and self.local.physical_offset_of(topic, queue_id, offset) >= 0:
            return from_local()
        return page

    def _with_min(self, page: Page, file: FlatMessageFile | None, offset: int) -> Page:
        """A local page that knows how far back the tier goes."""
        if file is None or page.status is not GetStatus.OFFSET_TOO_SMALL:
            return page
        low = max(0, file.min_offset)
        if offset < low < page.next_offset:
            return GetPage(GetStatus.OFFSET_TOO_SMALL, low, low, page.max_offset)
        return page

    def query(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = TIME_MAX_MS, max_messages: int = 32
    ) -> QueryPage:
        """The newest messages with a key, from both stores, each once, oldest of them first."""
        local = self.local.query(topic, key, begin_ms, end_ms, max_messages)
        tier = self.tier
        if tier.index is None or self._level is StorageLevel.DISABLE or tier.filter.is_filtered(topic):
            return local
        most = min(max_messages, self.local.config.max_msgs_num_batch)
        cold = query_cold(tier.index, tier.records, tier.pool, topic, key, begin_ms, end_ms, most)
        merged = merge(local.messages, cold, most)
        return QueryPage(
            merged, local.last_update_timestamp_ms, local.last_update_physical_offset, tier.index.is_complete
        )

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage | None:
        """By physical offset in the local log; records in the tier have other ones."""
        return self.local.message_at(physical_offset, size)

    # Offsets and times

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest queue offset that either store can give."""
        file = self._tiered(topic, queue_id)
        local = self.local.min_offset(topic, queue_id)
        if file is None or file.commit_offset <= max(0, file.min_offset):
            return local
        low = max(0, file.min_offset)
        return low if self.local.max_offset(topic, queue_id) == 0 else min(local, low)

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        file = self._tiered(topic, queue_id)
        local = self.local.max_offset(topic, queue_id, committed=committed)
        return local if file is None else max(local, file.commit_offset)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        file = self._tiered(topic, queue_id)
        times = [self.local.earliest_time(topic, queue_id), -1 if file is None else file.begin_ms]
        return min((time for time in times if time >= 0), default=-1)

    def offset_at(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The queue offset that belongs to a time, over both stores."""
        file = self._tiered(topic, queue_id)
        earliest = self.local.earliest_time(topic, queue_id)
        in_local = earliest >= 0 and timestamp_ms >= earliest and self._level is not StorageLevel.FORCE
        if file is None or in_local:
            return self.local.offset_at(topic, queue_id, timestamp_ms, boundary)
        found = self.tier.times.offset_by_time(file, timestamp_ms, Boundary(boundary))
        if found >= file.commit_offset and earliest >= 0:
            return max(found, self.local.offset_at(topic, queue_id, timestamp_ms, boundary))
        return found

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message with a queue offset was stored; -1 when neither store has it."""
        time = self.local.store_time_of(topic, queue_id, offset)
        file = self._tiered(topic, queue_id)
        if time >= 0 or file is None or not self._holds(file, offset):
            return time
        page = self.tier.fetcher.get(topic, queue_id, offset, 1)
        return page.messages[0].store_timestamp_ms if page.messages else -1

    # Topics

    def topics(self) -> dict[str, list[int]]:
        """Every topic of either store, with its queue ids."""
        found = {topic: set(ids) for topic, ids in self.local.topics().items()}
        for file in self.tier.files:
            found.setdefault(file.queue.topic, set()).add(file.queue.queue_id)
        return {topic: sorted(ids) for topic, ids in sorted(found.items())}

    def set_retention(self, topic: str, hours: int = -1, max_bytes: int = -1) -> None:
        """How long and how much of a topic the tier keeps; -1 for the global setting (RocketMQ's `reserve.time`)."""
        self.tier.metadata.add_topic(topic)
        self.tier.metadata.update_topic(topic, reserve_time_hours=hours, max_bytes=max_bytes)

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics from both stores. Raises TierError when the tier's part could not be finished; call again."""
        count = 0
        for topic in topics:
            known = topic in self.topics()
            for file in self.tier.files:
                if file.queue.topic == topic:
                    self.tier.engine.forget(topic, file.queue.queue_id)
                    self.tier.fetcher.forget(file)
            self.local.delete_topics([topic])
            if not self.tier.retention.delete_topic(topic) and topic in self.tier.retention.deleting_topics():
                raise StoreError(f"topic {topic} is gone locally; the tier's part goes on when the tier is reachable")
            count += known
        return count

    # State

    def status(self) -> dict[str, object]:
        """What an operator asks first, of both stores."""
        return {**self.local.status(), "tier": {"url": self.tier.driver.url, **self.tier.engine.status()}}


class _Upkeep(Service):
    """Retention at its interval, and idle windows out of memory."""

    def __init__(self, tier: TierParts, clock: Clock) -> None:
        super().__init__("tier-upkeep")
        self._tier = tier
        self._clock = clock
        self._next_sweep_ms = clock.now_ms() + tier.config.tiered_store_delete_file_interval

    def run_once(self) -> float:
        self._tier.fetcher.cache.expire()
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self._tier.config.tiered_store_delete_file_interval
            self._tier.retention.run()
        return UPKEEP_REST_S


def _parted(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the local store and of the tier; some are both's. An unknown one is the local store's to refuse."""
    tier = {name: value for name, value in settings.items() if name in TIER_SETTINGS}
    local = {name: value for name, value in settings.items() if name in STORE_SETTINGS or name not in TIER_SETTINGS}
    return local, tier

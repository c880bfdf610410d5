"""Wiring of a tier: create its components and connect them to a local store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from tiermq.clock import Clock
from tiermq.files.file_access import FileAccess
from tiermq.message.topic_name import TRANSACTION_TOPICS
from tiermq.metrics import Registry
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.engine import DispatchEngine, EngineSettings
from tiermq.tier.dispatch.local_source import Arrival, LocalStoreSource
from tiermq.tier.dispatch.plan import DispatchConfig, TopicFilter
from tiermq.tier.dispatch.ready_queue import PaceSettings
from tiermq.tier.dispatch.state_copy import ReadTables, StateCopy, tables_in
from tiermq.tier.dispatch.writer import FOLLOWS, QueueWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.fetch.fetcher import FetchConfig, TierFetcher
from tiermq.tier.fetch.merged_query import ColdRecords, KeyIndex
from tiermq.tier.fetch.time_search import TimeSearch
from tiermq.tier.flat.flat_file_store import FlatFileStore, rebuild_from
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseRole
from tiermq.tier.metadata.broker_state import BrokerStateWriter
from tiermq.tier.metadata.manifest import ManifestPolicy
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import broker_directory
from tiermq.tier.open_tier import Environment, broker_lease, lease_owner
from tiermq.tier.retention.retention import Retention
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_follower import BucketFollower, FollowedIndex, IndexFollower, MetadataFollower
from tiermq.tier.tier_metrics import TierMetrics

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TierComponents:
    """Everything that a tier consists of."""

    config: TierConfig
    driver: TierDriver
    metadata: MetadataStore
    files: FlatFileStore
    filter: TopicFilter
    lease: BrokerLease  # Of messages.
    delivery_lease: BrokerLease  # Of tiered timers; held also when a job copies.
    index: IndexStore | None  # For writes; None without an index, or when a job writes it.
    key_index: KeyIndex | None  # For queries.
    follower: MetadataFollower | None  # When a job copies, or another broker.
    records: ColdRecords
    fetcher: TierFetcher
    times: TimeSearch
    writer: QueueWriter
    engine: DispatchEngine
    retention: Retention
    state: StateCopy  # The broker's own tables.
    pool: Executor
    metrics: TierMetrics
    discovery_threads: int


def assemble_tier(
    config: TierConfig,
    local: LocalStore,
    surroundings: Environment,
    driver: TierDriver,
    metadata: MetadataStore,
    clock: Clock,
    registry: Registry,
    *,
    follows: bool = False,
    reader: bool = False,
    passing: bool = False,
) -> TierComponents:
    """Create and connect the parts. Sends no request. `follows`: a job writes the tier; `reader`: another broker."""
    files = _files(config, driver, metadata, clock)
    lease = broker_lease(config, driver, clock)
    manifests = ManifestStore(
        driver, lease_owner(config), lease=lease, clock=clock, in_bundles=config.tier_bundle_interval > 0
    )
    writer = _writer(config, driver, metadata, manifests, lease, clock)
    records = ColdRecords(files)
    made: list[Retention] = []  # Index and retention refer to each other; neither is used before both exist.
    may_write = (lambda: False) if reader else writer.may_write
    index = None
    if not passing and (reader or not follows):
        index = _index(
            config, surroundings, driver, metadata, files, records, made, may_write, clock, only_reads=reader
        )
    source = _UnheardSource(local) if follows else LocalStoreSource(local)
    engine = _engine(config, local, source, files, writer, index, clock, registry, surroundings.chance)
    is_behind_job = follows and not reader
    followed = _followed_index(config, surroundings.access, driver, metadata, records) if is_behind_job else None
    retention = Retention(
        files,
        metadata,
        driver,
        index,
        config,
        clock,
        on_changed=lambda queue, cause: engine.changed(queue.topic, queue.queue_id, cause),
        on_gone=manifests.delete,
        check_owner=lease.check,
        before_emptied=lambda queue: manifests.write(snapshot_manifest(metadata, queue)),
    )
    made.append(retention)
    follower = _follower(config, surroundings, files, local, index if reader else followed, reader) if follows else None
    pool = surroundings.fetch_pool(config.tier_fetch_threads)
    fetcher = TierFetcher(files, _fetch_config(config, local), clock, pool)
    return TierComponents(
        config=config,
        driver=driver,
        metadata=metadata,
        files=files,
        filter=engine.filter,
        lease=lease,
        delivery_lease=broker_lease(config, driver, clock, LeaseRole.DELIVERY),
        index=index,
        key_index=followed or index,
        follower=follower,
        records=records,
        fetcher=fetcher,
        times=TimeSearch(fetcher.cache),
        writer=writer,
        engine=engine,
        retention=retention,
        state=state_copy(config, tables_in(surroundings.access, config.root_path), driver, writer, lease, clock),
        pool=pool,
        metrics=_metrics(registry, files, fetcher, clock),
        discovery_threads=surroundings.restore_threads,
    )


def _follower(
    config: TierConfig,
    surroundings: Environment,
    files: FlatFileStore,
    local: LocalStore,
    index: FollowedIndex | None,
    reader: bool,
) -> MetadataFollower:
    """Shows what a job has copied, or, to a `reader`, what another broker uploads."""
    if reader:
        rest_s, threads = config.tier_follow_interval / 1000, surroundings.restore_threads
        return BucketFollower(files, files.metadata, local, index, rest_s=rest_s, threads=threads)
    lock = partial(surroundings.lock_tier, config.root_path, f"{lease_owner(config)} {FOLLOWS}")
    return MetadataFollower(files, files.metadata, local, index, lock)


def state_copy(
    config: TierConfig,
    read: ReadTables,
    driver: TierDriver,
    writer: QueueWriter,
    lease: BrokerLease,
    clock: Clock,
) -> StateCopy:
    """What copies the broker's own tables into the tier; `read` reads them."""
    interval_ms = config.tier_manifest_interval
    home = (config.broker_cluster_name, config.broker_name)
    tables = BrokerStateWriter(driver, *home, lease, lease.owner, interval_ms=interval_ms, clock=clock)
    return StateCopy(read, writer, tables, clock, rest_ms=interval_ms)


def _metrics(registry: Registry, files: FlatFileStore, fetcher: TierFetcher, clock: Clock) -> TierMetrics:
    metrics = TierMetrics(registry, files, clock)
    metrics.watch_fetcher(fetcher)
    return metrics


def _files(config: TierConfig, driver: TierDriver, metadata: MetadataStore, clock: Clock) -> FlatFileStore:
    return FlatFileStore(
        driver,
        metadata,
        config.broker_cluster_name,
        config.broker_name,
        clock,
        log_segment_bytes=config.tiered_store_commit_log_max_size,
        queue_segment_bytes=config.tiered_store_consume_queue_max_size,
    )


def _writer(
    config: TierConfig,
    driver: TierDriver,
    metadata: MetadataStore,
    manifests: ManifestStore,
    lease: BrokerLease,
    clock: Clock,
) -> QueueWriter:
    directory = broker_directory(config.broker_cluster_name, config.broker_name)
    epoch_max = max((queue.epoch for queue in metadata.queues()), default=0)
    return QueueWriter(
        metadata,
        manifests,
        lease=lease,
        policy=ManifestPolicy(config.tier_manifest_interval),
        clock=clock,
        renew_ms=config.tier_lease_term // 3,
        epoch_min=epoch_max + 1,
        fence=partial(driver.fence_bundles, directory, create=config.tier_bundle_interval > 0),
    )


def _engine(
    config: TierConfig,
    local: LocalStore,
    source: LocalStoreSource,
    files: FlatFileStore,
    writer: QueueWriter,
    index: IndexStore | None,
    clock: Clock,
    registry: Registry,
    chance: Callable[[], float],
) -> DispatchEngine:
    return DispatchEngine(
        files,
        source,
        writer,
        index=index,
        topic_filter=topic_filter(config),
        config=dispatch_config(config),
        settings=EngineSettings(
            sweep_interval_ms=config.tier_dispatch_interval,
            worker_count=config.tier_upload_threads,
            memory_bytes_max=config.tier_pending_bytes_max,
            proof_mode=config.tier_proof_mode,
            bundle_interval_ms=config.tier_bundle_interval,
            pace=PaceSettings(
                config.tier_pace_put_rate,
                config.tier_pace_cpu_percent,
                config.tier_pace_batch_factor,
                config.tier_pace_sample_interval,
            ),
        ),
        clock=clock,
        registry=registry,
        chance=chance,
        put_count=lambda: local.put_count,
    )


class _UnheardSource(LocalStoreSource):
    """For an engine that is never started: arrivals would pile up."""

    def on_arrival(self, arrival: Arrival) -> None:
        """Ignored."""


def _followed_index(
    config: TierConfig, access: FileAccess, driver: TierDriver, metadata: MetadataStore, records: ColdRecords
) -> IndexFollower | None:
    if not config.message_index_enable:
        return None
    return IndexFollower(
        access,
        str(config.root_path),
        driver,
        metadata,
        config.broker_cluster_name,
        config.broker_name,
        fetch_keys=records.fetch_keys,
    )


def _index(
    config: TierConfig,
    surroundings: Environment,
    driver: TierDriver,
    metadata: MetadataStore,
    files: FlatFileStore,
    records: ColdRecords,
    made: list[Retention],
    may_write: Callable[[], bool],
    clock: Clock,
    *,
    only_reads: bool,
) -> IndexStore | None:
    if not config.message_index_enable:
        return None
    settings = IndexSettings(
        slots=config.tiered_store_index_file_max_hash_slot_num,
        capacity=config.tiered_store_index_file_max_index_num,
        query_threads=surroundings.index_query_threads,
        only_reads=only_reads,
    )
    return IndexStore(
        surroundings.access,
        str(config.root_path),
        driver,
        metadata,
        config.broker_cluster_name,
        config.broker_name,
        clock=clock,
        settings=settings,
        rebuild=rebuild_from(files),
        fetch_keys=records.fetch_keys,
        retention_ms=lambda topic_ids: made[0].kept_ms_of_ids(topic_ids),
        is_unneeded=lambda remote: made[0].is_unneeded(remote),
        is_delete_enabled=lambda: config.tiered_store_delete_file_enable,
        may_write=may_write,
    )


def topic_filter(config: TierConfig, chosen: Collection[str] = ()) -> TopicFilter:
    """The topics that are copied into the tier: all but those of the system, or of these only the `chosen`."""
    names = (config.broker_name, config.broker_cluster_name)
    if chosen:
        return TopicFilter(*names, whitelist=chosen)
    return TopicFilter(*names, also=TRANSACTION_TOPICS if config.tier_transactions_enable else ())


def dispatch_config(config: TierConfig) -> DispatchConfig:
    """The settings that a queue's plan needs."""
    return DispatchConfig(
        group_commit=config.tiered_store_group_commit,
        group_commit_timeout_ms=config.tiered_store_group_commit_timeout,
        group_commit_count=config.tiered_store_group_commit_count,
        group_commit_bytes=config.tiered_store_group_commit_size,
        rolling_interval_hours=config.commit_log_rolling_interval,
        rolling_minimum_bytes=config.commit_log_rolling_minimum_size,
    )


def _fetch_config(config: TierConfig, local: LocalStore) -> FetchConfig:
    return FetchConfig(
        cache_enable=config.read_ahead_cache_enable,
        cache_bytes=config.tier_cache_bytes,
        cache_expire_ms=config.read_ahead_cache_expire_duration,
        message_count_threshold=config.read_ahead_message_count_threshold,
        message_size_threshold=config.read_ahead_message_size_threshold,
        transfer_bytes=local.config.max_transfer_bytes_on_message_in_memory,
        transfer_count=local.config.max_transfer_count_on_message_in_memory,
    )

"""The steps that open a tiered store: settings, local store, lock, and the metadata of its tier.

The metadata are compared with the tier before they are used. Metadata that were lost, or are older than the tier, are
read from the tier again; a failed start leaves the directory as it was.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tiermq.clock import Clock, SystemClock
from tiermq.config import SETTINGS as STORE_SETTINGS
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig, StoreDamaged, StoreLocked, TierUnavailable
from tiermq.files.config_file import BACKUP_SUFFIX
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.settings import did_you_mean
from tiermq.store.local_store import LocalStore
from tiermq.store.table_journal import SUFFIX as JOURNAL_SUFFIX
from tiermq.store.tier_continuation import METADATA_DATABASE, NAMED_MAX, Names, broker_names
from tiermq.tier.dispatch.writer import TierLock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.index.index_store import IndexSettings
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld, LeaseRole
from tiermq.tier.metadata.broker_state import CHOSEN_FILE, KINDS
from tiermq.tier.metadata.database import (
    IN_MEMORY,
    damage_of,
    discard,
    is_put_away,
    note_replaced,
    put_away,
    put_back,
)
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import broker_directory
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.restore.restore import DEFAULT_THREADS
from tiermq.tier.restore.restore import restore as restore_metadata
from tiermq.tier.restore.restore_report import RestoreReport
from tiermq.tier.restore.state_restore import restore_state
from tiermq.tier.tier_config import SETTINGS as TIER_SETTINGS
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import ask_ahead, damaged_metadata, refusal

_log = logging.getLogger(__name__)


class HeldLock(Protocol):
    """A lock that is released when the store closes."""

    def release(self) -> None: ...


class Environment:
    """The machine's environment. Made once for each store; its methods are called while the store opens."""

    restore_threads = DEFAULT_THREADS
    index_query_threads = IndexSettings().query_threads

    def __init__(self) -> None:
        self.access: FileAccess = OsFileAccess()

    def open_metadata(self, path: Path, clock: Clock) -> MetadataStore:
        """The broker's metadata of its tier, created if missing. Raises what `MetadataStore` raises."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return MetadataStore(str(path), clock=clock)

    def open_cache(self, clock: Clock) -> MetadataStore:
        """Metadata of a tier in memory, empty."""
        return MetadataStore(IN_MEMORY, clock=clock)

    def put_away_damaged_metadata(self, path: Path, root: Path, *, may_replace: bool) -> bool:
        """Check the metadata for damage before opening; True when they must be read from the tier again.

        Raises StoreDamaged when they are damaged and another process (a job) owns them.
        """
        damage = damage_of(path, root / INDEX_DIRECTORY / RECORD_NAME)
        if damage and not may_replace and path.exists():
            raise damaged_metadata(path, damage)
        if damage:
            _log.error("what the store knows of its tier is damaged: %s: %s", path, damage)
        if damage and may_replace:
            put_away(path)
        return may_replace and is_put_away(path)

    def put_away_metadata(self, path: Path) -> None:
        """Move aside closed metadata that are older than the tier, to read them from it again."""
        put_away(path)

    def put_back_metadata(self, path: Path) -> None:
        """After a refused or failed start: restore the metadata, and discard their replacement."""
        put_back(path)

    def ask_timeout_s(self, timeout_ms: int) -> float:
        """How long to wait for the tier before the store opens without its answer; 0: no limit, on this thread."""
        return timeout_ms / 1000

    def note_metadata_replaced(self, path: Path) -> None:
        """Damaged metadata have been read from the tier again."""
        _log.error("%s was rebuilt from the tier", path)
        note_replaced(path)

    def discard_metadata(self, path: Path) -> None:
        """Delete closed metadata."""
        discard(path)

    def lock_tier(self, root: Path, owner: str) -> HeldLock:
        """Lock the directory's metadata of its tier for writing. Raises StoreLocked when another process has it."""
        return TierLock(root, owner)

    def fetch_pool(self, thread_count: int) -> Executor:
        """The thread pool of read-ahead."""
        return ThreadPoolExecutor(thread_count, thread_name_prefix="tier-fetch")

    def chance(self) -> float:
        """Random number from 0 to 1, as jitter of waits."""
        return random.random()  # noqa: S311 - jitter, not a secret


def broker_lease(config: TierConfig, driver: TierDriver, clock: Clock, role: LeaseRole = LeaseRole.LOG) -> BrokerLease:
    """The broker's lease, not yet acquired."""
    home = (config.broker_cluster_name, config.broker_name)
    return BrokerLease(driver, *home, lease_owner(config), role=role, term_ms=config.tier_lease_term, clock=clock)


def lease_owner(config: TierConfig) -> str:
    """The lease holder as text: one store directory on one machine."""
    return f"{socket.gethostname()}:{os.path.abspath(config.root_path)}"


def take_over_leases(url: str, root: str | os.PathLike[str], cluster: str, broker: str) -> None:
    """Of a broker that was elected master: end the terms in which an earlier master, or a job, writes its tier.

    What they still write is fenced by the epoch. A tier that does not answer is left to the store's opening.
    """
    config = TierConfig(store_path_root_dir=str(root), broker_cluster_name=cluster, broker_name=broker)
    driver = open_driver(url)
    try:
        for role in LeaseRole:
            lease = broker_lease(config, driver, SystemClock(), role)
            try:
                lease.require_free()
            except LeaseHeld as error:
                holder = "another process" if error.lease is None else f"{error.lease.owner}, epoch {error.lease.epoch}"
                lease.take_over()
                _log.warning("this broker was elected master, and has taken its tier over from %s", holder)
    except TierUnavailable as error:
        _log.warning("whether an earlier master writes the tier is not known: %s", error)
    finally:
        driver.close()


def put_tables_aside(root: str | os.PathLike[str]) -> None:
    """Of a store without messages that is about to be restored: its tables are those of a broker that never had any,
    and would be kept in place of the tier's.
    """
    directory = Path(root) / "config"
    aside = directory / "before-restore"
    names = [kind.file + end for kind in KINDS for end in ("", BACKUP_SUFFIX, JOURNAL_SUFFIX)]
    for path in (directory / name for name in names):
        if path.is_file():
            aside.mkdir(exist_ok=True)
            path.rename(aside / path.name)


def open_local(
    config: StoreConfig,
    clock: Clock,
    around: Environment,
    store_host: str,
    background: bool,
    accept_weaker: bool,
    with_replication: bool,
    grows: bool,
) -> LocalStore:
    return LocalStore.open(
        config=config,
        clock=clock,
        access=around.access,
        store_host=store_host,
        background=background,
        accept_weaker=accept_weaker,
        with_tier=True,
        with_replication=with_replication,
        grows=grows,
    )


def lock_tier(config: TierConfig, surroundings: Environment) -> HeldLock | None:
    """The write lock of this directory's metadata of its tier; None when a job writes them."""
    if not config.tier_dispatch_enable:
        return None
    try:
        return surroundings.lock_tier(config.root_path, lease_owner(config))
    except StoreLocked as error:
        _log.warning("this store follows the job that copies it, until it is opened again: %s", error)
        return None


def given_names(config: TierConfig | None, settings: dict[str, Any]) -> Names:
    """Cluster and broker from the caller, empty where not given."""
    base = ("", "") if config is None else (config.broker_cluster_name, config.broker_name)
    return settings.get("broker_cluster_name") or base[0], settings.get("broker_name") or base[1]


def _named(config: TierConfig, metadata: MetadataStore, cluster: str, broker: str) -> TierConfig:
    """The settings with the names that the store has in its tier, where none were given. Raises BadConfig."""
    cluster, broker = broker_names(config.root_path, metadata.names(), cluster, broker)
    given = {"broker_cluster_name": cluster, "broker_name": broker}
    return config.with_settings(**{name: value for name, value in given.items() if value})


class KnownTier(NamedTuple):
    """A store's metadata of its tier, with the broker's names. `is_lost`: they were read from the tier, or must be.

    `is_latest`: by the lease, no other writer has changed the tier since. True for a store that will not acquire one.
    """

    config: TierConfig
    metadata: MetadataStore
    is_lost: bool
    was_compared: bool
    report: RestoreReport | None
    is_latest: bool = True


def open_known(
    config: TierConfig,
    names: Names,
    local: LocalStore,
    around: Environment,
    driver: TierDriver,
    clock: Clock,
    undo: ExitStack,
    *,
    restore: bool,
    follows: bool,
    standby: bool,
    reader: bool = False,
    passing: bool = False,
) -> KnownTier:
    """Open the metadata under their recorded names, compare them with the tier, and read them from it where they were
    lost, or must be restored. `undo` closes them, and restores valid metadata that were moved aside. Those of a
    `reader` are read from the tier later, whatever they are; of a `passing` one they are in memory.
    """
    if passing:
        metadata = around.open_cache(clock)
        undo.callback(metadata.close)
        return KnownTier(_named(config, metadata, *names), metadata, False, False, None)
    path = config.metadata_path
    unfinished = undo.enter_context(ExitStack())  # Runs after the metadata are closed, and only when opening fails.
    is_lost = around.put_away_damaged_metadata(path, config.root_path, may_replace=reader or not follows)
    metadata = around.open_metadata(path, clock)
    undo.callback(metadata.close)
    config = _named(config, metadata, *names)
    if reader:
        return KnownTier(config, metadata, is_lost, True, None)
    lease = None if follows or standby else broker_lease(config, driver, clock)
    was_compared = True
    if not is_lost and (not restore or _knows_segments(metadata)):
        is_behind = _is_behind(config, local, around, driver, metadata, lease, follows=follows)
        is_lost, was_compared = bool(is_behind), is_behind is not None
        if is_behind:
            unfinished.callback(around.put_back_metadata, path)
            metadata = around.open_metadata(path, clock)
            undo.callback(metadata.close)
    report = None
    if (restore or is_lost) and _is_new(metadata):
        unfinished.callback(around.discard_metadata, path)  # A partial restore would look complete.
        must_exist = is_lost or not names[1]
        report = _restored(config, around, driver, metadata, lease, clock, must_exist=must_exist)
        if restore and report.broker:
            root, now_ms = str(config.root_path), clock.now_ms()
            restore_state(driver, metadata, around.access, root, report, now_ms=now_ms)
    is_latest = lease is None or report is not None or (was_compared and lease.epoch_seen == metadata.lease_epoch())
    return KnownTier(config, metadata, is_lost, was_compared, report, is_latest)


def _is_behind(
    config: TierConfig,
    local: LocalStore,
    surroundings: Environment,
    driver: TierDriver,
    metadata: MetadataStore,
    lease: BrokerLease | None,
    *,
    follows: bool,
) -> bool | None:
    """Whether the tier is ahead of this broker's disk: then the metadata are moved aside, to be read from the tier.
    None when the tier does not answer. Raises StoreDamaged where they may not be replaced: another store,
    or a job's metadata; StoreLocked when another process holds the lease; and TierError when the tier is another one.
    """
    home = (config.broker_cluster_name, config.broker_name)
    timeout_s = surroundings.ask_timeout_s(config.tier_start_timeout)
    try:
        ahead = ask_ahead(
            driver, metadata, local.max_offset, *home, timeout_s, lease=lease, follows=follows, root=config.root_path
        )
        if not ahead:
            return None if ahead is None else False
        if follows or not (_knows_segments(metadata) or local.topics()):
            raise refusal(config.root_path, driver.url, ahead, follows=follows)
    except LeaseHeld as error:
        metadata.close()
        raise _in_use(config, error) from error
    except BaseException:
        metadata.close()
        raise
    named = ", ".join(map(str, ahead[:NAMED_MAX]))
    if chosen_file(config).exists():
        text = "%s was restored from %s with some topics only; where the others end is read from there: %s"
        _log.warning(text, config.root_path, driver.url, named)
    else:
        _log.error(
            "%s knows less than its tier %s, as an older copy of a disk does; the tier's history is taken over unless "
            "messages differ: %s",
            config.root_path, driver.url, named,
        )  # fmt: skip
    metadata.close()
    surroundings.put_away_metadata(config.metadata_path)
    return True


def _restored(
    config: TierConfig,
    surroundings: Environment,
    driver: TierDriver,
    metadata: MetadataStore,
    lease: BrokerLease | None,
    clock: Clock,
    *,
    must_exist: bool,
) -> RestoreReport:
    """Read the metadata from the tier. Raises TierError, and StoreLocked as `_is_behind` does.

    `must_exist`: a tier with history of other brokers only is an error (StoreDamaged): the broker's name is wrong.
    """
    try:
        if lease is not None:
            lease.require_free()
    except LeaseHeld as error:
        raise _in_use(config, error) from error
    cluster, broker = config.broker_cluster_name, config.broker_name
    report = restore_metadata(
        driver, metadata, cluster=cluster, broker=broker, threads=surroundings.restore_threads, clock=clock
    )
    if must_exist and not report.broker:
        _refuse_new_broker(config, driver)
    metadata.put_lease_epoch(report.epoch_max)
    return report


def chosen_file(config: TierConfig) -> Path:
    """In a directory that was restored with some topics only."""
    return config.root_path / "config" / CHOSEN_FILE


def _refuse_new_broker(config: TierConfig, driver: TierDriver) -> None:
    """Raises StoreDamaged when the tier has history of other brokers, and not even a lease of this one."""
    cluster, broker = config.broker_cluster_name, config.broker_name
    others = list_tier(driver, TierScope()).brokers
    if others and not driver.list_objects(broker_directory(cluster, broker) + "/"):
        raise StoreDamaged(
            f"{config.root_path}: expected history of {cluster}/{broker} in {driver.url}, found none, but history of "
            f"{', '.join('/'.join(names) for names in others)}. Give the names that the store had (brokerClusterName, "
            "brokerName or serve --name); for a new broker give an empty directory and its name"
        )


def _in_use(config: TierConfig, error: LeaseHeld) -> StoreLocked:
    return StoreLocked(
        f"{config.root_path}: expected to be the only store of broker {config.broker_cluster_name}/{config.broker_name}"
        f", found another one at work: {error}. Both would give the same numbers to different messages. A copy "
        "that is to be another broker needs another brokerName, and must not know this tier: move "
        f"config/{METADATA_DATABASE} and {INDEX_DIRECTORY} away"
    )


def _knows_segments(metadata: MetadataStore) -> bool:
    return next(iter(metadata.all_segments()), None) is not None


def _is_new(metadata: MetadataStore) -> bool:
    """Whether the metadata are empty; what a start before the restore left in them is removed."""
    if _knows_segments(metadata):
        return False
    for topic in {topic.name for topic in metadata.topics()} | {queue.key.topic for queue in metadata.queues()}:
        metadata.delete_topic(topic)
    return True


def configured(
    path: str | os.PathLike[str] | None,
    tier: str | None,
    config: StoreConfig | None,
    tier_config: TierConfig | None,
    settings: dict[str, Any],
) -> tuple[StoreConfig, TierConfig]:
    """The settings of both stores. Some are shared; the tier's metadata are in the local store's directory."""
    for name in settings:
        if name not in STORE_SETTINGS and name not in TIER_SETTINGS:
            hint = (
                did_you_mean(name, [*STORE_SETTINGS, *TIER_SETTINGS]) or "docs/operations.md and docs/tier.md list all"
            )
            raise BadConfig(f"there is no setting named {name}: {hint}")
    if path is not None:
        settings = {**settings, "store_path_root_dir": str(Path(path).absolute())}
    if tier is not None:
        settings = {**settings, "tier_url": tier}
    of_local = {name: value for name, value in settings.items() if name in STORE_SETTINGS}
    of_tier = {name: value for name, value in settings.items() if name in TIER_SETTINGS}
    local = (config or StoreConfig()).with_settings(**of_local)
    of_tier["store_path_root_dir"] = str(local.root_path)
    return local, (tier_config or TierConfig()).with_settings(**of_tier)

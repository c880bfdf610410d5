"""HeldBroker: one broker of a tier in the hands of a job that changes it, and nobody else's meanwhile.

    lease   the broker's, for as long as the job runs; renewed by a thread, so that tasks may take their time
    lock    of the store directory, if the job was given one: the dispatcher of that machine stands by
    rows    the store's own metadata; without a store what a restore finds in the bucket, kept in memory

Without a store, a broker that is still in use does not learn what the job did: its own metadata name what is gone. So
whoever wrote the manifests last is named in `notes`. Whoever holds the lease is named in the error, LeaseHeld.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tiermq.clock import Clock, SystemClock
from tiermq.errors import FutureManifest, StaleWriter, StoreError, TierError
from tiermq.history.scan_values import StorePlace
from tiermq.service import Service
from tiermq.spark.jobs.offload_place import place_of
from tiermq.tier.dispatch.tier_lock import TierLock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.known_metadata import open_known_metadata
from tiermq.tier.known_tier import require_known_tier
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseDamaged, LeaseHeld
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.manifest_snapshot import snapshot_manifest
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.restore import restore
from tiermq.tier.metadata.restore_report import Finding
from tiermq.tier.names import INDEX_TOPIC, QueueKey, index_queue
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_listing import TierScope, list_tier

_log = logging.getLogger(__name__)

LEASE_TERM_MS = 60_000
KEEPER_REST_S = 5.0
READ_THREADS = 16


@dataclass(frozen=True, slots=True)
class Home:
    """A broker of a tier, and its store directory if the job was told it."""

    cluster: str
    broker: str
    store: StorePlace | None = None

    @property
    def scope(self) -> TierScope:
        return TierScope(self.cluster, self.broker)

    @property
    def index(self) -> QueueKey:
        return index_queue(self.cluster, self.broker)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.broker}"


@dataclass(slots=True)
class HeldBroker:
    """See the module. A dry run has neither lease nor lock, and writes nothing."""

    driver: TierDriver
    home: Home
    metadata: MetadataStore
    clock: Clock
    lease: BrokerLease | None = None
    manifests: ManifestStore | None = None
    notes: list[str] = field(default_factory=list)
    topics_without_id: frozenset[str] = frozenset()
    """Topics whose id no manifest tells: the one that they have here is not the one that index items carry."""

    @property
    def root(self) -> Path | None:
        """The store directory, if there is one."""
        return None if self.home.store is None else Path(self.home.store.path).expanduser()

    def check(self) -> None:
        """Ask the tier whether the broker is still ours. Raises StaleWriter."""
        if self.lease is not None:
            self.lease.check()

    def write_manifest(self, queue: QueueKey) -> None:
        """Say in the tier what the metadata know of a queue. Raises StaleWriter, TierError."""
        if self.manifests is not None:
            self.manifests.write(snapshot_manifest(self.metadata, queue))


def homes_of(
    driver: TierDriver, *, cluster: str | None = None, broker: str | None = None, store: str | None = None
) -> list[Home]:
    """The brokers that a job works on, one after the other. Raises BadConfig, TierError when there is none of them."""
    if store is not None:
        place = place_of(store)
        if (cluster or place.cluster, broker or place.broker) != (place.cluster, place.broker):
            raise TierError(
                f"{place.path} is the store of {place.cluster}/{place.broker}, but {cluster or place.cluster}/"
                f"{broker or place.broker} was asked for; leave out one of the two"
            )
        return [Home(place.cluster, place.broker, place)]
    found = [Home(*each) for each in list_tier(driver, TierScope(cluster, broker)).brokers]
    if not found:
        wanted = "/".join(part or "*" for part in (cluster, broker))
        raise TierError(f"{driver.url}: expected history of broker {wanted}, found none; `tiermq tier ls` shows it")
    return found


@contextmanager
def hold_broker(
    driver: TierDriver,
    home: Home,
    job: str,
    *,
    dry_run: bool = False,
    with_rows: bool = True,
    clock: Clock | None = None,
) -> Iterator[HeldBroker]:
    """Hold the broker for a job. Raises LeaseHeld, StoreLocked, StoreError, TierError; then nothing was changed.

    `with_rows=False`: without a store nothing is read from the bucket, and the metadata stay empty. Otherwise a tier
    that a newer TierMQ writes is refused: FutureManifest.
    """
    clock = clock or SystemClock()
    owner = f"{socket.gethostname()}:{os.getpid()} (pipeline {job})"
    with ExitStack() as stack:
        if home.store is not None:
            path = TierConfig(store_path_root_dir=home.store.path).metadata_path
            if not path.is_file():
                raise StoreError(
                    f"{path}: expected what the broker knows of its tier, found no such file; give the store directory "
                    "of this broker, or none to go by the bucket alone"
                )
            if not dry_run:
                stack.callback(TierLock(Path(home.store.path).expanduser(), owner).release)
            metadata = stack.enter_context(open_known_metadata(home.store.path, clock))
            require_known_tier(driver, metadata, home.store.path)
        else:
            metadata = stack.enter_context(MetadataStore(IN_MEMORY, clock=clock))
        held = HeldBroker(driver, home, metadata, clock)
        if not dry_run:
            held.lease = _acquired(driver, home, owner, metadata, clock)
            stack.callback(_give_back, held.lease)
            held.manifests = ManifestStore(driver, owner, lease=held.lease, clock=clock)
        if with_rows:
            _read_bucket(held) if home.store is None else _require_readable(held)
        if held.lease is not None:
            keeper = _LeaseKeeper(held.lease)
            keeper.start()
            stack.callback(keeper.stop)
        yield held


def _acquired(driver: TierDriver, home: Home, owner: str, metadata: MetadataStore, clock: Clock) -> BrokerLease:
    lease = BrokerLease(driver, home.cluster, home.broker, owner, term_ms=LEASE_TERM_MS, clock=clock)
    epoch_min = max((queue.epoch for queue in metadata.queues()), default=0) + 1
    try:
        lease.acquire(epoch_min=epoch_min)
    except LeaseDamaged:
        raise
    except LeaseHeld as error:
        raise LeaseHeld(
            f"broker {home} is in use: {error}. A job never works beside the dispatcher of a store, or another job: "
            "stop the one that is named, or set tierDispatchEnable=false there and open it again"
        ) from error
    return lease


def _read_bucket(held: HeldBroker) -> None:
    home, lease = held.home, held.lease
    told = restore(held.driver, held.metadata, cluster=home.cluster, broker=home.broker, clock=held.clock)
    newer = next((remark for remark in told.remarks if remark.finding is Finding.FUTURE_MANIFEST), None)
    if newer is not None:
        raise FutureManifest(f"{newer.text} Nothing was changed")
    held.topics_without_id = frozenset(
        remark.where.removeprefix("topic ") for remark in told.remarks if remark.finding is Finding.TOPIC_ID_ASSIGNED
    )
    found = _manifests(held)
    manifests = [each for each in found if isinstance(each, QueueManifest)]
    epoch = max((manifest.epoch for manifest in manifests), default=0)
    if lease is not None and epoch >= lease.epoch:
        lease.acquire(epoch_min=epoch + 1)  # The lease was lost at some time; manifests were not.
    held.notes += [str(each) for each in found if isinstance(each, TierError)]
    writers = {manifest.writer for manifest in manifests if manifest.writer and "(pipeline" not in manifest.writer}
    held.notes += [
        f"{writer} wrote manifests of {home}: if that store is still in use, run this with --store there, since its "
        "own metadata do not learn what is done from the bucket alone"
        for writer in sorted(writers)
    ]


def _require_readable(held: HeldBroker) -> None:
    """Raises FutureManifest: the store's own rows do not tell that somebody newer has taken the tier over."""
    newer = next((each for each in _manifests(held) if isinstance(each, FutureManifest)), None)
    if newer is not None:
        raise FutureManifest(f"{newer}. Nothing was changed")


def _manifests(held: HeldBroker) -> list[QueueManifest | TierError | None]:
    """What the tier says of each queue that the metadata know, and of the index. Many requests, so many at a time."""
    reader = ManifestStore(held.driver, "a reader")

    def manifest_of(queue: QueueKey) -> QueueManifest | TierError | None:
        try:
            return reader.read(queue)
        except (CorruptManifest, FutureManifest) as error:
            return error

    keys = {queue.key for queue in held.metadata.queues()} | {held.home.index}
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="job-manifests") as pool:
        return list(pool.map(manifest_of, sorted(keys)))


def _give_back(lease: BrokerLease) -> None:
    try:
        lease.release()
    except TierError as error:
        _log.warning("%s is left to run out by itself: %s", lease.name, error)


class _LeaseKeeper(Service):
    """Renews the lease while the job works. One that was lost stays lost: whoever commits finds out by asking."""

    def __init__(self, lease: BrokerLease) -> None:
        super().__init__("job-lease")
        self._lease = lease

    def run_once(self) -> float:
        try:
            if self._lease.is_renewal_due():
                self._lease.renew()
        except StaleWriter as error:
            _log.error("this job may not write any more: %s", error)
            self._stopping.set()
        return KEEPER_REST_S


def data_queues(metadata: MetadataStore) -> list[QueueKey]:
    """The queues of messages; the index is none."""
    return [queue.key for queue in metadata.queues() if queue.key.topic != INDEX_TOPIC]

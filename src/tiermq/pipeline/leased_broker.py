"""LeasedBroker: one broker of a tier while a job changes it. No other process writes its tier meanwhile.

    lease   the broker's, for as long as the job runs; its term is `tierLeaseTerm`, and a thread renews it
    lock    of the store directory, if the job was given one: that machine's dispatcher is on standby
    rows    the store's own metadata; without a store what a restore finds in the bucket, kept in memory

Without a store, the job publishes which manifests it changed (`manifest_changes`), and a broker that follows
(`tierDispatchEnable=false`, or one that has lent its lease) reads those. A broker that tiers by itself is asked for its
lease: it ends what it uploads, lends the lease, and takes it back when the job ends; it notices the request at its next
renewal. So does a continuous offload over the wire, between two waves. Other holders are named in the error, LeaseHeld.

A job that was killed leaves its lease behind. On the same machine the next one takes it over at once, since the process
has ended; elsewhere it may wait (`LeaseWait`): at most for one term, and only until the holder renews, as one that runs
does after a third of its term.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.errors import FutureManifest, StoreError, StoreLocked, TierError, TierMQError
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.store_directory import place_of
from tiermq.tier.dispatch.writer import TierLock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import READ_THREADS, BrokerLease, Lease, LeaseHeld, LeaseKeeper, this_process
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.manifest_changes import ChangePublisher
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import INDEX_TOPIC, QueueKey, index_queue
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.restore.restore import restore
from tiermq.tier.restore.restore_report import Finding
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import forget_tier as put_tier_away
from tiermq.tier.tier_identity import missing_tail, open_known_metadata, require_known_tier, require_sound_metadata

_log = logging.getLogger(__name__)
R = TypeVar("R")
LEASE_POLL_S = 1.0
JOB_ADVICE = "That is a job: wait for its end, or stop it."
BROKER_ADVICE = (
    "That broker tiers by itself: stop it, or set tierDispatchEnable=false there, so that jobs copy its messages and "
    "change its tier."
)
LENDS_ADVICE = "It lends its lease to a job that waits for it: leave out --no-wait."
LATE_ADVICE = "It was asked for its lease and has not lent it: an upload of it takes long, or hangs. Try again later."
RENEWALS_MAX = 6
"""Of a broker that was asked for its lease: two terms. It lends it at the first one, unless its uploads do not end."""
WAVE_RENEWALS_MAX = 60
"""The same of a continuous offload, which lends it between two waves: a wave over a backlog takes minutes."""


@dataclass(frozen=True, slots=True)
class Home:
    """A broker of a tier, and its store directory if given."""

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
class LeasedBroker:
    """See the module. A dry run has neither lease nor lock, and writes nothing."""

    driver: TierDriver
    home: Home
    metadata: MetadataStore
    clock: Clock
    lease: BrokerLease | None = None
    manifests: ManifestStore | None = None
    changes: ChangePublisher | None = None
    """For brokers that follow this job; None where the job writes the store's own metadata."""
    has_rows: bool = True
    notes: list[str] = field(default_factory=list)
    topics_without_id: frozenset[str] = frozenset()
    """Topics whose id is in no manifest: their id here is not that of the index items."""
    forgotten: list[str] = field(default_factory=list)
    """The names under which was put away what the store knew of another tier."""

    @property
    def root(self) -> Path | None:
        """The store directory, if there is one."""
        return None if self.home.store is None else Path(self.home.store.path).expanduser()

    @property
    def epoch_min(self) -> int:
        """Behind every epoch that the metadata know, for a tier whose lease was lost."""
        return max((queue.epoch for queue in self.metadata.queues()), default=0) + 1

    def check(self) -> None:
        """Ask the tier whether the broker is still ours. Raises StaleWriter."""
        if self.lease is not None:
            self.lease.check()

    def renew(self) -> None:
        """Renew the lease when it is time."""
        if self.lease is not None:
            self.lease.keep()

    def write_manifest(self, queue: QueueKey) -> None:
        """Write a queue's manifest from the metadata. Raises StaleWriter, TierError."""
        if self.manifests is not None:
            self.manifests.write(snapshot_manifest(self.metadata, queue))
            self.publish()

    def note(self, queue: QueueKey) -> None:
        """The queue's manifest has changed."""
        if self.changes is not None:
            self.changes.note(queue)

    def publish(self, *, is_last: bool = False) -> None:
        """Make the manifests that were written known to brokers that follow. Raises StaleWriter, TierError."""
        if self.changes is not None:
            index = self.metadata.segments(self.home.index) if self.has_rows else None
            self.changes.publish(index, is_last=is_last)

    def publish_last(self) -> None:
        """The same at the end of the job. Where it fails, followers read all manifests after the next job."""
        try:
            self.publish(is_last=True)
        except TierError as error:
            _log.warning("%s: brokers that follow see the last changes after the next job: %s", self.home, error)


@dataclass(frozen=True, slots=True)
class BrokerResult(Generic[R]):
    """What a task did for one broker, and why it could not do more: the broker's lease is held, or was taken."""

    home: Home
    value: R
    refusal: TierMQError | None = None


def refusals(results: Sequence[BrokerResult[Any]]) -> list[str]:
    """The brokers that could not be worked on, as problems of a report. Raises the refusal when there is no other."""
    refused = [(result.home, result.refusal) for result in results if result.refusal is not None]
    if refused and len(refused) == len(results):
        raise refused[0][1]
    return [f"{home}: {refusal}" for home, refusal in refused]


def homes_of(
    driver: TierDriver, *, cluster: str | None = None, broker: str | None = None, store: str | None = None
) -> list[Home]:
    """The brokers that a job works on, one after the other. Raises BadConfig, TierError without any."""
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
def open_broker(
    driver: TierDriver,
    home: Home,
    job: str,
    *,
    config: TierConfig | None = None,
    dry_run: bool = False,
    may_be_new: bool = False,
    forget_tier: bool = False,
    clock: Clock | None = None,
    in_bundles: bool = False,
) -> Iterator[LeasedBroker]:
    """The broker locked and its metadata open, before the lease is acquired. `config` has the term of the lease.

    `in_bundles`: the job writes bundles. `may_be_new`: the store may know of no tier yet, and with `forget_tier`
    forgets one that it does not know again.
    Raises LeaseHeld, StoreLocked, StoreError, TierError; then nothing was changed.
    """
    clock = clock or SystemClock()
    root = "" if home.store is None else home.store.path
    config = config or TierConfig(store_path_root_dir=root)
    owner = owner_of(home, job)
    lease = job_lease(driver, home, job, config, clock)
    with ExitStack() as stack:
        forgotten: list[str] = []
        if not root:
            metadata = stack.enter_context(MetadataStore(IN_MEMORY, clock=clock))
        else:
            if not may_be_new and not config.metadata_path.is_file():
                raise StoreError(
                    f"{config.metadata_path}: expected what the broker knows of its tier, found no such file; give the "
                    "store directory of this broker, or none to go by the bucket alone"
                )
            if not dry_run:
                stack.callback(_lock_store(Path(root).expanduser(), owner).release)
            if may_be_new:
                with in_use_is_reported(home):
                    lease.require_free()
                forgotten = settle_tier(driver, root, config, clock, forget=forget_tier)
                config.metadata_path.parent.mkdir(parents=True, exist_ok=True)
                metadata = stack.enter_context(MetadataStore(config.metadata_path, clock=clock))
            else:
                metadata = stack.enter_context(open_known_metadata(root, clock))
                require_known_tier(driver, metadata, root)
        broker = LeasedBroker(driver, home, metadata, clock, forgotten=forgotten)
        if not dry_run:
            broker.lease = lease
            broker.manifests = ManifestStore(
                driver, owner, lease=lease, clock=clock, on_change=broker.note, in_bundles=in_bundles
            )
            if not root:
                broker.changes = ChangePublisher(driver, home.cluster, home.broker, lease, clock)
        yield broker


def _lock_store(root: Path, owner: str) -> TierLock:
    try:
        return TierLock(root, owner)
    except StoreLocked as error:
        raise StoreLocked(
            f"{error}. A broker that runs lends its lease to jobs that are not given its store"
        ) from error


def job_lease(driver: TierDriver, home: Home, job: str, config: TierConfig, clock: Clock) -> BrokerLease:
    """The lease of a broker for a job of this process; not acquired yet."""
    return BrokerLease(
        driver,
        home.cluster,
        home.broker,
        owner_of(home, job),
        term_ms=config.tier_lease_term,
        clock=clock,
        process=this_process(),
    )


Sleep = Callable[[float], object]
"""Waits for so many seconds; for a job that may wait for a lease."""


class LeaseWait:
    """Which holders of a job's brokers are waited for: other jobs that may be dead, since they have not renewed yet;
    and brokers and continuous offloads, which lend their lease.
    """

    def __init__(self) -> None:
        self._first: dict[Home, tuple[str, int, int]] = {}

    def is_of_use(self, home: Home, error: LeaseHeld, borrower: BrokerLease | None = None) -> bool:
        """Whether the lease may end by itself, or is lent to the `borrower`, which asks for it. The first time it is
        logged that the job waits. Raises LeaseHeld when it is lent to another job.
        """
        held = error.lease
        if held is not None and held.lends and borrower is not None:
            return self._asks(home, held, borrower)
        if held is None or not held.is_by_job:
            return False
        seen = held.owner, held.epoch, held.renewals
        if home not in self._first:
            self._first[home] = seen
            _log.warning(
                "waiting up to %d s for the lease of broker %s: %s holds it, and may be dead", error.left_s, home,
                held.owner,
            )  # fmt: skip
        return self._first[home] == seen

    def _asks(self, home: Home, held: Lease, borrower: BrokerLease) -> bool:
        known = self._first.get(home)
        if known is None or known[:2] != (held.owner, held.epoch):
            known = self._first[home] = held.owner, held.epoch, held.renewals
            _log.warning("waiting for broker %s to lend its lease; it notices that at its next renewal", home)
        borrower.ask()
        return held.renewals < known[2] + (WAVE_RENEWALS_MAX if held.is_by_job else RENEWALS_MAX)


@contextmanager
def lease_broker(
    driver: TierDriver,
    home: Home,
    job: str,
    *,
    dry_run: bool = False,
    with_rows: bool = True,
    clock: Clock | None = None,
    wait: Sleep | None = None,
) -> Iterator[LeasedBroker]:
    """Hold the broker for a job. Raises LeaseHeld, StoreLocked, StoreError, TierError; then nothing was changed.

    `wait`: for a lease that a job left behind that was killed, and for a broker that lends its own; see `LeaseWait`.
    `with_rows=False`: without a store nothing is read from the bucket, and the metadata stay empty. Otherwise a tier
    that a newer TierMQ writes is refused: FutureManifest.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(open_broker(driver, home, job, dry_run=dry_run, clock=clock))
        if broker.lease is not None:
            _acquire(broker, broker.lease, wait)
            stack.callback(_give_back, broker.lease)
        if with_rows:
            read_bucket(broker) if home.store is None else _require_readable(broker)
        broker.has_rows = with_rows
        if broker.lease is not None:
            keeper = LeaseKeeper(broker.renew)
            keeper.start()
            stack.callback(keeper.stop)
        yield broker
        broker.publish_last()


_INSTANCE = secrets.token_hex(4)


def owner_of(home: Home, job: str) -> str:
    """The lease holder's name. A store directory's lock admits one job at a time, so the next may follow at once.

    Without one the name has a random part: in containers, hosts of one name and processes with the id 1 are common.
    """
    place = f"{os.getpid()}-{_INSTANCE}"
    if home.store is not None:
        place = os.path.abspath(os.path.expanduser(home.store.path))
    return f"{socket.gethostname()}:{place} (pipeline {job})"


def _acquire(broker: LeasedBroker, lease: BrokerLease, wait: Sleep | None) -> None:
    waits = LeaseWait()
    with in_use_is_reported(broker.home, LENDS_ADVICE if wait is None else LATE_ADVICE):
        while True:
            try:
                lease.acquire(epoch_min=broker.epoch_min)
                return
            except LeaseHeld as error:
                if wait is None or not waits.is_of_use(broker.home, error, lease):
                    raise
                wait(LEASE_POLL_S)


@contextmanager
def in_use_is_reported(home: Home, lends_advice: str = "") -> Iterator[None]:
    """Raises LeaseHeld with what to do for this kind of holder; `lends_advice`: for one that lends its lease, where the
    caller can borrow it. A damaged lease has no holder.
    """
    try:
        yield
    except LeaseHeld as error:
        if error.lease is None:
            raise
        advice = JOB_ADVICE if error.lease.is_by_job else BROKER_ADVICE
        if error.lease.lends and lends_advice:
            advice = lends_advice
        raise LeaseHeld(
            f"broker {home} is in use: {error.lease.owner} holds its lease for another {error.left_s} s, unless it "
            f"renews. {advice} If it is dead: `{error.takeover}`",
            error.lease,
            left_s=error.left_s,
            takeover=error.takeover,
        ) from error


def settle_tier(driver: TierDriver, root: str, config: TierConfig, clock: Clock, *, forget: bool) -> list[str]:
    """Check that the tier is the one of the store's metadata, or with `forget` discard those metadata.

    Returns what was put away, under which names; a tier that is known is not forgotten. Raises TierError, StoreLocked,
    StoreDamaged.
    """
    if not require_sound_metadata(config.root_path).is_file():
        return []
    with MetadataStore(config.metadata_path, clock=clock) as metadata:
        if not forget:
            require_known_tier(driver, metadata, root)
            return []
        if missing_tail(driver, metadata) is None:
            return []
    return put_tier_away(config.metadata_path, Path(root).expanduser(), clock)


def read_bucket(broker: LeasedBroker) -> None:
    """Fill the metadata, in memory, with what the tier has of the broker. Raises FutureManifest, TierError."""
    home, lease = broker.home, broker.lease
    report = restore(broker.driver, broker.metadata, cluster=home.cluster, broker=home.broker, clock=broker.clock)
    newer = next((remark for remark in report.remarks if remark.finding is Finding.FUTURE_MANIFEST), None)
    if newer is not None:
        raise FutureManifest(f"{newer.text} Nothing was changed")
    broker.topics_without_id = frozenset(
        remark.where.removeprefix("topic ") for remark in report.remarks if remark.finding is Finding.TOPIC_ID_ASSIGNED
    )
    index = _manifest_of(ManifestStore(broker.driver, "a reader"), home.index)
    epochs = [queue.epoch for queue in broker.metadata.queues()]
    epoch = max([*epochs, index.epoch if isinstance(index, QueueManifest) else 0])
    if lease is not None and epoch >= lease.epoch:
        lease.acquire(epoch_min=epoch + 1)  # The lease was lost at some time; manifests were not.
    broker.notes += [f"{remark.where}: {remark.text}" for remark in report.found(Finding.CORRUPT_MANIFEST)]


def _require_readable(broker: LeasedBroker) -> None:
    """Raises FutureManifest: the store's own rows do not show that a newer version has taken over the tier."""
    newer = next((each for each in _manifests(broker) if isinstance(each, FutureManifest)), None)
    if newer is not None:
        raise FutureManifest(f"{newer}. Nothing was changed")


def _manifests(broker: LeasedBroker) -> list[QueueManifest | TierError | None]:
    """The tier's state of each queue of the metadata, and of the index. Many requests, with limited concurrency."""
    reader = ManifestStore(broker.driver, "a reader")
    keys = {queue.key for queue in broker.metadata.queues()} | {broker.home.index}
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="job-manifests") as pool:
        return list(pool.map(lambda key: _manifest_of(reader, key), sorted(keys)))


def _manifest_of(reader: ManifestStore, queue: QueueKey) -> QueueManifest | TierError | None:
    try:
        return reader.read(queue)
    except (CorruptManifest, FutureManifest) as error:
        return error


def _give_back(lease: BrokerLease) -> None:
    try:
        lease.release()
    except TierError as error:
        _log.warning("%s is left to run out by itself: %s", lease.name, error)


def data_queues(metadata: MetadataStore) -> list[QueueKey]:
    """The queues of messages, without the index."""
    return [queue.key for queue in metadata.queues() if queue.key.topic != INDEX_TOPIC]

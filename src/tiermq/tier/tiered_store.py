"""TieredStore: a local store whose history goes on in a tier.

    with TieredStore.open("store", tier="s3://bucket/prefix") as store:
        store.put(Message("orders", b"...", keys=["order-42"]))
        store.tier_now()                       # everything committed so far is in the tier
        page = store.get("orders", 0, 0)       # from wherever it is

Writes go to the local store and never wait for the tier. Reads go where the read policy says (`tieredStorageLevel`); an
error of the tier is an error, unless the local store can answer. Local files go only once the tier has proof of its
copy. A back end that is down keeps nobody from opening, putting, reading what is local, or closing. A close uploads
what is not in the tier yet, for up to four fifths of `tierCloseTimeout`, and returns what is left.

After the loss of the whole disk, `restore=True` rebuilds what the tier has from the tier alone: messages, numbering,
retention. A broker's groups, offsets and topic settings are not in it (`restore_report.NOT_IN_THE_TIER`).
Threads: any thread may call anything but `open` and `close`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tiermq.clock import Clock, SystemClock
from tiermq.config import SETTINGS as STORE_SETTINGS
from tiermq.config import StoreConfig
from tiermq.errors import (
    BadConfig,
    BadTierUrl,
    StaleWriter,
    StoreDamaged,
    StoreLocked,
    TierError,
    TierMQError,
    TierUnavailable,
)
from tiermq.kernel import Message, PutResults, QueueHandle
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import is_light_queue, is_system_topic
from tiermq.metrics import Registry
from tiermq.service import Service
from tiermq.settings import did_you_mean
from tiermq.store.cleaning import Cleaned
from tiermq.store.local_store import LocalStore
from tiermq.store.store_life import DEFAULT_HOST
from tiermq.store.tier_continuation import NAMED_MAX
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.metered import ProviderMetrics
from tiermq.tier.driver.retrying import RetryingDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.index_follower import IndexFollower
from tiermq.tier.known_tier import unknown_tier
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.manifest_policy import ManifestCause
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import UNLIMITED, TopicStatus
from tiermq.tier.metadata.restore import restore as restore_metadata
from tiermq.tier.metadata.restore_report import Finding, RestoreReport
from tiermq.tier.retention import RetentionReport
from tiermq.tier.surroundings import HeldLock, Surroundings
from tiermq.tier.tier_ahead import ask_ahead, may_differ, refusal
from tiermq.tier.tier_assembly import TierParts, assemble_tier, broker_lease, lease_owner
from tiermq.tier.tier_config import SETTINGS as TIER_SETTINGS
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tiered_reading import TieredReading

_log = logging.getLogger(__name__)

UPKEEP_REST_S = 5.0
FOLLOW_REST_S = 1.0  # Between two looks at what a job has copied.
FOLLOW_POLL_S = 0.05
UPLOAD_SHARE = 0.8  # Of the time that a close has for the tier. The rest is for manifests and the lease.


@dataclasses.dataclass(frozen=True, slots=True)
class NotUploaded:
    """What a closed store holds and its tier does not. The disk has it; a disk that goes with the process loses it.

    Of these, `stopped` messages are in queues whose history is not the tier's: no start uploads them.
    """

    queues: int = 0
    messages: int = 0
    stopped: int = 0


class TieredStore(TieredReading):
    """See the module. `local` is the store underneath; `tier` are the parts on top. Reading is `TieredReading`'s."""

    def __init__(self, local: LocalStore, tier: TierParts, registry: Registry, clock: Clock) -> None:
        super().__init__(local, tier)
        self.metrics = registry
        self.restored: RestoreReport | None = None
        self.put = local.put
        self.put_many = local.put_many
        self._upkeep = _Upkeep(self, clock)
        self._tier_lock: HeldLock | None = None
        self._left = NotUploaded()
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
        surroundings: Surroundings | None = None,
        accept_weaker: bool = False,
        standby: bool = False,
        **settings: Any,
    ) -> Self:
        """Open the store in `path` with the tier at URL `tier`.

        `settings` are RocketMQ's names in snake_case, of the local store and of the tier alike. `restore=True` reads
        the tier's own description into a store that has none first; it raises TierError when the tier cannot be read,
        which opening without it never does. `background=False` starts no thread (see `LocalStore.open`): then the tier
        is written by `tier_now` and cleaned by `expire_now`. `surroundings` are for simulations.

        A store whose broker another process writes is refused (StoreLocked): both would number messages. `standby=True`
        opens it to be read; nobody may put to it. Raises BadConfig, BadTierUrl, TierCredentials, and `LocalStore`'s.
        """
        clock = clock or SystemClock()
        local_config, tier_config = _configured(path, tier, config, tier_config, settings)
        if not tier_config.url and driver is None:
            raise BadConfig("a tiered store needs the URL of its tier, such as tier='s3://bucket/prefix'")
        registry = Registry()
        around = surroundings or Surroundings()
        with ExitStack() as undo:
            if driver is None:
                driver = open_driver(tier_config.url, metrics=ProviderMetrics(registry), clock=clock)
                undo.callback(driver.close)
            local = _open_local(local_config, clock, around, store_host, background, accept_weaker)
            undo.callback(local.close)
            lock = _tier_lock(tier_config, around)
            if lock is not None:
                undo.callback(lock.release)
            lease = None if lock is None or standby else broker_lease(tier_config, driver, clock)
            known = tier_config.metadata_path
            unfinished = undo.enter_context(ExitStack())  # Left behind the metadata, and only when opening fails.
            metadata, is_lost, was_compared = _open_metadata(
                tier_config, local, around, driver, clock, lease, unfinished, restore=restore, follows=lock is None
            )
            undo.callback(metadata.close)
            report = None
            if (restore or is_lost) and _is_new(metadata):
                unfinished.callback(around.discard_metadata, known)  # Half a restore would pass for a whole one.
                report = _restored(tier_config, around, driver, metadata, lease, clock)
            parts = assemble_tier(tier_config, local, around, driver, metadata, clock, registry, follows=lock is None)
            undo.callback(parts.pool.shutdown)
            store = cls(local, parts, registry, clock)
            store.restored = report
            store._tier_lock = lock
            store._require_same_history()
            if not was_compared:
                root = str(tier_config.root_path)
                parts.writer.check_tier = partial(unknown_tier, driver, metadata, root, torn_is_known=True)
            parts.engine.hold(parts.retention.deleting_topics())
            if parts.follower is None and (restore or is_lost):
                store._finish_uploads()
            if is_lost:
                around.note_metadata_replaced(known)
            store._start(background, standby)
            undo.pop_all()
        return store

    def _require_same_history(self) -> None:
        """Refuse a local store that gave numbers of the tier's messages to others: no reader could tell them apart."""
        deleting = frozenset(self.tier.retention.deleting_topics())
        for file in self.tier.files:
            queue = file.queue
            name = queue.topic, queue.queue_id
            if queue.topic in deleting:
                continue  # What was put since then begins at 0 again.
            if self.restored is not None:
                low = max(0, file.min_offset, self.local.min_offset(*name))
                high = min(file.commit_offset, self.local.max_offset(*name))
                offsets = sorted({low, high - 1}) if low < high else []
            else:
                offsets = may_differ(self.local, self.tier.metadata, queue, file.commit_offset)
            for offset in offsets:
                try:
                    differs = self._differs(*name, offset)
                except TierError as error:
                    if self.restored is not None:
                        raise
                    _log.error("message %d of %s-%d was not compared with the tier's: %s", offset, *name, error)
                    break
                if differs:
                    raise StoreDamaged(
                        f"{self.local.config.root_path}: its message {offset} of {name[0]}-{name[1]} is not the one "
                        f"that {self.tier.driver.url} has under that number: it was used before it was restored, "
                        "or without its tier. Move the directory away, restore into an empty one, and put what is only "
                        "in the old one again"
                    )

    def _differs(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether both sides have a message of that number, and not the same one. Raises TierError."""
        here = self.local.get(topic, queue_id, offset, 1).messages
        there = self.tier.fetcher.get(topic, queue_id, offset, 1).messages if here else []
        return bool(here and there) and _identity(here[0]) != _identity(there[0])

    def _start(self, background: bool, standby: bool) -> None:
        tier = self.tier
        if not standby:
            tier.writer.on_held = self._fence
        for file in tier.files:
            if file.initialised and file.queue.topic not in tier.engine.held_topics:
                # The tier may know messages that the local store lost: their numbers are taken.
                self.local.advance_queue(file.queue.topic, file.queue.queue_id, file.taken_offset)
        if tier.index is not None:
            report = self.restored
            tier.index.start(
                tier.queue_tails(),
                with_thread=background,
                catch_up=report is not None,
                trust_foreign=report is None or not report.found(Finding.TOPIC_ID_ASSIGNED),
            )
        if tier.config.tier_evict_on_proof:
            self.local.add_eviction_veto(tier.engine.proof.must_stay)
            if background:
                tier.engine.proof.start(on_proven=self.local.clean_soon)
        if tier.follower is not None:
            tier.follower.refresh()
        if background:
            if tier.follower is None:
                tier.engine.start()
            self._upkeep.start()

    def _fence(self, error: TierError) -> None:
        """Another process has the broker: what is put here from now on would get numbers that it gives out, too."""
        if self.local.fence():
            _log.error(
                "puts are refused until this store is opened again, because its broker has another writer: %s", error
            )

    def _finish_uploads(self) -> None:
        """After a restore: records whose writer died before their units were there get them before anybody reads, and
        passes them over. Raises TierError.
        """
        for file in self.tier.files:
            if file.initialised and file.taken_offset > file.commit_offset:
                self.tier.writer.claim()
                if not self.tier.writer.own(file):
                    continue
                file.recover()
                if not file.commit():
                    key, error = file.units.last.key, file.units.last.last_error
                    raise error or TierUnavailable(f"{key}: it could not be committed")

    def close(self) -> NotUploaded:
        """Upload what the tier lacks, then close the local store; what is left, see `NotUploaded`.

        All that waits for the tier has `tierCloseTimeout` together, so a tier that is down does not hold it up any
        longer; 0 uploads nothing. A store without threads (`background=False`), one whose tiering is paused, and one
        that a job copies upload nothing either.
        """
        if self._closed:
            return self._left
        self._closed = True
        tier = self.tier
        timeout_s = tier.config.tier_close_timeout / 1000
        deadline = time.monotonic() + timeout_s

        def left_s() -> float:
            """All that waits for the tier shares one time."""
            return max(0.1, deadline - time.monotonic())

        with ExitStack() as close:  # Runs backwards, and each step also when one before it failed.
            if self._tier_lock is not None:
                close.callback(self._tier_lock.release)
            close.callback(tier.driver.close)
            close.callback(tier.metadata.close)
            close.callback(self.local.close)
            close.callback(lambda: tier.files.close(left_s()))
            close.callback(tier.pool.shutdown, wait=False, cancel_futures=True)
            close.callback(lambda: tier.engine.stop(left_s()))  # Gives the broker back, so the index has to be through.
            close.callback(lambda: tier.engine.proof.stop_within(left_s()))
            index = tier.index
            if index is not None:
                close.callback(lambda: index.close(left_s()))
            if isinstance(tier.key_index, IndexFollower):
                close.callback(tier.key_index.close)
            close.callback(lambda: tier.engine.pause(left_s()))
            close.callback(lambda: self._upkeep.stop_within(left_s()))
            close.callback(self._upload_rest, timeout_s * UPLOAD_SHARE)
            close.callback(tier.engine.proof.ask_to_stop)
        return self._left

    def _upload_rest(self, timeout_s: float) -> None:
        """Upload what there is, and note what is left then. In a thread of its own: a request may hang."""
        tier = self.tier
        if tier.follower is not None:
            return
        if tier.engine.has_threads:
            try:
                self.local.dispatch_now()
                self.local.flush()  # Only what is durable is uploaded, and counted.
            except (TierMQError, OSError) as error:  # A disk that fails is for the local store's own close to report.
                _log.warning("what could not be written to the disk is not uploaded either: %s", error)
        if tier.engine.has_threads and timeout_s > 0 and not tier.writer.refusal:
            last = threading.Thread(target=self._flush_last, args=(timeout_s,), name="tier-close", daemon=True)
            last.start()
            last.join(timeout_s)
        left = tier.engine.not_uploaded()
        stopped = {name: left.pop(name) for name in tier.engine.forked() if name in left}
        waiting, lost = sum(left.values()), sum(stopped.values())
        self._left = NotUploaded(len(left) + len(stopped), waiting + lost, lost)
        url, root = tier.driver.url, tier.config.root_path
        if left and tier.engine.has_threads:
            _log.warning(
                "closed with %d messages of %d queues that %s does not have yet; they are in %s and are uploaded after "
                "the next start (tierCloseTimeout=%d ms)",
                waiting, len(left), url, root, tier.config.tier_close_timeout,
            )  # fmt: skip
        if stopped:
            names = ", ".join(f"{topic}-{queue_id}" for topic, queue_id in sorted(stopped)[:NAMED_MAX])
            _log.error(
                "closed with %d messages that only %s has and that are not uploaded: %s has other messages under the "
                "same numbers (%d queues: %s%s). Keep the directory, restore into an empty one, and put them again",
                lost, root, url, len(stopped), names, ", …" * (len(stopped) > NAMED_MAX),
            )  # fmt: skip

    def _flush_last(self, timeout_s: float) -> None:
        try:
            self.tier.engine.flush(timeout_s, is_last=True)
        except TierMQError as error:
            _log.warning("what is not in the tier yet is not uploaded now: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def trouble(self) -> TierError | None:
        """Why the tier's back end could not be used last; None when it could."""
        driver = self.tier.driver
        if self.tier.writer.unknown_tier:
            return BadTierUrl(self.tier.writer.unknown_tier)
        return driver.trouble if isinstance(driver, RetryingDriver) else None

    # Putting: `put` and `put_many` are the local store's

    def put_batch(self, envelope: Message) -> PutResults:
        return self.local.put_batch(envelope)

    def queue(self, topic: str, queue_id: int = 0) -> QueueHandle:
        return self.local.queue(topic, queue_id)

    def flush(self) -> None:
        """Make everything that was put before durable, locally."""
        self.local.flush()

    def tier_now(self, timeout_s: float | None = None) -> bool:
        """Upload everything that was put before, and wait; False when that cannot be, or not in time.

        `status()` says why not. Where a job copies, this only waits for it, and looks once without a `timeout_s`.
        """
        self.local.dispatch_now()
        if self.tier.follower is not None:
            return self._wait_for_job(timeout_s)
        return self.tier.engine.flush(timeout_s)

    def refresh_tier(self) -> bool:
        """See what a job has copied since the last look; whether that was anything. Nothing to see without a job.

        With `tier_dispatch_enable=False` this is done every few seconds; reads, key queries and the cleaner go by it.
        """
        return self.tier.follower is not None and self.tier.follower.refresh()

    def _wait_for_job(self, timeout_s: float | None) -> bool:
        wanted = self.local.dispatched_where
        deadline = time.monotonic() + (timeout_s or 0.0)
        while True:
            self.refresh_tier()
            if self.tier.engine.proof.lag().copied_to >= wanted:
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(FOLLOW_POLL_S, left_s))

    def pause_tiering(self, timeout_s: float = 10.0) -> bool:
        """Upload nothing more until `resume_tiering`; False when an upload under way takes longer than that."""
        return self.tier.engine.pause(timeout_s)

    def resume_tiering(self) -> None:
        """Go on; what was put meanwhile is uploaded like any backlog."""
        self.tier.engine.resume()

    # What goes

    def clean_now(self) -> Cleaned:
        """Run the local cleaner, as if its hour had come. What the tier has no proof of stays.

        What has to be read back for that is read on this thread, which waits for the tier; `local.clean_now` does not.
        """
        cleaned = self.local.clean_now()
        while cleaned.vetoed and self.tier.engine.proof.prove():
            more = self.local.clean_now()
            cleaned = cleaned.and_then(more)
            if not more.log_files:
                break
        return cleaned

    def expire_now(self) -> RetentionReport:
        """Delete from the tier what is too old or too much. Raises StaleWriter when this process may not write it."""
        tier = self.tier
        self._require_own_tier()
        tier.writer.claim()
        self._require_broker()
        report = tier.retention.run()
        tier.engine.hold(tier.retention.deleting_topics())
        return report

    def set_retention(self, topic: str, hours: int = -1, max_bytes: int = -1) -> None:
        """How long and how much of a topic the tier keeps; -1 for the setting of all topics (`reserve.time`).

        Raises StaleWriter where a job writes the tier: it decides what goes (`tiermq pipeline expire`).
        """
        if hours == 0 or hours < -1 or max_bytes == 0 or max_bytes < -1:
            raise BadConfig(f"topic {topic}: hours and bytes to keep are positive or -1, found {hours} and {max_bytes}")
        self._require_own_tier()
        if self.own_retention(topic) == (hours, max_bytes):
            return
        self.tier.metadata.add_topic(topic)
        self.tier.metadata.update_topic(topic, reserve_time_hours=hours, max_bytes=max_bytes)
        for file in self.tier.files:
            if file.queue.topic == topic:
                self.tier.engine.changed(topic, file.queue.queue_id, ManifestCause.TOPIC_CHANGE)

    def own_retention(self, topic: str) -> tuple[int, int]:
        """The topic's own hours and bytes, as `set_retention` took them; -1 for none."""
        known = self.tier.metadata.topic(topic)
        return (UNLIMITED, UNLIMITED) if known is None else (known.reserve_time_hours, known.max_bytes)

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics from both stores; how many there were. Nobody should put to them meanwhile.

        Raises TierError when the tier's part of one could not be finished. It is hidden and begun for good by then, and
        goes on when the tier is reachable, also after a restart. Raises StaleWriter, with nothing deleted, when this
        process may not write the tier.
        """
        gone = sorted(set(topics))
        self._claim()
        self.local.dispatch_now()  # A topic that was just put to has its queues only then.
        count = len(self.topics().keys() & gone)
        tier = self.tier
        for topic in gone:
            tier.metadata.update_topic(topic, status=TopicStatus.DELETING)
        tier.engine.hold(tier.retention.deleting_topics())
        for file in tier.files:
            if file.queue.topic in gone:
                tier.engine.forget(file.queue.topic, file.queue.queue_id)
                tier.fetcher.forget(file)
        self.local.delete_topics(gone)
        failure: TierError | None = None
        for topic in gone:
            try:
                tier.retention.delete_topic(topic)
            except TierError as error:
                failure = failure or error
        tier.engine.hold(tier.retention.deleting_topics())
        if failure is not None:
            raise failure
        return count

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic that is not retained, not the system's and not a light queue, from both stores."""
        keep = set(retained)
        return self.delete_topics(
            topic for topic in self.topics() if not (topic in keep or is_system_topic(topic) or is_light_queue(topic))
        )

    def reindex(self) -> int:
        """Index again, by all their keys, the messages whose index RocketMQ wrote; in how many queues there are some.

        It drops keys when an index file is full, so until then queries for them say that they may be incomplete. The
        index's upkeep reads those messages back from the tier, some at a time. Raises TierError when the tier cannot
        be asked what its index covers.
        """
        return 0 if self.tier.index is None else self.tier.index.reindex()

    def _claim(self) -> None:
        """Become the broker's writer, if the tier can be asked. Raises StaleWriter when somebody else is."""
        self._require_own_tier()
        try:
            self.tier.writer.claim()
        except TierUnavailable as error:
            _log.warning("the tier cannot be asked now whether this process may write it: %s", error)
        self._require_broker()

    def _require_own_tier(self) -> None:
        if self.tier.follower is not None:
            raise StaleWriter(
                f"{self.tier.driver.url}: this store leaves its tier to a job (tierDispatchEnable=false, or a job had "
                "it when the store was opened); use the job's commands, such as `tiermq pipeline expire`"
            )

    def _require_broker(self) -> None:
        if self.tier.writer.refusal:
            raise StaleWriter(f"{self.tier.driver.url}: this process may not write it; {self.tier.writer.refusal}")

    # State

    @property
    def config(self) -> StoreConfig:
        return self.local.config

    @property
    def running(self) -> bool:
        return not self._closed and self.local.running

    def status(self) -> dict[str, object]:
        """What an operator asks first, of both stores."""
        tier = self.tier
        damaged = {f"{topic}-{queue_id}": str(error) for (topic, queue_id), error in tier.files.damaged.items()}
        deleting = sorted(tier.engine.held_topics)
        told = {"url": tier.driver.url, **tier.engine.status(), "damaged": damaged, "deleting": deleting}
        told["dispatch"] = "embedded" if tier.follower is None else "by a job"
        return {**self.local.status(), "tier": told}


class _Upkeep(Service):
    """Retention at its interval, and idle windows out of memory."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        super().__init__("tier-upkeep")
        self._store = store
        self._clock = clock
        self._interval_ms = store.tier.config.tiered_store_delete_file_interval
        self._next_sweep_ms = clock.now_ms() + self._interval_ms

    def run_once(self) -> float:
        self._store.tier.fetcher.cache.expire()
        if self._store.tier.follower is not None:
            self._store.refresh_tier()
            return FOLLOW_REST_S
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self._interval_ms
            try:
                self._store.expire_now()
            except TierError as error:
                _log.warning("nothing is expired in the tier this time: %s", error)
        return min(UPKEEP_REST_S, self._interval_ms / 1000)


def _open_local(
    config: StoreConfig, clock: Clock, around: Surroundings, store_host: str, background: bool, accept_weaker: bool
) -> LocalStore:
    return LocalStore.open(
        config=config,
        clock=clock,
        access=around.access,
        store_host=store_host,
        background=background,
        accept_weaker=accept_weaker,
        with_tier=True,
    )


def _tier_lock(config: TierConfig, surroundings: Surroundings) -> HeldLock | None:
    """The right to write what this directory knows of its tier; None when that is left to a job."""
    if not config.tier_dispatch_enable:
        return None
    try:
        return surroundings.lock_tier(config.root_path, lease_owner(config))
    except StoreLocked as error:
        _log.warning("this store follows the job that copies it, until it is opened again: %s", error)
        return None


def _open_metadata(
    config: TierConfig,
    local: LocalStore,
    around: Surroundings,
    driver: TierDriver,
    clock: Clock,
    lease: BrokerLease | None,
    unfinished: ExitStack,
    *,
    restore: bool,
    follows: bool,
) -> tuple[MetadataStore, bool, bool]:
    """What is known of the tier, whether it is to be read from there, and whether the tier was asked what it has.

    `unfinished` puts back what was put away although it was sound.
    """
    known = config.metadata_path
    is_lost = around.put_away_damaged_metadata(known, config.root_path, may_replace=not follows)
    metadata = around.open_metadata(known, clock)
    if is_lost or (restore and not _knows_segments(metadata)):
        return metadata, is_lost, True
    is_behind = _is_behind(config, local, around, driver, metadata, lease, follows=follows)
    if is_behind:
        unfinished.callback(around.put_back_metadata, known)
        metadata = around.open_metadata(known, clock)
    return metadata, bool(is_behind), is_behind is not None


def _is_behind(
    config: TierConfig,
    local: LocalStore,
    surroundings: Surroundings,
    driver: TierDriver,
    metadata: MetadataStore,
    lease: BrokerLease | None,
    *,
    follows: bool,
) -> bool | None:
    """Whether the tier has history of this broker that its disk does not know of: the metadata are put away then, to be
    read from the tier. None when the tier does not answer. Raises StoreDamaged where they may not be: this is another
    store, or a job's metadata; StoreLocked when another process holds the lease; and TierError when it is not the tier
    that the metadata know.
    """
    place = (config.broker_cluster_name, config.broker_name)
    timeout_s = surroundings.ask_timeout_s(config.tier_start_timeout)
    try:
        ahead = ask_ahead(
            driver, metadata, local.max_offset, *place, timeout_s, lease=lease, follows=follows, root=config.root_path
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
    _log.error(
        "%s knows less than its tier %s, as an older copy of a disk does; the tier's history is taken over unless "
        "messages differ: %s",
        config.root_path, driver.url, ", ".join(map(str, ahead[:NAMED_MAX])),
    )  # fmt: skip
    metadata.close()
    surroundings.put_away_metadata(config.metadata_path)
    return True


def _restored(
    config: TierConfig,
    surroundings: Surroundings,
    driver: TierDriver,
    metadata: MetadataStore,
    lease: BrokerLease | None,
    clock: Clock,
) -> RestoreReport:
    """Read what the tier says of itself into the metadata. Raises TierError, and StoreLocked as `_is_behind` does."""
    try:
        if lease is not None:
            lease.require_free()
    except LeaseHeld as error:
        raise _in_use(config, error) from error
    cluster, broker = config.broker_cluster_name, config.broker_name
    return restore_metadata(
        driver, metadata, cluster=cluster, broker=broker, threads=surroundings.restore_threads, clock=clock
    )


def _in_use(config: TierConfig, error: LeaseHeld) -> StoreLocked:
    return StoreLocked(
        f"{config.root_path}: expected to be the only store of broker {config.broker_cluster_name}/{config.broker_name}"
        f", found another one at work: {error}. Both would give the same numbers to different messages. Stop it, or "
        "wait until its lease ends if it is dead; a copy that is to live beside it needs another brokerName or tier"
    )


def _knows_segments(metadata: MetadataStore) -> bool:
    return next(iter(metadata.all_segments()), None) is not None


def _is_new(metadata: MetadataStore) -> bool:
    """Whether the metadata knows nothing of a tier; what a start before the restore left in it is put away."""
    if _knows_segments(metadata):
        return False
    for topic in {topic.name for topic in metadata.topics()} | {queue.key.topic for queue in metadata.queues()}:
        metadata.delete_topic(topic)
    return True


def _identity(message: StoredMessage) -> tuple[int, ...]:
    """What a copy of a message has in common with it, and hardly any other message has."""
    return message.queue_offset, message.size, message.body_crc, message.store_timestamp_ms, message.born_timestamp_ms


def _configured(
    path: str | os.PathLike[str] | None,
    tier: str | None,
    config: StoreConfig | None,
    tier_config: TierConfig | None,
    settings: dict[str, Any],
) -> tuple[StoreConfig, TierConfig]:
    """The settings of both stores. Some are both's; the tier's metadata lies in the local store's directory."""
    for name in settings:
        if name not in STORE_SETTINGS and name not in TIER_SETTINGS:
            hint = did_you_mean(name, [*STORE_SETTINGS, *TIER_SETTINGS]) or "docs/operations.md lists the settings"
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

"""TieredStore: a local store whose history continues in a tier.

    with TieredStore.open("store", tier="s3://bucket/prefix") as store:
        store.put(Message("orders", b"...", keys=["order-42"]))
        store.flush_to_tier()                       # everything committed so far is in the tier
        page = store.get("orders", 0, 0)       # from either store

Writes go to the local store and never wait for the tier. The read policy (`tieredStorageLevel`) selects the store of a
read; an error of the tier is raised, unless the local store can answer. Local files are deleted only once their copy in
the tier is verified. A back end that is down does not block opening, puts, local reads, or closing. A close uploads
what is not in the tier yet, for up to four fifths of `tierCloseTimeout`, and returns what is left.

After the loss of the whole disk, `restore=True` rebuilds what the tier has from the tier alone: messages, numbering,
retention, and the tables of the broker that ran on the store: topics, groups, offsets (`metadata/broker_state`).
Threads: any thread may call anything but `open` and `close`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from tiermq.clock import Clock, SystemClock
from tiermq.config import StoreConfig
from tiermq.errors import (
    BadConfig,
    BadTierUrl,
    StaleWriter,
    StoreClosed,
    StoreDamaged,
    StoreError,
    TierError,
    TierMQError,
    TierUnavailable,
)
from tiermq.kernel import Message, PutResults, QueueHandle
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import is_broker_topic, is_light_queue, is_system_topic
from tiermq.metrics import Registry
from tiermq.service import Service
from tiermq.store.clean_service import Cleaned
from tiermq.store.local_store import LocalStore
from tiermq.store.store_lifecycle import DEFAULT_HOST
from tiermq.store.tier_continuation import NAMED_MAX
from tiermq.tier.driver.contract import ReadOnlyDriver, TierDriver
from tiermq.tier.driver.provider_metrics import ProviderMetrics
from tiermq.tier.driver.retry import RetryingDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.flat.flat_file_store import queue_tails
from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.metadata.metadata_values import UNLIMITED, TopicStatus
from tiermq.tier.open_tier import (
    Environment,
    HeldLock,
    KnownTier,
    chosen_file,
    configured,
    given_names,
    lock_tier,
    open_known,
    open_local,
)
from tiermq.tier.restore.restore_report import Finding, RestoreReport
from tiermq.tier.retention.retention import RetentionReport
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_follower import BucketFollower, IndexFollower, MetadataFollower, NoLock
from tiermq.tier.tier_identity import may_differ, unknown_tier
from tiermq.tier.tier_wiring import TierComponents, assemble_tier
from tiermq.tier.tiered_reading import TieredReading

_log = logging.getLogger(__name__)

UPKEEP_REST_S = 5.0
FOLLOW_REST_S = 1.0  # Between two refreshes of what a job has copied.
FOLLOW_POLL_S = 0.05
LEND_TIMEOUT_S = 10.0  # For steps that run when a job asks for the lease.
UPLOAD_SHARE = 0.8  # Of the time that a close has for the tier. The rest is for manifests and the lease.


@dataclasses.dataclass(frozen=True, slots=True)
class NotUploaded:
    """What a closed store has and its tier lacks. It is on the disk only; an ephemeral disk loses it.

    Of these, `stopped` messages are in queues whose history differs from the tier's: no start uploads them.
    """

    queues: int = 0
    messages: int = 0
    stopped: int = 0


class TieredStore(TieredReading):
    """See the module. `local` is the local store; `tier` holds the tier's components. Reads are in `TieredReading`."""

    def __init__(self, local: LocalStore, tier: TierComponents, registry: Registry, clock: Clock) -> None:
        super().__init__(local, tier)
        self.metrics = registry
        self.restored: RestoreReport | None = None
        self.put = local.put
        self.put_many = local.put_many
        self._upkeep = _Upkeep(self, clock)
        self._tier_lock: HeldLock | None = None
        self._left = NotUploaded()
        self._closed = False
        self._close_timeout_s = 0.0
        self._writes = threading.RLock()  # Of what writes the tier beside the dispatcher; a lease is lent under it.
        self._behind_job: MetadataFollower | None = None
        self._job_since_s = 0.0

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
        surroundings: Environment | None = None,
        accept_weaker: bool = False,
        standby: bool = False,
        reader: bool = False,
        passing: bool = False,
        with_replication: bool = False,
        index_later: bool = False,
        grows: bool = False,
        **settings: Any,
    ) -> Self:
        """Open the store in `path` with the tier at URL `tier`.

        `settings` are RocketMQ's names in snake_case, of the local store and of the tier alike; `grows` as there. A
        store that was used with a tier keeps its broker's names: they are the defaults, and different names are refused
        (BadConfig).

        `restore=True` first reads the metadata from the tier into a store that has none; it raises TierError when the
        tier cannot be read, which opening without it never does. It reads all records whose keys are in no index file
        of the tier, or lets the upkeep do that (`index_later`): until then queries by key are not complete.
        `background=False` starts no thread: the tier is written by `flush_to_tier` and cleaned by `expire_now`.
        A store whose broker another process writes is refused (StoreLocked): both would assign offsets. `standby=True`
        opens it read-only, and uploads when the other one has gone. `reader=True` never writes, needs no lease, and
        shows what the broker of that name uploads (`BucketFollower`); it is for stores that take no puts. A `passing`
        one may be that broker next: it waits for no request when it opens and closes, knows the tier in memory, changes
        no metadata and key index of the directory, and finds no keys of messages that only the tier has.
        Raises BadConfig, BadTierUrl, TierCredentials, and `LocalStore`'s.
        """
        clock = clock or SystemClock()
        names = given_names(tier_config, settings)
        local_config, tier_config = configured(path, tier, config, tier_config, settings)
        if not tier_config.url and driver is None:
            raise BadConfig("a tiered store needs the URL of its tier, such as tier='s3://bucket/prefix'")
        registry = Registry()
        around = surroundings or Environment()
        with ExitStack() as undo:
            driver = _driver_of(driver, tier_config.url, registry, clock, undo, reads=reader)
            shape = (store_host, background, accept_weaker, with_replication, grows)
            local = open_local(local_config, clock, around, *shape)
            undo.callback(local.close)
            lock = None if reader else lock_tier(tier_config, around)
            if lock is not None:
                undo.callback(lock.release)
            known = open_known(
                tier_config, names, local, around, driver, clock, undo, restore=restore, follows=lock is None,
                standby=standby, reader=reader, passing=passing,
            )  # fmt: skip
            parts = assemble_tier(
                known.config, local, around, driver, known.metadata, clock, registry, follows=lock is None,
                reader=reader, passing=passing,
            )  # fmt: skip
            undo.callback(parts.pool.shutdown)
            store = cls(local, parts, registry, clock)
            store._close_timeout_s = 0.0 if passing else known.config.tier_close_timeout / 1000
            store._tier_lock = lock
            store._take_known(known, around, restore=restore)
            store._start(background, standby, is_tier_there=known.was_compared, index_later=index_later)
            undo.pop_all()
        return store

    def _take_known(self, known: KnownTier, around: Environment, *, restore: bool) -> None:
        """Compare both stores, and finish what a lost disk left. Raises StoreDamaged, TierError."""
        tier, is_lost = self.tier, known.is_lost
        self.restored = known.report
        self._require_same_history()
        if not known.was_compared:
            root = str(tier.config.root_path)
            tier.writer.check_tier = partial(unknown_tier, tier.driver, tier.metadata, root, torn_is_known=True)
        tier.engine.hold(tier.retention.deleting_topics())
        if tier.follower is None and (restore or is_lost):
            self._finish_uploads()
        if is_lost:
            around.note_metadata_replaced(tier.config.metadata_path)
        tier.writer.is_caught_up = known.is_latest

    def _require_same_history(self) -> None:
        """Refuse a local store whose messages have offsets that other messages have in the tier."""
        deleting = frozenset(self.tier.retention.deleting_topics())
        for file in self.tier.files:
            queue = file.queue
            name = queue.topic, queue.queue_id
            if queue.topic in deleting:
                continue  # Puts since then begin at 0 again.
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
                    _log.error("message %d of %s-%d was not compared with the tier's: %s", offset, *name, str(error))
                    break
                if differs:
                    raise StoreDamaged(
                        f"{self.local.config.root_path}: its message {offset} of {name[0]}-{name[1]} is not the one "
                        f"that {self.tier.driver.url} has under that number: it was used before it was restored, "
                        "or without its tier. Move the directory away, restore into an empty one, and put what is only "
                        "in the old one again"
                    )

    def _differs(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether both sides have a message at that offset, and they differ. Raises TierError."""
        here = self.local.get(topic, queue_id, offset, 1).messages
        there = self.tier.fetcher.get(topic, queue_id, offset, 1).messages if here else []
        return bool(here and there) and _identity(here[0]) != _identity(there[0])

    def _start(self, background: bool, standby: bool, *, is_tier_there: bool, index_later: bool) -> None:
        tier = self.tier
        if not standby:
            tier.metadata.record_names(tier.config.broker_cluster_name, tier.config.broker_name)
            tier.writer.on_held = self._fence
            if tier.follower is None:
                tier.writer.on_foreign = self._take_bucket
                tier.lease.lends = True
        for file in () if isinstance(tier.follower, BucketFollower) else tier.files:
            if file.initialised and file.queue.topic not in tier.engine.held_topics:
                # The tier may have messages that the local store lost: their offsets are in use.
                self.local.advance_queue(file.queue.topic, file.queue.queue_id, file.taken_offset)
        if tier.index is not None:
            report = self.restored
            tier.index.start(
                queue_tails(tier.files),
                with_thread=background,
                catch_up=report is not None and not index_later,
                trust_foreign=report is None or not report.found(Finding.TOPIC_ID_ASSIGNED),
            )
        if tier.config.tier_evict_on_proof:
            self.local.add_eviction_veto(tier.engine.proof.must_stay)
            if background:
                tier.engine.proof.start(on_proven=self.local.clean_soon)
        if tier.follower is not None:
            tier.follower.refresh(with_tier=is_tier_there)
        if background:
            if tier.follower is None:
                tier.engine.start()
            self._upkeep.start()

    def _fence(self, error: TierError) -> None:
        """Another process owns the broker: puts here would get offsets that it assigns, too."""
        if self.local.fence(str(error)):
            _log.error(
                "puts are refused until this store is opened again, because its broker has another writer: %s", error
            )

    def _finish_uploads(self) -> None:
        """After a restore: write the missing units of records whose writer died, so that readers do not skip them.
        Raises TierError.
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

        All waits for the tier share `tierCloseTimeout`, so a tier that is down delays the close no longer than that; 0
        uploads nothing. A store without threads (`background=False`), one whose tiering is paused, and one
        that a job copies upload nothing either.
        """
        if self._closed or self.local.is_parents:
            return self._left
        self._closed = True
        tier = self.tier
        timeout_s = self._close_timeout_s
        deadline = time.monotonic() + timeout_s

        def left_s() -> float:
            """What remains of the shared timeout."""
            return max(0.1, deadline - time.monotonic())

        with ExitStack() as close:  # Runs backwards, and each step also when one before it failed.
            if self._tier_lock is not None:
                close.callback(self._tier_lock.release)
            close.callback(tier.driver.close)
            close.callback(tier.metadata.close)
            close.callback(lambda: self._release_delivery(left_s()))
            close.callback(self.local.close)
            close.callback(lambda: tier.files.close(left_s()))
            close.callback(tier.pool.shutdown, wait=False, cancel_futures=True)
            close.callback(lambda: tier.engine.stop(left_s()))  # Releases the lease, so the index must be done.
            close.callback(lambda: tier.engine.proof.stop_within(left_s()))
            index = tier.index
            if index is not None:
                close.callback(lambda: index.close(left_s()))
            if isinstance(tier.key_index, IndexFollower):
                close.callback(tier.key_index.close)
            close.callback(lambda: tier.engine.pause(left_s()))
            close.callback(lambda: self._copy_last_state(left_s()))
            close.callback(lambda: self._upkeep.stop_within(left_s()))
            close.callback(self._upload_rest, timeout_s * UPLOAD_SHARE)
            close.callback(tier.engine.proof.ask_to_stop)
        return self._left

    def _upload_rest(self, timeout_s: float) -> None:
        """Upload the backlog, and record what is left."""
        tier = self.tier
        if tier.follower is not None:
            return
        if tier.engine.has_threads:
            try:
                self.local.dispatch_now()
                self.local.flush()  # Only what is durable is uploaded, and counted.
            except (TierMQError, OSError) as error:  # The local store's close reports a failing disk.
                _log.warning("what could not be written to the disk is not uploaded either: %s", error)
        if tier.engine.has_threads and timeout_s > 0 and not tier.writer.refusal:
            _run_within(timeout_s, partial(self._flush_last, timeout_s))
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

    def _copy_last_state(self, timeout_s: float) -> None:
        if self.tier.follower is None and self.tier.engine.has_threads:
            _run_within(timeout_s, partial(self.tier.state.run, is_last=True))

    def _release_delivery(self, timeout_s: float) -> None:
        """Another process may deliver the tiered timers at once."""

        def release() -> None:
            try:
                self.tier.delivery_lease.release()
            except TierError as error:
                _log.warning("the lease of the tiered timers is left to expire: %s", error)

        if self.tier.delivery_lease.is_held:
            _run_within(timeout_s, release)

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
        """The last error of the tier's back end, or why nothing can be written there; None when the last request
        succeeded.
        """
        driver, writer = self.tier.driver, self.tier.writer
        if writer.unknown_tier:
            return BadTierUrl(writer.unknown_tier)
        if writer.epochs_used_up is not None:
            return BadTierUrl(str(writer.epochs_used_up))
        return driver.trouble if isinstance(driver, RetryingDriver) else None

    # Putting: `put` and `put_many` are the local store's

    def put_batch(self, envelope: Message) -> PutResults:
        return self.local.put_batch(envelope)

    def queue(self, topic: str, queue_id: int = 0) -> QueueHandle:
        return self.local.queue(topic, queue_id)

    def flush(self) -> None:
        """Make everything that was put before durable, locally."""
        self.local.flush()

    def flush_to_tier(self, timeout_s: float | None = None) -> bool:
        """Upload everything that was put before, and wait; False when that fails, or not in time.

        `status()` reports why. Where a job copies, this only waits for it, and checks once without a `timeout_s`.
        """
        self.local.dispatch_now()
        if self.tier.follower is not None:
            return self._wait_for_job(timeout_s)
        return self.tier.engine.flush(timeout_s)

    def unproven(self) -> str:
        """Why a file of the local log would stay, as text; empty once the tier has every message that is tiered, byte
        for byte. What is copied and not compared yet is compared in the background, however long that takes.
        """
        proof, end = self.tier.engine.proof, self.local.dispatched_where
        if not proof.must_stay(0, end):
            return ""
        lag = proof.lag()
        if lag.copied_to < end:
            return f"{lag.topic}-{lag.queue_id} is not copied from physical offset {lag.copied_to} on"
        return proof.state or f"the log before {end} is being compared with the tier"

    def not_uploaded(self) -> NotUploaded:
        """What the tier lacks now of what the local store has on its disk."""
        left, forked = self.tier.engine.not_uploaded(), self.tier.engine.forked()
        stopped = sum(count for name, count in left.items() if name in forked)
        return NotUploaded(len(left), sum(left.values()), stopped)

    def local_only(self) -> dict[str, int]:
        """Topics of clients that are never uploaded (light queues, batch queues, traces), and how many messages the
        local store has of each.
        """
        tiered = {topic for topic, _ in self.local.simple_queues() if not self.tier.engine.filter.is_filtered(topic)}
        found = {}
        for topic, ids in self.local.topics().items():
            if topic in tiered or is_broker_topic(topic):
                continue
            bounds = [(self.local.min_offset(topic, each), self.local.max_offset(topic, each)) for each in ids]
            if count := sum(high - max(0, low) for low, high in bounds):
                found[topic] = count
        return found

    def refresh_tier(self) -> bool:
        """Load what a job has copied since the last refresh; whether there was anything. Does nothing without a job.

        With `tier_dispatch_enable=False` this is done every few seconds; reads, key queries and the cleaner use it.
        """
        return self.tier.follower is not None and self.tier.follower.refresh()

    def on_growth(self, listener: Callable[[str, int, int], None]) -> None:
        """Of a reader: call it with the topic, the id and the end of each queue of which the tier has more now."""
        if isinstance(self.tier.follower, BucketFollower):
            self.tier.follower.on_growth.append(listener)

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

    # What goes

    def clean_now(self) -> Cleaned:
        """Run the local cleaner, as if its hour had come. Files without a verified copy in the tier stay.

        Read-back for that is done on this thread, which waits for the tier; `local.clean_now` does not.
        """
        cleaned = self.local.clean_now()
        while cleaned.vetoed and self.tier.engine.proof.prove():
            more = self.local.clean_now()
            cleaned = cleaned.and_then(more)
            if not more.log_files:
                break
        return cleaned

    def expire_now(self) -> RetentionReport:
        """Delete from the tier what is too old or too much. Raises StaleWriter if another process owns it."""
        tier = self.tier
        self._require_own_tier()
        with self._writes:
            tier.writer.claim()
            self._require_broker()
            report = tier.retention.run()
            tier.engine.hold(tier.retention.deleting_topics())
        return report

    def set_retention(self, topic: str, hours: int = -1, max_bytes: int = -1) -> None:
        """How long and how much of a topic the tier keeps; -1 for the setting of all topics (`reserve.time`).

        Raises StaleWriter where a job writes the tier: then `tiermq pipeline expire` applies retention.
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
        """Delete topics from both stores; how many there were. Do not put to them meanwhile.

        Raises TierError when the tier's part of one could not be finished, also because a job has the lease now. The
        topic is hidden by then, and the deletion continues later, also after a restart. Raises StaleWriter, with
        nothing deleted, when another broker writes the tier.
        """
        gone = sorted(set(topics))
        with self._writes:
            return self._delete_topics(gone)

    def _delete_topics(self, gone: list[str]) -> int:
        self._claim()
        self.local.dispatch_now()  # Dispatch creates the queues of a new topic.
        count = len(self.topics().keys() & gone)
        tier = self.tier
        for topic in gone:
            tier.metadata.update_topic(topic, status=TopicStatus.DELETING)
        tier.engine.hold(tier.retention.deleting_topics())
        for file in tier.files:
            if file.queue.topic in gone:
                tier.engine.forget(*file.queue.name)
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
        """Delete every topic that is not retained, not the system's and not a light queue, from both stores.

        Raises StoreError in a directory that was restored with some topics only: the others are not unused.
        """
        keep = set(retained)
        if (chosen := chosen_file(self.tier.config)).exists():
            raise StoreError(
                f"{chosen}: expected a store that has all topics of its broker, found one that was restored with some "
                "of them only; history of the others would be deleted. Delete topics by their names, or remove this "
                "file when their history is to go"
            )
        return self.delete_topics(
            topic for topic in self.topics() if not (topic in keep or is_system_topic(topic) or is_light_queue(topic))
        )

    def reindex(self) -> int:
        """Index again, by all their keys, the messages whose index RocketMQ wrote; returns the number of their queues.

        RocketMQ drops keys when an index file is full, so until then queries report that they may be incomplete. The
        index's upkeep reads those messages back from the tier in batches. Raises TierError when the tier cannot be
        read.
        """
        return 0 if self.tier.index is None else self.tier.index.reindex()

    def _claim(self) -> None:
        """Acquire the broker's lease, if the tier answers. Raises StaleWriter when another broker holds it."""
        self._require_own_tier()
        try:
            self.tier.writer.claim()
        except TierUnavailable as error:
            _log.warning("the tier cannot be asked now whether this process may write it: %s", error)
        if not self.tier.writer.job:
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

    # The lease, lent to jobs

    def tend_lease(self) -> bool:
        """Keep the broker's lease, lend it to a job that asks, and take it back after that; whether a job has it.

        The store's threads do this; without them call it now and then. One thread at a time.
        """
        tier = self.tier
        if self._behind_job is None and not tier.writer.job:
            tier.engine.keep_lease()
            if tier.writer.request is not None:
                self._lend()
        if self._behind_job is not None or tier.writer.job:
            self._follow_job()
        return bool(tier.writer.job)

    def _lend(self) -> None:
        """End what is being written, and lend the lease. Where that takes too long, the next call tries again."""
        tier, index = self.tier, self.tier.index
        timeout_s = min(LEND_TIMEOUT_S, tier.config.tier_lease_term / 4000)
        with self._writes:
            try:
                if tier.engine.pause(timeout_s) and (index is None or index.hold(timeout_s)):
                    tier.engine.write_manifests()
                    for file in tier.files:
                        file.discard_pending()
                    tier.writer.lend()
            except TierError as error:
                _log.warning("the lease may be lent to a job, or not: %s", error)
            finally:
                if not tier.writer.job:
                    self._go_on()

    def _go_on(self) -> None:
        if self.tier.index is not None:
            self.tier.index.go_on()
        self.tier.engine.resume()

    def _follow_job(self) -> None:
        """Show what the job has changed, and take the lease as soon as it ends."""
        tier = self.tier
        if self._behind_job is None:
            self._behind_job, self._job_since_s = self._new_follower(), time.monotonic()
            _log.warning("uploads are paused: %s has the broker's tier", tier.writer.job)
        self._behind_job.refresh()
        try:
            tier.writer.claim()
        except TierError as error:
            _log.warning("the tier is not taken back yet: %s", error)
        if tier.writer.job or (not tier.writer.refusal and not tier.writer.may_write()):
            return
        self._behind_job = None
        if tier.index is not None:
            tier.index.look_again = None
        self._go_on()
        self._upkeep.expire_soon()
        _log.warning("uploads go on after %.1f s", time.monotonic() - self._job_since_s)

    def _new_follower(self) -> MetadataFollower:
        tier, threads = self.tier, self.tier.discovery_threads
        known = tier.metadata.lease_epoch()
        return MetadataFollower(
            tier.files, tier.metadata, self.local, tier.index, NoLock, own_epoch=known, threads=threads
        )

    def _take_bucket(self) -> None:
        """Another process has written the tier since this store did: before it writes again, see what. Raises
        TierError.
        """
        tier = self.tier
        (self._behind_job or self._new_follower()).take_bucket()
        if tier.index is not None:
            tier.index.learn_coverage(queue_tails(tier.files))
        tier.engine.start_over()

    # State

    @property
    def config(self) -> StoreConfig:
        return self.local.config

    @property
    def only_reads(self) -> bool:
        """Whether it was opened as a reader."""
        return isinstance(self.tier.follower, BucketFollower)

    @property
    def running(self) -> bool:
        return not self._closed and self.local.running

    def status(self) -> dict[str, object]:
        """The main figures of both stores for operators."""
        tier = self.tier
        damaged = {f"{topic}-{queue_id}": str(error) for (topic, queue_id), error in tier.files.damaged.items()}
        deleting = sorted(tier.engine.held_topics)
        status = {"url": tier.driver.url, **tier.engine.status(), "damaged": damaged, "deleting": deleting}
        follows = "by another broker" if self.only_reads else "by a job"
        status["dispatch"] = "embedded" if tier.follower is None else follows
        return {**self.local.status(), "tier": status}


def _driver_of(
    given: TierDriver | None, url: str, registry: Registry, clock: Clock, undo: ExitStack, *, reads: bool
) -> TierDriver:
    """The driver of a store that opens: one of its own, which `undo` closes, or the one that its caller has."""
    if given is not None:
        return ReadOnlyDriver(given) if reads else given
    made = open_driver(url, metrics=ProviderMetrics(registry), clock=clock, reads=reads)
    undo.callback(made.close)
    return made


class _Upkeep(Service):
    """Applies retention at its interval, copies the broker's own tables, and drops idle windows from memory."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        super().__init__("tier-upkeep")
        self._store = store
        self._clock = clock
        self._interval_ms = store.tier.config.tiered_store_delete_file_interval
        self._next_sweep_ms = clock.now_ms() + self._interval_ms

    def run_once(self) -> float:
        self._store.tier.fetcher.cache.expire()
        if (follower := self._store.tier.follower) is not None:
            try:
                self._store.refresh_tier()
            except StoreClosed:
                if not self.stopping:  # A close that waits for no request has left it behind.
                    raise
            return follower.rest_s if isinstance(follower, BucketFollower) else FOLLOW_REST_S
        if self._store.tend_lease():
            return FOLLOW_REST_S
        self._store.tier.state.run()
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self._interval_ms
            try:
                self._store.expire_now()
            except TierError as error:
                _log.warning("nothing is expired in the tier this time: %s", error)
        return min(UPKEEP_REST_S, self._interval_ms / 1000, self._store.tier.config.tier_lease_term / 3000)

    def expire_soon(self) -> None:
        """Apply retention in the next round: what was to be deleted meanwhile has waited."""
        self._next_sweep_ms = 0


def _identity(message: StoredMessage) -> tuple[int, ...]:
    """Values that identify a message and are the same in its copy."""
    return message.queue_offset, message.size, message.body_crc, message.store_timestamp_ms, message.born_timestamp_ms


def _run_within(timeout_s: float, call: Callable[[], object]) -> None:
    """In a separate thread: a request may hang."""
    last = threading.Thread(target=call, name="tier-close", daemon=True)
    try:
        last.start()
    except RuntimeError as error:  # Python 3.12 and newer start none when the program ends: the next start does it.
        _log.warning("a store that is closed by the end of the program asks nothing of its tier: %s", error)
        return
    last.join(timeout_s)

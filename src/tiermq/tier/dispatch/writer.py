"""QueueWriter: the right to write a broker's queues, and what it writes besides records: manifests and seals.

The lease allows this process to write the broker at all; an epoch, acquired in the queue's manifest, to write the
queue. When another process takes over either, this writer gets StaleWriter.
A broker lends its lease to a job that asks (`lend`). When it holds the lease again, the queues that others have written
since are read from the tier before the first upload (`on_foreign`).
A manifest with a newer epoch than our valid lease means that the lease object was restored from a backup: the lease is
acquired again, above that epoch. If another process holds it by then, that is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tiermq.clock import Clock, SystemClock
from tiermq.errors import SegmentMissing, StaleWriter, StoreLocked, TierError
from tiermq.files.os_errors import translated
from tiermq.tier.dispatch.ready_queue import QueueDispatchState
from tiermq.tier.flat.flat_file import FlatAppendFile
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.metadata.broker_lease import BrokerLease, EpochsUsedUp, LeaseDamaged, LeaseHeld, LeaseRequest
from tiermq.tier.metadata.broker_state import BrokerState, BrokerStateWriter
from tiermq.tier.metadata.manifest import ManifestPolicy
from tiermq.tier.metadata.manifest_store import EpochBehind, ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import LEASE_TERM_MS, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType

_log = logging.getLogger(__name__)

SEAL_REST_MS = 10_000  # After a seal that failed.
HELD_LOG_MS = 60_000  # Between two lines about a lease that another process holds.


class QueueWriter:
    """Any thread may call anything; calls for one queue come from one thread at a time."""

    def __init__(
        self,
        metadata: MetadataStore,
        manifests: ManifestStore,
        *,
        lease: BrokerLease | None = None,
        policy: ManifestPolicy | None = None,
        clock: Clock | None = None,
        renew_ms: int = LEASE_TERM_MS // 3,
        epoch_min: int = 1,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`epoch_min`: behind every epoch that this broker's metadata knows, for a tier whose lease was lost.

        `fence` keeps earlier holders of the lease from writing bundles; called whenever the lease was acquired.
        """
        self._metadata = metadata
        self._manifests = manifests
        self._lease = lease
        self._policy = policy or ManifestPolicy()
        self._clock = clock or SystemClock()
        self._renew_ms = renew_ms
        self._epoch_min = epoch_min
        self._fence = fence
        self._lease_lock = threading.Lock()
        self._next_renewal_ms = 0
        self._held_until_ms = 0
        self._lost = ""
        self._log_held_ms = 0
        self.job = ""
        """The job that has the lease, as its owner; empty: none, as far as is known."""
        self.on_held: Callable[[TierError], None] = lambda _error: None
        """Called when another broker has the lease, each time that this is found. A damaged lease names no holder."""
        self.on_foreign: Callable[[], None] | None = None
        """Called when the lease was acquired and another process has held it since, before anything is written."""
        self.is_caught_up = True
        """False from a start until `on_foreign` has read what other processes may have written before it."""
        self.check_tier: Callable[[], str] | None = None
        """Called once before a lease is acquired: why the tier is not the broker's, empty when it is."""
        self.unknown_tier = ""
        self.epochs_used_up: EpochsUsedUp | None = None
        """Why the lease cannot be acquired by anybody; None when it can, as far as is known."""
        self._seals: deque[tuple[FlatAppendFile, FlatSegment]] = deque()
        self._seals_lock = threading.Lock()
        self._sealing: set[FlatSegment] = set()
        self._seal_again_ms = 0

    # The right

    @property
    def lease_state(self) -> str:
        if self._lease is None:
            return "none needed"
        return self._lost or ("held" if self.may_write() else "not held")

    @property
    def refusal(self) -> str:
        """Why this process may not write the broker; empty when it may, or does not know yet."""
        return self._lost

    def may_write(self) -> bool:
        """Whether the broker is ours for certain: another process may hold a lease that expired."""
        return self._lease is None or (not self._lost and self._clock.now_ms() < self._held_until_ms)

    def claim(self) -> None:
        """Acquire the broker's lease now, if it is not held. Raises TierError."""
        with self._lease_lock:
            if not self.may_write():
                self._next_renewal_ms = 0
                self._keep_lease()

    def keep_lease(self) -> None:
        """Acquire or renew the broker's lease when it is time. Raises TierError; it is tried again next time."""
        with self._lease_lock:
            self._keep_lease()

    def _keep_lease(self) -> None:
        now_ms = self._clock.now_ms()
        if self._lease is None or now_ms < self._next_renewal_ms or self._lease.has_twin():
            return
        self._next_renewal_ms = now_ms + self._renew_ms
        if not self._is_tier_known():
            self._lost = f"another tier: {self.unknown_tier}"
            return
        try:
            if self._held_until_ms and not self._lost:
                self._held_until_ms = self._lease.renew()
            else:
                self._lease.acquire(epoch_min=self._epoch_min)
                self._fence()
                self._held_until_ms = self._caught_up(self._lease)
            self._lost = self.job = ""
            self.epochs_used_up = None
        except LeaseHeld as error:
            job = error.lease.owner if error.lease is not None and error.lease.is_by_job else ""
            if (job and job != self.job) or not self._lost or now_ms >= self._log_held_ms:
                _log.warning(
                    "nothing is copied into the tier by this process%s: %s", " until a job ends" * bool(job), error
                )
                self._log_held_ms = now_ms + HELD_LOG_MS
            self._lost, self.job = f"standing by: {error}", job
            if not isinstance(error, LeaseDamaged) and not job:
                self.on_held(error)
        except EpochsUsedUp as error:
            if self.epochs_used_up is None or now_ms >= self._log_held_ms:
                _log.error("nothing is written to the tier by this process: %s", error)
                self._log_held_ms = now_ms + HELD_LOG_MS
            self._held_until_ms, self._lost, self.epochs_used_up = 0, f"refused: {error}", error
        except StaleWriter as error:
            self._held_until_ms, self._lost = 0, f"lost: {error}"
            _log.error("this process stops writing the tier: %s", error)
            if self._lease.has_twin():
                self.on_held(error)

    def _caught_up(self, lease: BrokerLease) -> int:
        """Until when a lease is held that was just acquired, after what others wrote was read. Raises TierError."""
        if self.on_foreign is None:
            return lease.expires_ms
        if lease.epoch_before > self._metadata.lease_epoch():
            self.on_foreign()
            self._manifests.release_all()
            lease.renew()  # Reading may take a while: fails if another process has it by now.
        self._metadata.put_lease_epoch(lease.epoch)
        self.is_caught_up = True
        return lease.expires_ms

    @property
    def request(self) -> LeaseRequest | None:
        """The job that waits for the lease, which is ours. Costs no request."""
        return self._lease.request if self._lease is not None and self.may_write() else None

    def lend(self) -> None:
        """Lend the lease to the job that waits for it; `job` then. Only after all writes have ended. Raises TierError:
        then it may be the job's, or not, and `claim` finds out.
        """
        with self._lease_lock:
            request = self.request
            if self._lease is None or request is None:
                return
            self._held_until_ms, self.job = 0, request.owner
            self._lost = f"lent to {request.owner}"
            self._log_held_ms = self._clock.now_ms() + HELD_LOG_MS
            self._lease.lend(request)

    def fence_again(self) -> None:
        """Another process has fenced bundles: go on only if the lease is ours nevertheless. Raises TierError."""
        with self._lease_lock:
            self._next_renewal_ms = 0
            self._keep_lease()
            if self.may_write():
                self._fence()

    def require_known_tier(self) -> None:
        """Raises StaleWriter when the tier is not the broker's, and TierError when it cannot be asked yet."""
        with self._lease_lock:
            if not self._is_tier_known():
                raise StaleWriter(self.unknown_tier)

    def _is_tier_known(self) -> bool:
        if self.check_tier is None:
            return True
        known, self.unknown_tier = self.unknown_tier, self.check_tier()
        if not self.unknown_tier:
            self.check_tier = None
        elif known != self.unknown_tier:
            _log.error("nothing is written to the tier by this process: %s", self.unknown_tier)
        return not self.unknown_tier

    def own(self, file: FlatMessageFile) -> int:
        """Become the queue's writer; its epoch, or 0 while the broker is not ours. Raises StaleWriter, TierError."""
        if not self.may_write():
            return 0
        epoch = self._acquire(file.queue)
        self._metadata.together(lambda: self._metadata.update_queue(file.queue, epoch=epoch))
        self._require_known(file)
        self.note_unsealed(file)
        return epoch

    def _require_known(self, file: FlatMessageFile) -> None:
        """Refuse a queue whose manifest knows segments behind all that this broker's metadata know. Raises TierError.

        An older copy of the disk, or of the metadata, would write where something is already.
        """
        manifest = self._manifests.taken_over(file.queue)
        live = [row for row in manifest.segments if row.status is not SegmentStatus.DELETED] if manifest else []
        if not file.initialised:
            if live:
                raise TierError(
                    f"{file.queue.logical_path}: the tier's manifest knows {len(live)} segments of it, but "
                    "this broker's metadata knows none; run `tiermq tier restore` before anything is written"
                )
            return
        parts = {SegmentType.COMMIT_LOG: file.log, SegmentType.CONSUME_QUEUE: file.units}
        known = {segment.key for part in parts.values() for segment in part.segments}
        for row in live:
            end = parts[row.key.type].append_offset
            if row.size and row.key not in known and row.key.base >= end:
                raise StaleWriter(
                    f"{row.key}: expected no segment behind {end}, where this broker's metadata end, found one in the "
                    "tier's manifest: the store's disk is older than its tier. Nothing is written here. Start it again "
                    "while the tier is reachable: it takes over the tier's history, or reports why it cannot"
                )

    def _acquire(self, queue: QueueKey) -> int:
        try:
            return self._manifests.acquire(queue)
        except EpochBehind as error:
            self._acquire_above(error)
        return self._manifests.acquire(queue)

    def _acquire_above(self, error: EpochBehind) -> None:
        if self._lease is None:
            raise error
        with self._lease_lock:  # The step of another queue may have done it meanwhile.
            if self._lease.epoch <= error.epoch:
                _log.warning("the lease is acquired again, above an epoch that it does not know: %s", error)
                self._lease.acquire(epoch_min=error.epoch + 1)
                self._held_until_ms = self._lease.expires_ms

    def write_state(self, tables: BrokerStateWriter, state: BrokerState, *, is_last: bool = False) -> list[str]:
        """Write the broker's own tables that are due; the names of those that were written. Raises TierError."""
        if not self.may_write():
            return []
        try:
            return tables.write(state, is_last=is_last)
        except EpochBehind as error:
            self._acquire_above(error)
        return tables.write(state, is_last=is_last)

    def release(self) -> None:
        """Let another process have the broker at once."""
        if self._lease is not None and self._held_until_ms and not self._lost:
            self._held_until_ms = 0
            self._lease.release()

    # Manifests

    def manifest_due_ms(self, run: QueueDispatchState) -> int | None:
        """When the queue's manifest is to be written: 0 for now, None for not at all."""
        return self._policy.due_at_ms(run.causes, run.manifest_written_ms)

    def is_manifest_wrong(self, file: FlatMessageFile) -> bool:
        """Whether the manifest that an earlier process left is outdated.

        Missing the last commits does not count: its readers look behind its end.
        """
        known = self._manifests.taken_over(file.queue)
        if known is None or not known.segments:
            return False
        segments = {row.key for row in self._metadata.segments(file.queue)}
        segments |= {row.key for row in self._metadata.segments_being_deleted() if row.key.queue == file.queue}
        topic = self._metadata.topic(file.queue.topic)
        limits = (known.reserve_time_hours, known.max_bytes)
        return not {row.key for row in known.segments} <= segments or (
            topic is not None and limits != (topic.reserve_time_hours, topic.max_bytes)
        )

    def write_manifest(self, run: QueueDispatchState, queue: QueueKey) -> None:
        causes = frozenset(run.causes)
        self._manifests.write(snapshot_manifest(self._metadata, queue))
        run.causes -= causes
        run.manifest_written_ms = self._clock.now_ms()

    # Seals

    def note_unsealed(self, file: FlatMessageFile) -> None:
        """Remember the segments that have ended, for when there is time."""
        with self._seals_lock:
            for part in (file.log, file.units):
                for segment in part.unsealed():
                    if segment not in self._sealing:
                        self._sealing.add(segment)
                        self._seals.append((part, segment))

    def seal_next(self) -> QueueKey | None:
        """Seal one segment that waits, and whose it was; None when none does, or the back end would not."""
        with self._seals_lock:
            if not self._seals or not self.may_write() or self._clock.now_ms() < self._seal_again_ms:
                return None
            file, segment = self._seals.popleft()
        try:
            if segment in file.segments:
                file.seal(segment)
        except SegmentMissing:
            _log.info("%s was deleted before it was sealed", segment.key)
        except TierError as error:
            _log.warning("%s is sealed later: %s", segment.key, error)
            with self._seals_lock:
                self._seals.append((file, segment))
                self._seal_again_ms = self._clock.now_ms() + SEAL_REST_MS
            return None
        with self._seals_lock:
            self._sealing.discard(segment)
        return file.queue


# TierLock: who, of all processes on this machine, writes what a store directory knows of its tier.
#
# The embedded dispatcher and a job exclude each other; both would write the tier's index files, which are in the
# store's directory and have no lease. The lease settles the same between machines, by time; this settles it at
# once, and is released by the kernel however a process ends.
#
# The file `config/tier.lock` has one line that names its holder. It is never removed.

#
# A broker that follows a job locks it for the moment in which it stores what it has read from the bucket; others wait.

NAME = "tier.lock"
FOLLOWS = "(follows)"
FOLLOWER_WAIT_S = 5.0
_FOLLOWER_POLL_S = 0.01


class TierLock:
    """A held lock. `release` may be called any number of times."""

    def __init__(self, root: Path, owner: str) -> None:
        """Raises StoreLocked, naming the owner, when another one has it, in this process or elsewhere."""
        path = root / "config" / NAME
        with translated("lock the tier", str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._lock()
            except BlockingIOError as error:
                holder = self._holder()
                self.release()
                raise StoreLocked(
                    f"{path}: {owner} wants to copy this store into its tier, but {holder or 'another process'} does "
                    "that; stop it first, or let it go on"
                ) from error
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{owner} (process {os.getpid()})\n".encode(), 0)

    def _lock(self) -> None:
        deadline = time.monotonic() + FOLLOWER_WAIT_S
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if FOLLOWS not in self._holder() or time.monotonic() > deadline:
                    raise
            time.sleep(_FOLLOWER_POLL_S)

    def _holder(self) -> str:
        return os.pread(self._descriptor, 1_000, 0).decode("utf-8", "replace").strip()

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

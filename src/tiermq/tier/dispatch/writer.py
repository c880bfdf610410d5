"""QueueWriter: the right to write a broker's queues, and what it writes besides records: manifests and seals.

The lease says that this process may write the broker at all; an epoch, taken from the queue's manifest, says that it
may write the queue. Whoever takes either over is the owner from then on, and this writer is told StaleWriter.
A manifest with a newer epoch than a lease that is ours all the same tells of a lease that came back from a backup: it
is acquired again, above that epoch. If it is somebody else's by then, that is refused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from tiermq.clock import Clock, SystemClock
from tiermq.errors import SegmentMissing, StaleWriter, TierError
from tiermq.tier.dispatch.queue_run import QueueRun
from tiermq.tier.flat.flat_append_file import FlatAppendFile
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.metadata.broker_lease import DEFAULT_TERM_MS, BrokerLease, LeaseDamaged, LeaseHeld
from tiermq.tier.metadata.manifest_policy import ManifestPolicy
from tiermq.tier.metadata.manifest_snapshot import snapshot_manifest
from tiermq.tier.metadata.manifest_store import EpochBehind, ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType

_log = logging.getLogger(__name__)

SEAL_REST_MS = 10_000  # After a seal that failed.


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
        renew_ms: int = DEFAULT_TERM_MS // 3,
        epoch_min: int = 1,
    ) -> None:
        """`epoch_min`: behind every epoch that this broker's metadata knows, for a tier whose lease was lost."""
        self._metadata = metadata
        self._manifests = manifests
        self._lease = lease
        self._policy = policy or ManifestPolicy()
        self._clock = clock or SystemClock()
        self._renew_ms = renew_ms
        self._epoch_min = epoch_min
        self._lease_lock = threading.Lock()
        self._next_renewal_ms = 0
        self._held_until_ms = 0
        self._lost = ""
        self.on_held: Callable[[TierError], None] = lambda _error: None
        """Called when another process has the broker, each time that this is found. A damaged lease names nobody."""
        self.check_tier: Callable[[], str] | None = None
        """Asked once before the lease is acquired: why the tier is not the broker's, empty when it is."""
        self.unknown_tier = ""
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
        """Whether the broker is ours for certain: a lease that ran out may be somebody else's by now."""
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
        if self.check_tier is not None:
            known, self.unknown_tier = self.unknown_tier, self.check_tier()
            if self.unknown_tier:
                self._lost = f"another tier: {self.unknown_tier}"
                if known != self.unknown_tier:
                    _log.error("nothing is written to the tier by this process: %s", self.unknown_tier)
                return
            self.check_tier = None
        try:
            if self._held_until_ms and not self._lost:
                self._held_until_ms = self._lease.renew()
            else:
                self._lease.acquire(epoch_min=self._epoch_min)
                self._held_until_ms = self._lease.expires_ms
            self._lost = ""
        except LeaseHeld as error:
            self._lost = f"standing by: {error}"
            _log.warning("nothing is copied into the tier by this process: %s", error)
            if not isinstance(error, LeaseDamaged):
                self.on_held(error)
        except StaleWriter as error:
            self._held_until_ms, self._lost = 0, f"lost: {error}"
            _log.error("this process stops writing the tier: %s", error)
            if self._lease.has_twin():
                self.on_held(error)

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
        manifest = self._manifests.held(file.queue)
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
                    "with its tier within reach: it takes the tier's history over, or says why it cannot"
                )

    def _acquire(self, queue: QueueKey) -> int:
        try:
            return self._manifests.acquire(queue)
        except EpochBehind as error:
            if self._lease is None:
                raise
            with self._lease_lock:  # Another queue's turn may have done it meanwhile.
                if self._lease.epoch <= error.epoch:
                    _log.warning("the lease is acquired again, above an epoch that it does not know: %s", error)
                    self._lease.acquire(epoch_min=error.epoch + 1)
                    self._held_until_ms = self._lease.expires_ms
        return self._manifests.acquire(queue)

    def release(self) -> None:
        """Let another process have the broker at once."""
        if self._lease is not None and self._held_until_ms and not self._lost:
            self._held_until_ms = 0
            self._lease.release()

    # Manifests

    def manifest_due_ms(self, run: QueueRun) -> int | None:
        """When the queue's manifest is to be written: 0 for now, None for not at all."""
        return self._policy.due_at_ms(run.causes, run.manifest_written_ms)

    def is_manifest_wrong(self, file: FlatMessageFile) -> bool:
        """Whether the manifest that a life before this one left says what is not true any more.

        That it lacks what was committed last does not count: whoever reads it looks behind its end.
        """
        known = self._manifests.held(file.queue)
        if known is None or not known.segments:
            return False
        segments = {row.key for row in self._metadata.segments(file.queue)}
        segments |= {row.key for row in self._metadata.segments_being_deleted() if row.key.queue == file.queue}
        topic = self._metadata.topic(file.queue.topic)
        told = (known.reserve_time_hours, known.max_bytes)
        return not {row.key for row in known.segments} <= segments or (
            topic is not None and told != (topic.reserve_time_hours, topic.max_bytes)
        )

    def write_manifest(self, run: QueueRun, file: FlatMessageFile) -> None:
        causes = frozenset(run.causes)
        self._manifests.write(snapshot_manifest(self._metadata, file.queue))
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

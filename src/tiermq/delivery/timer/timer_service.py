"""TimerService: messages that are due at a time of their own, beside a store, in RocketMQ's timer wheel.

    timer topic ─► TimerEnqueue ─► wheel and log ─► TimerDequeue ─► the topics, or the timer topic again (a roll)
                        └─► far timers (a tier) ─► pulled before they are due ─► timer topic

One round: what came is taken in, then the slot that is now moves on, then what is due is delivered. A cancellation that
came before its timer's slot passed is thus honoured; after a stop, too, for the wheel's time goes on only when all that
was stored before, and all that is far and overdue, is in it.

Invariants: a timer that is durable in the timer topic is delivered at least once, not before its time, also over
restarts, crashes and power cuts. A checkpoint is written when what it speaks of is on disk: what was delivered and
rolled (commit log), what was given away (far timers), units, slots; in that order.
Threads: `run_once`, `flush` and `finish` are the service's own; the others may be called by any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from tiermq.clock import Clock
from tiermq.delivery.put_again import QueueFor, as_named
from tiermq.delivery.timer.far_pulling import FarPulling
from tiermq.delivery.timer.far_timers import FarTimers
from tiermq.delivery.timer.timer_checkpoint import NO_SUM, TimerProgress
from tiermq.delivery.timer.timer_dequeue import TimerDequeue
from tiermq.delivery.timer.timer_enqueue import TimerEnqueue
from tiermq.delivery.timer.timer_hold import TimerHold
from tiermq.delivery.timer.timer_listing import WaitingTimer, waiting_timers
from tiermq.delivery.timer.timer_place import TimerPlace, delete_key, place_timer
from tiermq.delivery.timer.timer_recovery import TimerRecovery
from tiermq.delivery.timer.timer_settings import TimerSettings
from tiermq.delivery.timer.timer_state import TimerCounts
from tiermq.errors import IllegalMessage
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import Message, PutResult
from tiermq.message.properties import TAGS, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from tiermq.service import Service
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

REST_S = 0.1
CLEAN_INTERVAL_MS = 30_000
IDLE_CHECKPOINT_MS = 60_000
CANCEL_TAG = "_RECALL_TAG_"
CANCEL_BODY = b"0"


class TimerService(Service):
    """See the module."""

    def __init__(
        self,
        store: LocalStore,
        root: str | os.PathLike[str],
        clock: Clock,
        settings: TimerSettings | None = None,
        access: FileAccess | None = None,
        far: FarTimers | None = None,
        queue_for: QueueFor = as_named,
    ) -> None:
        """`root` is the store's directory. Raises StoreDamaged when its timer files are none, DiskFull."""
        super().__init__("timers")
        self.settings = settings or TimerSettings()
        self._clock = clock
        self._access = access or OsFileAccess()
        opened = TimerRecovery(store, os.fspath(root), clock, self.settings, self._access).run()
        self._state = opened.state
        self._state.queue_for = queue_for
        self._checkpoint = opened.checkpoint
        self._metrics_path = opened.metrics_path
        self._enqueue = TimerEnqueue(self._state, far)
        self._dequeue = TimerDequeue(self._state)
        self._far = None if far is None else FarPulling(self._state, far)
        self._flushed_ms = clock.now_ms()
        self._cleaned_ms = clock.now_ms()
        self._is_closed = False
        self._is_catching_up = True
        self._hold = TimerHold(self._state)
        store.add_eviction_veto(self._hold.holds)

    # What waits

    @property
    def counts(self) -> TimerCounts:
        return self._state.counts

    @property
    def waiting_count(self) -> int:
        """How many timers wait in the wheel; those that are far are not in it."""
        return max(0, self._state.waiting)

    def waiting_by_topic(self) -> dict[str, int]:
        return self._state.metrics.counts()

    @property
    def behind_count(self) -> int:
        """Messages of the timer topic that were not taken in yet."""
        return self._enqueue.behind_count

    @property
    def is_idle(self) -> bool:
        """Whether no timer waits in the wheel, nor on its way to it."""
        return self.waiting_count == 0 and self.behind_count == 0

    @property
    def read_ms(self) -> int:
        """The first slot that was not delivered."""
        return self._state.read_ms

    @property
    def queue_offset(self) -> int:
        """The next message of the timer topic."""
        return self._state.queue_offset

    def next_due_ms(self) -> int | None:
        """When the next timer of the wheel is due; None when there is none."""
        slot = next(self._state.wheel.slots_between(self._state.read_ms), None)
        return None if slot is None else slot.time_ms + self.settings.precision_ms

    def count_at(self, time_ms: int) -> int:
        """How many timers wait in the slot of a time."""
        return self._state.wheel.slot(time_ms).timers

    def listing(self) -> Iterator[WaitingTimer]:
        """The timers of the wheel, in the order of their slots, as they are while it is read."""
        state = self._state
        return waiting_timers(state.wheel, state.log, state.store.message_at, state.read_ms, self.settings.precision_ms)

    # Putting

    def place(self, topic: str, queue_id: int, properties: bytes) -> TimerPlace | PutStatus | None:
        """Where a message that asks for a time waits; see `place_timer`. With far timers there is no longest delay."""
        return place_timer(
            topic,
            queue_id,
            properties,
            self._clock.now_ms(),
            self.settings,
            has_limit=self._far is None,
            count_at=self.count_at,
        )

    def cancel(self, topic: str, unique_key: str, deliver_ms: int) -> PutResult:
        """Let the timer of a topic with this unique key, due at `deliver_ms`, not be delivered. Harmless when there is
        none. Raises IllegalMessage when that time is over, or cannot be."""
        properties = encode_properties(
            {
                TAGS: CANCEL_TAG,
                TIMER_DEL_UNIQKEY: delete_key(topic, unique_key),
                UNIQ_KEY: unique_key,
                TIMER_DELIVER_MS: str(deliver_ms),
            }
        )
        placed = self.place(topic, 0, properties)
        if not isinstance(placed, TimerPlace):
            raise IllegalMessage(f"topic {topic}: no timer can be cancelled that is due at {deliver_ms}: it is over")
        message = Message(placed.topic, CANCEL_BODY, placed.queue_id, encoded_properties=placed.properties)
        return self._state.store.put(message)

    # Rounds

    def run_once(self) -> float:
        """Take in, deliver, write down; say how long to rest."""
        self._turn_back()
        more = self._far is not None and self._far.run()
        more = self._enqueue.run() or more
        if self._is_catching_up:
            self._is_catching_up = more or (self._enqueue.behind_count > 0 and not self.settings.stop_enqueue)
        if not self._is_catching_up:
            self._state.write_ms = max(self._state.write_ms, self.settings.floor(self._clock.now_ms()))
            more = self._dequeue.run() or more
        now_ms = self._clock.now_ms()
        if now_ms - self._flushed_ms >= self.settings.flush_interval_ms:
            self.flush()
        if now_ms - self._cleaned_ms >= CLEAN_INTERVAL_MS:
            self._cleaned_ms = now_ms
            self._state.log.delete_before(self._state.store.min_physical_offset)
        if more:
            return 0.0
        left_ms = self._state.write_ms + self.settings.precision_ms - now_ms
        return min(REST_S, max(0.001, left_ms / 1000))

    def _turn_back(self) -> None:
        """The clock was set back: slots whose time comes again are empty, for what was in them was delivered."""
        state = self._state
        now_slot_ms = self.settings.floor(self._clock.now_ms())
        if now_slot_ms < state.read_ms:
            _log.warning("timers: the clock went back from %d to %d", state.read_ms, now_slot_ms)
            self._dequeue.forget_open()
            state.wheel.drop(now_slot_ms, state.read_ms)
            state.read_ms = now_slot_ms
        if now_slot_ms < state.write_ms:
            state.write_ms = max(now_slot_ms, state.read_ms)

    def flush(self) -> None:
        """Write down how far it is, after making sure of everything that it says. Raises OSError, StoreError."""
        state = self._state
        self._enqueue.flush_far()
        queue_offset, log_end = self._enqueue.safe_progress
        read_ms = state.read_ms
        is_whole = log_end == state.log.end  # Or far timers hold the checkpoint back, and the sum speaks of more.
        units_sum = state.units_sum if is_whole else NO_SUM
        progress = TimerProgress(read_ms, log_end, queue_offset, self.settings.precision_ms, units_sum=units_sum)
        now_ms = self._clock.now_ms()
        if self._has_news(progress):
            state.store.flush()
            state.log.flush()
            state.wheel.flush()
            self._checkpoint.write(progress, now_ms)
        if state.metrics.changed:
            state.metrics.changed = False
            self._access.write_config(self._metrics_path, state.metrics.encode(now_ms))
        if self._far is not None:
            self._far.written_down(read_ms, queue_offset)
        self._flushed_ms = now_ms

    def _has_news(self, progress: TimerProgress) -> bool:
        """An idle wheel turns, but that need not be written down each second: empty slots are passed quickly."""
        known = self._checkpoint.progress
        if (progress.queue_offset, progress.log_end) != (known.queue_offset, known.log_end):
            return True
        if self._state.wheel.dirty_count or progress.read_time_ms < known.read_time_ms:
            return True
        passed = self._state.wheel.slots_between(known.read_time_ms, progress.read_time_ms)
        is_idle = next(passed, None) is None
        return not is_idle or progress.read_time_ms - known.read_time_ms >= IDLE_CHECKPOINT_MS

    def finish(self) -> None:
        """The service's last word: everything written down."""
        self.flush()

    def stop(self) -> None:
        super().stop()
        self.close()

    def close(self) -> None:
        """Give the files back; twice does no harm. Nothing is flushed by it."""
        if not self._is_closed:
            self._is_closed = True
            self._hold.close()
            self._state.wheel.close()
            self._state.log.close()
            self._checkpoint.close()

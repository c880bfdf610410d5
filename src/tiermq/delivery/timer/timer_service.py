"""TimerService: delivers messages at their delivery time, with RocketMQ's timer wheel.

    timer topic ─► TimerEnqueue ─► wheel and log ─► TimerDequeue ─► the topics, or the timer topic again (a roll)
                        └─► tiered timers (a tier) ─► pulled before they are due ─► timer topic

One round: new messages are enqueued, then the current slot advances, then due timers are delivered. A cancellation that
came before its timer's slot passed thus takes effect; after a stop, too, since the wheel's time continues only when all
that was stored before, and all overdue tiered timers, are in it. A wheel that is late catches up in steps, each no
longer than a timer that rolls has left (`slot_for`): what rolled is in the wheel again before its own time passes.

Invariants: a timer that is durable in the timer topic is delivered at least once, not before its time, also over
restarts, crashes and power cuts. A checkpoint is written when the state that it describes is durable: tiered
timers, delivered and rolled messages (commit log), units, slots; flushed in that order.
Threads: `run_once`, `flush` and `finish` are the service's own; any thread may call the rest.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator

from tiermq.clock import Clock
from tiermq.delivery.redeliver import Escape, QueueFor, as_named
from tiermq.delivery.timer.timer_checkpoint import NO_SUM, TimerProgress, encode_progress
from tiermq.delivery.timer.timer_dequeue import TimerDequeue
from tiermq.delivery.timer.timer_destination import TIMER_QUEUE, TimerDestination, delete_key, place_timer
from tiermq.delivery.timer.timer_enqueue import TimerEnqueue
from tiermq.delivery.timer.timer_listing import WaitingTimer, waiting_timers
from tiermq.delivery.timer.timer_record import TieredTimer, TieredTimers, rolled
from tiermq.delivery.timer.timer_recovery import TimerRecovery
from tiermq.delivery.timer.timer_state import DeliveredElsewhere, TimerCounts, TimerSettings, TimerState
from tiermq.errors import CorruptRecord, IllegalMessage, StoreDamaged, TierError
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import Message, PutResult
from tiermq.message.properties import TAGS, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from tiermq.message.record import decode_record
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.service import SHORT_TURNS, Service
from tiermq.settings import LONG_MAX
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

REST_S = 0.1
MIN_REST_S = 0.001
CLEAN_INTERVAL_MS = 30_000
IDLE_CHECKPOINT_MS = 60_000
CANCEL_TAG = "_RECALL_TAG_"
CANCEL_BODY = b"0"
LOOK_INTERVAL_MS = 60_000
PENDING_MAX = 256
INTERVAL_MS_MAX = 60_000
INTERVAL_MS_MIN = 1_000
RETRY_MS = 5_000
ELSEWHERE_FILE = "timersElsewhere.json"
END_NOT_KNOWN = -1


class TimerService(Service):
    """See the module."""

    def __init__(
        self,
        store: LocalStore,
        root: str | os.PathLike[str],
        clock: Clock,
        settings: TimerSettings | None = None,
        access: FileAccess | None = None,
        tiered: TieredTimers | None = None,
        queue_for: QueueFor = as_named,
        escape: Escape | None = None,
    ) -> None:
        """`root` is the store's directory; `escape` is of a slave that acts for its master.

        Raises StoreDamaged when its timer files are invalid, DiskFull.
        """
        super().__init__("timers")
        self.settings = settings or TimerSettings()
        self._clock = clock
        self._access = access or OsFileAccess()
        opened = TimerRecovery(store, os.fspath(root), clock, self.settings, self._access).run()
        self._state = opened.state
        self._state.queue_for = queue_for
        self._state.escape = escape
        self._elsewhere_path = os.path.join(os.fspath(root), "config", ELSEWHERE_FILE)
        self._state.elsewhere = self._access.read_config(self._elsewhere_path, _decoded_elsewhere) or ()
        self._checkpoint = opened.checkpoint
        self._metrics_path = opened.metrics_path
        self._enqueue = TimerEnqueue(self._state, tiered)
        self._dequeue = TimerDequeue(self._state)
        self._tiered = None if tiered is None else TieredTimerPull(self._state, tiered)
        self._flushed_ms = clock.now_ms()
        self._cleaned_ms = clock.now_ms()
        self._is_closed = False
        self._enqueue_to: int | None = END_NOT_KNOWN
        """While set, the wheel's time waits until that much of the timer topic is in the wheel."""
        self._hold = TimerHold(self._state)
        store.add_eviction_veto(self._hold.holds)

    # What waits

    @property
    def counts(self) -> TimerCounts:
        return self._state.counts

    @property
    def waiting_count(self) -> int:
        """How many timers wait in the wheel, without tiered timers."""
        return max(0, self._state.waiting)

    def waiting_by_topic(self) -> dict[str, int]:
        return self._state.metrics.counts()

    @property
    def behind_count(self) -> int:
        """Messages of the timer topic that were not enqueued yet."""
        return self._enqueue.behind_count

    @property
    def is_idle(self) -> bool:
        """Whether no timer waits in the wheel, and none of those that are dispatched is to be enqueued.

        In this order: a message goes from the topic into the wheel, and one that is rolled back into the topic.
        """
        return self.behind_count == 0 and self.waiting_count == 0 and self.behind_count == 0

    def enqueue_behind_ms(self) -> int:
        """For how long the next message of the timer topic waits for the wheel; 0 when none does."""
        if not self.behind_count:
            return 0
        stored_ms = self._state.store.store_time_of(TIMER_TOPIC, TIMER_QUEUE, self.queue_offset)
        return max(0, self._clock.now_ms() - stored_ms) if stored_ms > 0 else 0

    def due_count(self) -> int:
        """Timers of the wheel whose time has come, and that were not delivered."""
        state, now_ms = self._state, self._clock.now_ms()
        end_ms = now_ms - now_ms % self.settings.precision_ms  # A slot is due when it is over.
        if end_ms <= state.read_ms:
            return 0
        return sum(slot.timers for slot in state.wheel.slots_between(state.read_ms, end_ms))

    def delivery_behind_ms(self) -> int:
        """How late the next timer of the wheel is; 0 when none is due."""
        due_ms = self.next_due_ms()
        return max(0, self._clock.now_ms() - due_ms) if due_ms else 0

    @property
    def read_ms(self) -> int:
        """The first slot that was not delivered."""
        return self._state.read_ms

    @property
    def queue_offset(self) -> int:
        """The next message of the timer topic."""
        return self._state.queue_offset

    def next_due_ms(self) -> int | None:
        """When the next timer of the wheel is due; None without timers."""
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

    def place(self, topic: str, queue_id: int, properties: bytes) -> TimerDestination | PutStatus | None:
        """Where a timer message is stored; see `place_timer`. With tiered timers there is no longest delay."""
        return place_timer(
            topic,
            queue_id,
            properties,
            self._clock.now_ms(),
            self.settings,
            has_limit=self._tiered is None,
            count_at=self.count_at,
        )

    @property
    def delay_max_ms(self) -> int:
        """The longest delay that is taken."""
        return self.settings.max_delay_s * 1_000 if self._tiered is None else LONG_MAX

    def cancel(self, topic: str, unique_key: str, deliver_ms: int) -> PutResult:
        """Cancel the timer of a topic with this unique key, due at `deliver_ms`; no error if there is no such timer.
        Raises IllegalMessage when that time has passed, or is invalid."""
        properties = encode_properties(
            {
                TAGS: CANCEL_TAG,
                TIMER_DEL_UNIQKEY: delete_key(topic, unique_key),
                UNIQ_KEY: unique_key,
                TIMER_DELIVER_MS: str(deliver_ms),
            }
        )
        placed = self.place(topic, 0, properties)
        if not isinstance(placed, TimerDestination):
            raise IllegalMessage(f"topic {topic}: no timer can be cancelled that is due at {deliver_ms}: it is over")
        message = Message(placed.topic, CANCEL_BODY, placed.queue_id, encoded_properties=placed.properties)
        return self._state.store.put(message)

    # Rounds

    def run_once(self) -> float:
        """Enqueue, deliver, checkpoint; returns the time until the next step."""
        self._turn_back()
        more = is_pulling = self._tiered is not None and self._tiered.run()
        with SHORT_TURNS:
            if self._enqueue_to == END_NOT_KNOWN and not is_pulling:
                self._enqueue_to = self._enqueue.end
            more = self._enqueue.run() or more
            if self._is_caught_up():
                self._enqueue_to = None
                more = self._advance() or more
        now_ms = self._clock.now_ms()
        if now_ms - self._flushed_ms >= self.settings.flush_interval_ms:
            self.flush()
        if now_ms - self._cleaned_ms >= CLEAN_INTERVAL_MS:
            self._cleaned_ms = now_ms
            self._state.log.delete_before(self._state.store.min_physical_offset)
        if more:
            return 0.0
        if self._enqueue_to is not None:
            return MIN_REST_S
        left_ms = self.settings.floor(now_ms) + self.settings.precision_ms - now_ms
        return min(REST_S, max(MIN_REST_S, left_ms / 1000))

    def _is_caught_up(self) -> bool:
        to = self._enqueue_to
        return to is None or (to != END_NOT_KNOWN and (self.settings.stop_enqueue or self._state.queue_offset >= to))

    def _advance(self) -> bool:
        """Move the wheel's time ahead, and deliver; whether there is more to do now."""
        state = self._state
        now_ms = self.settings.floor(self._clock.now_ms())
        state.write_ms = max(state.write_ms, min(now_ms, self._step_end_ms(now_ms)))
        more = self._dequeue.run()
        if state.write_ms < now_ms and state.read_ms >= state.write_ms:
            self._enqueue_to = END_NOT_KNOWN  # What has rolled comes before the next step.
            return True
        return more

    def _step_end_ms(self, now_ms: int) -> int:
        """Up to when slots may be delivered before what rolls in the first of them is in the wheel again."""
        step_ms = self.settings.roll_rest_ms
        if now_ms - self._state.read_ms <= step_ms // 2:
            return now_ms
        first = next(self._state.wheel.slots_between(self._state.read_ms, now_ms), None)
        return now_ms if first is None else first.time_ms + step_ms

    def _turn_back(self) -> None:
        """After the clock was set back: empty the slots whose time comes again; their timers were delivered."""
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
        """Write the checkpoint, after flushing everything it covers. Raises OSError, StoreError."""
        state = self._state
        self._enqueue.flush_far()
        queue_offset, log_end = self._enqueue.safe_progress
        read_ms = state.read_ms
        is_whole = log_end == state.log.end  # Or tiered timers hold the checkpoint back, and the sum covers more.
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
        if self._tiered is not None:
            self._tiered.written_down(read_ms, queue_offset)
        if state.elsewhere and all(each.until_ms <= read_ms for each in state.elsewhere):
            self._keep_elsewhere(())
        self._flushed_ms = now_ms

    def take_over(self, until_ms: int, below: int) -> None:
        """Before the start: a slave has delivered what its log had, which ended at `below`, up to a time. Durable on
        return. What this broker's log has beyond that is delivered here.
        """
        if until_ms > self._state.read_ms:
            self._keep_elsewhere((*self._state.elsewhere, DeliveredElsewhere(until_ms, below)))

    def _keep_elsewhere(self, known: tuple[DeliveredElsewhere, ...]) -> None:
        self._access.write_config(self._elsewhere_path, json.dumps(known).encode())
        self._state.elsewhere = known

    def checkpoint_bytes(self) -> bytes:
        """The values of the last check point, as RocketMQ's slaves ask for them. Any thread may call."""
        return encode_progress(self._checkpoint.progress)[0]

    def metrics_bytes(self) -> bytes:
        """How many timers wait for each topic, as in the file. Any thread may call."""
        return self._state.metrics.encode(self._clock.now_ms())

    def _has_news(self, progress: TimerProgress) -> bool:
        """Whether a checkpoint is worth writing: an idle wheel gets one every IDLE_CHECKPOINT_MS only."""
        known = self._checkpoint.progress
        if (progress.queue_offset, progress.log_end) != (known.queue_offset, known.log_end):
            return True
        if self._state.wheel.dirty_count or progress.read_time_ms < known.read_time_ms:
            return True
        passed = self._state.wheel.slots_between(known.read_time_ms, progress.read_time_ms)
        is_idle = next(passed, None) is None
        return not is_idle or progress.read_time_ms - known.read_time_ms >= IDLE_CHECKPOINT_MS

    def finish(self) -> None:
        """Write the last checkpoint."""
        self.flush()

    def stop(self) -> None:
        super().stop()
        self.close()

    def release(self) -> None:
        """After the stop, of a slave that acts no more: the log's files are not needed for timers here."""
        self._state.store.remove_eviction_veto(self._hold.holds)

    def close(self) -> None:
        """Close the files; idempotent. Flushes nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._hold.close()
            self._state.wheel.close()
            self._state.log.close()
            self._checkpoint.close()


def _decoded_elsewhere(data: bytes) -> tuple[DeliveredElsewhere, ...]:
    """Raises StoreDamaged."""
    try:
        return tuple(DeliveredElsewhere(int(until_ms), int(below)) for until_ms, below in json.loads(data))
    except (TypeError, ValueError) as error:
        raise StoreDamaged(f"{ELSEWHERE_FILE}: expected pairs of times and offsets, found {data[:80]!r}") from error


class TimerHold:
    """Keeps commit-log files from being deleted while a timer in them waits.

    A timer's message stays in the commit log until it is delivered or rolled. RocketMQ deletes a file when its time has
    come or the disk is full, and the timers in it are lost; here the file stays as long as one of them waits, which is
    the roll window at most. Threads: called by the store's cleaning thread.
    """

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._looked_ms = 0
        self._needed_from = 0
        self._is_closed = False

    def close(self) -> None:
        """After this the wheel is not read, and no file that may be needed is deleted."""
        self._is_closed = True

    def holds(self, first_offset: int, end_offset: int) -> bool:
        """Whether a waiting timer needs a message before `end_offset`."""
        del first_offset  # Files are deleted from the front, so the first needed offset decides.
        if end_offset <= self._needed_from:
            return False
        if self._is_closed:
            return True
        now_ms = self._state.clock.now_ms()
        if self._needed_from and 0 <= now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return True
        self._looked_ms = now_ms
        self._needed_from = self._smallest_needed()
        return end_offset > self._needed_from

    def _smallest_needed(self) -> int:
        """The first physical offset that is needed. It decreases only when the clock was set back."""
        state = self._state
        read_ms, queue_offset = state.read_ms, state.queue_offset
        needed = state.store.physical_offset_of(TIMER_TOPIC, TIMER_QUEUE, queue_offset)
        smallest = needed if needed >= 0 else state.store.max_physical_offset
        for _, unit in state.log.units():
            if unit.slot_ms >= read_ms and unit.physical_offset < smallest:
                smallest = unit.physical_offset
        return smallest


class TieredTimerPull:
    """Pulls tiered timers before they are due, and reports to `TierTimers` when they are no longer needed.

        pull ─► the timer topic, as a roll does ─► commit log flushed ─► pulled ─► delivered ─► forget

    Invariants: `pulled` is called when all pulled timers are durable in the timer topic; `forget` when they were
    enqueued, delivered, and that is in the checkpoint. A put that must wait pauses the pull.
    Threads: the timer service alone.
    """

    def __init__(self, state: TimerState, tiered: TieredTimers) -> None:
        self._state = state
        self._tiered = tiered
        self._next_ms = 0
        self._given: Iterator[TieredTimer] | None = None
        self._until_ms = 0
        self._pending: list[Message] = []
        self._pulled: tuple[int, int] | None = None
        """(pulled up to this time, end of the timer topic then) of the last pull that was confirmed."""
        self._forgotten_ms = 0

    @property
    def lead_ms(self) -> int:
        """How long before its time a tiered timer is pulled: well within the horizon, or it would be tiered again."""
        return max(self._tiered.horizon_ms // 2, 1)

    def run(self) -> bool:
        """Pull timers that are due soon; whether there is more to do now."""
        now_ms = self._state.clock.now_ms()
        try:
            if self._given is None:
                if now_ms < self._next_ms:
                    return False
                self._until_ms = now_ms + self.lead_ms
                self._given = iter(self._tiered.pull(self._until_ms))
            return self._put_some()
        except TierError as error:
            self._state.counts.far_errors += 1
            self._given = None
            self._pending = []
            self._next_ms = now_ms + RETRY_MS
            _log.warning("tiered timers cannot be pulled from the tier now: %s", error)
            return False

    def _put_some(self) -> bool:
        assert self._given is not None
        is_over = False
        while len(self._pending) < PENDING_MAX:
            timer = next(self._given, None)
            if timer is None:
                is_over = True
                break
            message = self._again(timer)
            if message is not None:
                self._pending.append(message)
        self._pending = self._state.put(self._pending).waiting
        if self._pending:
            _log.warning("%d tiered timers wait to be put into the timer topic", len(self._pending))
            return False
        if is_over:
            self._confirm()
        return not is_over

    def _again(self, timer: TieredTimer) -> Message | None:
        state = self._state
        try:
            message = decode_record(timer.record)
            return rolled(message, state.write_ms, state.clock.now_ms())
        except (CorruptRecord, IllegalMessage) as error:
            state.skip(f"tiered, due {timer.deliver_ms}", error)
            return None

    def _confirm(self) -> None:
        store = self._state.store
        store.flush()
        self._tiered.pulled()
        self._pulled = (self._until_ms, store.max_offset(TIMER_TOPIC, TIMER_QUEUE, committed=False))
        self._given = None
        interval_ms = max(INTERVAL_MS_MIN, min(INTERVAL_MS_MAX, self.lead_ms // 4))
        # From its begin: timers due since then were not requested, however long this pull took.
        self._next_ms = self._until_ms - self.lead_ms + interval_ms

    def written_down(self, read_ms: int, queue_offset: int) -> None:
        """A checkpoint covers slots delivered before `read_ms` and messages enqueued below the offset."""
        if self._pulled is None:
            return
        until_ms, end_offset = self._pulled
        before_ms = min(read_ms, until_ms)
        if queue_offset < end_offset or before_ms < self._forgotten_ms + INTERVAL_MS_MIN:
            return
        try:
            self._tiered.forget(before_ms)
        except TierError as error:
            self._state.counts.far_errors += 1
            _log.warning("tiered timers before %d cannot be forgotten now: %s", before_ms, error)
            return
        self._forgotten_ms = before_ms

"""FarPulling: brings far timers back before they are due, and tells their keeper when they are no longer needed.

    far.pull ─► the timer topic, as a roll does ─► commit log flushed ─► far.pulled ─► delivered ─► far.forget

Invariants: `pulled` is said when everything that was pulled is durable in the timer topic; `forget` when it was taken
into the wheel, delivered, and that is written down. A put that must wait holds the pull at its place.
Threads: the timer service alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tiermq.delivery.timer.far_timers import FarTimer, FarTimers
from tiermq.delivery.timer.timer_place import TIMER_QUEUE
from tiermq.delivery.timer.timer_record import rolled
from tiermq.delivery.timer.timer_state import TimerState, is_done
from tiermq.errors import CorruptRecord, IllegalMessage, TierError
from tiermq.kernel import Message
from tiermq.message.record import decode_record
from tiermq.message.topic_name import TIMER_TOPIC

_log = logging.getLogger(__name__)

BATCH = 256
INTERVAL_MS_MAX = 60_000
INTERVAL_MS_MIN = 1_000
RETRY_MS = 5_000


class FarPulling:
    """See the module."""

    def __init__(self, state: TimerState, far: FarTimers) -> None:
        self._state = state
        self._far = far
        self._next_ms = 0
        self._given: Iterator[FarTimer] | None = None
        self._until_ms = 0
        self._pending: list[Message] = []
        self._pulled: tuple[int, int] | None = None
        """(pulled up to this time, end of the timer topic then) of the last pull that was confirmed."""
        self._forgotten_ms = 0

    @property
    def lead_ms(self) -> int:
        """How long before it is due a far timer is brought back: well within the horizon, or it would be far again."""
        return max(self._far.horizon_ms // 2, 1)

    def run(self) -> bool:
        """Bring back what is due soon; whether there is more to do now."""
        now_ms = self._state.clock.now_ms()
        try:
            if self._given is None:
                if now_ms < self._next_ms:
                    return False
                self._until_ms = now_ms + self.lead_ms
                self._given = iter(self._far.pull(self._until_ms))
            return self._put_some()
        except TierError as error:
            self._state.counts.far_errors += 1
            self._given = None
            self._pending = []
            self._next_ms = now_ms + RETRY_MS
            _log.warning("far timers cannot be brought back from the tier now: %s", error)
            return False

    def _put_some(self) -> bool:
        assert self._given is not None
        is_over = False
        while len(self._pending) < BATCH:
            timer = next(self._given, None)
            if timer is None:
                is_over = True
                break
            message = self._again(timer)
            if message is not None:
                self._pending.append(message)
        statuses = self._state.put(self._pending)
        waiting = zip(self._pending, statuses, strict=True)
        self._pending = [message for message, status in waiting if not is_done(status)]
        if self._pending:
            _log.warning("%d far timers wait to be put into the timer topic", len(self._pending))
            return False
        if is_over:
            self._confirm()
        return not is_over

    def _again(self, timer: FarTimer) -> Message | None:
        state = self._state
        try:
            message = decode_record(timer.record)
            return rolled(message, state.write_ms, state.clock.now_ms())
        except (CorruptRecord, IllegalMessage) as error:
            state.skip(f"far, due {timer.deliver_ms}", error)
            return None

    def _confirm(self) -> None:
        store = self._state.store
        store.flush()
        self._far.pulled()
        self._pulled = (self._until_ms, store.max_offset(TIMER_TOPIC, TIMER_QUEUE, committed=False))
        self._given = None
        interval_ms = max(INTERVAL_MS_MIN, min(INTERVAL_MS_MAX, self.lead_ms // 4))
        # From when it began: what is due since then was not asked for, however long this pull took.
        self._next_ms = self._until_ms - self.lead_ms + interval_ms

    def written_down(self, read_ms: int, queue_offset: int) -> None:
        """A checkpoint says that slots before `read_ms` were delivered and messages below the offset taken in."""
        if self._pulled is None:
            return
        until_ms, end_offset = self._pulled
        before_ms = min(read_ms, until_ms)
        if queue_offset < end_offset or before_ms < self._forgotten_ms + INTERVAL_MS_MIN:
            return
        try:
            self._far.forget(before_ms)
        except TierError as error:
            self._state.counts.far_errors += 1
            _log.warning("far timers before %d cannot be forgotten now: %s", before_ms, error)
            return
        self._forgotten_ms = before_ms

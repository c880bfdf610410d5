"""TierTimers: timers that are due far beyond the local store's reach, kept in the tier (`timer.far_timers.FarTimers`).

    add … add ─► flush            one object, whatever days its timers are of
    (upkeep)                      sorted into days; a near day that is large into hours, minutes, seconds
    pull ─► pulled                what is due soon; how far is written to a small local file
    forget                        the objects go when everything in them was delivered

Invariants: a flushed timer stays in the tier until its time is forgotten, and nothing is forgotten that was not pulled
and confirmed; so neither a crash nor the loss of the disk loses one, and either may deliver some again. Times before
what `pull` was asked for are within local reach (`horizon_ms`), so nothing is added behind a pull's back.
Damage is told (log, `damaged_count`, `tiermq tier verify`) and holds nothing else up: sound timers are delivered.
Memory: an object of buffered timers (more while the tier is down, until the caller's flush says so), and `cache_bytes`
of objects that pulls have read.
Threads: the timer service's own, except that `tend` has one of its own.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace

from tiermq.clock import Clock
from tiermq.delivery.far.far_state import Encoded, TimerState
from tiermq.delivery.far.pulled_record import PulledRecord
from tiermq.delivery.far.timer_buckets import chunks
from tiermq.delivery.far.timer_names import TimerName
from tiermq.delivery.far.timer_object import CorruptTimers, DamagedTimer, TimerObject, encoded_bytes
from tiermq.delivery.far.timer_plan import TimerLimits
from tiermq.delivery.far.timer_upkeep import TimerUpkeep
from tiermq.delivery.timer.far_timers import FarTimer
from tiermq.delivery.timer.timer_record import cancel_key, own_key
from tiermq.errors import CorruptRecord, TierError
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage

_log = logging.getLogger(__name__)

NEAR_LEAD_MS = 3_600_000
"""A bucket is near so long before pulls can reach it: time enough to write it anew."""


class TierTimers:
    """See the module."""

    def __init__(
        self,
        state: TimerState,
        record: PulledRecord,
        clock: Clock,
        horizon_ms: int,
        limits: TimerLimits | None = None,
        on_given: Callable[[FarTimer], None] = lambda _timer: None,
    ) -> None:
        """`on_given` is told of each timer before it is given."""
        self.state = state
        self._on_given = on_given
        self.limits = limits or TimerLimits()
        self.upkeep = TimerUpkeep(state, self.limits)
        self.given_count = 0
        self.damaged_count = 0
        self._record = record
        self._clock = clock
        self._horizon_ms = horizon_ms
        self._buffer: list[FarTimer] = []
        self._buffer_bytes = 0
        self._pending: list[tuple[Encoded, list[FarTimer]]] = []
        self._asked_ms = self._given_ms = record.until_ms
        self._unconfirmed_count = 0
        self._forget_ms = 0
        self._cache: OrderedDict[TimerName, TimerObject] = OrderedDict()
        self._unreadable: set[TimerName] = set()

    @property
    def horizon_ms(self) -> int:
        """A timer due later than now plus this is far; one that a pull has asked for already is not."""
        return max(self._horizon_ms, self._asked_ms - self._clock.now_ms())

    # Putting away

    def add(self, timer: FarTimer) -> None:
        """Buffered; a full buffer is flushed first, and goes on to grow while the tier cannot be reached, until the
        caller's own `flush` tells him so.

        One that is due before what was pulled already (the wheel's clock was behind) is given by the next pull.
        """
        if timer.deliver_ms < self._asked_ms:
            timer = replace(timer, deliver_ms=self._asked_ms)
        if self._buffer_bytes >= self.limits.object_bytes:
            try:
                self.flush()
            except TierError as error:
                _log.warning("%d far timers wait to be flushed: %s", self.buffered_count, error)
        self._buffer.append(timer)
        self._buffer_bytes += encoded_bytes(timer)

    def flush(self) -> None:
        """Everything added is durable in the tier. Raises StaleWriter, TierError; it can be repeated."""
        if not self._buffer and not self._pending:
            return
        epoch = self.state.ready().epoch
        if any(encoded.epoch != epoch for encoded, _ in self._pending):
            # Somebody else may have owned the tier meanwhile: their numbers may count as settled by now.
            again = [timers for encoded, timers in self._pending if not self.state.give_up_flush(encoded.name)]
            self._buffer = [timer for timers in again for timer in timers] + self._buffer
            self._pending = []
        for chunk in chunks(self._buffer, self.limits.object_bytes):
            self._pending.append((self.state.encode(None, chunk), list(chunk)))
        self._buffer, self._buffer_bytes = [], 0
        while self._pending:
            self.state.put_flush(self._pending[0][0])
            self._pending.pop(0)

    @property
    def buffered_count(self) -> int:
        """Timers that were added and are not durable yet."""
        return len(self._buffer) + sum(len(timers) for _, timers in self._pending)

    # Giving back

    def pull(self, until_ms: int) -> Iterator[FarTimer]:
        """Those due before `until_ms` that were not given before. Raises StaleWriter, TierError, also half way: then
        the next pull gives all of them again.
        """
        self._asked_ms = max(self._asked_ms, until_ms)
        pending = (timer for _, timers in self._pending for timer in timers)
        if any(timer.deliver_ms < until_ms for timer in itertools.chain(self._buffer, pending)):
            self.flush()
        with self.upkeep.reading():  # From here on nothing that counts now is removed.
            snapshot = self.state.ready()
            from_ms = max(self._given_ms, snapshot.manifest.forgotten_ms)
            wanted = [name for name in snapshot.live if name.overlaps(from_ms, until_ms)]
            wanted.sort(key=lambda name: (name.first_ms, name.serial))
            overdue_ms = min(until_ms, self._clock.now_ms())
            cancelled = self._cancelled(wanted, from_ms, overdue_ms)
            for name in wanted:
                for timer in self._sound(name, from_ms, until_ms):
                    if cancelled and timer.deliver_ms < overdue_ms and _key(timer, own_key) in cancelled:
                        continue
                    self._on_given(timer)
                    self.given_count += 1
                    self._unconfirmed_count += 1
                    yield timer
        self._given_ms = max(self._given_ms, until_ms)
        self._drop_from_cache(self._given_ms)

    def _sound(self, name: TimerName, from_ms: int, until_ms: int) -> Iterator[FarTimer]:
        found = self._read(name)
        for timer in found.timers(from_ms, until_ms) if found is not None else ():
            if isinstance(timer, DamagedTimer):
                self._tell(name, timer.text, 1)
            else:
                yield timer

    def _cancelled(self, names: list[TimerName], from_ms: int, until_ms: int) -> set[tuple[int, str]]:
        """Time and key of what is cancelled among timers that are overdue: the wheel's time has passed them, so it
        would deliver each as it comes, and what cancels it may come after it.
        """
        found: set[tuple[int, str]] = set()
        for name in (name for name in names if name.overlaps(from_ms, until_ms)):
            read = self._read(name)
            for timer in read.timers(from_ms, until_ms) if read is not None else ():
                key = _key(timer, cancel_key) if isinstance(timer, FarTimer) and timer.is_delete else None
                if key is not None:
                    found.add(key)
        return found

    def _read(self, name: TimerName) -> TimerObject | None:
        """The object, from memory if it was read before; None, and told, when nothing of it can be had."""
        if name in self._unreadable:
            return None
        found = self._cache.get(name)
        if found is None:
            text = f"{name.path(self.state.place)}: expected an object, found none"
            try:
                found = self.state.read(name)
            except CorruptTimers as error:
                text = str(error)
            if found is None:
                self._unreadable.add(name)
                self._tell(name, text, name.count)
                return None
            self._cache[name] = found
        self._cache.move_to_end(name)
        size_bytes = sum(each.size_bytes for each in self._cache.values())
        while size_bytes > self.limits.cache_bytes and len(self._cache) > 1:
            size_bytes -= self._cache.popitem(last=False)[1].size_bytes
        return found

    def _tell(self, name: TimerName, text: str, count: int) -> None:
        self.state.note_bad(name)
        self.damaged_count += count
        _log.error("far timers that cannot be delivered: %d; %s", count, text)

    def _drop_from_cache(self, before_ms: int) -> None:
        live = self.state.known().live
        for name in [name for name in self._cache if name.last_ms < before_ms or name not in live]:
            del self._cache[name]

    def pulled(self) -> None:
        """What was given is durable locally; so is this when it returns. Raises OSError, StoreError."""
        if self._unconfirmed_count:
            self._record.write(self._given_ms)
            self._unconfirmed_count = 0

    # Forgetting, and upkeep

    def forget(self, before_ms: int) -> None:
        """Noted; the next `tend` does it. Nothing is forgotten that was not pulled and confirmed."""
        self._forget_ms = max(self._forget_ms, before_ms)

    def tend(self) -> bool:
        """One round of upkeep in the tier; whether there is more to do at once. Raises StaleWriter, TierError."""
        near_ms = self._clock.now_ms() + self.horizon_ms + NEAR_LEAD_MS
        return self.upkeep.tend(min(self._forget_ms, self._record.until_ms), near_ms)

    @property
    def kept_count(self) -> int:
        """Timers in the tier, as far as is known; those count that were pulled and are not forgotten yet."""
        return sum(name.count for name in self.state.known().live)

    @property
    def kept_bytes(self) -> int:
        return sum(name.size_bytes for name in self.state.known().live)


def _key(timer: FarTimer, key_of: Callable[[StoredMessage], str | None]) -> tuple[int, str] | None:
    """The time and the key of a timer; None when it has no key, or is a record that only the wheel can complain of."""
    try:
        key = key_of(decode_record(timer.record))
    except CorruptRecord:
        return None
    return None if key is None else (timer.deliver_ms, key)

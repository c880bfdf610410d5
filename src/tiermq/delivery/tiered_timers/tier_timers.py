"""TierTimers: timers that are due too late for the local store, kept in the tier (`TieredTimers`).

    add … add ─► flush            one object, for timers of any day
    (upkeep)                      sorted into days; a near day that is large into hours, minutes, seconds
    pull ─► pulled                what is due soon; progress is written to a small local file
    forget                        the objects go when everything in them was delivered

Invariants: a flushed timer stays in the tier until its time is forgotten, and nothing is forgotten that was not pulled
and confirmed; so neither a crash nor the loss of the disk loses one, and either may deliver some again. Times before
what `pull` was asked for are within local reach (`horizon_ms`), so nothing is added behind a pull's back.
Damage is reported (log, `damaged_count`, `tiermq tier verify`) and blocks nothing: intact timers are delivered.
Memory: an object of buffered timers (more while the tier is down, until the caller's flush fails), and `cache_bytes`
of objects that pulls have read.
Threads: the timer service's, except for `tend`, which has its own.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace

from tiermq.clock import Clock
from tiermq.delivery.tiered_timers.tiered_timer_state import Encoded, TieredTimerState
from tiermq.delivery.tiered_timers.timer_name import TimerName, chunks
from tiermq.delivery.tiered_timers.timer_object import CorruptTimers, DamagedTimer, TimerObject, encoded_bytes
from tiermq.delivery.tiered_timers.timer_upkeep import TimerLimits, TimerUpkeep
from tiermq.delivery.timer.timer_record import TieredTimer, cancel_key, own_key
from tiermq.errors import CorruptRecord, StoreDamaged, TierError
from tiermq.files.file_access import FileAccess
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.service import Service

_log = logging.getLogger(__name__)

NEAR_LEAD_MS = 3_600_000
"""How long before pulls a bucket counts as near: enough time to rewrite it."""
FILE = "farTimers.json"
REST_S = 5.0
REST_AFTER_REFUSAL_S = 30.0


class TierTimers:
    """See the module."""

    def __init__(
        self,
        state: TieredTimerState,
        record: PulledRecord,
        clock: Clock,
        horizon_ms: int,
        limits: TimerLimits | None = None,
        on_given: Callable[[TieredTimer], None] = lambda _timer: None,
    ) -> None:
        """`on_given` is called with each timer before it is returned."""
        self.state = state
        self._on_given = on_given
        self.limits = limits or TimerLimits()
        self.upkeep = TimerUpkeep(state, self.limits)
        self.given_count = 0
        self.damaged_count = 0
        self._record = record
        self._clock = clock
        self._horizon_ms = horizon_ms
        self._buffer: list[TieredTimer] = []
        self._buffer_bytes = 0
        self._pending: list[tuple[Encoded, list[TieredTimer]]] = []
        self._asked_ms = self._given_ms = record.until_ms
        self._unconfirmed_count = 0
        self._forget_ms = 0
        self._cache: OrderedDict[TimerName, TimerObject] = OrderedDict()
        self._unreadable: set[TimerName] = set()

    @property
    def horizon_ms(self) -> int:
        """A timer due later than now plus this is tiered, unless a pull has already covered its time."""
        return max(self._horizon_ms, self._asked_ms - self._clock.now_ms())

    # Putting away

    def add(self, timer: TieredTimer) -> None:
        """Buffered; a full buffer is flushed first, and grows while the tier is unavailable, until the
        caller's own `flush` raises.

        One that is due before what was pulled already (the wheel's clock was behind) is given by the next pull.
        """
        if timer.deliver_ms < self._asked_ms:
            timer = replace(timer, deliver_ms=self._asked_ms)
        if self._buffer_bytes >= self.limits.object_bytes:
            try:
                self.flush()
            except TierError as error:
                _log.warning("%d tiered timers wait to be flushed: %s", self.buffered_count, error)
        self._buffer.append(timer)
        self._buffer_bytes += encoded_bytes(timer)

    def flush(self) -> None:
        """Everything added is durable in the tier. Raises StaleWriter, TierError; it can be repeated."""
        if not self._buffer and not self._pending:
            return
        epoch = self.state.ready().epoch
        if any(encoded.epoch != epoch for encoded, _ in self._pending):
            # Another process may have held the lease meanwhile: its numbers may count as settled by now.
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

    def pull(self, until_ms: int) -> Iterator[TieredTimer]:
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

    def _sound(self, name: TimerName, from_ms: int, until_ms: int) -> Iterator[TieredTimer]:
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
                key = _key(timer, cancel_key) if isinstance(timer, TieredTimer) and timer.is_delete else None
                if key is not None:
                    found.add(key)
        return found

    def _read(self, name: TimerName) -> TimerObject | None:
        """The object, from memory if it was read before; None, and reported, if it cannot be read."""
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
        _log.error("tiered timers that cannot be delivered: %d; %s", count, text)

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
        """Recorded; the next `tend` does it. Only pulled and confirmed timers are removed."""
        self._forget_ms = max(self._forget_ms, before_ms)

    def tend(self) -> bool:
        """One round of upkeep in the tier; whether there is more to do at once. Raises StaleWriter, TierError."""
        near_ms = self._clock.now_ms() + self.horizon_ms + NEAR_LEAD_MS
        return self.upkeep.tend(min(self._forget_ms, self._record.until_ms), near_ms)

    @property
    def kept_count(self) -> int:
        """Known timers in the tier, including those that were pulled and not forgotten yet."""
        return sum(name.count for name in self.state.known().live)

    @property
    def kept_bytes(self) -> int:
        return sum(name.size_bytes for name in self.state.known().live)


def _key(timer: TieredTimer, key_of: Callable[[StoredMessage], str | None]) -> tuple[int, str] | None:
    """The time and the key of a timer; None when it has no key, or is a record that only the wheel can complain of."""
    try:
        key = key_of(decode_record(timer.record))
    except CorruptRecord:
        return None
    return None if key is None else (timer.deliver_ms, key)


class PulledRecord:
    """Up to which time tiered timers were pulled into this store: one small file, replaced as a whole.

        {"place": "<url of the tier>/<directory>", "pulledUntilMs": 1700000000000}

    A file of another tier or broker is ignored: then everything that the tier still has is pulled,
    and some of it for the second time. Used by one thread.
    """

    def __init__(self, directory: str, place: str, access: FileAccess) -> None:
        """Raises StoreDamaged when neither the file nor its predecessor can be read."""
        self.path = os.path.join(directory, FILE)
        self._place = place
        self._access = access
        found = access.read_config(self.path, decode_pulled)
        self.until_ms = found[1] if found is not None and found[0] == place else 0

    def write(self, until_ms: int) -> None:
        """Durable when it returns. Raises OSError, StoreError."""
        self._access.make_directories(os.path.dirname(self.path))
        self._access.write_config(self.path, encode_pulled(self._place, until_ms))
        self.until_ms = until_ms


def encode_pulled(place: str, until_ms: int) -> bytes:
    return json.dumps({"place": place, "pulledUntilMs": until_ms}, separators=(",", ":")).encode()


def decode_pulled(data: bytes) -> tuple[str, int]:
    """(place, until). Raises StoreDamaged for anything else."""
    try:
        document = json.loads(data)
        place, until_ms = document["place"], document["pulledUntilMs"]
    except (ValueError, TypeError, LookupError) as error:
        raise StoreDamaged(f"{FILE}: expected a place and a time, found {data[:80]!r} ({error})") from error
    if not isinstance(place, str) or type(until_ms) is not int or until_ms < 0:
        raise StoreDamaged(f"{FILE}: expected a place and a time, found {data[:80]!r}")
    return place, until_ms


class TieredTimerService(Service):
    """Runs `TierTimers.tend`, one round after the other; an unavailable or fenced tier is retried later."""

    def __init__(self, timers: TierTimers) -> None:
        super().__init__("tiered-timers")
        self.timers = timers
        self.refusal = ""

    def run_once(self) -> float:
        try:
            more = self.timers.tend()
        except TierError as error:
            if str(error) != self.refusal:
                _log.warning("tiered timers are not tended now: %s", error)
            self.refusal = str(error)
            return REST_AFTER_REFUSAL_S
        self.refusal = ""
        return 0.0 if more else REST_S

"""Opening the wheel, the log and the checkpoint of a store, and making them consistent.

    checkpoint of ours         log, wheel and queue offset belong together: the log is cut at the checkpoint's end,
                               and slots with later units are reset to their earlier state
    RocketMQ's                 units after its log end count if their messages exist and were enqueued
    units that wait do not     the timer topic is the second copy: the log is emptied, and everything of it that was
    add up to the sum          enqueued and waits is linked again; tiered timers may be delivered twice by that
    wheel gone, damaged,       every unit that waits is copied to the log's end, and linked again, if there is no sum
    or of another precision

Messages from the queue offset on are enqueued again afterwards, so nothing is lost by cutting. RocketMQ drops
slots that are older than seven days when it starts; TierMQ delivers them, however long the broker was down.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

from tiermq.clock import Clock
from tiermq.delivery.timer.timer_checkpoint import FILE as CHECKPOINT_FILE
from tiermq.delivery.timer.timer_checkpoint import NO_SUM, SUM_MASK, TimerCheckpoint, TimerProgress
from tiermq.delivery.timer.timer_dequeue import chain_of
from tiermq.delivery.timer.timer_destination import TIMER_QUEUE
from tiermq.delivery.timer.timer_log import (
    DIRECTORY,
    MAGIC_COPY,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_POSITION,
    TIMER_UNIT_BYTES,
    TimerLog,
    TimerUnit,
)
from tiermq.delivery.timer.timer_record import own_key, read_timer
from tiermq.delivery.timer.timer_state import FILE as METRICS_FILE
from tiermq.delivery.timer.timer_state import TimerMetrics, TimerSettings, TimerState, decode_timer_metrics
from tiermq.delivery.timer.timer_wheel import FILE as WHEEL_FILE
from tiermq.delivery.timer.timer_wheel import Slot, TimerWheel, new_wheel
from tiermq.errors import CorruptRecord
from tiermq.files.file_access import FileAccess
from tiermq.message.properties import TIMER_ROLL_TIMES, get_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

CONFIG_DIRECTORY = "config"
TEMPORARY_SUFFIX = ".tiermq"
_ROLL_TIMES = TIMER_ROLL_TIMES.encode()
DIRTY_MAX = 100_000
"""Slots of a new wheel that are held in memory at once."""


class OpenTimers(NamedTuple):
    """The result of a recovery."""

    state: TimerState
    checkpoint: TimerCheckpoint
    metrics_path: str


class TimerRecovery:
    """One opening of one store's timers. Used once, before any other reader of the files."""

    def __init__(self, store: LocalStore, root: str, clock: Clock, settings: TimerSettings, access: FileAccess) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._access = access
        self._wheel_path = os.path.join(root, WHEEL_FILE)
        self._log_path = os.path.join(root, DIRECTORY)
        self._config = os.path.join(root, CONFIG_DIRECTORY)

    def run(self) -> OpenTimers:
        """Raises StoreDamaged for files that are no timer files of this store, DiskFull."""
        self._access.make_directories(self._config)
        checkpoint = TimerCheckpoint(self._access, os.path.join(self._config, CHECKPOINT_FILE))
        progress = checkpoint.progress
        log = TimerLog(self._access, self._log_path, self._settings.log_file_bytes, self._clock)
        found = self._access.file_info(self._wheel_path)
        has_wheel = found is not None and found.size > 0
        wheel = self._open_wheel()
        read_ms = self._read_time(progress, log)
        end, queue_offset = self._ends(progress, log)
        was_cut = next(log.units(end), None) is not None
        has_sum = progress.units_sum != NO_SUM and progress.precision_ms == self._settings.precision_ms
        is_linked = (
            (has_wheel or log.end == 0)
            and progress.precision_ms in (0, self._settings.precision_ms)
            and self._take_back(wheel, log, read_ms, end)
            and (progress.is_ours or self._agrees(wheel, log, read_ms, progress.log_end, end))
            and (not has_sum or self._units_sum(wheel, log, read_ms) == progress.units_sum)
        )
        if is_linked:
            wheel.flush()  # Before the units that it no longer refers to are erased.
        if is_linked or not has_sum:
            log.truncate(end)
        if not is_linked and has_sum:
            if progress.is_copied:
                _log.info("timer wheel and log: built from the topic, as the check point is that of a master")
            else:
                _log.error("timer wheel and log: waiting timers are not those written; rebuilding from the topic")
            log.truncate(log.begin)
            wheel, read_ms = self._relink(wheel, log, read_ms, self._units_of_topic(read_ms, queue_offset))
        elif not is_linked:
            _log.warning("timer wheel: it does not match the timer log, and is rebuilt from the log")
            wheel, read_ms = self._relink(wheel, log, read_ms, _units_before(log, log.end))
        metrics = self._access.read_config(os.path.join(self._config, METRICS_FILE), decode_timer_metrics)
        if metrics is None or was_cut or not is_linked:
            metrics = self._counted(log, read_ms)
        # The wheel's time stops until messages from before the stop are enqueued: see `TimerService`.
        state = TimerState(
            self._store, self._clock, self._settings, wheel, log, metrics, read_ms, read_ms, queue_offset
        )
        state.waiting = wheel.waiting_count(read_ms)
        is_known = is_linked and has_sum
        state.units_sum = progress.units_sum if is_known else self._units_sum(wheel, log, read_ms)
        # From here on the checkpoint is ours, and its values belong together.
        log.flush()
        wheel.flush()
        written = TimerProgress(read_ms, log.end, queue_offset, self._settings.precision_ms, units_sum=state.units_sum)
        checkpoint.write(written, self._clock.now_ms())
        _log.info("timers: %d wait, from offset %d, slot %d on", state.waiting, queue_offset, read_ms)
        return OpenTimers(state, checkpoint, os.path.join(self._config, METRICS_FILE))

    def _open_wheel(self) -> TimerWheel:
        self._access.remove(self._wheel_path + TEMPORARY_SUFFIX)
        settings = self._settings
        return TimerWheel(self._access, self._wheel_path, settings.precision_ms, settings.wheel_slots)

    def _read_time(self, progress: TimerProgress, log: TimerLog) -> int:
        if progress.read_time_ms > 0:
            return self._settings.floor(progress.read_time_ms)
        now_ms = self._settings.floor(self._clock.now_ms())
        # Without a checkpoint deliveries are unknown: those of the last half rotation are repeated.
        return now_ms if log.end == 0 else max(0, now_ms - self._settings.slots * self._settings.precision_ms)

    # Where the log ends

    def _ends(self, progress: TimerProgress, log: TimerLog) -> tuple[int, int]:
        """The end of the log, and the queue offset that belongs to it."""
        if progress.is_ours:
            end, queue_offset = min(progress.log_end, log.end), progress.queue_offset
            if progress.log_end > log.end:
                _log.error("timer log: expected it to end at %d, found %d bytes", progress.log_end, log.end)
                end, queue_offset = self._end_by_walk(log, 0, queue_offset)
        else:
            end, queue_offset = self._end_by_walk(log, min(progress.log_end, log.end), progress.queue_offset)
        low = self._store.min_offset(TIMER_TOPIC, TIMER_QUEUE)
        high = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE, committed=False)
        return end, max(low, min(queue_offset, high))

    def _end_by_walk(self, log: TimerLog, start: int, queue_offset: int) -> tuple[int, int]:
        """The end of intact units whose messages exist and were enqueued; and the offset after it."""
        end = max(start, log.begin)
        last = log.read(end - TIMER_UNIT_BYTES)
        for position, unit in log.units(end):
            if unit.physical_offset >= self._store.min_physical_offset:
                message = self._message_of(unit)
                if message is None or message.queue_offset >= queue_offset:
                    break
            end, last = position + TIMER_UNIT_BYTES, unit
        message = None if last is None else self._message_of(last)
        # Messages behind the last unit were delivered at once, or their units are lost: they are enqueued again.
        return end, queue_offset if message is None else min(queue_offset, message.queue_offset + 1)

    def _message_of(self, unit: TimerUnit) -> StoredMessage | None:
        """The message of a unit; None when its offset has another message, or none."""
        try:
            message = self._store.message_at(unit.physical_offset, unit.message_size)
            return None if message is None or read_timer(message).topic_hash != unit.topic_hash else message
        except CorruptRecord:
            return None

    # Whether the wheel agrees with it

    def _take_back(self, wheel: TimerWheel, log: TimerLog, read_ms: int, end: int) -> bool:
        """Reset slots that refer to units from `end` on; False if a chain cannot be followed."""
        for slot in list(wheel.slots_between(read_ms)):
            position, count = slot.last, slot.timers
            while position >= end:
                unit = log.read(position)
                if unit is None or unit.previous >= position:
                    return False
                count -= unit.weight
                position = unit.previous
            if position < 0:
                wheel.drop(slot.time_ms, slot.time_ms + 1)
            elif position != slot.last:
                wheel.put(Slot(slot.time_ms, slot.first, position, count))
        return True

    def _agrees(self, wheel: TimerWheel, log: TimerLog, read_ms: int, start: int, end: int) -> bool:
        """Whether a wheel that RocketMQ wrote leads to the log's units, including those after its checkpoint."""
        precision_ms = self._settings.precision_ms
        for slot in wheel.slots_between(read_ms):
            unit = log.read(slot.last) if slot.last >= log.begin else None
            if slot.last >= log.begin and (unit is None or unit.slot_ms // precision_ms * precision_ms != slot.time_ms):
                return False
        for position, unit in log.units(max(start, log.begin)):
            if position >= end:
                break
            if unit.slot_ms >= read_ms and wheel.slot(unit.slot_ms).last < position:
                return False
        return True

    def _units_sum(self, wheel: TimerWheel, log: TimerLog, read_ms: int) -> int:
        """The sum over all units that the wheel leads to; a chain counts up to its break."""
        total = 0
        for slot in wheel.slots_between(read_ms):
            sums: list[int] = []
            chain_of(log, slot, self._settings.precision_ms, None, sums)
            total += sum(sums)
        return total & SUM_MASK

    def _units_of_topic(self, read_ms: int, queue_offset: int) -> Iterator[TimerUnit]:
        """Units for the messages that were enqueued and not delivered; of one that rolled, only the newest."""
        newest: dict[tuple[str, int, bool] | None, int] = {}
        for offset, message, _, _ in self._taken_in(read_ms, queue_offset):
            if get_property(message.encoded_properties, _ROLL_TIMES) is not None and own_key(message) is not None:
                newest[_rolling_key(message)] = offset
        write_ms = self._settings.floor(self._clock.now_ms())
        for offset, message, physical_offset, size in self._taken_in(read_ms, queue_offset):
            if newest.get(_rolling_key(message), offset) <= offset:
                timer = read_timer(message)
                magic = MAGIC_DEFAULT | (MAGIC_DELETE if timer.is_delete else 0)
                begin_ms = min(write_ms, timer.deliver_ms)
                delay_ms = timer.deliver_ms - begin_ms
                yield TimerUnit(NO_POSITION, magic, begin_ms, delay_ms, physical_offset, size, timer.topic_hash)

    def _taken_in(self, read_ms: int, queue_offset: int) -> Iterator[tuple[int, StoredMessage, int, int]]:
        """(queue offset, message, physical offset, size) of the timer topic, from the read time on."""
        low = self._store.min_offset(TIMER_TOPIC, TIMER_QUEUE)
        for offset, physical_offset, size in self._store.units_between(TIMER_TOPIC, TIMER_QUEUE, low, queue_offset):
            try:
                message = self._store.message_at(physical_offset, size)
                if message is None:
                    raise CorruptRecord("it is gone from the commit log")
                if read_timer(message).deliver_ms >= read_ms:
                    yield offset, message, physical_offset, size
            except CorruptRecord as error:
                _log.error("timer topic offset %d: its timer cannot be rebuilt: %s", offset, error)

    def _relink(
        self, old: TimerWheel, log: TimerLog, read_ms: int, units: Iterator[TimerUnit]
    ) -> tuple[TimerWheel, int]:
        """A new wheel, from the units that wait, which go to the log's end, and its read time. The old one stays in
        place until the new one is complete."""
        old.close()
        path = self._wheel_path + TEMPORARY_SUFFIX
        settings = self._settings
        wheel = new_wheel(self._access, path, settings.precision_ms, settings.wheel_slots)
        write_ms = settings.floor(self._clock.now_ms())
        begin_ms = read_ms
        if write_ms + settings.roll_window_ms >= read_ms + settings.wheel_slots * settings.precision_ms:
            begin_ms = write_ms  # One rotation cannot hold both: overdue timers go into the current slot.
        for unit in units:
            if unit.slot_ms >= read_ms:
                placed = self._placed(unit, begin_ms, write_ms)
                slot = wheel.slot(placed.slot_ms)
                copied = log.append(placed._replace(previous=slot.last))
                first = copied if slot.time_ms < 0 else slot.first
                wheel.put(Slot(placed.slot_ms, first, copied, slot.timers + unit.weight))
                if wheel.dirty_count >= DIRTY_MAX:
                    wheel.flush()
        log.flush()
        wheel.flush()
        wheel.close()
        self._access.rename(path, self._wheel_path)
        self._access.sync_directory(os.path.dirname(self._wheel_path))
        return self._open_wheel(), begin_ms

    def _placed(self, unit: TimerUnit, begin_ms: int, write_ms: int) -> TimerUnit:
        """A copy of a unit in a slot that this wheel has: a unit too far ahead or behind rolls in between."""
        window_ms = self._settings.roll_window_ms
        magic = unit.magic | MAGIC_COPY
        if unit.slot_ms > write_ms + window_ms:
            return unit._replace(magic=magic | MAGIC_ROLL, write_time_ms=write_ms, delay_ms=window_ms)
        if unit.slot_ms < begin_ms:
            return unit._replace(magic=magic | MAGIC_ROLL, write_time_ms=write_ms, delay_ms=0)
        return unit._replace(magic=magic)

    def _counted(self, log: TimerLog, read_ms: int) -> TimerMetrics:
        """How many timers wait for each topic, by the log. Topics with the same hash count as one."""
        counts: dict[int, int] = {}
        named: dict[int, str] = {}
        for _, unit in log.units(_newest_copies(log)):
            if unit.slot_ms >= read_ms:
                counts[unit.topic_hash] = counts.get(unit.topic_hash, 0) + unit.weight
                if unit.topic_hash not in named and (message := self._message_of(unit)) is not None:
                    named[unit.topic_hash] = read_timer(message).topic
        metrics = TimerMetrics()
        for topic_hash, count in counts.items():
            metrics.add(named.get(topic_hash, ""), count, self._clock.now_ms())
        return metrics


def _rolling_key(message: StoredMessage) -> tuple[str, int, bool] | None:
    """What identifies a timer before and after it rolled; None without a unique key.

    A cancellation has the key and the time of its timer, so `is_delete` distinguishes the two.
    """
    key = own_key(message)
    timer = read_timer(message)
    return None if key is None else (key, timer.deliver_ms, timer.is_delete)


def _units_before(log: TimerLog, end: int) -> Iterator[TimerUnit]:
    for position, unit in log.units(_newest_copies(log)):
        if position >= end:
            return
        yield unit


def _newest_copies(log: TimerLog) -> int:
    """The start of the newest run of copies: units before it are obsolete. Without one, the start of the log."""
    begin = log.begin
    was_copy = False
    for position, unit in log.units():
        is_copy = unit.magic & MAGIC_COPY != 0
        if is_copy and not was_copy:
            begin = position
        was_copy = is_copy
    return begin

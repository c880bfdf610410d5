"""TieredTimerState: a broker's tiered timers in the tier, as known to this process, and the only way to change them.

    own the broker's lease ─► take the manifest over ─► list ─► everything that counts is known

The manifest is taken over (rewritten with our epoch) before anything is listed: an earlier writer finds it changed, and
can commit nothing any more. A flush is one object, acknowledged after the lease was checked once more: the next owner
lists after it has acquired the lease, so it finds the flush. What a dead writer left over is removed.

A flush whose answer was lost may be found by a listing, and counts from then on, also when it was rewritten since:
it is remembered as landed, and its next `put_flush` has nothing to do.

Threads: `lock` guards the fields. `_loading` lets one at a time load, commit or put a flush: a flush that is put while
another thread lists would be forgotten with what that thread knew before. The timer service's thread and the upkeep's
use it at the same time.
Cost: a start is GET, PUT and LIST; a flush PUT and GET (of the lease); a commit GET and PUT.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tiermq.delivery.tiered_timers.timer_name import (
    Bucket,
    TimerManifest,
    TimerName,
    decode_timer_manifest,
    encode_timer_manifest,
    manifest_name,
    timer_name_at,
    timers_directory,
)
from tiermq.delivery.tiered_timers.timer_object import TimerObject, encode_timers
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import ManifestConflict
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import CorruptManifest

_log = logging.getLogger(__name__)


class TimerOwner(Protocol):
    """The right to write a broker's part of the tier."""

    @property
    def writer(self) -> str:
        """This process as text."""
        ...

    def own(self) -> int:
        """Acquire or keep the lease; its epoch. Raises StaleWriter when another process has it, and TierError."""
        ...

    def check(self) -> None:
        """Check in the tier that the lease is still ours. Raises StaleWriter, TierError."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What counted at one moment. `generation` changes when everything is read from the tier again; `epoch` is that of
    the lease by which it was read.
    """

    generation: int
    epoch: int
    manifest: TimerManifest
    live: frozenset[TimerName]
    bad: frozenset[TimerName]


@dataclass(frozen=True, slots=True)
class Encoded:
    """An object that is about to be put. Put again after a lost answer, it is the same object."""

    name: TimerName
    data: bytes
    epoch: int


class TieredTimerState:
    """See the module."""

    def __init__(self, driver: TierDriver, cluster: str, broker: str, owner: TimerOwner) -> None:
        self.driver = driver
        self.directory = timers_directory(cluster, broker)
        self.place = f"{driver.url}/{self.directory}"
        self.lock = threading.RLock()
        self._manifest_path = manifest_name(cluster, broker)
        self._owner = owner
        self._loading = threading.Lock()
        self._epoch = 0  # 0 while it is open what the tier holds.
        self._loaded_epoch = 0
        self._generation = 0
        self._manifest = TimerManifest()
        self._version: str | None = None
        self._flushes: set[TimerName] = set()
        self._bad: set[TimerName] = set()
        self._next_serial = 1
        self._left_over: set[TimerName] = set()
        self._unanswered: set[TimerName] = set()
        self._landed: set[TimerName] = set()

    # Knowing

    def ready(self) -> Snapshot:
        """What counts now, by the tier where that is not known yet. Raises StaleWriter, TierError."""
        epoch = self._owner.own()
        with self._loading:
            if epoch != self._epoch:
                self._load(epoch)
        return self.known()

    def known(self) -> Snapshot:
        """The known timer objects, without a request."""
        with self.lock:
            live = self._manifest.live(self._flushes)
            return Snapshot(self._generation, self._loaded_epoch, self._manifest, live, frozenset(self._bad))

    def _load(self, epoch: int) -> None:
        stored = self.driver.get_object(self._manifest_path)
        version = None if stored is None else stored.version
        damage = ""
        manifest = TimerManifest()
        if stored is not None:
            try:
                manifest = decode_timer_manifest(stored.data, self._manifest_path)
            except CorruptManifest as error:
                damage = str(error)
            else:
                version = self._put_manifest(manifest, epoch, version)
        listed = self._listed()
        if damage or (stored is None and listed):
            in_buckets = frozenset(name for name in listed if name.bucket is not None)
            if damage or in_buckets:  # Flushes alone come before the first manifest.
                _log.error(
                    "%s: all %d timer objects count, so some timers may be delivered twice: %s",
                    self.place, len(listed), damage or "the manifest is gone",
                )  # fmt: skip
            manifest = TimerManifest(in_buckets)
            version = self._put_manifest(manifest, epoch, version)
        manifest = replace(manifest, damaged=manifest.damaged & listed)
        with self.lock:
            self._manifest, self._version = manifest, version
            self._flushes = {name for name in listed if name.bucket is None and name.serial > manifest.settled}
            self._landed |= self._unanswered & self._flushes
            self._bad = set()
            serials = [manifest.settled, *(name.serial for name in listed | manifest.objects)]
            self._next_serial = max(self._next_serial, max(serials) + 1)
            self._left_over = set(listed - manifest.live(self._flushes) - manifest.damaged)
            self._epoch = self._loaded_epoch = epoch
            self._generation += 1

    def _listed(self) -> frozenset[TimerName]:
        found = (timer_name_at(path, self.directory) for path in self.driver.list_objects(f"{self.directory}/"))
        return frozenset(name for name in found if name is not None)

    def _put_manifest(self, manifest: TimerManifest, epoch: int, version: str | None) -> str:
        self._owner.check()
        data = encode_timer_manifest(replace(manifest, epoch=epoch, writer=self._owner.writer))
        return self.driver.put_object(self._manifest_path, data, expected=version)

    # Objects

    def encode(self, bucket: Bucket | None, timers: Sequence[TieredTimer]) -> Encoded:
        """An object of these timers, with a new serial number."""
        data = encode_timers(timers)
        dues = [timer.deliver_ms for timer in timers]
        with self.lock:
            serial, self._next_serial = self._next_serial, self._next_serial + 1
            name = TimerName(serial, len(timers), len(data), min(dues), max(dues), bucket)
            return Encoded(name, data, self._loaded_epoch)

    def put(self, encoded: Encoded) -> None:
        """Durable when it returns; it counts only by a commit, or by `put_flush`."""
        self.driver.put_object(encoded.name.path(self.directory), encoded.data, expected=None)

    def put_flush(self, encoded: Encoded) -> None:
        """Durable, and counted also by the next lease holder, when it returns. Raises StaleWriter, TierError;
        then it is to be repeated, or given up if the epoch is another by now: its number may be settled.
        """
        with self._loading:
            with self.lock:
                if encoded.epoch != self._loaded_epoch:
                    raise ManifestConflict(f"{self.place}: another process may have used number {encoded.name.serial}.")
                self._unanswered.add(encoded.name)
                has_landed = encoded.name in self._landed
            if not has_landed:
                self.put(encoded)
                self._owner.check()
            with self.lock:
                if not has_landed:
                    self._flushes.add(encoded.name)
                self._unanswered.discard(encoded.name)
                self._landed.discard(encoded.name)

    def give_up_flush(self, name: TimerName) -> bool:
        """A flush that is not repeated; returns whether it still counts, because it was found in the tier."""
        with self.lock:
            has_landed = name in self._landed
            self._unanswered.discard(name)
            self._landed.discard(name)
            return has_landed

    def read(self, name: TimerName) -> TimerObject | None:
        """The object; None when it is not there. Raises CorruptTimers, TierError."""
        path = name.path(self.directory)
        stored = self.driver.get_object(path)
        return None if stored is None else TimerObject(stored.data, path)

    def note_bad(self, name: TimerName) -> bool:
        """Remember that an object is damaged or missing; whether that is news."""
        with self.lock:
            news = name not in self._bad
            self._bad.add(name)
            return news

    # Changing

    def commit(self, generation: int, change: Callable[[TimerManifest], TimerManifest]) -> None:
        """Replace the manifest. Raises ManifestConflict, with everything to be read again, when it has changed.

        Any error leaves open whether it happened; the next `ready` finds out.
        """
        with self._loading:
            with self.lock:
                if generation != self._generation or self._epoch == 0:
                    raise ManifestConflict(f"{self.place}: timers were read again meanwhile. Retry.")
                manifest, version, epoch = change(self._manifest), self._version, self._epoch
                self._epoch = 0
            version = self._put_manifest(manifest, epoch, version)
            with self.lock:
                self._manifest, self._version, self._epoch = manifest, version, epoch
                self._flushes = {name for name in self._flushes if name.serial > manifest.settled}

    def ensure_manifest(self, generation: int) -> None:
        """There is a manifest when this returns. Objects in buckets without one mean that it was lost, and that all of
        them have to count: so none is put before.
        """
        with self.lock:
            is_there = self._version is not None
        if not is_there:
            self.commit(generation, lambda manifest: manifest)

    def drop(self, names: Sequence[TimerName]) -> None:
        """Objects that do not count any more are to be removed; a flush ceases to count by this."""
        with self.lock:
            self._flushes.difference_update(names)
            self._left_over.update(names)

    def remove_left_over(self) -> int:
        """Delete what does not count; returns the number. Raises TierError: the rest is deleted next time."""
        with self.lock:
            names = sorted(self._left_over - self._manifest.live(self._flushes), key=lambda name: name.serial)
        for name in names:
            self.driver.delete_object(name.path(self.directory))
            with self.lock:
                self._left_over.discard(name)
        return len(names)

"""TimerUpkeep: keeps a broker's timer objects few, sorted and no longer than they are needed.

A round: objects that do not count any more are deleted, delivered timers are removed, objects of the plan are
rewritten. There is a manifest first; objects are written, then it is replaced, then the old objects go; a crash in
between leaves objects that do not count. Nothing is removed while a pull reads. Damaged objects are never rewritten, so
that nothing of them is lost before a person has looked; when their time has passed they are set aside in the manifest.

Threads: `tend` is called by one thread; `reading` by another.
Memory: the timers of `run_bytes`, and one object.

The plan of rewrites: which timer objects, and into what. Pure decisions; `timer_upkeep` carries them out.

    settle   flushes hold timers of any days: when there are many, they are sorted into days
    split    a bucket that comes near and does not fit into one object becomes the next finer ones
    merge    a bucket with many small objects gets larger ones

So a timer is written a few times in its life, however late it is due, and a read of the next seconds needs no more
than a few objects, however many wait.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tiermq.delivery.tiered_timers.tiered_timer_state import Snapshot, TieredTimerState
from tiermq.delivery.tiered_timers.timer_name import NEVER_MS, Bucket, Level, TimerManifest, TimerName, partition
from tiermq.delivery.tiered_timers.timer_object import CorruptTimers, DamagedTimer, encoded_bytes
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import ManifestConflict

_log = logging.getLogger(__name__)

REWRITES_MAX = 32
"""Objects per batch; then the manifest is written."""
FORGET_STEP_MS = 60_000
"""How much of an object must be delivered before that is worth a manifest: after the loss of the disk, at most this
much is delivered again."""


@dataclass(frozen=True, slots=True)
class TimerLimits:
    """Sizes that bound requests and memory."""

    object_bytes: int = 8 << 20
    """What an object holds at most, unless a single timer is larger."""
    run_bytes: int = 32 << 20
    """Memory limit of a rewrite."""
    flush_count: int = 64
    """This number of flushes is sorted into buckets."""
    merge_count: int = 8
    """This number of small objects of a bucket is merged; a small object is less than half full."""
    cache_bytes: int = 32 << 20
    """Objects that were read and may be needed again for the next pull."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rewrite the timers of these objects, in buckets of this level or finer."""

    sources: tuple[TimerName, ...]
    coarsest: Level


def plan_rewrites(live: Collection[TimerName], near_ms: int, limits: TimerLimits) -> list[Rewrite]:
    """The rewrites that are due, most urgent first. Objects whose bucket begins before `near_ms` are near."""
    flushes = sorted((name for name in live if name.bucket is None), key=lambda name: name.serial)
    by_bucket: defaultdict[Bucket, list[TimerName]] = defaultdict(list)
    for name in live:
        if name.bucket is not None:
            by_bucket[name.bucket].append(name)
    splits, merges = [], []
    for bucket, names in sorted(by_bucket.items()):
        names.sort(key=lambda name: name.serial)
        if _wants_split(bucket, names, near_ms, limits):
            splits.append(Rewrite(tuple(names), Level(bucket.level + 1)))
            continue
        small = [name for name in names if name.size_bytes < limits.object_bytes // 2]
        if len(small) >= limits.merge_count:
            merges.append(Rewrite(tuple(small), bucket.level))
    settles = []
    if len(flushes) >= limits.flush_count or sum(name.size_bytes for name in flushes) >= limits.run_bytes:
        settles.append(Rewrite(tuple(flushes), Level.DAY))
    return splits + settles + merges


def _wants_split(bucket: Bucket, names: list[TimerName], near_ms: int, limits: TimerLimits) -> bool:
    size_bytes = sum(name.size_bytes for name in names)
    return (
        bucket.level < Level.SECOND
        and bucket.start_ms < near_ms
        and len(names) > 1
        and size_bytes > limits.object_bytes
    )


class TimerUpkeep:
    """See the module."""

    def __init__(self, state: TieredTimerState, limits: TimerLimits) -> None:
        self._state = state
        self._limits = limits
        self._readers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, objects that count when it begins stay where they are."""
        with self._state.lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._state.lock:
                self._readers -= 1

    def tend(self, forget_ms: int, near_ms: int) -> bool:
        """One round; whether there is more to do at once. Raises StaleWriter, TierError."""
        snapshot = self._state.ready()
        if not self._readers:
            self._state.remove_left_over()
        self._forget(snapshot, forget_ms)
        return self._rewrite(near_ms)

    # Forgetting

    def _forget(self, snapshot: Snapshot, before_ms: int) -> None:
        done_ms = snapshot.manifest.forgotten_ms
        gone = {name for name in snapshot.live if name.last_ms < before_ms}
        is_worth = before_ms - done_ms >= FORGET_STEP_MS and any(n.overlaps(done_ms, before_ms) for n in snapshot.live)
        if not gone and not is_worth:
            return
        bad = gone & snapshot.bad

        def forgotten(manifest: TimerManifest) -> TimerManifest:
            return replace(
                manifest,
                objects=manifest.objects - gone,
                damaged=manifest.damaged | bad,
                forgotten_ms=max(manifest.forgotten_ms, before_ms),
            )

        self._state.commit(snapshot.generation, forgotten)
        self._state.drop(sorted(gone - bad, key=lambda name: name.serial))

    # Rewrites

    def _rewrite(self, near_ms: int) -> bool:
        snapshot = self._state.ready()
        plan = plan_rewrites(snapshot.live - snapshot.bad, near_ms, self._limits)
        if not plan:
            return False
        self._state.ensure_manifest(snapshot.generation)
        made: list[TimerName] = []
        replaced: set[TimerName] = set()
        try:
            for rewrite in plan[:REWRITES_MAX]:
                replaced |= self._rewrite_object(rewrite, snapshot.manifest.forgotten_ms, made)
        except BaseException:
            self._state.drop(made)
            raise
        flushes = [name.serial for rewrite in plan[:REWRITES_MAX] for name in rewrite.sources if name.bucket is None]
        settled = max(flushes, default=0)
        # Flushes that cannot be rewritten count by name from now on: their numbers do not count for them any more.
        kept = {name for name in snapshot.live - replaced if name.bucket is None and name.serial <= settled}

        def rewritten(manifest: TimerManifest) -> TimerManifest:
            objects = (manifest.objects - replaced).union(made, kept)
            return replace(manifest, objects=objects, settled=max(manifest.settled, settled))

        try:
            self._state.commit(snapshot.generation, rewritten)
        except ManifestConflict:
            # The tier was listed while they were written: that listing may lack some.
            self._state.drop(made)
            raise
        self._state.drop(sorted(replaced, key=lambda name: name.serial))
        return True

    def _rewrite_object(self, rewrite: Rewrite, forgotten_ms: int, made: list[TimerName]) -> set[TimerName]:
        """Write the timers of sound sources, and note the new objects in `made`; the sources that are replaced."""
        replaced: set[TimerName] = set()
        run: list[TieredTimer] = []
        run_bytes = 0
        for name in rewrite.sources:
            timers = self._timers(name, forgotten_ms)
            if timers is None:
                continue
            replaced.add(name)
            run += timers
            run_bytes += sum(map(encoded_bytes, timers))
            if run_bytes >= self._limits.run_bytes:
                self._write_run(run, rewrite.coarsest, made)
                run, run_bytes = [], 0
        self._write_run(run, rewrite.coarsest, made)
        return replaced

    def _timers(self, name: TimerName, forgotten_ms: int) -> Collection[TieredTimer] | None:
        """All timers of an object that are not removed; None, and reported, if any is damaged."""
        text = f"{name.path(self._state.place)}: expected an object, found none"
        try:
            found = self._state.read(name)
        except CorruptTimers as error:
            found, text = None, str(error)
        timers: list[TieredTimer] = []
        for timer in found.timers(forgotten_ms, NEVER_MS) if found is not None else ():
            if isinstance(timer, DamagedTimer):
                found, text = None, timer.text
                break
            timers.append(timer)
        if found is None and self._state.note_bad(name):
            _log.error("a timer object is left as it is: %s", text)
        return None if found is None else timers

    def _write_run(self, run: Sequence[TieredTimer], coarsest: Level, made: list[TimerName]) -> None:
        ordered = sorted(run, key=lambda timer: timer.deliver_ms)
        for bucket, timers in partition(ordered, coarsest, self._limits.object_bytes):
            encoded = self._state.encode(bucket, timers)
            made.append(encoded.name)  # First: an answer may be lost.
            self._state.put(encoded)

"""Tiered timers seen from the bucket alone: how many wait, until when, and whether every byte of them is sound.

No lease, nothing written; a broker may be running. The manifest is read again after the listing, until it was the same
before and after: then what was listed and what counts belong together.
Cost: two GETs and one LIST for each broker; `verify_timers` and `timers_of` read objects, one at a time.

Tiered timers one by one, as operators want to see them: which message waits for when. Read from the tier alone.

Every object is read twice, first for cancellations; memory is for their keys. What is known to be delivered is left
out; what was pulled into a broker's wheel and is not delivered yet is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiermq.delivery.tiered_timers.timer_name import (
    NEVER_MS,
    TimerManifest,
    TimerName,
    decode_timer_manifest,
    manifest_name,
    timer_name_at,
    timers_directory,
)
from tiermq.delivery.tiered_timers.timer_object import CorruptTimers, DamagedTimer, TimerObject
from tiermq.delivery.timer.timer_destination import PRECISION_MS
from tiermq.delivery.timer.timer_listing import WaitingTimer, described
from tiermq.delivery.timer.timer_record import TieredTimer, cancel_key, own_key
from tiermq.errors import CorruptRecord, FutureManifest
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.driver.contract import StoredObject, TierDriver
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.names import TIMERS_DIRECTORY, cluster_directory
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verify_report import Note, Problem, VerifyReport

LOOKS_MAX = 5


@dataclass(frozen=True, slots=True)
class TimerListing:
    """One broker's tiered timers. `trouble` is why the manifest is not used: then everything listed counts."""

    cluster: str
    broker: str
    manifest: TimerManifest
    live: frozenset[TimerName]
    listed: frozenset[TimerName]
    trouble: str = ""

    @property
    def directory(self) -> str:
        return timers_directory(self.cluster, self.broker)

    @property
    def objects(self) -> list[TimerName]:
        """Those that count, by the time of their first timer."""
        return sorted(self.live, key=lambda name: (name.first_ms, name.serial))

    @property
    def count(self) -> int:
        """Timers; delivered timers of an object with undelivered ones are counted too."""
        return sum(name.count for name in self.live)

    @property
    def size_bytes(self) -> int:
        return sum(name.size_bytes for name in self.live)

    @property
    def first_ms(self) -> int:
        """A lower bound of the due times of undelivered timers; -1 without one."""
        firsts = [max(name.first_ms, self.manifest.forgotten_ms) for name in self.live]
        return min(firsts, default=-1)

    @property
    def last_ms(self) -> int:
        return max((name.last_ms for name in self.live), default=-1)


def discover_timers(driver: TierDriver, scope: TierScope | None = None) -> list[TimerListing]:
    """Every broker's within the scope that has any, or a manifest of them; none for a scope of one topic."""
    scope = scope or TierScope()
    if scope.topic is not None:
        return []
    homes = set()
    for path in driver.list_objects(scope.prefix):
        parts = path.split("/")
        cluster = parts[0].partition("_")[2]
        if len(parts) > 3 and parts[2] == TIMERS_DIRECTORY and parts[0] == cluster_directory(cluster):
            homes.add((cluster, parts[1]))
    return [
        _listing_of(driver, cluster, broker)
        for cluster, broker in sorted(homes)
        if scope.cluster in (None, cluster) and scope.broker in (None, broker)
    ]


def _listing_of(driver: TierDriver, cluster: str, broker: str) -> TimerListing:
    path, directory = manifest_name(cluster, broker), timers_directory(cluster, broker)
    stored = driver.get_object(path)
    for _ in range(LOOKS_MAX):
        found = (timer_name_at(name, directory) for name in driver.list_objects(f"{directory}/"))
        listed = frozenset(name for name in found if name is not None)
        again = driver.get_object(path)
        if again == stored:
            break
        stored = again
    manifest, trouble = _manifest(stored, path)
    if stored is None and any(name.bucket is not None for name in listed):
        trouble = f"{path}: expected a manifest for the objects beside it, found none"
    live = manifest.live(listed) if not trouble else listed
    return TimerListing(cluster, broker, manifest, live, listed, trouble)


def _manifest(stored: StoredObject | None, path: str) -> tuple[TimerManifest, str]:
    if stored is None:
        return TimerManifest(), ""
    try:
        return decode_timer_manifest(stored.data, path), ""
    except (CorruptManifest, FutureManifest) as error:
        return TimerManifest(), str(error)


def timers_of(
    driver: TierDriver, listing: TimerListing, from_ms: int = 0, until_ms: int = NEVER_MS
) -> Iterator[TieredTimer | DamagedTimer]:
    """The timers due in [from, until), object by object; those that are known to be delivered are left out.

    Raises CorruptTimers for an object that cannot be read at all, and what the driver raises.
    """
    from_ms = max(from_ms, listing.manifest.forgotten_ms)
    for name in listing.objects:
        if name.overlaps(from_ms, until_ms):
            path = name.path(listing.directory)
            stored = driver.get_object(path)
            if stored is None:
                raise CorruptTimers(f"{path}: expected an object, found none; it went since it was listed, or is lost")
            yield from TimerObject(stored.data, path).timers(from_ms, until_ms)


def verify_timers(driver: TierDriver, listing: TimerListing, report: VerifyReport) -> None:
    """Read every object that counts, and call the report. Raises what the driver raises."""
    if listing.trouble:
        report.problem(Problem.MANIFEST, manifest_name(listing.cluster, listing.broker), listing.trouble)
    for name in listing.objects:
        _verify_object(driver, listing, name, report)
    for name in sorted(listing.manifest.damaged & listing.listed, key=lambda name: name.serial):
        text = f"some of its {name.count} timers were due and could not be read; look at it, then delete it"
        report.problem(Problem.DAMAGED_TIMERS, name.path(listing.directory), text)
    for name in sorted(listing.listed - listing.live - listing.manifest.damaged, key=lambda name: name.serial):
        report.note(Note.UNREFERENCED, name.path(listing.directory), "timers that were rewritten to another object")


def _verify_object(driver: TierDriver, listing: TimerListing, name: TimerName, report: VerifyReport) -> None:
    path = name.path(listing.directory)
    stored = driver.get_object(path)
    if stored is None:
        if _listing_of(driver, listing.cluster, listing.broker).live.isdisjoint({name}):
            report.note(Note.CHANGED_MEANWHILE, path, "it was rewritten or delivered while it was read")
        else:
            report.problem(Problem.MISSING_TIMERS, path, f"its {name.count} timers are lost")
        return
    report.count("timer_objects")
    report.count("bytes", len(stored.data))
    try:
        found = TimerObject(stored.data, path)
    except CorruptTimers as error:
        report.problem(Problem.DAMAGED_TIMERS, path, str(error))
        return
    if (len(found), found.first_ms, found.last_ms) != (name.count, name.first_ms, name.last_ms):
        text = f"its name has {name.count} timers from {name.first_ms} to {name.last_ms}, it has {len(found)}"
        report.problem(Problem.DAMAGED_TIMERS, path, f"{text} from {found.first_ms} to {found.last_ms}")
    for timer in found.timers(0, NEVER_MS):
        report.count("timers")
        if isinstance(timer, DamagedTimer):
            report.problem(Problem.DAMAGED_TIMERS, path, timer.text)


def waiting_in_tier(
    driver: TierDriver, listing: TimerListing, now_ms: int, precision_ms: int = PRECISION_MS
) -> Iterator[WaitingTimer]:
    """What waits in a broker's tier and was not cancelled, object by object.

    Damaged timers are skipped: `verify_timers` reports them. Raises CorruptTimers for an object that cannot be
    read at all, and what the driver raises.
    """
    cancelled = {
        (deliver_ms, cancel_key(message)) for deliver_ms, is_delete, message in _messages(driver, listing) if is_delete
    }
    for deliver_ms, is_delete, message in _messages(driver, listing):
        key = own_key(message)
        if is_delete or deliver_ms + precision_ms <= now_ms or (key is not None and (deliver_ms, key) in cancelled):
            continue
        yield described(message, precision_ms)


def _messages(driver: TierDriver, listing: TimerListing) -> Iterator[tuple[int, bool, StoredMessage]]:
    for timer in timers_of(driver, listing):
        if isinstance(timer, TieredTimer):
            try:
                yield timer.deliver_ms, timer.is_delete, decode_record(timer.record)
            except CorruptRecord:
                continue  # A record that was damaged before it came here; the wheel passes it over, too.

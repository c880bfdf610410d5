"""Names of timer objects. A name says what is inside, so that a listing alone is enough to know what waits.

    <cluster dir>/<broker>/timers.tiermq/manifest.tiermq.json
                                         new/<facts>.tiermq.timers               a flush, of any days, not yet sorted
                                         2027-01-02/all_<facts>.tiermq.timers    a day; parts: 15_, 15.04_, 15.04.05_
    <facts>   <serial, 12 digits>_<timers>_<bytes>_<first due, ms>_<last due, ms>

The directory has a dot in its name, so it is no topic's. Serial numbers grow over all objects of a broker; two objects
with one number come from two writers, of which one was refused.
Invariant: `parse(name.path) == name`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.delivery.far.timer_buckets import Bucket, parse_bucket
from tiermq.tier.names import OBJECT_SUFFIX, TIMERS_SUFFIX, broker_directory

DIRECTORY = "timers.tiermq"
NEW = "new"
SERIAL_DIGITS = 12


def timers_directory(cluster: str, broker: str) -> str:
    """Everything about a broker's far timers lies below it."""
    return f"{broker_directory(cluster, broker)}/{DIRECTORY}"


def manifest_name(cluster: str, broker: str) -> str:
    """The name of the document that says which objects count."""
    return f"{timers_directory(cluster, broker)}/manifest{OBJECT_SUFFIX}"


@dataclass(frozen=True, slots=True)
class TimerName:
    """One timer object. `bucket` is None for a flush that was not sorted into buckets yet."""

    serial: int
    count: int
    size_bytes: int
    first_ms: int
    last_ms: int
    bucket: Bucket | None = None

    @property
    def text(self) -> str:
        """The name within the broker's directory of timers, without the suffix."""
        facts = f"{self.serial:0{SERIAL_DIGITS}d}_{self.count}_{self.size_bytes}_{self.first_ms}_{self.last_ms}"
        return f"{NEW}/{facts}" if self.bucket is None else f"{self.bucket.text}_{facts}"

    def path(self, directory: str) -> str:
        """The name in the tier."""
        return f"{directory}/{self.text}{TIMERS_SUFFIX}"

    def overlaps(self, from_ms: int, until_ms: int) -> bool:
        """Whether one of its timers can be due in [from, until)."""
        return self.first_ms < until_ms and self.last_ms >= from_ms


def parse_timer_name(text: str) -> TimerName | None:
    """The object whose text this is, or None when it is no timer object's."""
    where, _, file = text.rpartition("/")
    bucket = None
    if where != NEW:
        time, _, file = file.partition("_")
        bucket = parse_bucket(f"{where}/{time}")
        if bucket is None:
            return None
    facts = file.split("_")
    if len(facts) != 5 or not all(fact.isascii() and fact.isdigit() for fact in facts):
        return None
    serial, count, size_bytes, first_ms, last_ms = map(int, facts)
    name = TimerName(serial, count, size_bytes, first_ms, last_ms, bucket)
    # Written out again it must be the same: that refuses other spellings of a number.
    return name if name.text == text else None


def timer_name_at(path: str, directory: str) -> TimerName | None:
    """The object at a path of the tier, or None."""
    if not (path.startswith(f"{directory}/") and path.endswith(TIMERS_SUFFIX)):
        return None
    return parse_timer_name(path[len(directory) + 1 : -len(TIMERS_SUFFIX)])

"""Offsets of groups as they were: points of a day, in one object for each broker and day, beside its tables.

    <cluster dir>/<broker>/state-offsets-2026-01-31.tiermq.json

    {"body":{"day":"2026-01-31","epoch":7,"points":[{"changed":{"orders@audit":{"0":41}},"gone":[],"takenMs":…},…],
     "writer":"host:/store"},"crc32":…,"version":2}

The first point of a day has the whole table, and each further one what changed since the one before it.

Invariants: points ascend in time; written by the holder of the broker's lease only, by compare-and-set. Days (UTC) are
never changed afterwards, and nothing deletes them.

Cost: a PUT every ten minutes in which a group committed, or every hour beyond OFTEN_BYTES_MAX of a day, and one when
the broker ends; one GET for each process and day. Nothing else reads them than a reader who asks how things were.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tiermq.clock import HOUR_MS
from tiermq.errors import ManifestConflict
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import CorruptManifest, number_field, open_document, seal_document
from tiermq.tier.metadata.manifest_store import WriterLease
from tiermq.tier.names import broker_of_state, state_object

VERSION = 2
EVERY_MS = 600_000
OFTEN_BYTES_MAX = 1 << 20
DAY_MS = 24 * HOUR_MS
DAYS_BACK = 2
"""A broker writes its offsets every hour at least, so with a point older than a day it was not running."""
REMEDY = "how offsets were on that day is not known"
Offsets = dict[str, dict[str, int]]
"""`topic@group` → queue → offset, as RocketMQ's table of offsets has it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetPoint:
    """All offsets of one broker at one time."""

    taken_ms: int
    offsets: Offsets


def day_of(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, tz=UTC).strftime("%Y-%m-%d")


def day_object(cluster: str, broker: str, moment_ms: int) -> str:
    return state_object(cluster, broker, f"offsets-{day_of(moment_ms)}")


def is_day_object(name: str) -> bool:
    return broker_of_state(name) is not None and "/state-offsets-" in name


class OffsetHistory:
    """Adds points to the object of the day. One thread at a time; the caller holds the lease and has checked it."""

    def __init__(self, driver: TierDriver, cluster: str, broker: str, lease: WriterLease, writer: str) -> None:
        self._driver = driver
        self._home = (cluster, broker)
        self._lease = lease
        self._writer = writer
        self._name = ""
        self._version: str | None = None
        self._points: list[dict[str, Any]] = []
        self._last: Offsets = {}
        self._bytes = 0

    def add(self, table: Mapping[str, Mapping[str, int]], now_ms: int, *, is_last: bool = False) -> bool:
        """Add a point if one is due, or the broker ends. Raises TierError; nothing is added then, and the next call
        tries again.
        """
        name = day_object(*self._home, now_ms)
        if name != self._name:
            self._read(name)
        every_ms = EVERY_MS if self._bytes < OFTEN_BYTES_MAX else HOUR_MS
        if self._points and not is_last and now_ms - self._points[-1]["takenMs"] < every_ms:
            return False
        wanted = {
            key: {str(queue): offset for queue, offset in each.items()}
            for key, each in table.items()
            if isinstance(each, Mapping)
        }
        if is_last and self._points and wanted == self._last:
            return False
        point = {
            "takenMs": now_ms,
            "changed": {key: each for key, each in wanted.items() if self._last.get(key) != each},
            "gone": sorted(self._last.keys() - wanted.keys()),
        }
        points = [*self._points, point]
        body = {"day": day_of(now_ms), "epoch": self._lease.epoch, "points": points, "writer": self._writer}
        data = seal_document(body, VERSION)
        try:
            self._version = self._driver.put_object(name, data, expected=self._version)
        except ManifestConflict:
            self._name = ""  # Another writer of this broker had the lease before: its points are read at the next call.
            return False
        self._points, self._last, self._bytes = points, wanted, len(data)
        return True

    def _read(self, name: str) -> None:
        stored = self._driver.get_object(name)
        self._points, self._last, self._version, self._bytes = [], {}, None, 0
        if stored is not None:
            self._version, self._bytes = stored.version, len(stored.data)
            try:
                self._points = points_in(stored.data, name)
            except CorruptManifest as error:
                _log.error("the offsets of this day are written again: %s", error)
            for point in _replayed(self._points):
                self._last = point.offsets
        self._name = name


def points_in(data: bytes, name: str) -> list[dict[str, Any]]:
    """The points of a day as they are stored. Raises CorruptManifest, FutureManifest."""
    body = open_document(data, name, VERSION, REMEDY)
    points = body.get("points")
    try:
        if not isinstance(points, list):
            raise TypeError("no points")
        for point in points:
            number_field(point, "takenMs")
            if not isinstance(point["changed"], dict) or not isinstance(point["gone"], list):
                raise TypeError("a point that is none")
    except (TypeError, LookupError, ValueError) as error:
        raise CorruptManifest(f"{name}: expected the offsets of a day, found {error}; {REMEDY}") from error
    return points


def _replayed(points: list[dict[str, Any]]) -> Iterator[OffsetPoint]:
    offsets: Offsets = {}
    for point in points:
        offsets = {**offsets, **point["changed"]}
        for key in point["gone"]:
            offsets.pop(key, None)
        yield OffsetPoint(point["takenMs"], offsets)


def points_of_day(driver: TierDriver, cluster: str, broker: str, moment_ms: int) -> list[OffsetPoint]:
    """The points of the day of a time, oldest first. One GET. Raises CorruptManifest, FutureManifest, TierError."""
    name = day_object(cluster, broker, moment_ms)
    stored = driver.get_object(name)
    return [] if stored is None else list(_replayed(points_in(stored.data, name)))


def offsets_at(driver: TierDriver, cluster: str, broker: str, moment_ms: int) -> OffsetPoint | None:
    """The last point at a time or before it; None where nothing is known. Raises as `points_of_day`."""
    for back in range(DAYS_BACK):
        found = [
            each
            for each in points_of_day(driver, cluster, broker, moment_ms - back * DAY_MS)
            if each.taken_ms <= moment_ms
        ]
        if found:
            return found[-1]
    return None

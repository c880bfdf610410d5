"""The journal of a table: one small document per commit, in `_tiermq/` beneath it.

    <table>/_tiermq/commits/<number>.tiermq.json    what a commit added, and every range that the table has with it
    <table>/_tiermq/staging/…                       files that a commit will move or merge into the table
    <table>/_tiermq/deleted/…                       of an upserted table: the keys that were deleted, by bucket

The transaction that adds the files stores the number of the last commit in the table. So a document counts once
the table points to it: a document of a failed commit is never read, and removed after a day.
A number is a sequence above 31 random bits: no two runs ever write the same document.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tiermq.errors import FutureManifest, TableConflict
from tiermq.history.time_ranges import OffsetRange, subtract
from tiermq.tables.data_place import DataPlace
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import OBJECT_SUFFIX, QueueKey


class ExportedRanges:
    """Messages that a table has: ranges of queue offsets, by queue. So each message is exported once.

    As JSON: {"cluster/broker/topic/queue": [[from, to], …]}, ranges ascending, disjoint and never empty. Names have no
    slash, so the text of a queue is unique. Changed by its owner only; other users take a `copy`.
    """

    def __init__(self, ranges: dict[QueueKey, list[OffsetRange]] | None = None) -> None:
        self._ranges: dict[QueueKey, list[OffsetRange]] = {}
        for queue, each in (ranges or {}).items():
            for begin, end in each:
                self.add(queue, begin, end)

    def add(self, queue: QueueKey, begin: int, end: int) -> None:
        """Add ranges of the table; adjacent ones are joined."""
        if begin >= end:
            return
        merged: list[OffsetRange] = []
        for low, high in sorted([*self._ranges.get(queue, ()), (begin, end)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        self._ranges[queue] = merged

    def remove(self, queue: QueueKey, begin: int, end: int) -> None:
        """Remove ranges: the next run exports them again."""
        if begin >= end:
            return
        left = subtract(self._ranges.get(queue, ()), (begin, end))
        if left:
            self._ranges[queue] = left
        else:
            self._ranges.pop(queue, None)

    def missing(self, queue: QueueKey, begin: int, end: int) -> list[OffsetRange]:
        """What of [begin, end) the table has not."""
        left = [(begin, end)] if begin < end else []
        for each in self._ranges.get(queue, ()):
            left = subtract(left, each)
        return left

    def overlaps(self, queue: QueueKey, begin: int, end: int) -> bool:
        return self.missing(queue, begin, end) != ([(begin, end)] if begin < end else [])

    def end(self, queue: QueueKey) -> int | None:
        """The end of a queue's last range; None without one."""
        found = self._ranges.get(queue)
        return found[-1][1] if found else None

    def queues(self) -> list[QueueKey]:
        return sorted(self._ranges)

    def of(self, queue: QueueKey) -> list[OffsetRange]:
        return list(self._ranges.get(queue, ()))

    @property
    def messages(self) -> int:
        return sum(end - begin for each in self._ranges.values() for begin, end in each)

    def copy(self) -> ExportedRanges:
        return ExportedRanges(self._ranges)

    def as_json(self) -> dict[str, list[list[int]]]:
        return {queue_text(queue): [list(each) for each in self._ranges[queue]] for queue in self.queues()}

    @classmethod
    def of_json(cls, document: dict[str, Any]) -> ExportedRanges:
        return cls({queue_of(text): [(int(low), int(high)) for low, high in each] for text, each in document.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExportedRanges) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment] # It changes.


def queue_text(queue: QueueKey) -> str:
    return f"{queue.cluster}/{queue.broker}/{queue.topic}/{queue.queue_id}"


def queue_of(text: str) -> QueueKey:
    cluster, broker, topic, number = text.split("/")
    return QueueKey(cluster, broker, topic, int(number))


def total(ranges: Iterable[OffsetRange]) -> int:
    return sum(end - begin for begin, end in ranges)


FOLDER = "_tiermq"
STAGING = f"{FOLDER}/staging"
GRAVES = f"{FOLDER}/deleted"
FORMAT = 1
FORMAT_OF_UPSERTS = 2
"""Of tables that a program which only appends must not write to."""
UPSERT = "upsert"
DELETED_KEYS = "deletedKeys"
"""Names in `Commit.details`: the rule of a table that is upserted, and its files of deleted keys by bucket."""
KEPT_COMMITS = 100
ORPHAN_AGE_MS = 24 * 3600 * 1000
_RANDOM_BITS = 31


def next_number(number: int) -> int:
    """A number for the commit after this one."""
    return (((number >> _RANDOM_BITS) + 1) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


@dataclass(frozen=True, slots=True)
class Move:
    """A staged file and its final name: a name in the table, or in the table of bad rows."""

    staged: str
    name: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """One document. `ranges` are all that the table has with this commit; the rest is of this commit alone."""

    number: int
    ranges: ExportedRanges
    schema: pa.Schema
    files: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    rows: int = 0
    bad_rows: int = 0
    made_ms: int = 0
    details: dict[str, str] = field(default_factory=dict)

    @property
    def deleted_keys(self) -> dict[int, str]:
        """The files of deleted keys, by bucket."""
        return {int(bucket): name for bucket, name in json.loads(self.details.get(DELETED_KEYS, "{}")).items()}

    def encode(self) -> bytes:
        document = {
            "format": FORMAT_OF_UPSERTS if UPSERT in self.details else FORMAT,
            "number": self.number,
            "madeMs": self.made_ms,
            "rows": self.rows,
            "badRows": self.bad_rows,
            "files": list(self.files),
            "moves": [[each.staged, each.name, each.is_bad] for each in self.moves],
            "ranges": self.ranges.as_json(),
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "details": self.details,
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Commit:
        document = json.loads(data)
        if document.get("format") not in (FORMAT, FORMAT_OF_UPSERTS):
            raise FutureManifest(
                f"a commit of this table has format {document.get('format')!r}, this program knows "
                f"{FORMAT_OF_UPSERTS}; use the program that wrote it"
            )
        return cls(
            document["number"],
            ExportedRanges.of_json(document["ranges"]),
            pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"]))),
            tuple(document["files"]),
            tuple(Move(*each) for each in document["moves"]),
            document["rows"],
            document["badRows"],
            document["madeMs"],
            document["details"],
        )


class CommitJournal:
    """The documents of one table. Belongs to one thread; close it."""

    def __init__(self, place: DataPlace, driver: TierDriver | None = None) -> None:
        place.require_credentials()
        self.place = place
        self._driver = driver or open_driver(f"{place.url}/{FOLDER}")

    @property
    def driver(self) -> TierDriver:
        """Small documents beneath `_tiermq`, with versions."""
        return self._driver

    def read(self, number: int) -> Commit:
        """Raises TableConflict when the table points to a document that is not here."""
        found = self._driver.get_object(_name(number))
        if found is None:
            raise TableConflict(
                f"{self.place.url}: the table's last commit is {number}, and {FOLDER}/{_name(number)} is not there: "
                "which messages the table has is not known any more. Put that file back, or export into a new table"
            )
        return Commit.decode(found.data)

    def write(self, commit: Commit) -> None:
        self._driver.put_object(_name(commit.number), commit.encode(), expected=None)

    def sweep(self, current: int, now_ms: int) -> None:
        """Remove documents that are not needed: long before the current one, or beside it and a day old.

        Staged files and deleted keys without a commit go too, after a day: a running export may need them.
        """
        names = self._driver.list_objects("commits/")
        numbers = sorted(int(name.removeprefix("commits/").removesuffix(OBJECT_SUFFIX)) for name in names)
        kept = [number for number in numbers if number < current][-KEPT_COMMITS:]
        for number in numbers:
            if number < current and number not in kept:
                self._driver.delete_object(_name(number))
            elif number > current:
                found = self._driver.get_object(_name(number))
                if found is not None and Commit.decode(found.data).made_ms < now_ms - ORPHAN_AGE_MS:
                    self._driver.delete_object(_name(number))
        kept_files = set(self.read(current).deleted_keys.values()) if current else set()
        for file in (*self.place.files(STAGING), *self.place.files(GRAVES)):
            if file.modified_ms < now_ms - ORPHAN_AGE_MS and file.name not in kept_files:
                self.place.remove(file.name)

    def close(self) -> None:
        self._driver.close()


def _name(number: int) -> str:
    return f"commits/{number:020d}{OBJECT_SUFFIX}"

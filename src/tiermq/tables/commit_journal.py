"""The journal of a table: one small document per commit, in `_tiermq/` beneath it.

    <table>/_tiermq/commits/<number>.tiermq.json    what a commit added, and every range that the table has with it
    <table>/_tiermq/staging/…                       files that a commit will move to their places

The table itself names, in the transaction that adds the files, the number of its last commit. So a document counts once
the table points to it: one whose commit did not come to be is found by nobody, and removed after a day.
A number is a sequence above 31 random bits: no two runs ever write the same document.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field

import pyarrow as pa

from tiermq.errors import FutureManifest, TableConflict
from tiermq.spark.tables.data_place import DataPlace
from tiermq.spark.tables.exported_ranges import ExportedRanges
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import OBJECT_SUFFIX

FOLDER = "_tiermq"
STAGING = f"{FOLDER}/staging"
FORMAT = 1
KEPT_COMMITS = 100
ORPHAN_AGE_MS = 24 * 3600 * 1000
_RANDOM_BITS = 31


def next_number(number: int) -> int:
    """A number for the commit after this one."""
    return (((number >> _RANDOM_BITS) + 1) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


@dataclass(frozen=True, slots=True)
class Move:
    """A staged file of the table's place and what it becomes: a name in the table, or in the table of bad rows."""

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

    def encode(self) -> bytes:
        document = {
            "format": FORMAT,
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
        if document.get("format") != FORMAT:
            raise FutureManifest(
                f"a commit of this table has format {document.get('format')!r}, this program knows {FORMAT}; use the "
                "program that wrote it"
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
        """Remove documents that nobody needs: long before the current one, or beside it and a day old.

        Staged files that no commit will move go too, after a day: a run that is still at work may want them.
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
        for file in self.place.files(STAGING):
            if file.modified_ms < now_ms - ORPHAN_AGE_MS:
                self.place.remove(file.name)

    def close(self) -> None:
        self._driver.close()


def _name(number: int) -> str:
    return f"commits/{number:020d}{OBJECT_SUFFIX}"

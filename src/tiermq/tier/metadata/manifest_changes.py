"""Which manifests of a broker have changed lately: one small object, so that a broker that follows a job asks once.

`<cluster dir>/<broker>/changes.tiermq.json`, written by jobs that have no access to the broker's own metadata, under
the lease of messages, after the manifests that it names:

    serial   of this publication; never falls, also when the object was lost
    since    what was changed up to this serial is not listed: a reader that knows less reads all manifests
    queues   [topic, queue id, serial of its last change], at most QUEUES_MAX
    bundles  the serial of the last publication after a job wrote bundles, whose notes are newer than manifests; 0: none
    index    the segments of the key index, which needs no manifest; null: not known
    epoch    of the writer's lease, and whether the writer ended regularly (`closed`)

A job that ends regularly has published all that it changed. The next one continues the list if its epoch is the next
one: otherwise another process has held the lease in between and did not publish, and all manifests count as changed.

Cost: a publication is one GET (of the lease) and one PUT; a reader's look is one GET, and one for each changed queue.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tiermq.clock import Clock
from tiermq.errors import ManifestConflict
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import (
    CorruptManifest,
    items_field,
    natural_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.metadata.manifest import decode_segment, encode_segment
from tiermq.tier.metadata.manifest_store import WriterLease
from tiermq.tier.metadata.metadata_store import MetadataStore, SegmentSize
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, Segment
from tiermq.tier.names import OBJECT_SUFFIX, QueueKey, QueueName, broker_directory, index_queue

CHANGES_VERSION = 1
QUEUES_MAX = 1_000
REMEDY = "the next job writes it again; until then all manifests are read"
NOTE_REMEDY = "what its queue has is known by its manifest, which is behind by up to 64 KiB"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ManifestChanges:
    """See the module."""

    serial: int = 0
    since: int = 0
    epoch: int = 0
    is_closed: bool = False
    queues: dict[QueueName, int] = field(default_factory=dict)
    index: tuple[Segment, ...] | None = None
    bundles: int = 0

    def after(self, seen: int | None) -> set[QueueName] | None:
        """The queues that changed after the publication `seen`; None: perhaps any."""
        if seen is None or not self.since <= seen <= self.serial:
            return None
        return {name for name, serial in self.queues.items() if serial > seen}

    def with_changes(self, changed: Iterable[QueueName], serial: int) -> ManifestChanges:
        """The next publication. What does not fit is left to `since`."""
        queues = {**self.queues, **dict.fromkeys(changed, serial)}
        newest = sorted(queues, key=lambda name: (-queues[name], name))
        since = max([self.since, *(queues[name] for name in newest[QUEUES_MAX:])])
        return replace(self, serial=serial, since=since, queues={name: queues[name] for name in newest[:QUEUES_MAX]})


def changes_name(cluster: str, broker: str) -> str:
    """The name of the object in the tier."""
    return f"{broker_directory(cluster, broker)}/changes{OBJECT_SUFFIX}"


def encode_changes(changes: ManifestChanges) -> bytes:
    """Its one form as bytes."""
    body = {
        "closed": changes.is_closed,
        "epoch": changes.epoch,
        "index": None if changes.index is None else [encode_segment(segment) for segment in changes.index],
        "queues": [[*name, serial] for name, serial in sorted(changes.queues.items())],
        "serial": changes.serial,
        "since": changes.since,
        **({"bundles": changes.bundles} if changes.bundles else {}),
    }
    return seal_document(body, CHANGES_VERSION)


def decode_changes(data: bytes, name: str, index: QueueKey) -> ManifestChanges:
    """The changes in `data`. Raises FutureManifest or CorruptManifest."""
    body = open_document(data, name, CHANGES_VERSION, REMEDY)
    try:
        rows = None if body["index"] is None else items_field(body, "index")
        queues = {}
        for topic, queue_id, serial in items_field(body, "queues"):
            key = QueueKey(index.cluster, index.broker, topic, queue_id)
            queues[key.name] = natural_field({"serial": serial}, "serial")
        return ManifestChanges(
            natural_field(body, "serial"),
            natural_field(body, "since"),
            natural_field(body, "epoch"),
            bool(body["closed"]),
            queues,
            None if rows is None else tuple(decode_segment(index, row) for row in rows),
            natural_field(body, "bundles") if "bundles" in body else 0,
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(name, f"a body that lists no changes ({type(error).__name__}: {error})", REMEDY)


def read_changes(driver: TierDriver, cluster: str, broker: str) -> ManifestChanges | None:
    """What was published last, or None. Raises FutureManifest, CorruptManifest, and what the driver raises."""
    name = changes_name(cluster, broker)
    stored = driver.get_object(name)
    return None if stored is None else decode_changes(stored.data, name, index_queue(cluster, broker))


# Notes: what a commit of a job made of a quiet queue, kept in a bundle. They are what a manifest would say, for brokers
# that follow; a manifest is written for each 64 KiB only.


def grown(row: Segment, size: SegmentSize) -> Segment:
    """The row after a commit."""
    return replace(
        row,
        size=size.size,
        begin_ms=size.begin_ms,
        end_ms=size.end_ms,
        crc32=size.crc32,
        begin_offset=row.begin_offset if size.begin_offset is None else size.begin_offset,
        end_offset=row.end_offset if size.end_offset is None else size.end_offset,
        sums=size.sums,
    )


def encode_note(queue: QueueKey, rows: Iterable[Segment]) -> str:
    """The last segments of the queue. Text, since a job holds one for each quiet queue."""
    note = {"queue": queue.queue_id, "segments": [encode_segment(row) for row in rows], "topic": queue.topic}
    return json.dumps(note, separators=(",", ":"))


def decode_note(cluster: str, broker: str, note: str) -> list[Segment]:
    """Raises CorruptManifest."""
    try:
        body = json.loads(note)
        queue = QueueKey(cluster, broker, text_field(body, "topic"), natural_field(body, "queue"))
        return [decode_segment(queue, item) for item in items_field(body, "segments")]
    except (ValueError, TypeError, LookupError) as error:
        refuse_document("a note in a bundle", f"a body that is none ({type(error).__name__}: {error})", NOTE_REMEDY)


def take_notes(metadata: MetadataStore, cluster: str, broker: str, notes: Iterable[str]) -> None:
    """Let segments that the metadata know grow to what notes have of them. One that was created again is another.

    A note that cannot be read is logged: its queue is known by its manifest, and all others are followed.
    """
    for note in notes:
        sizes, rows = [], list[Segment]()
        try:
            rows = decode_note(cluster, broker, note)
        except CorruptManifest as error:
            _log.error("%s", error)
        for new in rows:
            row = metadata.segment(new.key)
            if row is not None and row.created_ms == new.created_ms and row.size < new.size:
                sizes.append(
                    SegmentSize(
                        new.key, new.size, new.begin_ms, new.end_ms, new.crc32, _known(new.begin_offset),
                        _known(new.end_offset), new.sums,
                    )
                )  # fmt: skip
        if sizes:
            metadata.record_commit(sizes[0].key.queue, sizes)


def _known(offset: int) -> int | None:
    return None if offset == UNKNOWN_OFFSET else offset


class ChangePublisher:
    """Publishes the changes of one job that holds the broker's lease. Any thread may `note`; one publishes."""

    def __init__(self, driver: TierDriver, cluster: str, broker: str, lease: WriterLease, clock: Clock) -> None:
        self._driver = driver
        self._index = index_queue(cluster, broker)
        self._name = changes_name(cluster, broker)
        self._lease = lease
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: set[QueueName] = set()
        self._has_bundle = False
        self._published: ManifestChanges | None = None
        self._version: str | None = None

    def note(self, queue: QueueKey) -> None:
        """The queue's manifest was written or removed."""
        with self._lock:
            self._noted.add(queue.name)

    def note_bundle(self) -> None:
        """A bundle was written, with notes of what queues have now."""
        with self._lock:
            self._has_bundle = True

    def publish(self, index: Iterable[Segment] | None, *, is_last: bool = False) -> None:
        """Make known what was noted, and the index as it is. Raises StaleWriter, FutureManifest, TierError: then it is
        part of the next publication.
        """
        rows = None if index is None else tuple(index)
        with self._lock:
            noted, before = frozenset(self._noted), self._published or self._continued()
            has_bundle = self._has_bundle
            if self._published is not None and not (noted or has_bundle) and rows == before.index and not is_last:
                return
            if is_last and self._published is None and self._version is None and not noted:
                return  # Nothing was changed, and there is no list that the next job could continue.
            serial = max(before.serial + 1, self._clock.now_ms())
            if self._published is None and not before.is_closed:
                before = ManifestChanges(before.serial, serial, bundles=serial)
            bundles = serial if has_bundle else before.bundles
            published = replace(before, epoch=self._lease.epoch, is_closed=is_last, index=rows, bundles=bundles)
            published = published.with_changes((name for name in noted if name != self._index.name), serial)
            self._lease.check()
            self._put(encode_changes(published))
            self._published = published
            self._noted.clear()
            self._has_bundle = False

    def _continued(self) -> ManifestChanges:
        """What the job before has published; `is_closed` only when this one may continue it."""
        stored = self._driver.get_object(self._name)
        if stored is None:
            return ManifestChanges()
        self._version = stored.version
        try:
            found = decode_changes(stored.data, self._name, self._index)
        except CorruptManifest:
            return ManifestChanges()
        return replace(found, is_closed=found.is_closed and found.epoch + 1 == self._lease.epoch)

    def _put(self, data: bytes) -> None:
        try:
            self._version = self._driver.put_object(self._name, data, expected=self._version)
        except ManifestConflict:  # An earlier put of ours, whose answer was lost: the lease admits one writer.
            stored = self._driver.get_object(self._name)
            self._lease.check()
            expected = None if stored is None else stored.version
            self._version = self._driver.put_object(self._name, data, expected=expected)

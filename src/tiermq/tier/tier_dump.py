"""Any file of a tier as plain rows, for `tiermq dump`: what `store.inspect` is for a store directory.

The path determines the kind of a file:

    COMMIT_LOG/<8 hex + 20 digits>       records, end marks          also its parts: <that>.parts/<digits>[-<digits>]
    CONSUME_QUEUE/<8 hex + 20 digits>    units
    INDEX/<8 hex + 20 digits>            an uploaded, compacted index file; with its parts, where it has not ended yet
    …parts/<digits>, without bytes       the seal mark of a segment
    tiered_index_file/<digits>           an index file that is still open, on a broker's disk
    bundles.tiermq/<digits>[-<digits>]   a bundle: ranges of segments, and what it cuts; with those of chunks
    manifest.tiermq.json, lease.tiermq.json, <segment>.tiermq.json, keys-<id>.tiermq.json
    <any other>.tiermq.json              a document of ours: its body; such as a broker's tables

What a repair has put aside (`<name>.damaged-<time>…`) is no file of the tier any more.
Each row is a dict that JSON can hold, with `kind` and `file`. A damaged range is a row of kind `damage` with an
`error`; the scan continues behind it where that is possible. Nothing is written and no lock is taken.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tiermq.consumequeue.unit import PRE_BLANK, UNIT_BYTES, decode
from tiermq.errors import CorruptRecord, CorruptSegment, FutureManifest, StoreDamaged
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.record_head import HeadKind, read_head
from tiermq.store.readonly.mapped_run import ReadOnlyMap, is_zero
from tiermq.tier.driver.bundle import decode_directory
from tiermq.tier.driver.contract import ASIDE
from tiermq.tier.driver.part_log import PART_NAME, PARTS_SUFFIX, from_listing, part_object
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import (
    COMPACTED_SLOT,
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    OPEN_ITEM,
    OPEN_ITEM_BYTES,
    OPEN_SLOT,
    SLOT_BYTES,
    IndexItem,
    decode_header,
)
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY
from tiermq.tier.metadata.broker_lease import LEASE_FILES, decode_lease
from tiermq.tier.metadata.document import COUNT_MAX, CorruptManifest, open_document
from tiermq.tier.metadata.manifest import decode_manifest, encode_manifest
from tiermq.tier.metadata.manifest_changes import CHANGES_VERSION
from tiermq.tier.names import (
    BUNDLES_DIRECTORY,
    FILE_NAME_LENGTH,
    HASH_DIGITS,
    KEYS_STEM,
    OBJECT_SUFFIX,
    SegmentType,
    md5_8,
)
from tiermq.tier.queue.records import CODA, CODA_BYTES

Row = dict[str, Any]

TIER_ROW_KINDS = (
    "record", "end_mark", "unit", "pre_blank_unit", "tier_index_header", "tier_index_item", "manifest", "lease",
    "tier_index_part", "seal_mark", "staged_keys", "changes", "companion", "document", "bundle", "bundled_range",
    "bundle_cut", "damage",
)  # fmt: skip


class TierFileKind(enum.Enum):
    """What a file of a tier holds."""

    COMMIT_LOG = "commit_log"
    CONSUME_QUEUE = "consume_queue"
    INDEX = "index"
    OPEN_INDEX = "open_index"
    OBJECT = "object"
    BUNDLE = "bundle"


@dataclass(frozen=True, slots=True)
class TierFile:
    """One file: its path, its kind, and what its path states about its content."""

    path: Path
    kind: TierFileKind
    base: int = 0
    topic: str = ""
    queue_id: int = -1
    part: int | None = None
    """Where it begins in its segment; None where it is the whole one."""


def classify_tier_file(path: Path) -> TierFile | None:
    """The kind of the file at `path`, by its name alone; None when it is not a file of a tier."""
    path = path.absolute()
    if path.name.endswith(OBJECT_SUFFIX):
        is_aside = any(map(ASIDE.fullmatch, path.name.split(".")))
        return None if is_aside else TierFile(path, TierFileKind.OBJECT)
    if path.parent.name == INDEX_DIRECTORY and path.name.isdigit():
        return TierFile(path, TierFileKind.OPEN_INDEX)
    if path.parent.name == BUNDLES_DIRECTORY:
        return TierFile(path, TierFileKind.BUNDLE) if PART_NAME.fullmatch(path.name) else None
    position, segment = None, path
    part = PART_NAME.fullmatch(path.name)
    if part is not None and path.parent.name.endswith(PARTS_SUFFIX):
        position, segment = int(part[1]), path.parent.with_name(path.parent.name.removesuffix(PARTS_SUFFIX))
    folders = segment.parts
    if len(folders) < 5 or folders[-2] not in SegmentType.__members__ or len(segment.name) != FILE_NAME_LENGTH:
        return None
    digits = segment.name[HASH_DIGITS:]
    if not digits.isascii() or not digits.isdigit() or md5_8(str(int(digits))) != segment.name[:HASH_DIGITS]:
        return None
    queue_id = int(folders[-3]) if folders[-3].isdigit() else -1
    base = int(digits) + (position or 0)
    return TierFile(path, TierFileKind[folders[-2]], base, folders[-4], queue_id, position)


def list_tier_files(root: Path) -> list[TierFile]:
    """Every file of a tier under `root`, by path."""
    found = [classify_tier_file(path) for path in sorted(root.rglob("*")) if path.is_file()]
    return [file for file in found if file is not None]


def dump_tier(file: TierFile, name: str, *, slot_count: int | None = None) -> Iterator[Row]:
    """Rows of one file. `slot_count` is needed for an open index file of unusual shape."""
    try:
        with ReadOnlyMap(file.path) as opened:
            for row in _rows(opened.view, file, slot_count):
                yield {"kind": row.pop("kind"), "file": name, **row}
    except FileNotFoundError:
        return  # It expired between the listing and now.
    except (CorruptRecord, CorruptSegment, StoreDamaged, CorruptManifest, FutureManifest) as error:
        yield {"kind": "damage", "file": name, "error": str(error)}


def _bundle_rows(view: memoryview, file: TierFile) -> Iterator[Row]:
    directory = decode_directory(bytes(view), str(file.path))
    yield {"kind": "bundle", "session": directory.session, "fence": directory.is_fence, "bytes": len(view)}
    for cut in directory.cuts:
        yield {"kind": "bundle_cut", **cut._asdict()}
    for entry in directory.ranges:
        yield {"kind": "bundled_range", **entry._asdict()}
        segment = classify_tier_file(file.path.parent.parent / entry.segment)
        if segment is not None and segment.kind in (TierFileKind.COMMIT_LOG, TierFileKind.CONSUME_QUEUE):
            at = replace(segment, base=segment.base + entry.position)
            data = view if not entry.chunk else _chunk(file.path.with_name(entry.chunk))
            yield from _rows(data[entry.offset : entry.offset + entry.length], at, None)


def _chunk(path: Path) -> memoryview:
    """The bytes of a task's chunk, which are few. Raises CorruptSegment."""
    try:
        return memoryview(path.read_bytes())
    except FileNotFoundError:
        raise CorruptSegment(f"{path}: expected the chunk that a bundle names, found none") from None


def _rows(view: memoryview, file: TierFile, slot_count: int | None) -> Iterator[Row]:
    if file.part is not None and not len(view):
        place = {"topic": file.topic, "queue_id": file.queue_id, "position": file.part}
        return iter([{"kind": "seal_mark", "type": file.kind.value, **place}])
    if file.kind is TierFileKind.BUNDLE:
        return _bundle_rows(view, file)
    if file.kind is TierFileKind.OPEN_INDEX:
        return _open_index_rows(view, slot_count)
    if file.kind is TierFileKind.INDEX:
        return _compacted_rows(view) if file.part is None else _index_part_rows(view, file)
    if file.kind is TierFileKind.OBJECT:
        return _object_rows(bytes(view), file)
    return _record_rows(view, file) if file.kind is TierFileKind.COMMIT_LOG else _unit_rows(view, file)


def _damage(position: int, error: str) -> Row:
    return {"kind": "damage", "position": position, "error": error}


def _record_rows(view: memoryview, file: TierFile) -> Iterator[Row]:
    position = 0
    while position < len(view):
        head = read_head(view, position)
        offset = file.base + position
        if head.kind is HeadKind.BLANK and head.size == CODA_BYTES:
            newest_ms = CODA.unpack_from(view, position)[2]
            yield {"kind": "end_mark", "physical_offset": offset, "newest_store_timestamp_ms": newest_ms}
        elif head.kind is HeadKind.OK:
            try:
                # A checksum over the whole record covers its offset in the local store.
                message = decode_record(
                    view, position, expect_physical_offset=offset, crc_property=CrcPropertyCheck.IGNORE
                )
                yield {"kind": "record", **message.to_dict()}
            except CorruptRecord as error:
                yield {**_damage(position, str(error)), "physical_offset": offset}
        else:
            yield {**_damage(position, head.reason or "an end mark of another size"), "physical_offset": offset}
            if head.size <= 0 or read_head(view, position + head.size).kind is not HeadKind.OK:
                return
        position += head.size


def _unit_rows(view: memoryview, file: TierFile) -> Iterator[Row]:
    for position in range(0, len(view), UNIT_BYTES):
        place = {
            "topic": file.topic,
            "queue_id": file.queue_id,
            "queue_offset": (file.base + position) // UNIT_BYTES,
        }
        if view[position : position + UNIT_BYTES] == PRE_BLANK:
            yield {"kind": "pre_blank_unit", **place}
            continue
        try:
            yield {"kind": "unit", **place, **decode(view, position)._asdict()}
        except CorruptRecord as error:
            yield {**_damage(position, str(error)), **place}


def _item_row(number: int, item: IndexItem, begin_ms: int) -> Row:
    return {"kind": "tier_index_item", "number": number, **item._asdict(), "store_ms": begin_ms + item.seconds * 1000}


def _index_part_rows(view: memoryview, file: TierFile) -> Iterator[Row]:
    """One object of an index file that is not merged into one yet; after the first one what all of them have.

    Before the seal mark is there, an upload is under way, or was interrupted.
    """
    yield {"kind": "tier_index_part", "position": file.part, "bytes": len(view)}
    if file.part:
        return
    directory = file.path.parent
    segment = str(directory).removesuffix(PARTS_SUFFIX)
    listed = [part_object(segment, str(path), path.stat().st_size) for path in directory.iterdir()]
    log = from_listing(segment, filter(None, listed))
    if log.marked:
        data = bytearray()
        for part in log.objects:
            data += Path(part.path(segment)).read_bytes()[len(data) - part.position :]
        yield from _compacted_rows(memoryview(data))


def _compacted_rows(view: memoryview) -> Iterator[Row]:
    header = decode_header(view)
    slots, rest = divmod(len(view) - HEADER_BYTES - ITEM_BYTES * header.item_count, SLOT_BYTES)
    yield {"kind": "tier_index_header", "form": "compacted", **header._asdict(), "slots": slots}
    if slots <= 0 or rest:
        yield _damage(0, f"{len(view)} bytes do not hold {header.item_count} items and whole slots")
        return
    first = expected = HEADER_BYTES + SLOT_BYTES * slots
    for slot in range(slots):
        at = HEADER_BYTES + SLOT_BYTES * slot
        position, length = COMPACTED_SLOT.unpack_from(view, at)
        if position != expected or length < 0 or length % ITEM_BYTES or position + length > len(view):
            yield _damage(at, f"slot {slot}: expected items at {expected}, found {position} and {length} bytes")
            return
        for place in range(position, position + length, ITEM_BYTES):
            item = IndexItem._make(ITEM.unpack_from(view, place))
            yield {**_item_row((place - first) // ITEM_BYTES, item, header.begin_ms), "slot": slot}
        expected = position + length


def _open_index_rows(view: memoryview, slot_count: int | None) -> Iterator[Row]:
    header = decode_header(view)
    slots = slot_count or _guessed_slots(len(view))
    if slots is None or HEADER_BYTES + SLOT_BYTES * slots + OPEN_ITEM_BYTES > len(view):
        raise CorruptRecord(
            f"expected a file of 28 + 8*slots + 32*items bytes, found {len(view)}; give the number of slots (--slots)"
        )
    yield {"kind": "tier_index_header", "form": "open", **header._asdict(), "slots": slots}
    first = HEADER_BYTES + SLOT_BYTES * slots
    capacity = (len(view) - first) // OPEN_ITEM_BYTES
    for number in range(1, min(header.item_count, capacity - 1) + 1):
        *values, previous = OPEN_ITEM.unpack_from(view, first + OPEN_ITEM_BYTES * number)
        row = _item_row(number, IndexItem._make(values), header.begin_ms)
        yield {**row, "previous": previous, "slot": values[0] % slots}
        if previous >= number or previous < 0:
            yield _damage(
                first + OPEN_ITEM_BYTES * number, f"item {number} follows item {previous}: chains only go back"
            )
    if header.item_count >= capacity:
        yield _damage(24, f"its header counts {header.item_count} items, its capacity is {capacity - 1}")
    yield from _slot_damage(view, slots, header.item_count)


def _slot_damage(view: memoryview, slots: int, item_count: int) -> Iterator[Row]:
    if is_zero(view, HEADER_BYTES, HEADER_BYTES + SLOT_BYTES * slots):
        return
    for slot in range(slots):
        at = HEADER_BYTES + SLOT_BYTES * slot
        (number,) = OPEN_SLOT.unpack_from(view, at)
        if not 0 <= number <= item_count:
            yield _damage(at, f"slot {slot} leads to item {number}, there are {item_count}")


def _guessed_slots(size: int) -> int | None:
    """RocketMQ's default shape, or four items for each slot."""
    for slots in (5_000_000, (size - HEADER_BYTES) // (SLOT_BYTES + 4 * OPEN_ITEM_BYTES)):
        if slots > 0 and HEADER_BYTES + SLOT_BYTES * slots + OPEN_ITEM_BYTES * 4 * slots == size:
            return slots
    return None


def _object_rows(data: bytes, file: TierFile) -> Iterator[Row]:
    name = file.path.name
    if name == f"manifest{OBJECT_SUFFIX}":
        body = json.loads(encode_manifest(decode_manifest(data, name)))["body"]
        yield {"kind": "manifest", **body}
    elif name in LEASE_FILES.values():
        yield {"kind": "lease", **asdict(decode_lease(data, name))}
    elif name == f"changes{OBJECT_SUFFIX}":
        yield {"kind": "changes", **open_document(data, name, CHANGES_VERSION)}
    elif name.startswith(KEYS_STEM):
        yield {"kind": "staged_keys", "keys": len(data) // COLLECTED_KEY_BYTES, "bytes": len(data)}
    elif file.path.parent.name in (SegmentType.INDEX.name, INDEX_DIRECTORY):
        CoverageRecord.decode(data, name)
        yield {"kind": "companion", "content": json.loads(data)}
    else:
        yield {"kind": "document", "content": open_document(data, name, COUNT_MAX)}

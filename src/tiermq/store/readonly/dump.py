"""Any file of a store directory as plain rows, for `tiermq dump`.

Each row is a dict that JSON can hold, with `kind` and `file`. Damage is a row of kind `damage` with an `error`; the
scan continues behind it where that is possible. Nothing is written, no lock is taken, and a file that is
being written is read up to where it has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiermq.consumequeue import batch_unit, ext_unit, unit
from tiermq.errors import CorruptRecord, StoreDamaged
from tiermq.files.config_file import decode_lenient_json
from tiermq.store.checkpoint import CHECKPOINT
from tiermq.store.readonly.directory import FileKind, StoreFile, classify, list_store
from tiermq.store.readonly.index import IndexView
from tiermq.store.readonly.log import walk_log_file
from tiermq.store.readonly.mapped_run import ReadOnlyMap, is_zero

Row = dict[str, Any]

ROW_KINDS = (
    "record", "blank", "unit", "pre_blank_unit", "ext_unit", "batch_unit", "index_header", "index_entry",
    "checkpoint", "config", "abort", "lock", "other", "damage",
)  # fmt: skip
CHECKPOINT_FIELDS = (
    "physic_msg_timestamp_ms",
    "logics_msg_timestamp_ms",
    "index_msg_timestamp_ms",
    "master_flushed_offset",
    "confirm_offset",
)


def dump(path: Path, *, slot_count: int | None = None) -> Iterator[Row]:
    """Rows of one file, or of every file under a directory. `slot_count` is needed for index files of unusual size."""
    if path.is_dir():
        root = path.absolute()
        for file in list_store(root):
            yield from _dump_file(file, file.path.relative_to(root).as_posix(), slot_count)
    else:
        yield from _dump_file(classify(path), path.name, slot_count)


def _dump_file(file: StoreFile, name: str, slot_count: int | None) -> Iterator[Row]:
    try:
        if file.kind is FileKind.LOCK:
            yield {"kind": "lock", "file": name, "size": file.path.stat().st_size}
            return
        with ReadOnlyMap(file.path) as opened:
            for row in _rows(opened, file, slot_count):
                yield {"kind": row.pop("kind"), "file": name, **row}
    except FileNotFoundError:
        return  # A running store deleted it between the listing and now.
    except (CorruptRecord, StoreDamaged) as error:
        yield {"kind": "damage", "file": name, "error": str(error)}


def _rows(opened: ReadOnlyMap, file: StoreFile, slot_count: int | None) -> Iterator[Row]:
    if file.kind is FileKind.COMMIT_LOG:
        return _commit_log_rows(opened, file)
    if file.kind is FileKind.INDEX:
        return _index_rows(opened.view, slot_count)
    return _ROWS[file.kind](opened.view, file)


def _damage(position: int, error: str) -> Row:
    return {"kind": "damage", "position": position, "error": error}


def _commit_log_rows(opened: ReadOnlyMap, file: StoreFile) -> Iterator[Row]:
    for item in walk_log_file(opened, file.base_offset):
        if item.error:
            yield {**_damage(item.position, item.error), "physical_offset": item.physical_offset}
        elif item.message is None:
            yield {"kind": "blank", "physical_offset": item.physical_offset, "size": item.size}
        else:
            yield {"kind": "record", **item.message.to_dict()}


def _consume_queue_rows(view: memoryview, file: StoreFile) -> Iterator[Row]:
    for position in range(0, len(view) - unit.UNIT_BYTES + 1, unit.UNIT_BYTES):
        if is_zero(view, position, position + unit.UNIT_BYTES):
            if not is_zero(view, position, len(view)):
                yield _damage(position, "zeros where a unit should be, with data behind them")
            return
        place = {
            "topic": file.topic,
            "queue_id": file.queue_id,
            "queue_offset": (file.base_offset + position) // unit.UNIT_BYTES,
        }
        try:
            found = unit.decode(view, position)
        except CorruptRecord as error:
            yield {**_damage(position, str(error)), **place}
            continue
        if not unit.is_real(found.physical_offset, found.size):
            yield {"kind": "pre_blank_unit", **place}
        elif unit.is_ext_address(found.tags_code):
            address = unit.ext_offset(found.tags_code)
            yield {"kind": "unit", **place, **found._asdict(), "ext_offset": address}
        else:
            yield {"kind": "unit", **place, **found._asdict()}


def _batch_rows(view: memoryview, file: StoreFile) -> Iterator[Row]:
    for position in range(0, len(view) - batch_unit.BATCH_UNIT_BYTES + 1, batch_unit.BATCH_UNIT_BYTES):
        if is_zero(view, position, position + batch_unit.BATCH_UNIT_BYTES):
            if not is_zero(view, position, len(view)):
                yield _damage(position, "zeros where a batch unit should be, with data behind them")
            return
        place = {"topic": file.topic, "queue_id": file.queue_id}
        try:
            yield {"kind": "batch_unit", **place, **batch_unit.decode(view, position)._asdict()}
        except CorruptRecord as error:
            yield {**_damage(position, str(error)), **place}


def _ext_rows(view: memoryview, file: StoreFile) -> Iterator[Row]:
    position = 0
    while position + ext_unit.EXT_SIZE.size <= len(view):
        try:
            size = ext_unit.size_at(view, position)
        except CorruptRecord as error:
            yield _damage(position, str(error))  # The start of the next unit is unknown.
            return
        if size <= 0:
            return
        found = ext_unit.decode(view, position)
        yield {
            "kind": "ext_unit",
            "topic": file.topic,
            "queue_id": file.queue_id,
            "ext_offset": file.base_offset + position,
            "tags_code": found.tags_code,
            "store_timestamp_ms": found.store_timestamp_ms,
            "bit_map": found.bit_map.hex(),
        }
        position += size


def _index_rows(view: memoryview, slot_count: int | None) -> Iterator[Row]:
    index = IndexView(view, slot_count)
    yield {"kind": "index_header", **index.header._asdict(), "slots": index.slot_count_max}
    for entry in index.entries():
        yield {"kind": "index_entry", "number": entry.number, "key_hash": entry.key_hash,
               "physical_offset": entry.physical_offset, "timestamp_ms": entry.timestamp_ms,
               "previous": entry.previous}  # fmt: skip
    for problem in index.problems():
        yield {"kind": "damage", "error": problem}


def _checkpoint_rows(view: memoryview, _: StoreFile) -> Iterator[Row]:
    yield {"kind": "checkpoint", **decode_checkpoint(view)}


def decode_checkpoint(data: bytes | memoryview) -> dict[str, int]:
    """The five values of a checkpoint file, by name. Raises StoreDamaged when there are too few bytes."""
    if len(data) < CHECKPOINT.size:
        raise StoreDamaged(f"expected a checkpoint of at least {CHECKPOINT.size} bytes, found {len(data)}")
    return dict(zip(CHECKPOINT_FIELDS, CHECKPOINT.unpack_from(data, 0), strict=True))


def _config_rows(view: memoryview, file: StoreFile) -> Iterator[Row]:
    data = bytes(view)
    content = decode_lenient_json(data, file.path.name) if data else None
    yield {"kind": "config", "name": file.path.name, "content": content}


def _abort_rows(view: memoryview, _: StoreFile) -> Iterator[Row]:
    text = bytes(view).decode("ascii", "replace").strip()
    yield {"kind": "abort", "process_id": int(text) if text.isdigit() else None, "text": text}


def _other_rows(view: memoryview, _: StoreFile) -> Iterator[Row]:
    yield {"kind": "other", "size": len(view)}


_ROWS: dict[FileKind, Callable[[memoryview, StoreFile], Iterator[Row]]] = {
    FileKind.CONSUME_QUEUE: _consume_queue_rows,
    FileKind.CONSUME_QUEUE_EXT: _ext_rows,
    FileKind.BATCH_CONSUME_QUEUE: _batch_rows,
    FileKind.CHECKPOINT: _checkpoint_rows,
    FileKind.CONFIG: _config_rows,
    FileKind.ABORT: _abort_rows,
    FileKind.OTHER: _other_rows,
}

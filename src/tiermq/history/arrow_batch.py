"""Runs of records to Arrow batches. The kernel writes the buffers of columns; here they become arrays, uncopied.

Invariants: a batch has exactly the schema of `arrow_schema(columns)`; rows come in the order of the run; a damaged
record is a row with the reason in `_corrupt`, or a CorruptRecord error, by option, but never passes for a message and
is never left out. A batch holds at most `max_rows` rows and, beyond its first row, about `max_bytes` bytes, so that
offsets of 32 bits always suffice.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiermq.config import StoreConfig
from tiermq.errors import CorruptRecord
from tiermq.history.arrow_schema import ALIASES, COLUMNS, arrow_schema
from tiermq.history.scan_values import HistoryPlace, RecordRun, RowFilter, ScanRequest, ScanTask, Side
from tiermq.kernel import COLUMN_SHAPES, Check, ColumnRequest, DecodedColumns, Shape, decode_columns
from tiermq.message.layout import BODY_CRC_AT
from tiermq.tier.names import QueueKey

MAX_BYTES = 64 << 20
KNOWN_ROWS_MAX = 1 << 16
_KNOWN_BY_RANGE = frozenset(
    {"topic", "brokerName", "queueId", "partition", "tier", "timestampType", "queueOffset", "offset", "recordId"}
)
"""Columns for which no message need be read."""
LOG_APPEND_TIME = 1
"""What Kafka calls a timestamp that the broker set, as a store time is."""
DELAYS_MS = StoreConfig().delay_levels_ms
"""RocketMQ's default delay levels: a record holds the number of its level only. A request may have the broker's."""
_MADE_OF = {"recordId": ("queueOffset",), "msgId": ("uniqKey", "queueOffset")}
"""Columns computed here from columns of the kernel."""
_SAME_AS = {"value": "body", "offset": "queueOffset", "timestamp": "storeTimestamp", "headers": "properties"}
"""Kafka's names for columns of the kernel."""


_CRC_MASK = b"\xa5\x3c\x96\x69"
"""All four bytes, so that the mark never undoes the damage of one of them."""


class OnCorrupt(enum.Enum):
    """How to treat a damaged record."""

    ROW = "row"  # A row with its offset and the reason in `_corrupt`.
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class Constants:
    """What is the same in each row of a run, by column."""

    values: dict[str, str | int | None]

    @classmethod
    def of(cls, run: RecordRun) -> Constants:
        constants = cls.of_queue(run.queue, run.side)
        return cls(constants.values | {"segment": run.segment})

    @classmethod
    def of_queue(cls, queue: QueueKey, side: Side) -> Constants:
        return cls(
            {
                "topic": queue.topic,
                "brokerName": queue.broker,
                "queueId": queue.queue_id,
                "tier": str(side.value),
                "partition": queue.queue_id,
                "timestampType": LOG_APPEND_TIME,
                # A copy in the tier has another offset in another log, and a broker gives those out as they are: only
                # a record read from a local log is known to name its own location.
                **({} if side is Side.HOT else {"offsetMsgId": None}),
            }
        )

    @property
    def record_id_prefix(self) -> str:
        return "/".join(str(self.values[name]) for name in ("brokerName", "topic", "queueId")) + "/"


def decode_run(
    run: RecordRun,
    columns: Sequence[str],
    request: ScanRequest,
    *,
    decompress: bool = True,
    max_rows: int = 8192,
    max_bytes: int = MAX_BYTES,
    on_corrupt: OnCorrupt = OnCorrupt.ROW,
    check_crc: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The messages of `run` that `request` wants, as batches; no batch is empty.

    Raises UnknownColumn at once for a column that does not exist, and CorruptRecord for a damaged record if configured.
    Without `request.include_body`, `body` (and `value`) is null; where bodies were not read, no checksum is looked at.
    """
    schema = arrow_schema(columns)
    wanted = ColumnRequest(
        columns=_kernel_columns(schema.names, include_body=request.include_body and run.has_bodies),
        topic=run.queue.topic.encode(),
        queue_id=run.queue.queue_id,
        log_base=run.log_base,
        first_offset=-1 if run.first_offset is None else run.first_offset,
        check=_check_of(run.side, check_crc=check_crc and run.has_bodies),
        decompress=decompress,
        delays_ms=request.delays_ms or run.delays_ms or DELAYS_MS,
        **_filter_fields(RowFilter.of(request)),
    )
    return _batches(run, wanted, schema, max_rows, max_bytes, on_corrupt)


def is_known(columns: Sequence[str], task: ScanTask) -> bool:
    """Whether the rows of a task are known by its range: nothing of a message is asked for, and none is left out."""
    return (
        set(columns) <= _KNOWN_BY_RANGE
        and task.places is None
        and type(task.place) is HistoryPlace
        and RowFilter.of(task.request).takes_everything
    )


def known_rows(task: ScanTask, columns: Sequence[str], max_rows: int = KNOWN_ROWS_MAX) -> Iterator[pa.RecordBatch]:
    """The rows of such a task, without a read: manifests and queues give the offsets."""
    schema = arrow_schema(columns)
    constants = Constants.of_queue(task.queue, task.side)
    for begin in range(task.from_offset, task.to_offset, max_rows):
        offsets = pa.array(np.arange(begin, min(begin + max_rows, task.to_offset), dtype=np.int64))
        if not schema.names:
            yield pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), len(offsets), [None]))
            continue
        arrays = [
            offsets
            if name in ("queueOffset", "offset")
            else _record_ids(constants, offsets)
            if name == "recordId"
            else constant(constants.values[name], schema.field(name).type, len(offsets))
            for name in schema.names
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(
    run: RecordRun, wanted: ColumnRequest, schema: pa.Schema, max_rows: int, max_bytes: int, on_corrupt: OnCorrupt
) -> Iterator[pa.RecordBatch]:
    constants = Constants.of(run)
    starts, sizes = np.ascontiguousarray(run.starts, dtype=np.int64), np.ascontiguousarray(run.sizes, dtype=np.int64)
    buffer, index = _refused(run), 0
    while index < len(starts):
        decoded = decode_columns(buffer, starts, sizes, wanted, index, max_rows, max_bytes)
        if run.damage:
            decoded.corrupt = [
                (row, number, run.damage.get(int(starts[number]), reason)) for row, number, reason in decoded.corrupt
            ]
        if decoded.corrupt and on_corrupt is OnCorrupt.RAISE:
            queue = run.queue
            raise CorruptRecord(
                f"topic {queue.topic!r}, queue {queue.queue_id}, {run.side.value} segment {run.segment!r}: "
                f"{decoded.corrupt[0][2]}; verify the history, or let damaged records pass as rows with `_corrupt`"
            )
        if decoded.next_index <= index:
            raise ValueError(f"a batch must hold one row: max_rows is {max_rows}, max_bytes is {max_bytes}")
        index = decoded.next_index
        if decoded.rows:
            yield _batch(decoded, schema, constants)


def _refused(run: RecordRun) -> Any:
    """The bytes of a run as the kernel gets them: records whose damage is known fail its check of the body CRC."""
    if not run.damage:
        return run.buffer
    marked = bytearray(run.buffer)
    for start in run.damage:
        for byte, mask in zip(range(start + BODY_CRC_AT, start + BODY_CRC_AT + 4), _CRC_MASK, strict=True):
            marked[byte] ^= mask
    return memoryview(marked).toreadonly()


def _batch(decoded: DecodedColumns, schema: pa.Schema, constants: Constants) -> pa.RecordBatch:
    if not schema.names:  # Arrays give the row count; without any, only this does.
        rows = pa.Array.from_buffers(pa.struct([]), decoded.rows, [None])
        return pa.RecordBatch.from_struct_array(rows)
    return pa.RecordBatch.from_arrays([_array(field, decoded, constants) for field in schema], schema=schema)


def _kernel_columns(names: Sequence[str], *, include_body: bool) -> tuple[str, ...]:
    """What the kernel must read for these columns, each once."""
    needed = dict.fromkeys(each for name in names for each in _MADE_OF.get(name, (_SAME_AS.get(name, name),)))
    return tuple(name for name in needed if name in COLUMN_SHAPES and (include_body or name != "body"))


def _check_of(side: Side, *, check_crc: bool) -> Check:
    """In a tier offsets were rewritten, so there the CRC property of a whole record is not valid any more."""
    if not check_crc:
        return Check.NOTHING
    return Check.BODY_AND_PROPERTY if side is Side.HOT else Check.BODY


def _filter_fields(rows: RowFilter) -> dict[str, Any]:
    return {"begin_ms": rows.begin_ms, "end_ms": rows.end_ms, "tags": rows.tags, "keys": rows.keys}


def _array(field: pa.Field, decoded: DecodedColumns, constants: Constants) -> pa.Array:
    rows, name = decoded.rows, field.name
    if name in constants.values:
        return constant(constants.values[name], field.type, rows)
    if name == "_corrupt":
        return _reasons(decoded)
    if name in _MADE_OF:
        offsets = _array(pa.field("queueOffset", pa.int64()), decoded, constants)
        ids = _record_ids(constants, offsets)
        if name == "recordId":
            return ids
        if decoded.corrupt:  # Whether a damaged message has a key of its own is not known.
            ids = pc.if_else(pc.is_null(_reasons(decoded)), ids, pa.scalar(None, pa.string()))
        return pc.coalesce(_array(pa.field("uniqKey", pa.string()), decoded, constants), ids)
    kernel_name = _SAME_AS.get(name, name)
    buffers = decoded.buffers.get(kernel_name)
    if buffers is None:  # Bodies are not wanted.
        return constant(None, field.type, rows)
    return _WRAPPERS[COLUMN_SHAPES[kernel_name]](
        field.type, rows, [None if b is None else pa.py_buffer(b) for b in buffers]
    )


def _record_ids(constants: Constants, offsets: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(constants.record_id_prefix, offsets.cast(pa.string()), "")


def _reasons(decoded: DecodedColumns) -> pa.Array:
    if not decoded.corrupt:
        return constant(None, pa.string(), decoded.rows)
    reasons: list[str | None] = [None] * decoded.rows
    for row, _, reason in decoded.corrupt:
        reasons[row] = reason
    return pa.array(reasons, pa.string())


def constant(value: str | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    """`rows` times the same value: the front of an array that is made once for batches of about that size."""
    made = _repeated(value, kind, 1 << max(0, rows - 1).bit_length())
    return made if len(made) == rows else made.slice(0, rows)


@lru_cache(maxsize=32)
def _repeated(value: str | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)


def _wrap_flat(kind: pa.DataType, rows: int, buffers: list[pa.Buffer | None]) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, buffers)


def _wrap_list(kind: pa.DataType, rows: int, buffers: list[pa.Buffer | None]) -> pa.Array:
    validity, offsets, child_offsets, child_data = buffers
    count = _count(child_offsets)
    child = pa.Array.from_buffers(kind.value_type, count, [None, child_offsets, child_data])
    return pa.Array.from_buffers(kind, rows, [validity, offsets], children=[child])


def _wrap_map(kind: pa.DataType, rows: int, buffers: list[pa.Buffer | None]) -> pa.Array:
    """A map, or the same as a list of structs: both have the same memory layout."""
    validity, offsets, name_offsets, name_data, value_offsets, value_data = buffers
    count = _count(name_offsets)
    entry = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    names = pa.Array.from_buffers(entry.field(0).type, count, [None, name_offsets, name_data])
    values = pa.Array.from_buffers(entry.field(1).type, count, [None, value_offsets, value_data])
    entries = pa.Array.from_buffers(entry, count, [None], children=[names, values])
    return pa.Array.from_buffers(kind, rows, [validity, offsets], children=[entries])


def _count(offsets: pa.Buffer | None) -> int:
    return 0 if offsets is None else offsets.size // 4 - 1


_WRAPPERS: dict[Shape, Callable[[pa.DataType, int, list[pa.Buffer | None]], pa.Array]] = {
    Shape.I64: _wrap_flat,
    Shape.I32: _wrap_flat,
    Shape.TEXT: _wrap_flat,
    Shape.BYTES: _wrap_flat,
    Shape.LIST: _wrap_list,
    Shape.MAP: _wrap_map,
}
_KNOWN_ELSEWHERE = {"topic", "brokerName", "queueId", "tier", "segment", "partition", "timestampType", "_corrupt"}
assert {*COLUMNS, *ALIASES} == {*COLUMN_SHAPES, *_SAME_AS, *_MADE_OF, *_KNOWN_ELSEWHERE}

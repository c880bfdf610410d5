"""Columns: records of one queue to Arrow batches, against a memcpy of the same bytes and against plain struct decoding.

The records lie in memory, more of them than the caches hold. Each batch is dropped before the next one is made, as a
scan does that hands it on. Struct decoding makes one tuple of values per record, as a short Python program would.
"""

from __future__ import annotations

import ctypes
import random
import struct
from array import array
from typing import Any

from benchmarks import harness, store_side
from benchmarks.harness import MIB, JavaBench, Side
from benchmarks.report import Report
from tiermq.history.arrow_batch import decode_run
from tiermq.history.arrow_schema import COLUMNS
from tiermq.history.scan_values import RecordRun, ScanRequest
from tiermq.history.scan_values import Side as HistorySide
from tiermq.message.record import encode_record
from tiermq.tier.names import QueueKey

NAME = "columns"
RUN_BYTES_MAX = 64 * MIB
BATCH_BYTES = 3 * MIB
TOPIC = "bench-topic-01"
FEW = ("topic", "queueOffset", "storeTimestamp", "body")
FIXED = struct.Struct(">iiiiiqqiq4siq4siiqi")


def records(size: int) -> RecordRun:
    """Messages of about 378 bytes with the properties that a client and a broker set."""
    chance = random.Random(7)
    noise = chance.randbytes(1 << 16)
    data, starts, sizes = bytearray(), array("q"), array("q")
    while len(data) < size:
        number = len(starts)
        at, length = chance.randrange(60_000), chance.randrange(100, 250)
        record = encode_record(
            topic=TOPIC, body=noise[at : at + length], queue_id=3, queue_offset=number, physical_offset=len(data),
            born_timestamp_ms=1_700_000_000_000 + number, born_host="10.1.2.3:51234",
            store_timestamp_ms=1_700_000_000_001 + number, store_host="10.0.0.1:10911",
            properties={
                "UNIQ_KEY": f"0A010203000018B4AAC2{number:012X}", "KEYS": f"order-{number}", "TAGS": f"tag{number % 7}",
                "WAIT": "true", "CLUSTER": "DefaultCluster",
            },
        )  # fmt: skip
        starts.append(len(data))
        sizes.append(len(record))
        data += record
    queue = QueueKey("DefaultCluster", "broker-a", TOPIC, 3)
    return RecordRun(queue, HistorySide.COLD, bytes(data), starts, sizes, 0, "segment", 0)


def decoding(run: RecordRun, columns: tuple[str, ...], times: int) -> Side:
    def work() -> tuple[int, int]:
        rows = 0
        for _ in range(times):
            for batch in decode_run(run, columns, ScanRequest()):
                rows += batch.num_rows
        return rows, times * len(run.buffer)

    return lambda: harness.timed(work)


def copying(run: RecordRun, times: int) -> Side:
    """The same bytes to memory that is used again, in pieces of a batch's size."""
    target = ctypes.create_string_buffer(BATCH_BYTES)
    pieces = [run.buffer[at : at + BATCH_BYTES] for at in range(0, len(run.buffer), BATCH_BYTES)]

    def work() -> tuple[int, int]:
        for _ in range(times):
            for piece in pieces:
                ctypes.memmove(target, piece, len(piece))
        return times * len(run.starts), times * len(run.buffer)

    return lambda: harness.timed(work)


def unpacking(run: RecordRun) -> Side:
    """One pass only: it is slow."""

    def work() -> tuple[int, int]:
        buffer, unpack = run.buffer, FIXED.unpack_from
        rows: list[Any] = []
        for start, size in zip(run.starts, run.sizes, strict=True):
            fixed = unpack(buffer, start)
            body_end = start + FIXED.size + fixed[-1]
            topic_end = body_end + 1 + buffer[body_end]
            pairs = [
                piece.partition("\x01")[::2] for piece in buffer[topic_end + 2 : start + size].decode().split("\x02")
            ]
            rows.append(
                (fixed, buffer[start + FIXED.size : body_end], buffer[body_end + 1 : topic_end].decode(), pairs)
            )
            if len(rows) == 8192:
                rows.clear()
        return len(run.starts), len(run.buffer)

    return lambda: harness.timed(work)


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    made = Report(NAME)
    with harness.pinned(options.core), harness.work_directory(options.directory, MIB) as directory:
        history = records(min(options.size, RUN_BYTES_MAX))
        times = max(1, options.size // len(history.buffer))
        sides: dict[str, Side] = {
            "columns": decoding(history, tuple(COLUMNS), times),
            "few_columns": decoding(history, FEW, times),
            "memcpy": copying(history, times),
            "struct": unpacking(history),
        }
        measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        for ratio, (ours, theirs) in RATIOS.items():
            made.compare(ratio, measured[ours], measured[theirs])
        made.environment["record_bytes"] = round(len(history.buffer) / len(history.starts))
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


RATIOS = {
    "columns_vs_memcpy": ("columns", "memcpy"),
    "columns_vs_struct": ("columns", "struct"),
    "few_columns_vs_memcpy": ("few_columns", "memcpy"),
}

if __name__ == "__main__":
    harness.main(run)

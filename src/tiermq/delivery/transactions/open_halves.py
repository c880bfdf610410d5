"""The open half messages of a store directory, read from its files.

Nothing is written and no lock is taken: the directory may be in use, and may be RocketMQ's. The progress of check
rounds is in `config/consumerOffset.json`; without it everything is read. What a running broker has not written yet
(ops wait up to `transactionOpBatchInterval`) counts as open here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiermq.delivery.transactions.half_messages import HALF_QUEUE, HalfMessage, Identity, read_half
from tiermq.delivery.transactions.op_messages import OP_QUEUE, outcomes_of
from tiermq.errors import CorruptRecord
from tiermq.files.config_file import decode_lenient_json
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, OPERATION_HALF_TOPIC, TRANSACTION_GROUP
from tiermq.store.readonly.store import ReadOnlyStore

OFFSETS_FILE = "consumerOffset.json"


@dataclass(frozen=True, slots=True)
class OpenHalf:
    """An open transaction. Times are milliseconds; `questions`: the number of checks."""

    transaction_id: str
    topic: str
    queue_id: int
    producer_group: str
    half_offset: int
    born_ms: int
    questions: int
    body_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def open_halves(directory: Path, commit_log_paths: Sequence[Path] = ()) -> Iterator[OpenHalf]:
    """In the order of the half queue, each transaction once. Raises StoreError when `directory` is no store."""
    with ReadOnlyStore.open(directory, commit_log_paths=commit_log_paths) as store:
        progress = _progress(directory)
        ended: set[int] = set()
        for op in _queue(store, OPERATION_HALF_TOPIC, OP_QUEUE, progress.get(OPERATION_HALF_TOPIC, 0)):
            try:
                ended.update(outcomes_of(op))
            except CorruptRecord:
                continue  # A broker asks about its messages again.
        newest: dict[Identity, HalfMessage] = {}
        done: set[Identity] = set()
        for record in _queue(store, HALF_TOPIC, HALF_QUEUE, progress.get(HALF_TOPIC, 0)):
            try:
                half = read_half(record)
            except CorruptRecord:
                continue  # A broker passes it over, too.
            newest.pop(half.identity, None)
            newest[half.identity] = half
            if record.queue_offset in ended or half.origin in ended:
                done.add(half.identity)
        for identity, half in newest.items():
            if identity not in done:
                yield _described(half)


def _described(half: HalfMessage) -> OpenHalf:
    return OpenHalf(
        transaction_id=half.transaction_id,
        topic=half.topic,
        queue_id=half.queue_id,
        producer_group=half.group,
        half_offset=half.record.queue_offset,
        born_ms=half.record.born_timestamp_ms,
        questions=half.check_times,
        body_bytes=len(half.record.body),
    )


def _progress(directory: Path) -> dict[str, int]:
    """Topic → progress of check rounds, of the first queue. Raises StoreDamaged."""
    path = str(directory / "config" / OFFSETS_FILE)
    document = OsFileAccess().read_config(path, lambda data: decode_lenient_json(data, OFFSETS_FILE))
    table = document.get("offsetTable") if isinstance(document, dict) else None
    found = {}
    for topic in (HALF_TOPIC, OPERATION_HALF_TOPIC):
        queues = table.get(f"{topic}@{TRANSACTION_GROUP}") if isinstance(table, dict) else None
        offset = queues.get(str(HALF_QUEUE)) if isinstance(queues, dict) else None
        found[topic] = offset if isinstance(offset, int) else 0
    return found


def _queue(store: ReadOnlyStore, topic: str, queue_id: int, offset: int) -> Iterator[StoredMessage]:
    queue = store.queue(topic, queue_id)
    if queue is None:
        return
    for at in range(max(offset, store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)):
        unit = queue.unit_at(at)
        record = None if unit is None else store.read(unit.physical_offset, unit.size)
        if record is None:
            continue
        try:
            yield decode_record(record)
        except CorruptRecord:
            continue

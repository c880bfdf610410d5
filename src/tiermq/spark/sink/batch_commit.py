"""Commits a batch exactly once, whatever crashes in between.

    1  intent   <staging>/<query>/<batch>/intent.json   the staged files, with checksums, and where each queue ended
    2  put      every row of the intent that the store does not have yet
    3  flush    what was put is durable
    4  done     <staging>/<query>/done.json             the last batch of the query; staged files are deleted

A commit that is repeated begins by looking at `done` (then there is nothing to do) and at the intent: if there is one,
*its* files are the batch, not those of the repetition, whose rows may have come in another order. What of them has been
put is read from the store, after the ends that the intent names, by the mark of each message. So a
driver may die anywhere: between put and record, or half way through the put. The store's lock is held from before the
look until `done` is written: of two commits of one batch at the same time, the second finds that it was done.

Batches of a query are committed in the order of their numbers, so that one number per query is all there is to keep.
The staging directory belongs to the store: deleting it between a crash and the repetition duplicates the batch.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tiermq.errors import StoreError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.properties import decode_properties
from tiermq.pipeline.replay.record import PAGE
from tiermq.pipeline.store_directory import open_store
from tiermq.spark.options import SinkOptions
from tiermq.spark.sink.staged_rows import MARK, BatchName, StagedFile, checked_bytes, message_of, read_staged
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore

INTENT = "intent.json"
DONE = "done.json"
SINK_PUT_AT_ONCE = 1000
_log = logging.getLogger(__name__)
_access = OsFileAccess()
Ends = dict[str, dict[str, int]]


def commit_batch(name: BatchName, files: Iterable[StagedFile], options: SinkOptions) -> int:
    """Put a batch unless that has been done; how many messages were put now. Durable on return.

    Raises StoreLocked, StagingLost, and StoreError when the store refuses a message: then run the batch again.
    """
    if is_done(name, options):
        return _nothing_to_do(name, options)
    staged = sorted((file for file in files if file.rows), key=lambda file: file.partition)
    with open_store(options.store, options.store_settings) as store:
        # Read again under the store's lock: the process of a killed driver may have continued.
        if is_done(name, options):
            return _nothing_to_do(name, options)
        intent = read_intent(name, options)
        present: set[str] = set()
        if intent is None:
            _check(staged)
            write_intent(name, options, staged, _ends(store, staged))
        else:
            staged, ends = intent
            _check(staged)
            present = marks_behind(store, ends, name)
        count = _put(store, staged, present)
        store.dispatch_now()
        store.flush()
        store.flush_queues()
        _write(_done_path(name, options), {"batch": name.batch})
    _clean(name, options)
    return count


def _nothing_to_do(name: BatchName, options: SinkOptions) -> int:
    _log.info("batch %d of %s was committed before: nothing to do", name.batch, name.query)
    _clean(name, options)
    return 0


def is_done(name: BatchName, options: SinkOptions) -> bool:
    """Whether this batch, or a later one of its query, has been committed."""
    path = _done_path(name, options)
    return path.exists() and int(json.loads(path.read_bytes())["batch"]) >= name.batch


def write_intent(name: BatchName, options: SinkOptions, files: Sequence[StagedFile], ends: Ends) -> None:
    """Fix what the batch is. Staged files are made durable first: a repetition depends on them."""
    for file in files:
        _sync(file.path)
    document = {
        "files": [
            {field.name: getattr(file, field.name) for field in dataclasses.fields(file) if field.name != "name"}
            for file in files
        ],
        "ends": ends,
    }
    _write(name.directory(options.staging) / INTENT, document)


def read_intent(name: BatchName, options: SinkOptions) -> tuple[list[StagedFile], Ends] | None:
    path = name.directory(options.staging) / INTENT
    if not path.exists():
        return None
    document = json.loads(path.read_bytes())
    return [StagedFile(name, **each) for each in document["files"]], document["ends"]


def marks_behind(store: LocalStore, ends: Ends, name: BatchName) -> set[str]:
    """The marks of a batch's messages that the store has behind these ends of queues."""
    found: set[str] = set()
    for topic, queues in ends.items():
        for queue, end in queues.items():
            offset = end
            while offset < store.max_offset(topic, int(queue)):
                page = store.get(topic, int(queue), offset, PAGE)
                for message in page.messages:
                    mark = decode_properties(message.encoded_properties, errors="replace").get(MARK, "")
                    if mark.startswith(name.mark_prefix):
                        found.add(mark)
                if page.next_offset <= offset or page.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
                    raise StoreError(
                        f"{topic}, queue {queue}: expected to read on at {offset}, found {page.status.name}; the batch "
                        "cannot be repeated safely: check the store"
                    )
                offset = page.next_offset
    return found


def _put(store: LocalStore, files: Sequence[StagedFile], present: set[str]) -> int:
    count = 0
    for file in files:
        for rows in read_staged(file):
            if present:
                rows = [row for row in rows if _mark_of(row) not in present]
            for at in range(0, len(rows), SINK_PUT_AT_ONCE):
                some = rows[at : at + SINK_PUT_AT_ONCE]
                results = store.put_many([message_of(row) for row in some])
                if not results.all_ok:
                    index, result = next(iter(results.others_by_index.items()))
                    raise StoreError(
                        f"{store.config.root_path}: expected to store message {_mark_of(some[index])} of topic "
                        f"{some[index]['topic']!r}, found {result.status.name}; what was put stays, and running the "
                        "batch again puts the rest"
                    )
                count += len(some)
    return count


def _mark_of(row: dict[str, Any]) -> str:
    return decode_properties(row["properties"], errors="replace")[MARK]


def _ends(store: LocalStore, files: Sequence[StagedFile]) -> Ends:
    """Where each queue that the batch touches ends now."""
    ends: Ends = {}
    for file in files:
        for topic, queue_id in file.queues:
            end = store.max_offset(topic, queue_id, committed=False)
            ends.setdefault(topic, {}).setdefault(str(queue_id), end)
    return ends


def _check(files: Sequence[StagedFile]) -> None:
    """All staged files are what tasks wrote, before the first message is put."""
    for file in files:
        checked_bytes(file)


def _clean(name: BatchName, options: SinkOptions) -> None:
    """Remove what this batch and those before it have staged, orphans of dead attempts included."""
    query = Path(options.staging) / name.query
    for directory in query.iterdir() if query.is_dir() else ():
        if directory.name.isdigit() and int(directory.name) <= name.batch:
            shutil.rmtree(directory, ignore_errors=True)


def _done_path(name: BatchName, options: SinkOptions) -> Path:
    return Path(options.staging) / name.query / DONE


def _write(path: Path, document: dict[str, Any]) -> None:
    _access.write_bytes(str(path), json.dumps(document, sort_keys=True).encode())


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

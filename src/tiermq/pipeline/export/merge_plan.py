"""The driver's part of an upsert: which rule holds for a table, and which bucket merges what.

The driver handles names of files and numbers of row groups; rows and keys stay on executors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tiermq.errors import BadOption
from tiermq.pipeline.export.merge_task import MergeResult, MergeTask
from tiermq.pipeline.export.task import ExportResult
from tiermq.tables.commit_journal import DELETED_KEYS, UPSERT, Commit, ExportedRanges
from tiermq.tables.table_contract import DataFile, ExportTable
from tiermq.tables.upsert_rule import BUCKETS, KEY_COLUMN, ORDER, Tombstone, UpsertRule, require_key_type


def upsert_rule(upsert: bool, key: str | None, tombstone: str | None, buckets: int | None) -> UpsertRule | None:
    """What was asked for; no buckets are those that the table has. Raises BadOption."""
    if not upsert:
        if key or tombstone or buckets:
            raise BadOption("a key, a tombstone and buckets are for upserts; ask for one (--upsert), or leave them out")
        return None
    if buckets is not None and not 0 < buckets < 100_000:
        raise BadOption(f"expected 1 to 99,999 buckets, found {buckets}")
    return UpsertRule(key or KEY_COLUMN, Tombstone.of(tombstone or "empty"), buckets or 0)


def agreed_rule(asked: UpsertRule | None, last: Commit | None, where: str) -> UpsertRule | None:
    """The rule of a table that was exported to before must be the one that is asked for. Raises BadOption."""
    if last is None:
        return asked if asked is None or asked.buckets else replace(asked, buckets=BUCKETS)
    recorded = last.details.get(UPSERT)
    if recorded is None:
        if asked is not None:
            raise BadOption(
                f"{where}: its exports append every message, so that keys have many rows; upsert into a new table"
            )
        return None
    known = UpsertRule.of_text(recorded)
    if asked is None or (asked.key, asked.tombstone) != (known.key, known.tombstone):
        key = "messages' first key" if known.is_of_keys else f"--key {known.key}"
        raise BadOption(
            f"{where}: its rows are upserted by {key} with --tombstone {known.tombstone}; export with --upsert and the "
            "same, or into a new table"
        )
    return replace(known, buckets=asked.buckets) if asked.buckets else known


def require_rule_fits(rule: UpsertRule, schema: pa.Schema, table: ExportTable) -> None:
    """Raises BadOption for a format, a key or columns with which no upsert is possible."""
    if "upsert" in table.refusals:
        raise BadOption(f"an upsert into {table.place.url}: {table.refusals['upsert']}")
    if rule.key not in schema.names:
        raise BadOption(f"key {rule.key}: expected a column of the table, found {', '.join(schema.names)}")
    require_key_type(schema.field(rule.key).type, rule.key)
    missing = [name for name in ORDER if name not in schema.names]
    if missing:
        raise BadOption(f"an upsert finds the last write of a key by {', '.join(ORDER)}: add {', '.join(missing)}")
    tombstone = rule.tombstone
    if tombstone.kind == "column" and tombstone.name not in schema.names:
        raise BadOption(f"tombstone {tombstone}: the table has no column {tombstone.name}")


def require_one_topic(*ranges: ExportedRanges) -> None:
    """Raises BadOption: the same key of two topics is not the same row."""
    topics = sorted({queue.topic for each in ranges for queue in each.queues()})
    if len(topics) > 1:
        raise BadOption(
            f"an upsert takes one topic, since keys are those of a topic, found {', '.join(topics[:5])}; say which "
            "(--topic), and upsert others into tables of their own"
        )


@dataclass(slots=True)
class UpsertState:
    """Of a table as it is committed: the buckets of its last commit, and its files of deleted keys."""

    rule: UpsertRule
    buckets: int
    deleted_keys: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: UpsertRule, last: Commit | None) -> UpsertState:
        if last is None:
            return cls(rule, rule.buckets)
        return cls(rule, UpsertRule.of_text(last.details[UPSERT]).buckets, last.deleted_keys)

    def after(self, results: Sequence[MergeResult]) -> UpsertState:
        kept = {} if self.buckets != self.rule.buckets else self.deleted_keys
        changed = {result.bucket: result.graves for result in results}
        names = {**kept, **changed}
        return UpsertState(
            self.rule, self.rule.buckets, {bucket: name for bucket, name in names.items() if name is not None}
        )

    def details(self) -> dict[str, str]:
        return {UPSERT: self.rule.as_text(), DELETED_KEYS: json.dumps(self.deleted_keys)}


@dataclass(frozen=True, slots=True)
class Merged:
    """What a wave of merges changes in a table."""

    state: UpsertState
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: UpsertState, results: Sequence[MergeResult], mixed: Sequence[str]) -> Merged:
        counts = {
            "upserted": sum(each.upserted for each in results),
            "deleted": sum(each.deleted for each in results),
            "late": sum(each.late for each in results),
        }
        added = tuple(file for each in results for file in each.added)
        removed = (*(name for each in results for name in each.removed), *mixed)
        return cls(state.after(results), added, removed, counts)


def plan_merges(
    table: ExportTable,
    schema: pa.Schema,
    state: UpsertState,
    results: Sequence[ExportResult],
    *,
    stem: str,
    file_bytes: int,
) -> tuple[list[MergeTask], list[str]]:
    """A task for each bucket that changes; and files of other programs or other buckets, which all of them read."""
    rule = state.rule
    groups: dict[int, dict[str, list[int]]] = {}
    for result in results:
        for number, bucket in enumerate(result.buckets):
            assert result.file is not None, "row groups are in a file"
            groups.setdefault(bucket, {}).setdefault(result.file.name, []).append(number)
    if not groups:
        return [], []
    own: dict[int, list[tuple[str, int]]] = {}
    mixed: list[str] = []
    for name, size in sorted(table.files().items()):
        its_bucket = rule.bucket_of_file(name)
        if its_bucket is None:
            mixed.append(name)
        else:
            own.setdefault(its_bucket, []).append((name, size))
    is_resized = state.buckets != rule.buckets
    buckets = range(rule.buckets) if mixed or is_resized else sorted(groups)
    graves = state.deleted_keys
    return [
        MergeTask(
            table.place,
            schema,
            rule,
            bucket,
            tuple((name, tuple(numbers)) for name, numbers in groups.get(bucket, {}).items()),
            tuple(own.get(bucket, ())),
            tuple(mixed),
            tuple(graves.values()) if is_resized else tuple([graves[bucket]] if bucket in graves else []),
            stem,
            file_bytes,
        )
        for bucket in buckets
    ], mixed

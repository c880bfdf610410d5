"""A broker's own tables, brought back from the tier into the `config` directory of a store that is restored.

    state-<kind>.tiermq.json ──► checked ──► fitted to the queues that were restored ──► config/<kind>.json

Fitted: an offset beyond the end of its queue is cut to the end, since the next messages get the offsets behind it. A
queue that is not in the tier begins at 0. Offsets of the system's topics that are not in the tier are left out. POP's
log is not in the tier, so a group begins at the first message that was popped and not acknowledged. A topic that has
messages in the tier and is missing in the table is added; a table without it would count as its deletion.

Invariants: a file that is there already is never replaced; a failure leaves none behind; a table that is damaged, or
was written by a newer TierMQ, is a remark, and the others are restored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tiermq.errors import FutureManifest, TierError
from tiermq.files.config_file import BACKUP_SUFFIX
from tiermq.files.file_access import FileAccess
from tiermq.message.topic_name import SCHEDULE_TOPIC, TOPIC_QUEUES_MAX, is_system_topic
from tiermq.settings import escaped_property
from tiermq.store.table_journal import SUFFIX as JOURNAL_SUFFIX
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_state import (
    CHOSEN_FILE,
    DELAY_OFFSETS,
    FILTERS,
    GROUPS,
    KINDS,
    OFFSETS,
    REQUEST_MODES,
    SETTINGS,
    TOPICS,
    StateKind,
    StoredTable,
    entry_problem,
    is_forbidden_table,
    is_natural,
    load_broker_state,
)
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS
from tiermq.tier.names import INDEX_TOPIC
from tiermq.tier.restore.restore_report import Finding, Remark, RestoredTable, RestoreReport

SETTINGS_FILE = "restored-broker.conf"
WITHOUT = {
    TOPICS.name: "numbers of queues, permissions and attributes of topics",
    GROUPS.name: "groups and their settings",
    OFFSETS.name: "group offsets",
}
"""What is missing where a tier does not have these tables. The others are those that a broker need not have."""
NEVER_RESTORED = ("accounts", "messages of delay levels")
"""What no tier has."""
READ_WRITE = 6
QUEUE_ID_DIGITS_MAX = len(str(TOPIC_QUEUES_MAX))


@dataclass(slots=True)
class _Ends:
    """Of the restored queues: where each ends, and when its last message was stored."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    times_ms: dict[str, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: MetadataStore) -> _Ends:
        found = cls()
        for queue in metadata.queues():
            if queue.key.topic != INDEX_TOPIC:
                found.offsets.setdefault(queue.key.topic, {})[queue.key.queue_id] = max(0, queue.max_offset)
        for segment in metadata.all_segments():
            if segment.key.topic in found.offsets and 0 < segment.end_ms < NEVER_MS:
                times = found.times_ms.setdefault(segment.key.topic, {})
                times[segment.key.queue_id] = max(times.get(segment.key.queue_id, 0), segment.end_ms)
        return found

    @property
    def last_ms(self) -> int:
        return max((time_ms for times in self.times_ms.values() for time_ms in times.values()), default=0)


def restore_state(
    driver: TierDriver,
    metadata: MetadataStore,
    access: FileAccess,
    root: str,
    report: RestoreReport,
    *,
    topics: Collection[str] = (),
    now_ms: int,
) -> None:
    """Write the tables of the report's broker into `root`/config, and add to the report what was done.

    `topics`: only these, and only their offsets. Raises TierError when one of them is neither in the tier nor in the
    table, and what driver and disk raise; then no file was written.
    """
    found, problems = load_broker_state(driver, report.cluster, report.broker)
    for name, error in problems.items():
        finding = Finding.FUTURE_STATE if isinstance(error, FutureManifest) else Finding.CORRUPT_STATE
        report.remarks.append(Remark(finding, name, str(error).removeprefix(f"{name}: ")))
    ends = _Ends.of(metadata)
    chosen = frozenset(topics)
    _require_known(driver.url, chosen, ends, found.get(TOPICS.name))
    report.last_message_ms = ends.last_ms
    fitting = _Fitting(ends, chosen, report, now_ms)
    fitted = fitting.fit(found)
    report.not_restored = [words for name, words in WITHOUT.items() if name not in fitted] + [*NEVER_RESTORED]
    files = {_file(kind): data for kind in KINDS if (data := fitted.get(kind.name)) is not None}
    if chosen:
        files[CHOSEN_FILE] = _encoded({"leftOut": fitting.left_out, "topics": sorted(chosen)})
    kept = _written(access, f"{root}/config", files)
    for kind in KINDS:
        table = found.get(kind.name)
        if table is None or kind.name not in fitted:
            continue
        report.tables.append(
            RestoredTable(
                kind.name, kind.words, _file(kind), table.taken_ms, _count(kind, fitted[kind.name]),
                is_kept=_file(kind) in kept,
            )
        )  # fmt: skip
    report.remarks += [Remark(Finding.FILE_KEPT, f"config/{name}") for name in sorted(kept)]


def _require_known(url: str, chosen: Collection[str], ends: _Ends, table: StoredTable | None) -> None:
    known = ends.offsets.keys() | (set() if table is None else table.document[TOPICS.table].keys())
    if unknown := sorted(set(chosen) - known):
        raise TierError(
            f"{url}: expected history of {', '.join(unknown)}, found none of this broker; nothing was restored. There "
            f"is {', '.join(sorted(name for name in known if not is_system_topic(name))[:20]) or 'no topic'}"
        )


class _Fitting:
    """Makes the texts of files from the tables of the tier."""

    def __init__(self, ends: _Ends, chosen: frozenset[str], report: RestoreReport, now_ms: int) -> None:
        self._ends = ends
        self._chosen = chosen
        self._report = report
        self._now_ms = now_ms
        self.left_out: dict[str, dict[str, Any]] = {}
        """By kind, the entries of topics that were not chosen."""

    def fit(self, found: Mapping[str, StoredTable]) -> dict[str, bytes]:
        fitted = {}
        ways: dict[str, Callable[[StoredTable], bytes]] = {
            TOPICS.name: self._topics,
            OFFSETS.name: self._offsets,
            DELAY_OFFSETS.name: self._delay_offsets,
            FILTERS.name: self._of_topics,
            REQUEST_MODES.name: self._of_topics,
            SETTINGS.name: _settings,
        }
        if self._chosen and TOPICS.name not in found:  # Without a table, a broker takes all topics of its store.
            version = {"counter": 1, "stateVersion": 0, "timestamp": self._now_ms}
            empty: dict[str, Any] = {"dataVersion": version, TOPICS.table: {}}
            fitted[TOPICS.name] = self._topics(StoredTable(TOPICS, empty, self._now_ms, 0, ""))
        for name, table in found.items():
            fitted[name] = ways.get(name, _as_it_is)(self._sound(table))
        return fitted

    def _sound(self, table: StoredTable) -> StoredTable:
        """The table without entries that a start would refuse."""
        kind, document = table.kind, table.document
        problems = {name: entry_problem(kind, name, entry) for name, entry in document[kind.table].items()}
        for name, problem in problems.items():
            if problem is not None:
                self._note(Finding.ODD_ENTRY, f"{kind.words}, {name[:100]!r}", problem[:300])
        document = document | {
            kind.table: {name: entry for name, entry in document[kind.table].items() if problems[name] is None}
        }
        version = document.get("dataVersion")
        if not (isinstance(version, dict) and all(map(is_natural, version.values()))):
            document.pop("dataVersion", None)
        if kind is GROUPS and document.get("forbiddenTable") and not is_forbidden_table(document["forbiddenTable"]):
            self._note(Finding.ODD_ENTRY, f"{kind.words}, forbiddenTable", "topics that groups may not read")
            del document["forbiddenTable"]
        return replace(table, document=document)

    def _is_chosen(self, topic: str) -> bool:
        return not self._chosen or topic in self._chosen

    def _chosen_of(self, table: StoredTable) -> dict[str, Any]:
        """The entries of a table whose keys are topics, or begin with them."""
        entries: dict[str, Any] = table.document[table.kind.table]
        kept = {key: entry for key, entry in entries.items() if self._is_chosen(key.partition("@")[0])}
        self.left_out[table.kind.name] = {key: entry for key, entry in entries.items() if key not in kept}
        return kept

    def _of_topics(self, table: StoredTable) -> bytes:
        return _encoded({**table.document, table.kind.table: self._chosen_of(table)})

    def _topics(self, table: StoredTable) -> bytes:
        topics = self._chosen_of(table)
        own_names = {self._report.cluster, self._report.broker}
        for name, ends in sorted(self._ends.offsets.items()):
            if not self._is_chosen(name) or is_system_topic(name) or name in own_names:
                continue
            entry, count = topics.get(name), max(ends) + 1
            if entry is None:
                topics[name] = _topic(name, count)
                self._note(Finding.TOPIC_ADDED, f"topic {name}", f"with {count} queues")
            elif self._has_grown(name, entry, table.taken_ms):
                topics[name] = {**entry, "readQueueNums": count, "writeQueueNums": count}
                self._note(Finding.TOPIC_GREW, f"topic {name}", f"{count} queues")
        return _encoded({**table.document, TOPICS.table: topics})

    def _has_grown(self, name: str, entry: dict[str, Any], taken_ms: int) -> bool:
        """Whether a queue beyond the topic's count has messages that are newer than the table."""
        counts = [entry.get(key) for key in ("readQueueNums", "writeQueueNums")]
        count = max((each for each in counts if type(each) is int), default=0)
        times = self._ends.times_ms.get(name, {})
        return any(queue_id >= count and time_ms > taken_ms for queue_id, time_ms in times.items())

    def _offsets(self, table: StoredTable) -> bytes:
        kept: dict[str, dict[str, int]] = {}
        groups: dict[str, list[str]] = {}
        opened = table.document.get("popOpen")  # TierMQ's own, see `broker/group/consumer_offsets`.
        opened = opened if isinstance(opened, dict) else {}
        for key, queues in self._chosen_of(table).items():
            topic, _, group = key.partition("@")
            ends = self._ends.offsets.get(topic)
            if ends is None and is_system_topic(topic):
                continue
            kept[key] = self._cut(
                f"group {group}, topic {topic}", {**queues, **_before(queues, opened.get(key))}, ends or {}
            )
            groups.setdefault(group, []).append(topic)
        document = {name: table.document[name] for name in ("dataVersion",) if name in table.document}
        return _encoded({**document, "groupTopicMap": groups, OFFSETS.table: kept})

    def _delay_offsets(self, table: StoredTable) -> bytes:
        """Of level n in queue n - 1 of the schedule topic. Usually that is not in the tier, and begins at 0 again."""
        ends = self._ends.offsets.get(SCHEDULE_TOPIC)
        levels = {level: offset for level, offset in table.document[DELAY_OFFSETS.table].items() if level.isdecimal()}
        if ends is None:
            cut = dict.fromkeys(levels, 0)
        else:
            cut = self._cut("delay levels", levels, {queue_id + 1: end for queue_id, end in ends.items()})
        return _encoded({**table.document, DELAY_OFFSETS.table: cut})

    def _cut(self, whose: str, offsets: dict[str, Any], ends: Mapping[int, int]) -> dict[str, int]:
        kept = {}
        for queue_id, offset in offsets.items():
            if not (is_natural(offset) and queue_id.isdecimal() and len(queue_id) <= QUEUE_ID_DIGITS_MAX):
                continue
            end = ends.get(int(queue_id), 0)
            kept[queue_id] = min(offset, end)
            if offset > end:
                self._note(Finding.OFFSET_CUT, f"{whose}, queue {queue_id}", f"{offset} to {end}")
        return kept

    def _note(self, finding: Finding, where: str, text: str) -> None:
        self._report.remarks.append(Remark(finding, where, text))


def _before(queues: Mapping[str, Any], opened: Any) -> dict[str, int]:
    """The offsets of queues with messages that were popped and not acknowledged."""
    found = opened.items() if isinstance(opened, dict) else ()
    return {
        queue_id: offset
        for queue_id, offset in found
        if type(offset) is int and type(at := queues.get(queue_id)) is int and offset < at
    }


def _as_it_is(table: StoredTable) -> bytes:
    return _encoded(table.document)


def _topic(name: str, queues: int) -> dict[str, Any]:
    return {
        "attributes": {}, "order": False, "perm": READ_WRITE, "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0, "writeQueueNums": queues,
    }  # fmt: skip


def _settings(table: StoredTable) -> bytes:
    lines = [f"{name}={escaped_property(str(value))}\n" for name, value in table.document[SETTINGS.table].items()]
    head = "# Settings of the lost broker, without accounts. Check paths and addresses, then start with `serve -c`.\n"
    return "".join([head, *lines]).encode()


def _file(kind: StateKind) -> str:
    return SETTINGS_FILE if kind is SETTINGS else kind.file


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _count(kind: StateKind, data: bytes) -> int:
    """Entries of a table; of offsets the number of groups and queues."""
    if kind is SETTINGS:
        return data.count(b"\n") - 1
    table = json.loads(data)[kind.table]
    return sum(map(len, table.values())) if kind is OFFSETS else len(table)


def _written(access: FileAccess, directory: str, files: Mapping[str, bytes]) -> set[str]:
    """Write the files that are not there; the names of those that are. A failure removes what was written."""
    kept: set[str] = set()
    done: list[str] = []
    if files:
        access.make_directories(directory)
    try:
        for name, data in files.items():
            path = f"{directory}/{name}"
            if any(access.exists(path + suffix) for suffix in ("", BACKUP_SUFFIX, JOURNAL_SUFFIX)):
                kept.add(name)
                continue
            done.append(path)
            access.write_config(path, data)
    except BaseException:
        for path in done:
            if access.exists(path):
                access.remove(path)
        raise
    return kept

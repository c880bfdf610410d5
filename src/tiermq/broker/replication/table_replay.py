"""TableReplay: a slave applies its master's table log (`table_log`) to its own tables, as it dispatches the log.

    dispatch ─► record of rmq_sys_TIERMQ_TABLES ─► topics, groups ─► their files       queues of deleted topics
                                                └► offsets, request modes, delayOffset.json

A record is applied before the next one of the log is dispatched: the queue type of a topic is known before its first
message, and the queues of a deleted topic go before those of a new one begin. A broker that opens its store as a master
applies what it has not applied as a slave (`catch_up`) before anything reads the tables.

Invariants: records are applied in order, from `position` on, which is stored with the consumer offsets; a change that
the table has already (by its version) is skipped, so that reading one twice changes nothing; a change of another table
than this one is made, and the table is asked for by a request (`on_gap`). Whatever a record has, it is applied or
skipped, counted and logged. Threads: everything runs while the store dispatches nothing else
(`LocalStore.between_dispatches`); the figures may be read by any.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.broker.broker_context import config_directory
from tiermq.broker.group.assignment_processor import GroupMode, decode_modes
from tiermq.broker.group.consumer_offsets import LOG_ENDS, ConsumerOffsets, decode_queues
from tiermq.broker.group.group_table import GroupTable, forbidden_in
from tiermq.broker.replication.table_log import DELAYS, GROUPS, MODES, OFFSETS, TOPICS
from tiermq.broker.topic.table_file import Entry, StoredTable, TableChange, is_older
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import Clock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.config import BrokerRole
from tiermq.delivery.redeliver import SkippedRecords
from tiermq.errors import CorruptRecord, RequestRefused, StoreClosed, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TABLE_LOG_TOPIC, TOPIC_QUEUES_MAX, topic_problem
from tiermq.namesrv.topic_config import DataVersion
from tiermq.remoting.json_dialect import as_int, decode_object, list_in, object_in, text_in
from tiermq.settings import LONG_MAX
from tiermq.store.delay_offsets import FILE as DELAY_FILE
from tiermq.store.delay_offsets import decode_delay_offsets, encode_delay_offsets
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

TABLE_RECORD_BYTES_MAX = 16 * 1024 * 1024
"""Larger records are skipped before they are parsed."""
PARTS_MAX = 10_000
Modes = dict[tuple[str, str], GroupMode]


@dataclass(slots=True)
class _Whole:
    """A whole table, of which parts have come."""

    version: DataVersion
    first: int
    parts: int
    forbidden: object = None
    seen: int = 0
    put: dict[str, Any] = field(default_factory=dict)


class TableReplay:
    """See the module."""

    def __init__(
        self, local: LocalStore, topics: TopicTable, groups: GroupTable, offsets: ConsumerOffsets, clock: Clock
    ) -> None:
        self.applied_count = 0
        self.on_gap: Callable[[], None] = lambda: None
        """Called when a table lacks changes of the master that are not in this log."""
        self.skipped = SkippedRecords(TABLE_LOG_TOPIC, clock)
        self.modes: Modes | None = None
        """The last ones; None: there was no record of them."""
        self.on_modes: Callable[[Modes], None] = lambda _modes: None
        self.delays: dict[int, int] = {}
        """How far delayed messages are known to be delivered, by the log."""
        self._local, self._topics, self._groups, self._offsets = local, topics, groups, offsets
        self._clock = clock
        self._access = OsFileAccess()
        self._delay_path = os.path.join(config_directory(local.config.root_path), DELAY_FILE)
        self._next: int | None = offsets.table_log_next
        self._whole: dict[str, _Whole] = {}
        self._apply: dict[str, Callable[[StoredMessage, dict[str, Any]], None]] = {
            TOPICS: self._take_topics,
            GROUPS: self._take_groups,
            OFFSETS: self._take_offsets,
            DELAYS: self._take_delays,
            MODES: self._take_modes,
        }

    @property
    def position(self) -> int:
        """The first record that the tables do not have."""
        return min((each.first for each in self._whole.values()), default=self._next or 0)

    def follow(self) -> None:
        """Of a slave: apply what is there, and every record that comes, before the next one of the log."""
        self._offsets.take_table_log_next = lambda: self.position
        self._local.add_arrival_listener(self._arrived)
        self._local.between_dispatches(self._run)

    def catch_up(self) -> None:
        """Of a broker that is about to be the master: apply what the log has. A slave follows instead."""
        if self._local.config.broker_role is BrokerRole.SLAVE:
            return
        self._local.dispatch_now()
        self._local.between_dispatches(self._run)
        for name, each in self._whole.items():
            _log.warning("the table of %s of version %s is not whole in the log", name, each.version)

    def _arrived(self, topic: str, _queue_id: int, _next_offset: int, _request: DispatchRequest | None) -> None:
        """What is dispatched while the store is closed is applied at its next start."""
        if topic == TABLE_LOG_TOPIC:
            with contextlib.suppress(StoreClosed):
                self._run()

    def _run(self) -> None:
        """On the dispatching thread."""
        local = self._local
        begin, end = local.min_offset(TABLE_LOG_TOPIC, 0), local.max_offset(TABLE_LOG_TOPIC, 0)
        # A tail of the log may have been cut, and its oldest files deleted. Offsets of another program are newer.
        self._next = end if self._next is None else min(max(self._next, begin), end)
        while self._next < end:
            try:
                page = local.get(TABLE_LOG_TOPIC, 0, self._next, 1)
                for message in page.messages:
                    self._take(message)
                self._next = max(page.next_offset, self._next + 1)
            except CorruptRecord as error:
                self.skipped.add(f"offset {self._next}", error)
                self.on_gap()
                self._next += 1

    def _take(self, message: StoredMessage) -> None:
        try:
            if len(message.body) > TABLE_RECORD_BYTES_MAX:
                raise RequestRefused(f"expected at most {TABLE_RECORD_BYTES_MAX} bytes, found {len(message.body)}")
            record = decode_object(message.body)
            apply = self._apply.get(str(record.get("table")))
            if apply is None:
                raise RequestRefused(f"expected a table of {', '.join(self._apply)}, found {record.get('table')!r}")
            apply(message, record)
            self.applied_count += 1
        except (RequestRefused, CorruptRecord, StoreDamaged, OSError) as error:
            self.skipped.add(f"offset {message.queue_offset}", error)
            self.on_gap()
        except Exception as error:  # noqa: BLE001 - the record's outermost edge: the log goes on, whatever it has
            _log.exception("table log, offset %d", message.queue_offset)
            self.skipped.add(f"offset {message.queue_offset}", error)
            self.on_gap()

    # Tables.

    def _take_topics(self, message: StoredMessage, record: dict[str, Any]) -> None:
        whole = self._whole_of(TOPICS, message, record)
        if whole is not None:
            table = self._legal(self._topics, whole)
            gone = [name for name in self._topics.table if name not in table and not self._topics.is_system(name)]
            self._topics.follow(table, whole.version, is_logged=True)
            self._drop(gone, message)
        elif "parts" not in record:
            change = _change_in(record)
            taken = self._topics.follow_log(change)
            self._note_taken(taken)
            if taken is not None:
                self._drop([name for name in change.gone if not self._topics.is_system(name)], message)

    def _take_groups(self, message: StoredMessage, record: dict[str, Any]) -> None:
        whole = self._whole_of(GROUPS, message, record)
        if whole is not None:
            table = self._legal(self._groups, whole)
            self._groups.follow(table, forbidden_in(whole.forbidden), whole.version, is_logged=True)
        elif "parts" not in record:
            forbidden = record.get("forbidden")
            change = _change_in(record)
            self._note_taken(self._groups.follow_log(change, None if forbidden is None else forbidden_in(forbidden)))

    def _legal(self, table: StoredTable[Entry], whole: _Whole) -> dict[str, Entry]:
        """The entries of a whole table, without those that cannot be: the others are needed."""
        found: dict[str, Entry] = {}
        for name, each in whole.put.items():
            try:
                found |= table.decoded({name: each})
            except RequestRefused as error:
                self.skipped.add(f"offset {whole.first}, {name[:80]!r}", error)
        return found

    def _note_taken(self, taken: bool | None) -> None:
        if taken is False:
            self.on_gap()

    def _whole_of(self, name: str, message: StoredMessage, record: dict[str, Any]) -> _Whole | None:
        """The whole table, if this is its last part and this broker's is older."""
        if "parts" not in record:
            return None
        parts, part, version = as_int(record["parts"]), as_int(record.get("part")), _version_in(record, "version")
        if not 0 <= part < parts <= PARTS_MAX:
            raise RequestRefused(f"expected a part of at most {PARTS_MAX}, found {part} of {parts}")
        if part == 0:
            self._whole[name] = _Whole(version, message.queue_offset, parts, record.get("forbidden"))
        whole = self._whole.get(name)
        if whole is None or (whole.version, whole.parts, whole.seen) != (version, parts, part):
            self._whole.pop(name, None)
            raise RequestRefused(f"expected the parts of a table in order, found {part} of {parts}")
        whole.put.update(object_in(record.get("put"), "put"))
        whole.seen += 1
        if whole.seen < parts:
            return None
        del self._whole[name]
        own = self._topics.data_version if name == TOPICS else self._groups.data_version
        return whole if is_older(own, version) else None

    def _drop(self, topics: list[str], message: StoredMessage) -> None:
        """The queues of deleted topics, unless messages were stored in them since."""
        if named := [each for each in topics if topic_problem(each) is None]:
            self._local.drop_queues(named, before=message.physical_offset)

    def _take_offsets(self, _message: StoredMessage, record: dict[str, Any]) -> None:
        put = {}
        for key, entry in object_in(record.get("put"), "put").items():
            put[key] = queues = decode_queues(entry, key)
            if not all(0 <= each < TOPIC_QUEUES_MAX and 0 <= at <= LONG_MAX for each, at in queues.items()):
                raise RequestRefused(f"expected offsets of queues, found others under {key[:80]!r}")
        ends = record.get(LOG_ENDS)
        if ends is not None and not (isinstance(ends, list) and all(type(each) is int for each in ends)):
            raise RequestRefused(f"expected a list of offsets in {LOG_ENDS}, found {str(ends)[:80]}")
        self._offsets.follow_log(put, _names_in(record, "gone"), ends)

    def _take_delays(self, _message: StoredMessage, record: dict[str, Any]) -> None:
        """What was delivered is in this log before this record."""
        found = {as_int(level): as_int(at) for level, at in object_in(record.get("put"), "put").items()}
        if not all(0 < level < 1000 and 0 <= at <= LONG_MAX for level, at in found.items()):
            raise RequestRefused(f"expected offsets of delay levels, found {str(found)[:80]}")
        self.delays = found
        self.write_delays({}, 0)

    def write_delays(self, offsets: Mapping[int, int], counter: int) -> None:
        """Write what a master has delivered: what it reported, or the log has, whichever is more. Raises OSError."""
        before, known = self._access.read_config(self._delay_path, decode_delay_offsets) or ({}, 0)
        found = dict(offsets)
        for level, at in self.delays.items():
            found[level] = max(at, found.get(level, 0))
        if found != before:
            self._access.make_directories(os.path.dirname(self._delay_path))
            levels_ms = self._local.config.delay_levels_ms
            text = encode_delay_offsets(found, max(counter, known), self._clock.now_ms(), levels_ms)
            self._access.write_config(self._delay_path, text)

    def _take_modes(self, _message: StoredMessage, record: dict[str, Any]) -> None:
        self.modes = decode_modes(text_in(record.get("modes"), "modes").encode())
        self.on_modes(self.modes)


def _change_in(record: dict[str, Any]) -> TableChange:
    """Raises RequestRefused."""
    put = object_in(record.get("put"), "put")
    return TableChange(_version_in(record, "base"), _version_in(record, "version"), put, _names_in(record, "gone"))


def _names_in(record: dict[str, Any], name: str) -> list[str]:
    found = list_in(record, name)
    if not all(isinstance(each, str) for each in found):
        raise RequestRefused(f"expected a list of names in {name}")
    return found


def _version_in(record: dict[str, Any], name: str) -> DataVersion:
    found = record.get(name)
    if not isinstance(found, list) or len(found) != 3:
        raise RequestRefused(f"expected three numbers in {name}, found {str(found)[:80]}")
    if not all(type(each) is int and 0 <= each <= LONG_MAX for each in found):
        raise RequestRefused(f"expected numbers of 63 bits in {name}, found {str(found)[:80]}")
    return DataVersion(*found)

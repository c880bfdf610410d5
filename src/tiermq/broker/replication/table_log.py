"""TableLog: a master writes the changes of its tables into its log, so that no change of masters loses them.

    rmq_sys_TIERMQ_TABLES, queue 0: records whose bodies are JSON objects

    {"table":"topics","base":[t,c,s],"version":[t,c,s],"put":{"orders":{…}},"gone":["old"]}      one change
    {"table":"groups",… ,"forbidden":{"CG":{"orders":4}}}                                        the same; all forbidden
    {"table":"topics","version":[t,c,s],"part":0,"parts":2,"put":{…}}                            a whole table, in parts
    {"table":"offsets","put":{"orders@CG":{"0":12}},"gone":["old@CG"],"popLogEnds":[3,0]}        changes of each second
    {"table":"delays","put":{"1":7}}    {"table":"modes","modes":"{…}"}                          all of them

A version is the table's: timestamp, counter, state version. Entries are absolute, so that a record may be read twice.
Slaves apply a record when they dispatch it (`table_replay`); RocketMQ's brokers copy it and never read it.

Who writes: an elected master, and a master by its settings while slaves are connected. A term begins with the whole
tables, and they are written again when the log no longer has them, so that a replica with the log has the tables.

Invariants: records of a table are in the order of its changes (they are appended under its lock); a record is appended
after its change is visible, so that a slave that has read it gets no older table by a request. A request that changes
topics, groups or offsets as an operator does is answered OK once its records are committed (`settle`). What the log
refuses (a full disk, too few replicas) is made up for by the whole tables as soon as it takes records again.

Cost: nothing without slaves and elections. Else a record for each change, and one each second in which offsets were
committed: about 200 bytes and 40 for each topic and group of which they were.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tiermq.broker.group.consumer_offsets import LOG_ENDS, ConsumerOffsets, Offsets
from tiermq.broker.group.group_table import GroupTable
from tiermq.broker.send.put_answers import STORED
from tiermq.broker.topic.table_file import TableChange, numbers
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import Clock
from tiermq.config import FlushDiskType
from tiermq.errors import RequestRefused
from tiermq.kernel import Message
from tiermq.message.topic_name import TABLE_LOG_TOPIC
from tiermq.namesrv.topic_config import DataVersion
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.replication.ha_master import HaMaster
from tiermq.store.local_store import LocalStore

TOPICS, GROUPS, OFFSETS, DELAYS, MODES = "topics", "groups", "offsets", "delays", "modes"
PART_BYTES = 128 * 1024
"""A record of a whole table, or of offsets, ends behind this."""
NOTE_S = 1.0
"""How often committed offsets are written."""
SETTLE_LOOK_S = 0.002
SETTLED = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
)
"""Answered once what they changed is committed."""


class TableLog:
    """See the module. Any thread may call."""

    def __init__(
        self,
        local: LocalStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        master: HaMaster,
        clock: Clock,
        *,
        is_elected: bool,
    ) -> None:
        self.record_count = 0
        self.take_delays: Callable[[], Mapping[int, int]] = dict
        """How far the messages of each delay level were delivered."""
        self.take_modes: Callable[[], bytes] = bytes
        """How groups get the messages of topics, as in RocketMQ's file; empty while it is not known."""
        self._local, self._master, self._clock = local, master, clock
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._is_elected = is_elected
        self._lock = threading.Lock()
        """Guards what follows; it is taken inside of the tables' locks."""
        self._end = 0
        self._lacks_tables = is_elected
        self._refusal = ""
        self._tables_at = -1
        self._forbidden = groups.forbidden_table
        self._delays: Mapping[int, int] = {}
        self._modes = b""
        self._note_lock = threading.Lock()
        topics.on_change = self._topics_changed
        groups.on_change = self._groups_changed
        offsets.take_table_log_next = self._next

    @property
    def is_written(self) -> bool:
        """Whether a replica may need it."""
        return self._is_elected or self._master.rules.waits or bool(self._master.replicas())

    def _next(self) -> int | None:
        end = self._local.max_offset(TABLE_LOG_TOPIC, 0, committed=False)
        return end if end or self._is_elected else None

    # Under the tables' locks.

    def _topics_changed(self, change: TableChange) -> None:
        if self.is_written:
            self._change(TOPICS, change, {})

    def _groups_changed(self, change: TableChange) -> None:
        if self.is_written:
            before, self._forbidden = self._forbidden, self._groups.forbidden_table  # It is replaced, never changed.
            self._change(GROUPS, change, {} if before is self._forbidden else {"forbidden": self._forbidden})

    def _change(self, table: str, change: TableChange, more: dict[str, Any]) -> None:
        record = {"base": numbers(change.base), "version": numbers(change.version), "put": change.put, **more}
        self._append(table, {**record, "gone": list(change.gone)} if change.gone else record)

    def _append(self, table: str, record: Mapping[str, Any]) -> bool:
        """Whether the log has taken it."""
        body = json.dumps({"table": table, **record}, separators=(",", ":"), ensure_ascii=False).encode()
        with self._lock:
            result = self._local.append(Message(TABLE_LOG_TOPIC, body, 0))
            if result.status not in STORED:
                self._lacks_tables, self._refusal = True, result.status.name
                return False
            self._end = result.end_offset
            self.record_count += 1
        self._master.wake()
        return True

    # Whole tables, offsets.

    @property
    def has_work(self) -> bool:
        """Whether `note` would do anything; asked each second."""
        if not self.is_written:
            self._offsets.is_logged = False
            return False
        if not self._offsets.is_logged:
            self._offsets.is_logged = True
            self._lacks_tables = True  # Also of a master by its settings: slaves have come.
        return True

    def note(self) -> None:
        """Write what has changed since the last call: offsets and deliveries; whole tables, if the log lacks them."""
        with self._note_lock:
            if not self.has_work or not self._local.writeable:
                return
            if self._lacks_tables or self._tables_at < self._local.min_physical_offset:
                self._write_tables()
            self._write_offsets(*self._offsets_now())
            delays, modes = dict(self.take_delays()), self.take_modes()
            put = {str(level): offset for level, offset in delays.items()}
            if delays != self._delays and self._append(DELAYS, {"put": put}):
                self._delays = delays
            if modes != self._modes and self._append(MODES, {"modes": modes.decode()}):
                self._modes = modes

    def _offsets_now(self) -> tuple[Offsets, list[str], list[int] | None]:
        ends = None if self._offsets.take_log_ends is None else self._offsets.take_log_ends()  # Before the offsets.
        return (*self._offsets.take_changed(), ends)

    def _write_tables(self) -> None:
        at = self._local.max_physical_offset
        self._lacks_tables = False
        self._topics.read_all(lambda table, version: self._write_table(TOPICS, table, version))
        self._groups.read_all(lambda table, version: self._write_table(GROUPS, table, version))
        self._write_offsets(self._offsets.snapshot(), [], None)
        self._delays, self._modes = {}, b""
        if not self._lacks_tables:
            self._tables_at = at

    def _write_table(self, name: str, table: Mapping[str, Any], version: DataVersion) -> None:
        parts = list(self._parts({each: value.to_json() for each, value in table.items()})) or [{}]
        more = {"forbidden": self._groups.forbidden_table} if name == GROUPS else {}
        for part, put in enumerate(parts):
            record = {"version": numbers(version), "part": part, "parts": len(parts), "put": put}
            if not self._append(name, {**record, **(more if part == 0 else {})}):
                return

    def _write_offsets(self, put: Offsets, gone: list[str], ends: list[int] | None) -> None:
        more = {} if ends is None else {LOG_ENDS: ends}
        for part in self._parts({key: {str(each): at for each, at in queues.items()} for key, queues in put.items()}):
            self._append(OFFSETS, {"put": part, **more})
        if gone:
            self._append(OFFSETS, {"put": {}, "gone": gone, **more})

    def _parts(self, entries: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The entries in dictionaries that fit into records."""
        most = min(PART_BYTES, self._local.appender.max_body_bytes // 2)
        part: dict[str, Any] = {}
        size = 0
        for name, entry in entries.items():
            part[name] = entry
            size += len(name) + len(str(entry))
            if size >= most:
                yield part
                part, size = {}, 0
        if part:
            yield part

    # Requests.

    def settle(self) -> None:
        """Wait until everything that was changed before is committed. Raises RequestRefused when it is not: the change
        was made here, and a change of masters may lose it.
        """
        if not self.is_written:
            return
        if self._local.writeable:
            self.note()
        if not (self._is_elected or self._master.rules.waits):
            return  # Its sends wait for no slave either.
        if self._lacks_tables:
            why = self._local.why_not_writeable or self._refusal
            raise RequestRefused(
                f"{_MADE}; the log does not take it for replicas: {why}", ResponseCode.SLAVE_NOT_AVAILABLE
            )
        end = self._end
        if self._local.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self._local.flush()
        deadline_s = self._clock.monotonic() + self._local.config.slave_timeout / 1000
        while self._local.confirm_offset < end:
            if not self._master.state.is_available:
                raise RequestRefused(
                    f"{_MADE}; too few replicas are in sync to confirm it", ResponseCode.SLAVE_NOT_AVAILABLE
                )
            if self._clock.monotonic() > deadline_s:
                raise RequestRefused(
                    f"{_MADE}; too few replicas have confirmed it yet", ResponseCode.FLUSH_SLAVE_TIMEOUT
                )
            time.sleep(SETTLE_LOOK_S)


_MADE = "the change is made here"

"""MetadataSync: a slave copies its master's tables, by the requests with which RocketMQ's slaves do it.

    21   topics           201  groups           43   consumer offsets         402  request modes
    45   delay offsets    60   timer check point: what was delivered
    907  the end of the master's log; 28 of RocketMQ 4

A master of TierMQ also writes changes of its tables into its log (`table_replay`), which brings them sooner; these
requests are for masters of RocketMQ, and for what a slave lacked at its start.

Topics and groups are replaced when their version differs; offsets are merged. What was delivered is written only once
this slave has the log up to where the master's ended when it answered: otherwise deliveries would be lost if this
broker became the master before their records came. The timer check point is written so that a master on this directory
builds the wheel from the timer topic (its units sum matches no wheel).

Cost: seven requests every `masterSyncInterval`. Threads: everything happens on the service's own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.group.assignment_processor import AssignmentProcessor, decode_modes
from tiermq.broker.group.consumer_offsets import decode_offsets
from tiermq.broker.group.group_table import decode_groups
from tiermq.broker.replication.table_replay import TableReplay
from tiermq.broker.topic.topic_table import decode_topics
from tiermq.client.table_pages import TablePages
from tiermq.delivery.timer.timer_checkpoint import COPIED_SUM, TimerCheckpoint, TimerProgress, decode_progress
from tiermq.delivery.timer.timer_checkpoint import FILE as TIMER_FILE
from tiermq.errors import RemotingError, TierMQError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.remoting.client import BlockingClient, parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object, int64_in, object_in
from tiermq.service import Service
from tiermq.store.delay_offsets import FILE as DELAY_FILE
from tiermq.store.delay_offsets import decode_delay_offsets

_log = logging.getLogger(__name__)

REST_WITHOUT_MASTER_S = 0.2
SYNC_LOOK_S = 0.05


class MetadataSync(Service):
    """See the module."""

    def __init__(self, parts: BrokerContext, processors: Iterable[object], replay: TableReplay) -> None:
        super().__init__("metadata-sync")
        self._replay = replay
        self.round_count = 0
        self._rounds = threading.Condition()
        self.problem = ""
        """Why the last round failed, as text; empty if it did not."""
        self._parts = parts
        [self._modes] = (each for each in processors if isinstance(each, AssignmentProcessor))
        replay.on_modes = self._modes.follow
        replay.on_gap = self.wake
        self._access = OsFileAccess()
        self._directory = config_directory(parts.local.config.root_path)
        self._client: BlockingClient | None = None
        self._address = ""
        self._delivered: dict[str, tuple[int, bytes]] = {}
        self._write_delivered: dict[str, Callable[[bytes], None]] = {
            DELAY_FILE: self._write_delay_offsets,
            TIMER_FILE: self._write_timer_checkpoint,
        }

    def run_once(self) -> float:
        address = self._parts.replication.master_address
        if not address or not self._parts.replication.follows_tables:
            return REST_WITHOUT_MASTER_S
        try:
            self._sync(self._connected(address))
            self.problem = ""
        except (OSError, TierMQError) as error:
            self._disconnect()
            self.error_count, self.last_error = self.error_count + 1, error
            if str(error) != self.problem:  # Not at every round.
                _log.warning("the master's tables were not copied, trying again: %s", error)
            self.problem = str(error)
        with self._rounds:
            self.round_count += 1
            self._rounds.notify_all()
        return self._parts.config.master_sync_interval / 1000

    def sync_now(self, timeout_s: float) -> str:
        """Wait for a whole round that begins after this call; why it failed, as text. Any thread may call."""
        with self._rounds:
            wanted = self.round_count + 2  # One may be under way.
            deadline_s = time.monotonic() + timeout_s
            while self.round_count < wanted:
                self.wake()
                if time.monotonic() > deadline_s:
                    return self.problem or f"it took longer than {timeout_s:g} s"
                self._rounds.wait(SYNC_LOOK_S)
            if self._delivered:
                return "its log is behind what the master has delivered"
            return self.problem

    def forget_pending(self) -> None:
        """What the master had delivered when its log was longer than this slave's is not written: it went. Any thread
        may call.
        """
        self._delivered = {}

    def finish(self) -> None:
        self._disconnect()

    def _connected(self, address: str) -> BlockingClient:
        if self._client is None or address != self._address or not self._client.client.is_open:
            self._disconnect()
            [(host, port)] = parse_name_servers(address)
            self._client, self._address = self._parts.ask_replica(host, port), address
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _sync(self, client: BlockingClient) -> None:
        parts = self._parts
        topics, version = decode_topics(self._ask(client, RequestCode.GET_ALL_TOPIC_CONFIG))
        if version != parts.topics.data_version:
            parts.topics.follow(topics, version)
        groups, forbidden, version = decode_groups(self._ask(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        if version != parts.groups.data_version:
            parts.groups.follow(groups, forbidden, version)
        if offsets := self._ask(client, RequestCode.GET_ALL_CONSUMER_OFFSET):
            table, version, _ = decode_offsets(offsets)
            parts.offsets.follow(table, version)
        if modes := self._ask(client, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE):
            self._modes.follow(decode_modes(modes))
        found = {
            DELAY_FILE: self._ask(client, RequestCode.GET_ALL_DELAY_OFFSET),
            TIMER_FILE: self._ask(client, RequestCode.GET_TIMER_CHECK_POINT),
        }
        end = self._end_of_master(client)
        for name, body in found.items():
            if body and name not in self._delivered:
                self._delivered[name] = end, body
        self._apply_delivered()

    def _end_of_master(self, client: BlockingClient) -> int:
        """Where its log ends. RocketMQ 4 has no request 907."""
        if body := self._ask(client, RequestCode.GET_BROKER_HA_STATUS):
            return int64_in(decode_object(body), "masterCommitLogMaxOffset")
        figures = decode_object(self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO))
        return int64_in(object_in(figures["table"], "a table of figures"), "commitLogMaxOffset")

    def _apply_delivered(self) -> None:
        """Write what was delivered at a moment whose log this slave has by now."""
        have = self._parts.local.max_physical_offset
        for name, (end, body) in tuple(self._delivered.items()):
            if end <= have:
                self._write_delivered[name](body)
                del self._delivered[name]

    def _ask(self, client: BlockingClient, code: int) -> bytes:
        """The body; empty where the master has no such table: a new one, or one without a timer wheel."""
        pages = TablePages(code)
        while not pages.is_whole:
            answer = self._page(client, code, pages.fields)
            pages.take(answer.ext, bytes(answer.body))
        return pages.body

    def _page(self, client: BlockingClient, code: int, fields: dict[str, str]) -> RemotingCommand:
        answer = client.request(RemotingCommand(code, ext=fields))
        if answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED) and not answer.body:
            return RemotingCommand(code)
        if answer.code != ResponseCode.SUCCESS:
            found = f"{int(answer.code)}: {answer.remark}"
            raise RemotingError(f"master {self._address}: expected the table of request {code}, found {found}")
        return answer

    def _write_delay_offsets(self, body: bytes) -> None:
        offsets, counter = decode_delay_offsets(body)
        self._replay.write_delays(offsets, counter)

    def _write_timer_checkpoint(self, body: bytes) -> None:
        of_master = decode_progress(body)
        progress = TimerProgress(
            of_master.read_time_ms,
            0,
            of_master.queue_offset,
            self._parts.config.timer_precision_ms,
            units_sum=COPIED_SUM,
        )
        self._access.make_directories(self._directory)
        checkpoint = TimerCheckpoint(self._access, os.path.join(self._directory, TIMER_FILE))
        try:
            checkpoint.write(progress, self._parts.clock.now_ms(), of_master.counter)
        finally:
            checkpoint.close()

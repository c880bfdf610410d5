"""ActingPopLog: POP's log of a slave that acts for its master. It reads the master's records, and writes none.

    due check point ─► message to another master ─► config/actedPops.json ─► master is back: 200051 for each

What was delivered again is acknowledged at the master when that returns, before it delivers anything itself, by the
request that consumers use. Until then the file has it, so that a slave that starts again repeats nothing.
Threads: those of `PopLog`; `hand_over` after the revival has stopped.
"""

from __future__ import annotations

import json
import logging
import os

from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.pop.pop_acks import Receipt
from tiermq.broker.pop.pop_checkpoints import CheckPoint, PoppedMessage
from tiermq.broker.pop.pop_log import PopLog
from tiermq.broker.pop.pop_topics import MARK_NORMAL
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

_log = logging.getLogger(__name__)

FILE = "actedPops.json"
Acted = tuple[PoppedMessage, int, int, int]
"""(check point, its invisible time, its revive queue, offset of the message)."""


class ActingPopLog(PopLog):
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        super().__init__(parts.local, parts.offsets, parts.config, parts.clock.now_ms)
        self._broker_name = parts.config.broker_name
        self._access = OsFileAccess()
        self._path = os.path.join(config_directory(parts.local.config.root_path), FILE)
        self._acted: list[Acted] = self._access.read_config(self._path, _decoded) or []
        self._is_written = True

    @property
    def has_acted(self) -> bool:
        """Whether the master does not know yet of messages that were delivered again."""
        return bool(self._acted)

    def recover(self) -> int:
        super().recover()
        for popped, _, _, offset in self._acted:
            self.points.acknowledge(popped, [offset])
        return len(self.points)

    def _record_acks(self, point: CheckPoint, offsets: list[int]) -> None:
        self._acted += [(point.popped, point.invisible_ms, point.revive_queue, offset) for offset in offsets]
        self._is_written = False

    def commit(self) -> None:
        self._write()
        super().commit()

    def _write(self) -> None:
        if not self._is_written:
            self._access.write_config(self._path, json.dumps(self._acted).encode())
            self._is_written = True

    def hand_over(self, client: BlockingClient) -> None:
        """Acknowledge at the master what was delivered again. Raises RemotingError: nothing is forgotten then."""
        for popped, invisible_ms, revive_queue, offset in self._acted:
            receipt = Receipt(
                popped.start_offset,
                popped.pop_ms,
                invisible_ms,
                revive_queue,
                MARK_NORMAL,
                self._broker_name,
                popped.queue_id,
                offset,
            )
            ext = {
                "consumerGroup": popped.group,
                "topic": popped.topic,
                "queueId": str(popped.queue_id),
                "extraInfo": receipt.encode(),
                "offset": str(offset),
            }
            answer = client.request(RemotingCommand(RequestCode.ACK_MESSAGE, ext=ext))
            if answer.code != ResponseCode.SUCCESS:
                _log.error(
                    "%s, offset %d: may be delivered twice, the master refuses: %s", popped, offset, answer.remark
                )
        if self._acted:
            self._acted, self._is_written = [], False
            self._write()


def _decoded(data: bytes) -> list[Acted]:
    """Raises StoreDamaged."""
    try:
        return [
            (PoppedMessage(str(popped[0]), str(popped[1]), *map(int, popped[2:])), int(wait), int(queue), int(offset))
            for popped, wait, queue, offset in json.loads(data)
        ]
    except (TypeError, ValueError, IndexError) as error:
        raise StoreDamaged(f"{FILE}: expected messages that were delivered again, found {data[:80]!r}") from error

"""UnservedProcessor: requests of RocketMQ's tools that mean nothing for this broker, answered with the reason.

Every one is answered with REQUEST_CODE_NOT_SUPPORTED and a sentence that mqadmin shows; `docs/administration.md` lists
them. A request that is in no table at all gets the server's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiermq.broker.broker_context import BrokerContext
from tiermq.errors import RequestRefused
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, text_field
from tiermq.remoting.connection import Connection

_CONTAINER = "This broker is one process without a broker container: start another with `tiermq serve`."
_ROCKSDB = "This broker keeps no RocksDB: topics, groups and offsets are JSON files, consume queues are plain files."
_ACCOUNTS = "Accounts and permissions are in the file of `tiermq serve --acl`, which is read again when it changes."
_LITE = "Lite topics are served to gRPC clients by the broker itself: docs/grpc.md."

REASONS: Mapping[int, str] = {
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "Static topics are not supported: a queue is stored where it was made. See docs/decisions/019-static-topics.md."
    ),
    RequestCode.ADD_BROKER: _CONTAINER,
    RequestCode.REMOVE_BROKER: _CONTAINER,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (
        "No request sets a master's flush offset: a slave copies its master's log, and has a flush offset of its own."
    ),
    RequestCode.SET_COMMITLOG_READ_MODE: "Read-ahead of commit-log files is left to the operating system.",
    **{RequestCode(code): _ACCOUNTS for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)},
    **dict.fromkeys(
        map(RequestCode, range(RequestCode.POP_LITE_MESSAGE, RequestCode.TRIGGER_LITE_DISPATCH + 1)), _LITE
    ),
}
TIMER_ENGINE = "E_T"
TIMER_WHEEL, TIMER_ROCKSDB = "F", "R"


class UnservedProcessor:
    """See the module. Two requests succeed if the broker already has the requested state."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts

    @serves(*REASONS, access=ADMINISTRATOR)
    def refuse(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise RequestRefused(REASONS[command.code], ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    @serves(RequestCode.SWITCH_TIMER_ENGINE, access=ADMINISTRATOR)
    def switch_timer_engine(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        engine = text_field(command, TIMER_ENGINE, "")
        if engine not in (TIMER_WHEEL, TIMER_ROCKSDB):
            raise RequestRefused(
                f"expected engine F (file) or R (RocksDB), found {engine[:40]!r}", ResponseCode.INVALID_PARAMETER
            )
        if self._parts.timers is None:
            raise RequestRefused("broker timerWheelEnable is false")
        if engine == TIMER_ROCKSDB:
            raise RequestRefused(
                "Timers are kept in the timer wheel and in the tier; there is no RocksDB engine.",
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        return command.respond(remark="switch timer engine success")

    @serves(RequestCode.POP_ROLLBACK, access=ADMINISTRATOR)
    def pop_rollback(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """RocketMQ moves POP's records from RocksDB to its revive topic; here they are in that topic always."""
        return command.respond(remark="records of POP are kept in the revive topic already")

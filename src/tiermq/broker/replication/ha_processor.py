"""HaProcessor: what slaves and operators ask about replication.

    60   timer check point, 56 bytes          61   timers by topic, JSON         asked by RocketMQ's slaves
    906  a master's HA address                907  replication as `mqadmin haStatus` shows it
    1007 epochs of the log                    1008 a controller has elected another master
    905  a member of the set has come or gone  906  of a master: it is back, and a slave stops acting for it

A master reports its slaves, a slave its connection to the master. What a slave would have to change is refused, with
where to go instead (`SLAVE_REFUSES`): a slave's tables and log are its master's.
"""

from __future__ import annotations

from typing import Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.replication.table_log import SETTLED
from tiermq.errors import BadConfig, RemotingError, ReplicationError, RequestRefused
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import decode_object, encode_body
from tiermq.replication.epoch_file import EpochEntry, end_of
from tiermq.replication.ha_slave import MasterIdentity

NO_CONTROLLER = "This broker runs without a controller: there are no epochs and no sync-state set."
SLAVE_REFUSES = (
    *SETTLED,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.RECALL_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)

UNGATED = (
    RequestCode.EXCHANGE_BROKER_HA_INFO,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
    RequestCode.GET_BROKER_ROLE,
    RequestCode.DEMOTE_BROKER,
    # What a slave copies, also in the last moments of a master that hands over.
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)
"""What an elected master answers also while its lease is not valid."""
IDENTITY_TIMEOUT_S = 3.0


class HaProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._start_offset = parts.local.max_physical_offset

    @serves(RequestCode.GET_TIMER_CHECK_POINT, access=ADMINISTRATOR, in_pool=True)
    def timer_check_point(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if (acting := self._parts.replication.acting) is not None:
            return command.respond(body=acting.timer_check_point())
        if self._parts.timers is None:
            raise RequestRefused("The checkpoint is null")
        return command.respond(body=self._parts.timers.checkpoint_bytes())

    @serves(RequestCode.GET_TIMER_METRICS, access=ADMINISTRATOR)
    def timer_metrics(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if self._parts.timers is None:
            raise RequestRefused("The timerMessageStore is null")
        return command.respond(body=self._parts.timers.metrics_bytes())

    @serves(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, access=ADMINISTRATOR)
    def min_id_changed(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """The name servers are asked at once; what the notification itself has is not used."""
        if (acting := self._parts.replication.acting) is not None:
            acting.look_soon()
        return command.respond()

    @serves(RequestCode.EXCHANGE_BROKER_HA_INFO, access=ADMINISTRATOR, in_pool=True)
    def exchange_ha_info(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """A slave asks where to copy from; or a master is back, for which this slave acted. Otherwise a request that
        makes this broker a slave of another is refused.
        """
        if ha_address := command.ext.get("masterHaAddress"):
            if (acting := self._parts.replication.acting) is not None:
                acting.master_announced(ha_address, command.ext.get("masterAddress") or "")
                return command.respond()
            raise RequestRefused(
                "expected a question, found a master that announces itself: this broker takes its master from its "
                "settings or its name server",
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        replication, config = self._parts.replication, self._parts.config
        if replication.is_slave:
            return command.respond()
        ext = {
            "masterAddress": f"{config.broker_ip1}:{self._parts.server.port}",
            "masterFlushOffset": str(self._start_offset),
            "masterHaAddress": replication.ha_address,
        }
        return command.respond(ext={name: value for name, value in ext.items() if value})

    @serves(RequestCode.GET_BROKER_HA_STATUS, access=ADMINISTRATOR)
    def ha_status(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        replication, local = self._parts.replication, self._parts.local
        body: dict[str, Any] = {
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": not replication.is_slave,
            "masterCommitLogMaxOffset": 0 if replication.is_slave else local.max_physical_offset,
        }
        if replication.keeper is not None:
            body["isElected"] = True
        if (master := replication.master) is not None:
            end = local.max_physical_offset
            slaves = master.slaves()
            body["inSyncSlaveNums"] = sum(each.is_in_sync for each in slaves)
            body["haConnectionInfo"] = [
                {
                    "addr": each.address,
                    "diff": end - each.ack,
                    "inSync": each.is_in_sync,
                    "slaveAckOffset": each.ack,
                    "transferFromWhere": each.sent_to,
                    "transferredByteInSecond": each.bytes_per_second,
                }
                for each in slaves
            ]
        slave = replication.slave
        body["haClientRuntimeInfo"] = {
            "activated": slave is not None and slave.is_connected,
            "lastReadTimestamp": 0 if slave is None else slave.last_read_ms,
            "lastWriteTimestamp": 0 if slave is None else slave.last_write_ms,
            "masterAddr": "" if slave is None else slave.master,
            "masterFlushOffset": 0,
            "maxOffset": local.max_physical_offset if slave is not None else 0,
            "transferredByteInSecond": 0 if slave is None else slave.bytes_per_second(),
        }
        return command.respond(body=encode_body(body))

    @serves(RequestCode.GET_BROKER_EPOCH_CACHE, access=ADMINISTRATOR)
    def epoch_cache(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """`mqadmin getBrokerEpoch`."""
        config, end = self._parts.config, self._parts.local.max_physical_offset
        entries = self._parts.replication.epochs
        if not entries:
            raise RequestRefused(NO_CONTROLLER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        listed = [
            {"epoch": each.epoch, "startOffset": each.start, "endOffset": end_of(entries, at, end)}
            for at, each in enumerate(entries)
        ]
        body = {
            "clusterName": config.broker_cluster_name,
            "brokerName": config.broker_name,
            "brokerId": config.broker_id,
            "epochList": listed,
            "maxOffset": end,
            "terms": {str(epoch): term for epoch, term in self._parts.replication.terms.items()},
        }
        return command.respond(body=encode_body(body))

    @serves(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, access=ADMINISTRATOR)
    def role_changed(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """The controller's state is read again; what the notification itself has is not used."""
        election = self._parts.replication.election
        if election is None:
            raise RequestRefused(NO_CONTROLLER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        election.look_soon()
        return command.respond()

    def refuse(self, _connection: Connection, _command: RemotingCommand) -> RemotingCommand:
        """Of a slave: raises RequestRefused."""
        raise RequestRefused(self._parts.replication.why_read_only)


def master_identity(parts: BrokerContext) -> MasterIdentity:
    """Of a slave: who its elected master is, by request 1007 to its client port. Raises ReplicationError for another
    broker, and for one that does not answer.
    """
    address, config = parts.replication.master_address, parts.config
    try:
        [(host, port)] = parse_name_servers(address)
        with parts.ask_name_server(host, port) as client:
            answer = client.request(RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE), timeout_s=IDENTITY_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"expected the epochs of the master at {address}, found: {answer.remark}")
        body = decode_object(answer.body)
        entries = tuple(EpochEntry(int(each["epoch"]), int(each["startOffset"])) for each in body["epochList"])
        terms = {int(epoch): str(term) for epoch, term in (body.get("terms") or {}).items()}
    except (RemotingError, BadConfig, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ReplicationError(
            f"expected the master at {address or 'an address'} to report who it is: {error}"
        ) from error
    found = str(body.get("clusterName")), str(body.get("brokerName"))
    if found != (config.broker_cluster_name, config.broker_name):
        raise ReplicationError(
            f"expected broker {config.broker_name} of cluster {config.broker_cluster_name} at {address}, found broker "
            f"{found[1]} of cluster {found[0]}: another broker has the address of the master; nothing is copied from it"
        )
    return MasterIdentity(entries, terms)

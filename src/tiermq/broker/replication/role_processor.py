"""RoleProcessor: what operators ask of a broker whose role an election gives. TierMQ's own requests.

    210000  status of role, election, replicas and cut tails, as JSON         `tiermq broker status`
    210001  hand over to another replica, without loss; `successor`: its id   `tiermq broker demote`
    210002  become the master: ask it to hand over to this replica            `tiermq broker promote`
    210003  of a slave: copy the master's tables now                          a master that hands over

A master answers them also while its lease is not valid. A handover is answered once the replicas have everything and
the lease was released, or will be in a moment; the role changes after that, which closes the connection.
"""

from __future__ import annotations

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.replication.replication import RoleKeeper
from tiermq.errors import RemotingError, RequestRefused
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body

HANDOVER_TIMEOUT_S = 10.0
SYNC_TIMEOUT_S = 5.0


class RoleProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts

    @property
    def _keeper(self) -> RoleKeeper:
        keeper = self._parts.replication.keeper
        if keeper is None:
            raise RequestRefused(
                "expected a broker whose role an election gives, found one whose settings do: start it with --standby",
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        return keeper

    @serves(RequestCode.GET_BROKER_ROLE, access=ADMINISTRATOR, in_pool=True)
    def status(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(body=encode_body(self._keeper.status()))

    @serves(RequestCode.DEMOTE_BROKER, access=ADMINISTRATOR, in_pool=True)
    def demote(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._keeper.demote(_number(command, "successor"), HANDOVER_TIMEOUT_S)
        return command.respond()

    @serves(RequestCode.SYNC_BROKER_TABLES, access=ADMINISTRATOR, in_pool=True)
    def sync_tables(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if problem := self._parts.replication.sync_tables(SYNC_TIMEOUT_S):
            raise RequestRefused(f"expected to have the master's tables, found: {problem}")
        return command.respond()

    @serves(RequestCode.PROMOTE_BROKER, access=ADMINISTRATOR, in_pool=True)
    def promote(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        keeper, replication = self._keeper, self._parts.replication
        if not replication.is_slave:
            return command.respond(remark="it is the master")
        if command.ext.get("acceptLoss") == "true":
            keeper.accept_loss()
            return command.respond()
        address, own = replication.master_address, self._parts.config.broker_id
        if not address:
            raise RequestRefused(f"no replica is the master now. {_why_not(keeper)}")
        try:
            [(host, port)] = parse_name_servers(address)
            with self._parts.ask_replica(host, port) as client:
                answer = client.request(
                    RemotingCommand(RequestCode.DEMOTE_BROKER, ext={"successor": str(own)}),
                    timeout_s=HANDOVER_TIMEOUT_S + 5.0,
                )
        except (RemotingError, OSError) as error:
            raise RequestRefused(
                f"the master at {address} does not answer: {error}. A replica in sync takes over by itself when the "
                f"lease ends. {_why_not(keeper)}"
            ) from error
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(f"the master at {address}: {answer.remark}")
        keeper.look_soon()
        return command.respond()


def _why_not(keeper: RoleKeeper) -> str:
    found = keeper.status()["election"]
    if not isinstance(found, dict) or found.get("kind") != "lease":
        return "The controller elects a replica in sync"
    if not (words := str(found.get("whyNotMaster") or "")):
        return "This replica takes over in a moment"
    return (
        f"This replica: {words}. If no replica that may take over can start again: "
        "`tiermq broker promote --accept-loss` makes this one the master, and what it lacks is lost"
    )


def _number(command: RemotingCommand, name: str) -> int:
    text = command.ext.get(name) or "0"
    if not text.isdigit():
        raise RequestRefused(f"{name}: expected the id of a replica, found {text[:40]!r}")
    return int(text)

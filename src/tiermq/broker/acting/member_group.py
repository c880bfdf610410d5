"""MemberGroup: the members of a broker set, by the name servers; and the heartbeats that keep this one among them.

    904 heartbeat ─► each name server      901 members ─► id: address

Several name servers may differ for a while: a member that one of them knows counts as there. So no slave acts for a
master that some name server still gives to clients. Threads: one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tiermq.broker.broker_config import BrokerConfig
from tiermq.errors import RemotingError
from tiermq.remoting.client import Address, BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import as_int, decode_object, object_in, text_map_in

_log = logging.getLogger(__name__)


class MemberGroup:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        name_servers: list[Address],
        connect: Callable[[str, int], BlockingClient],
    ) -> None:
        """`address` is this broker's own."""
        self.address = address
        self.problem = ""
        """Why no name server gave the members, as text."""
        self._who = {
            "clusterName": config.broker_cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": address,
            "brokerId": str(config.broker_id),
        }
        self._name_servers = name_servers
        self._connect = connect
        self._clients: dict[Address, BlockingClient] = {}

    def look(self, *, beats: bool) -> dict[int, str] | None:
        """Addresses by id; None while no name server answers. `beats`: with a sign of life."""
        found: dict[int, str] | None = None
        problem = "no name server is named"
        for server in self._name_servers:
            try:
                members = self._members(server, beats=beats)
            except RemotingError as error:
                self._drop(server)
                problem = f"{server[0]}:{server[1]}: {error}"
                continue
            found = {**members, **(found or {})}
        self._note("" if found is not None else problem)
        return found

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("the members of this broker's set are not known: %s", problem)
        self.problem = problem

    def _members(self, server: Address, *, beats: bool) -> dict[int, str]:
        client = self._clients.get(server)
        if client is None or not client.client.is_open:
            self._drop(server)
            client = self._clients[server] = self._connect(*server)
        if beats:
            client.request(RemotingCommand(RequestCode.BROKER_HEARTBEAT, ext=self._who))
        answer = client.request(RemotingCommand(RequestCode.GET_BROKER_MEMBER_GROUP, ext=self._who))
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(f"expected the members of a broker set, found {int(answer.code)}: {answer.remark}")
        group = object_in(decode_object(answer.body).get("brokerMemberGroup") or {}, "brokerMemberGroup")
        addresses = text_map_in(group.get("brokerAddrs") or {}, "brokerAddrs")
        return {as_int(broker_id): address for broker_id, address in addresses.items()}

    def _drop(self, server: Address) -> None:
        client = self._clients.pop(server, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        for server in tuple(self._clients):
            self._drop(server)

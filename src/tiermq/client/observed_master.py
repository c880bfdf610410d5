"""ObservedMaster: what an observer must know of a master before it copies its log, asked over the wire.

    26   its settings: names, role, HA port, size of the log's files, how long senders wait for slaves
    28   its figures: begin and end of its log            906  its HA address, which RocketMQ 4 does not answer
    1007 of TierMQ: its epochs, which a master has that a lease elected

Nothing is changed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiermq.client.cluster_client import ClusterClient, split_address
from tiermq.errors import BadConfig, PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import decode_object, int64_in, object_in
from tiermq.settings import read_properties

DEFAULT_PORTS_APART = 1
"""RocketMQ's HA port is the one above the broker's port."""
FIGURES_TRIES = 10
_MODES = ("enableControllerMode", "enableDLegerCommitLog", "enableDLedgerCommitLog")
LEASE_SETTING = "masterLeaseTerm"
"""Brokers of TierMQ have it."""
_OTHER = "whose stream has another format. `tiermq pipeline offload --namesrv` copies such a broker"
_WAITS = ("slaveTimeout", "syncFlushTimeout")


@dataclass(frozen=True, slots=True)
class ObservedMaster:
    """See the module. `wait_ms`: how long a sender waits for a slave, at most. `has_tls`: whether its HA port speaks
    TLS only, of TierMQ.
    """

    cluster: str
    name: str
    address: str
    ha_address: str
    file_bytes: int
    wait_ms: int
    log_begin: int
    log_end: int
    has_tls: bool = False

    @property
    def begin(self) -> int:
        """From where its whole log is asked for: a report of 0 means its newest file, see `ha_observer`."""
        newest = self.log_end - self.log_end % self.file_bytes
        return 0 if self.log_begin >= newest else max(1, self.log_begin)


async def ask_master(
    cluster: ClusterClient, *, broker: str = "", address: str = "", ha_address: str = ""
) -> ObservedMaster:
    """The master of that name at the name servers, or at these addresses. Raises RemotingError while it cannot be
    reached, BadConfig when it can never be followed.
    """
    is_derived = bool(not address and ha_address)
    if is_derived:
        host, port = split_address(ha_address)
        address = f"{host}:{port - DEFAULT_PORTS_APART}"
    if not address:
        address = await _registered(cluster, broker)
    try:
        answer = await cluster.ask(address, RequestCode.GET_BROKER_CONFIG)
    except (PeerGone, RequestTimedOut) as error:
        if not is_derived:
            raise
        raise PeerGone(
            f"{error}. It was taken for the master's port for clients, the one below {ha_address}: --master is the HA "
            "port (10912 of a broker at 10911); name the other one by --master-address if it is not the one below"
        ) from error
    settings = read_properties(bytes(answer.body).decode())
    _require_master(address, settings)
    if LEASE_SETTING in settings:
        await _require_not_elected(cluster, address)
    table = await _figures(cluster, address)
    return ObservedMaster(
        settings.get("brokerClusterName", "DefaultCluster"),
        settings["brokerName"],
        address,
        ha_address or await _ha_address(cluster, address, settings),
        int(settings["mappedFileSizeCommitLog"]),
        max(int(settings.get(name) or 0) for name in _WAITS),
        max(0, int64_in(table, "commitLogMinOffset")),
        max(0, int64_in(table, "commitLogMaxOffset")),
        has_tls=settings.get("haTlsEnable") == "true",
    )


async def _figures(cluster: ClusterClient, address: str) -> dict[str, Any]:
    """RocketMQ 4 refuses them in the first second after its start."""
    for left in reversed(range(FIGURES_TRIES)):
        try:
            answer = await cluster.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            return object_in(decode_object(answer.body).get("table"), "a table of figures")
        except RequestRefused:
            if not left:
                raise
        await asyncio.sleep(1.0)
    raise AssertionError


async def _registered(cluster: ClusterClient, broker: str) -> str:
    masters = (await cluster.master_table()).addresses
    found = {name: address for (_, name), address in masters.items() if broker in ("", name)}
    if len(found) == 1:
        return next(iter(found.values()))
    there = ", ".join(sorted({name for _, name in masters})) or "none"
    if not broker and found:
        raise RemotingError(f"expected one master at the name server, found {there}: give --broker with one of them")
    raise RemotingError(f"expected a master of broker {broker or '(none named)'} at the name server, found {there}")


def _require_master(address: str, settings: Mapping[str, str]) -> None:
    if settings.get("brokerRole") == "SLAVE":
        raise BadConfig(f"{address}: expected a master, found a slave: follow its master")
    for name in _MODES:
        if settings.get(name) == "true":
            raise BadConfig(
                f"{address}: expected a master that speaks RocketMQ's default HA protocol, found {name}=true, {_OTHER}"
            )
    for name in ("brokerName", "mappedFileSizeCommitLog"):
        if not settings.get(name):
            raise BadConfig(f"{address}: expected a broker's settings, found none named {name}")


async def _require_not_elected(cluster: ClusterClient, address: str) -> None:
    try:
        await cluster.ask(address, RequestCode.GET_BROKER_EPOCH_CACHE)
    except RequestRefused:
        return  # It has no epochs.
    raise BadConfig(
        f"{address}: expected a master that speaks RocketMQ's default HA protocol, found a replica of `tiermq serve "
        f"--standby`, {_OTHER}"
    )


async def _ha_address(cluster: ClusterClient, address: str, settings: Mapping[str, str]) -> str:
    try:
        answer = await cluster.ask(address, RequestCode.EXCHANGE_BROKER_HA_INFO)
        if found := answer.ext.get("masterHaAddress"):
            return found
    except RequestRefused:
        pass  # RocketMQ 4 does not know the request.
    port = int(settings.get("haListenPort") or -1)
    host = settings.get("brokerIP2") or split_address(address)[0]
    if port <= 0:
        raise BadConfig(f"{address}: expected a master with an HA port, found none (haListenPort={port})")
    return f"{host}:{port}"

"""ControllerProcessor: every request of the controller's protocol, and what answers it.

Heartbeats and questions about the controller run on the loop; whatever reads or changes the state of a set runs in the
server's pool, because the bucket answers later. Refusals have the codes of RocketMQ's controller, and a remark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tiermq.controller.broker_set import (
    FIRST_ID,
    MEMBERS_MAX,
    BrokerSet,
    Life,
    Outcome,
    alter,
    apply_id,
    clean,
    elect,
    exists,
    refuse_cluster,
    register,
)
from tiermq.controller.controller_config import ControllerConfig
from tiermq.controller.heartbeats import BrokerKey, Heartbeats, SetKey
from tiermq.controller.set_store import SetStore, object_name
from tiermq.errors import BadConfig, RequestRefused
from tiermq.remoting.access import ADMINISTRATOR, ANY_ACCOUNT, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import as_int, decode_body, decode_object, encode_body
from tiermq.remoting.limits import check_count
from tiermq.settings import INT_MAX, read_change

_log = logging.getLogger(__name__)

GROUP = "tiermq"
HEARTBEAT_TIMEOUT_MS = 10_000
HEARTBEAT_TIMEOUT_MAX_MS = 600_000
SETS_AT_ONCE = 1_000
NO_BROKER = -1
"""Of RocketMQ's requests: none is named."""


class ControllerProcessor:
    """See the module. `config` belongs to the loop's thread; what it refers to may be used by any thread."""

    def __init__(self, config: ControllerConfig, identity: str, heartbeats: Heartbeats, sets: SetStore) -> None:
        """`identity` names this process among all controllers."""
        self.config = config
        self.identity = identity
        self.heartbeats = heartbeats
        self.sets = sets
        self.on_elected: Callable[[BrokerSet], None] = lambda _state: None
        """Called in any thread when a master was elected."""

    # Brokers.

    @serves(RequestCode.BROKER_HEARTBEAT, access=ADMINISTRATOR)
    def heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        broker_id = int_field(request, "brokerId", NO_BROKER)
        if broker_id < FIRST_ID:
            remark = f"expected a heartbeat with the brokerId that a controller gave, found {broker_id}"
            return request.respond(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        name = text_field(request, "brokerName")
        object_name(name)  # Raises for one that no set can have.
        broker = BrokerKey(SetKey(text_field(request, "clusterName"), name), broker_id)
        life = Life(
            int32_field(request, "epoch", -1),
            int_field(request, "maxOffset", -1),
            int32_field(request, "electionPriority", INT_MAX),
        )
        timeout_ms = int_field(request, "heartbeatTimeoutMills", HEARTBEAT_TIMEOUT_MS)
        if not 0 < timeout_ms <= HEARTBEAT_TIMEOUT_MAX_MS:
            raise RequestRefused(
                f"heartbeatTimeoutMills: expected 1 to {HEARTBEAT_TIMEOUT_MAX_MS}, found {timeout_ms}",
                ResponseCode.CONTROLLER_INVALID_REQUEST,
            )
        address = text_field(request, "brokerAddr", "")
        if refused := self._refuse_twin(broker, address):
            return request.respond(ResponseCode.CONTROLLER_INVALID_REQUEST, refused)
        if not self.heartbeats.heard(broker, life, timeout_ms, connection, address):
            return request.respond(ResponseCode.SYSTEM_BUSY, "too many brokers send heartbeats to this controller")
        return request.respond(remark="Heart beat success")

    def _refuse_twin(self, broker: BrokerKey, address: str) -> str:
        """Why this is not the broker of its id, as text."""
        if not (other := self.heartbeats.other_address(broker, address)):
            return ""
        return (
            f"broker id {broker.id} of set {broker.set.name}: expected it at {other}, from where its heartbeats come, "
            f"found it at {address or 'no address'}: the store directory was copied, or the broker has moved and its "
            "connection has not ended yet. Stop one of them"
        )

    @serves(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, access=ADMINISTRATOR, in_pool=True)
    def next_id(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key = _set_of(request)
        state = self.sets.read(key.name)
        if refused := refuse_cluster(state, key.cluster):
            return request.respond(refused.code, refused.remark)
        ext = {**_names(key), "nextBrokerId": str(state.next_id if state is not None else FIRST_ID)}
        return request.respond(ext=ext)

    @serves(RequestCode.CONTROLLER_APPLY_BROKER_ID, access=ADMINISTRATOR, in_pool=True)
    def apply_id(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key, broker = _set_of(request), int_field(request, "appliedBrokerId")
        code = text_field(request, "registerCheckCode")
        outcome = self.sets.change(key.name, lambda state: apply_id(state, *key, broker, code))
        return request.respond(outcome.code, outcome.remark, ext=_names(key) if outcome.is_success else None)

    @serves(RequestCode.CONTROLLER_REGISTER_BROKER, access=ADMINISTRATOR, in_pool=True)
    def register(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key, broker = _set_of(request), int_field(request, "brokerId")
        address = text_field(request, "brokerAddress")
        if refused := self._refuse_twin(BrokerKey(key, broker), address):
            return request.respond(ResponseCode.CONTROLLER_INVALID_REQUEST, refused)
        outcome = self.sets.change(key.name, lambda state: register(state, *key, broker, address))
        state = outcome.state
        if not outcome.is_success or state is None:
            return request.respond(outcome.code, outcome.remark)
        has_master = state.master is not None and not self.heartbeats.lives(key).is_gone(state.master)
        ext = {**_names(key), **(_master_fields(state) if has_master else {})}
        return request.respond(ext=ext, body=_sync_state_set(state))

    # The master and the SyncStateSet.

    @serves(RequestCode.CONTROLLER_ELECT_MASTER, access=ADMINISTRATOR, in_pool=True)
    def elect_master(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        broker = int_field(request, "brokerId", NO_BROKER)
        asker = None if broker == NO_BROKER else broker
        designated = asker is not None and bool_field(request, "designateElect", default=False)
        name, cluster = text_field(request, "brokerName"), text_field(request, "clusterName", "")
        outcome = self.elect(name, cluster=cluster, asker=asker, designated=designated)
        state = outcome.state
        if state is None or outcome.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            return request.respond(outcome.code, outcome.remark)
        group = {
            "brokerAddrs": {str(each): member.address for each, member in state.members.items()},
            "brokerName": name,
            "cluster": state.cluster,
        }
        body = encode_body({"brokerMemberGroup": group, "syncStateSet": sorted(state.in_sync)})
        return request.respond(outcome.code, outcome.remark, ext=_master_fields(state), body=body)

    def elect(self, name: str, *, cluster: str = "", asker: int | None = None, designated: bool = False) -> Outcome:
        """Elect a master of a set, for a request or for the controller's own scan. Blocks; any thread."""
        unclean = self.config.enable_elect_unclean_master

        def decide(state: BrokerSet | None) -> Outcome:
            if refused := refuse_cluster(state, cluster):
                return refused
            lives = self.heartbeats.lives(SetKey(state.cluster if state is not None else cluster, name))
            return elect(state, lives, name, asker=asker, designated=designated, unclean=unclean)

        outcome = self.sets.change(name, decide)
        if outcome.is_success and outcome.state is not None:
            self.on_elected(outcome.state)
        return outcome

    @serves(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, access=ADMINISTRATOR, in_pool=True)
    def alter_sync_state_set(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = text_field(request, "brokerName")
        master, master_epoch = int_field(request, "masterBrokerId"), int32_field(request, "masterEpoch")
        in_sync, set_epoch = _sync_state_set_in(request)

        def decide(state: BrokerSet | None) -> Outcome:
            lives = self.heartbeats.lives(SetKey("" if state is None else state.cluster, name))
            return alter(
                state, lives, name, master=master, master_epoch=master_epoch, in_sync=in_sync, set_epoch=set_epoch
            )

        outcome = self.sets.change(name, decide)
        if not outcome.is_success or outcome.state is None:
            return request.respond(outcome.code, outcome.remark)
        ext = {"newSyncStateSetEpoch": str(outcome.state.set_epoch)}
        return request.respond(ext=ext, body=_sync_state_set(outcome.state))

    @serves(RequestCode.CONTROLLER_GET_REPLICA_INFO, access=ANY_ACCOUNT, in_pool=True)
    def replica_info(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = text_field(request, "brokerName")
        state = self.sets.read(name)
        if state is None or not exists(state):
            remark = f"broker set {name} is not known here"
            return request.respond(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, remark)
        ext = _master_fields(state)
        del ext["syncStateSetEpoch"]  # It is in the body.
        return request.respond(ext=ext, body=_sync_state_set(state))

    # Operators.

    @serves(RequestCode.CONTROLLER_GET_METADATA_INFO, access=ANY_ACCOUNT)
    def controller_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Every controller decides by itself, so each is the leader for its clients."""
        host, port = connection.local
        address = self.config.advertised_address or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return request.respond(
            ext={
                "group": GROUP,
                "controllerLeaderId": self.identity,
                "controllerLeaderAddress": address,
                "isLeader": "true",
                "peers": f"{self.identity}:{address}",
            }
        )

    @serves(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, access=ANY_ACCOUNT, in_pool=True)
    def sync_state_data(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        names = decode_body(request.body) if len(request.body) else []
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise RequestRefused("expected a list of broker names as the body", ResponseCode.CONTROLLER_INVALID_REQUEST)
        check_count("broker names", len(names), SETS_AT_ONCE)
        states = {name: state for name in names if (state := self.sets.read(name)) is not None and exists(state)}
        return request.respond(
            body=encode_body({"replicasInfoTable": {name: self._replicas(each) for name, each in states.items()}})
        )

    def _replicas(self, state: BrokerSet) -> dict[str, Any]:
        alive = self.heartbeats.lives(SetKey(state.cluster, state.name)).alive
        listed: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for broker, member in sorted(state.members.items()):
            identity = {"brokerName": state.name, "brokerId": broker, "brokerAddress": member.address}
            listed[broker in state.in_sync].append({**identity, "alive": broker in alive})
        return {
            "masterBrokerId": state.master,
            "masterAddress": state.master_address or None,
            "masterEpoch": state.master_epoch,
            "syncStateSetEpoch": state.set_epoch,
            "inSyncReplicas": listed[True],
            "notInSyncReplicas": listed[False],
        }

    @serves(RequestCode.CLEAN_BROKER_DATA, access=ADMINISTRATOR, in_pool=True)
    def clean_broker_data(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name, cluster = text_field(request, "brokerName"), text_field(request, "clusterName", "")
        text = text_field(request, "brokerControllerIdsToClean", "")
        also_living = bool_field(request, "isCleanLivingBroker", default=False)
        try:
            brokers = [int(each) for each in text.split(";") if each.strip()]
        except ValueError:
            remark = f"brokerControllerIdsToClean: expected ids as 1;2;3, found {text[:80]!r}"
            return request.respond(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)

        def decide(state: BrokerSet | None) -> Outcome:
            if refused := refuse_cluster(state, cluster):
                return refused
            lives = self.heartbeats.lives(SetKey("" if state is None else state.cluster, name))
            return clean(state, lives, name, brokers=brokers, also_living=also_living)

        outcome = self.sets.change(name, decide)
        return request.respond(outcome.code, outcome.remark)

    @serves(RequestCode.UPDATE_CONTROLLER_CONFIG, access=ADMINISTRATOR)
    def update_config(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """In force at once and until the end of this process; other controllers are not changed."""
        try:
            entries = read_change(bytes(request.body))
            if fixed := self.config.fixed_properties(entries):
                raise BadConfig(f"{', '.join(fixed)}: cannot be changed while the controller runs")
            self.config = self.config.with_properties(entries)
        except BadConfig as error:
            return request.respond(ResponseCode.NO_PERMISSION, str(error))
        _log.warning("settings changed by a request: %s", self.config.changed_properties())
        return request.respond()

    @serves(RequestCode.GET_CONTROLLER_CONFIG, access=ADMINISTRATOR)
    def get_config(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.respond(body=self.config.to_properties().encode())


def _set_of(request: RemotingCommand) -> SetKey:
    return SetKey(text_field(request, "clusterName"), text_field(request, "brokerName"))


def _names(key: SetKey) -> dict[str, str]:
    return {"clusterName": key.cluster, "brokerName": key.name}


def _master_fields(state: BrokerSet) -> dict[str, str]:
    fields = {"masterEpoch": str(state.master_epoch), "syncStateSetEpoch": str(state.set_epoch)}
    if state.master is not None:
        fields |= {"masterBrokerId": str(state.master), "masterAddress": state.master_address}
    return fields


def _sync_state_set(state: BrokerSet) -> bytes:
    return encode_body({"syncStateSet": sorted(state.in_sync), "syncStateSetEpoch": state.set_epoch})


def _sync_state_set_in(request: RemotingCommand) -> tuple[list[int], int]:
    """The SyncStateSet and its epoch in a body. Raises RequestRefused."""
    body = decode_object(request.body)
    listed = body.get("syncStateSet")
    if not isinstance(listed, list):
        raise RequestRefused("expected a syncStateSet in the body", ResponseCode.CONTROLLER_INVALID_REQUEST)
    check_count("replicas of a SyncStateSet", len(listed), MEMBERS_MAX)
    return [as_int(each) for each in listed], as_int(body.get("syncStateSetEpoch"))


def role_change(state: BrokerSet) -> RemotingCommand:
    """The notification of a broker about a new master, as 1008 has it."""
    return RemotingCommand(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext=_master_fields(state), body=_sync_state_set(state)
    )

"""ControllerElection: the role of this broker, as a controller of RocketMQ or TierMQ decides it.

    join     brokerIdentity, or 1012 ─► brokerIdentity-temp ─► 1013 ─► brokerIdentity
    start    1005 leader ─► 1003 registration ─► 1004 master and SyncStateSet, every `syncBrokerMetadataPeriod`, and at
             once when the controller notifies (1008) ─► Decision; no master: 1002, this broker asks to be elected
    resign   1006 addresses of the replicas, for the copy of tables ─► 1002, the successor is to be elected
    propose  1001, every second until the controller has recorded the set or another master

One loop (`controller-client`) does all of it, with one connection to each controller, by which a heartbeat (904) goes
each `brokerHeartbeatInterval`. The controller takes a broker for dead when that connection ends.

A notification only causes a look at the controller's state, so a forged one changes nothing. The controller gives no
lease: what keeps an old master from acknowledging is the SyncStateSet. A new master was a member of it, follows the old
one no more, and only the controller takes a member out (see `docs/decisions/027-controller-in-the-bucket.md`). So a
master goes on while every controller is away.

A process is the broker of its id only while the controller has its address for it: another process with the same
identity, of a copied directory, is refused by TierMQ's controller, and under RocketMQ's one of them stands by.

Invariants: the epoch of `decision` never falls; within an epoch neither does that of the SyncStateSet. The loop's
thread owns everything but `decision`, which any thread may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tiermq.broker.broker_config import BrokerConfig
from tiermq.errors import (
    BadConfig,
    PeerGone,
    RemotingError,
    ReplicationError,
    RequestRefused,
    RequestTimedOut,
    StoreDamaged,
)
from tiermq.files.config_file import BACKUP_SUFFIX
from tiermq.files.os_file_access import OsFileAccess
from tiermq.remoting.client import Address, RemotingClient, parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field
from tiermq.remoting.json_dialect import as_int, decode_object, object_in
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import Credentials
from tiermq.replication.election import Candidate, Decision, Loss, Role
from tiermq.settings import INT_MAX

# BrokerIdentity: the id that a controller gave to the broker of a store, in RocketMQ's files.
#
#     <store>/brokerIdentity         cluster#brokerName#id
#     <store>/brokerIdentity-temp    cluster#brokerName#id#checkCode     asked for, and not confirmed yet
#
# Invariants: the second file is written before the controller is asked to confirm, and removed after the first one is
# on disk: a broker that dies in between asks for the same id with the same check code, and gets it.

IDENTITY_FILE = "brokerIdentity"
TEMPORARY_SUFFIX = "-temp"
_SEPARATOR = "#"


class Claim(NamedTuple):
    """An id that was asked for."""

    id: int
    check_code: str


class BrokerIdentity:
    """The two files of a store. Used by one thread at a time."""

    def __init__(self, root: str, cluster: str, name: str) -> None:
        """Raises BadConfig for names that the files cannot hold."""
        for what, text in (("brokerClusterName", cluster), ("brokerName", name)):
            if not text or _SEPARATOR in text or "\n" in text:
                raise BadConfig(f"{what}: expected a name without {_SEPARATOR!r} in controller mode, found {text!r}")
        self._access = OsFileAccess()
        self._path = os.path.join(root, IDENTITY_FILE)
        self._names = (cluster, name)

    def read(self) -> int | None:
        """The confirmed id; None without one. Raises BadConfig for an id of other names, StoreDamaged."""
        fields = self._read(self._path, 3)
        return None if fields is None else int(fields[2])

    def read_claim(self) -> Claim | None:
        fields = self._read(self._path + TEMPORARY_SUFFIX, 4)
        return None if fields is None else Claim(int(fields[2]), fields[3])

    def _read(self, path: str, count: int) -> list[str] | None:
        def decode(data: bytes) -> list[str]:
            fields = data.decode("utf-8").strip().split(_SEPARATOR)
            if len(fields) != count or not fields[2].isdecimal() or int(fields[2]) < 1:
                raise ValueError(f"expected {count} fields, the third one an id, found {data[:200]!r}")
            return fields

        try:
            fields = self._access.read_config(path, decode)
        except ValueError as error:
            raise StoreDamaged(f"{path}: {error}. Restore it, or remove it to join as a new broker") from error
        if fields is not None and tuple(fields[:2]) != self._names:
            raise BadConfig(
                f"{path}: expected the cluster and broker name {self._names}, as the settings have it, found "
                f"{tuple(fields[:2])}: the id belongs to those; correct the settings"
            )
        return fields

    def claim(self, claim: Claim) -> None:
        """Note what is about to be asked for."""
        self._write(self._path + TEMPORARY_SUFFIX, (*self._names, str(claim.id), claim.check_code))

    def drop_claim(self) -> None:
        """The id belongs to another broker."""
        for path in (self._path + TEMPORARY_SUFFIX + BACKUP_SUFFIX, self._path + TEMPORARY_SUFFIX):
            if self._access.exists(path):
                self._access.remove(path)

    def confirm(self, broker_id: int) -> None:
        """The id is this broker's from now on."""
        self._write(self._path, (*self._names, str(broker_id)))
        self.drop_claim()

    def _write(self, path: str, fields: tuple[str, ...]) -> None:
        self._access.make_directories(os.path.dirname(path))
        self._access.write_config(path, _SEPARATOR.join(fields).encode())


_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 3.0
ASK_AGAIN_S = 1.0
JOIN_TRIES = 5
_NO_MASTER = -1
TWIN = (
    "expected to be the only process with this broker id, found that the controller has another address for it: the "
    "store directory was copied. Stop one of them for good; to keep the copy, remove its brokerIdentity and its log"
)
_FAILURES = (PeerGone, RequestTimedOut, RequestRefused, RemotingError, ReplicationError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Of a broker in controller mode; intervals are seconds."""

    addresses: str
    cluster: str
    name: str
    heartbeat_s: float = 1.0
    heartbeat_timeout_ms: int = 10_000
    poll_s: float = 5.0
    priority: int = INT_MAX


class SetInfo(NamedTuple):
    """What a controller knows about the set of this broker."""

    master: int | None
    address: str
    epoch: int
    members: frozenset[int]
    set_epoch: int


def set_info_of(answer: RemotingCommand) -> SetInfo:
    """Of the answers to 1002, 1003 and 1004. Raises RequestRefused for one that makes no sense."""
    body = decode_object(answer.body) if len(answer.body) else {}
    listed = body.get("syncStateSet") or []
    master = int_field(answer, "masterBrokerId", _NO_MASTER)
    return SetInfo(
        None if master == _NO_MASTER else master,
        answer.ext.get("masterAddress", ""),
        int_field(answer, "masterEpoch", 0),
        frozenset(as_int(each) for each in listed),
        int_field(answer, "syncStateSetEpoch", as_int(body.get("syncStateSetEpoch"))),
    )


def is_news(known: SetInfo, found: SetInfo) -> bool:
    """Whether `found` may replace what is known: answers may come late, and from a controller that is behind."""
    return (found.epoch, found.set_epoch) >= (known.epoch, known.set_epoch)


class ControllerElection:
    """See the module. `join`, `start` and `stop` are called by one thread."""

    def __init__(
        self,
        settings: ControllerSettings,
        identity: BrokerIdentity,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Raises BadConfig for addresses that are none."""
        self._settings = settings
        self._controllers = parse_name_servers(settings.addresses)
        if not self._controllers:
            raise BadConfig("controllerAddr: expected host:port;host:port, found none: controller mode needs it")
        self._identity = identity
        self._credentials, self._tls = credentials, tls
        self._id = 0
        self._info = SetInfo(None, "", 0, frozenset(), 0)
        self.decision = Decision(replica_id=0)
        self.loss: Loss | None = None
        """Not known: a controller records no offsets."""
        self.problem = ""
        """Why no controller answers as expected, as text; empty where all is well."""
        self._candidate: Candidate | None = None
        self._thread: LoopThread | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: dict[Address, RemotingClient] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._leader: Address | None = None
        self._is_registered = False
        self._has_twin = False
        self._wanted: tuple[int, frozenset[int]] | None = None  # With its number.
        self._recording = 0
        self._look: asyncio.Event | None = None

    # The owner's thread.

    def join(self) -> int:
        """Raises BadConfig for the id of another broker name, PeerGone if it has none and no controller answers."""
        found = self._identity.read()
        if found is None:
            found = self._loop().run(self._get_id())
        self._id = found
        self.decision = Decision(replica_id=found)
        return found

    def start(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._loop().call(self._begin)

    def stop(self) -> None:
        """Closes the connections: the controller takes this broker for gone at once."""
        if self._thread is not None and self._thread.is_running:
            self._thread.run(self._end())
            self._thread.stop()

    def _loop(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("controller-client")
        return self._thread

    # Any thread.

    def may_acknowledge(self, epoch: int) -> bool:
        decision = self.decision
        return decision.role is Role.MASTER and decision.epoch == epoch

    def knows(self, replica_id: int) -> bool:
        """The controller does, and refuses a SyncStateSet with others."""
        return replica_id > 0

    def propose(self, epoch: int, number: int, members: frozenset[int]) -> None:
        self._soon(self._propose, epoch, number, members)

    def look_soon(self) -> None:
        self._soon(self._look_now)

    def resign(self, successor: int) -> None:
        """Asks the controller to elect another member of the SyncStateSet. Raises RequestRefused."""
        others = sorted(self._info.members - {self._id})
        if self._thread is None or not others or (successor and successor not in others):
            raise RequestRefused(f"expected a successor of the SyncStateSet, found {others or 'none'}")
        try:
            self._thread.run(self._designate(successor or others[0]))
        except _FAILURES as error:
            raise RequestRefused(f"the controller has elected no other broker: {error}") from error

    def addresses(self) -> dict[int, str]:
        """Asks the controller."""
        if self._thread is None:
            return {}
        try:
            return self._thread.run(self._addresses())
        except (*_FAILURES, ValueError) as error:
            raise RequestRefused(f"expected the replicas' addresses from the controller, found: {error}") from error

    def accept_loss(self) -> None:
        raise RequestRefused(
            "the controller decides whether a replica that is not in sync may become the master: set its "
            "enableElectUncleanMaster=true, and what this replica lacks is lost",
            ResponseCode.NO_PERMISSION,
        )

    def status(self) -> dict[str, object]:
        info, leader = self._info, self._leader
        return {
            "kind": "controller",
            "controllers": [f"{host}:{port}" for host, port in self._controllers],
            "leader": None if leader is None else f"{leader[0]}:{leader[1]}",
            "master": info.master,
            "epoch": info.epoch,
            "inSync": sorted(info.members),
            "problem": self.problem,
        }

    def _soon(self, call: Callable[..., None], *arguments: object) -> None:
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile: this broker leaves.
                self._thread.loop.call_soon_threadsafe(call, *arguments)

    # The loop.

    def _look_now(self) -> None:
        if self._look is not None:
            self._look.set()

    def _propose(self, epoch: int, number: int, members: frozenset[int]) -> None:
        if (self._info.master, self._info.epoch) == (self._id, epoch):
            self._wanted = number, members
            self._look_now()

    async def _designate(self, successor: int) -> None:
        ext = {**self._names, "brokerId": successor, "designateElect": "true", "invokeTime": _now_ms()}
        leader = self._leader or await self._find_leader()
        await self._ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, ext)
        self._look_now()

    async def _addresses(self) -> dict[int, str]:
        leader = self._leader or await self._find_leader()
        body = json.dumps([self._settings.name]).encode()
        answer = await self._ask(leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)
        sets = object_in(decode_object(answer.body).get("replicasInfoTable") or {}, "a table of broker sets")
        found = object_in(sets.get(self._settings.name) or {}, "a broker set")
        listed = [*(found.get("inSyncReplicas") or []), *(found.get("notInSyncReplicas") or [])]
        replicas = [object_in(each, "a replica") for each in listed]
        return {as_int(each.get("brokerId")): str(each.get("brokerAddress") or "") for each in replicas}

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = asyncio.Event()
        self._tasks = [loop.create_task(self._beat(each)) for each in self._controllers]
        self._tasks.append(loop.create_task(self._follow()))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    async def _client(self, address: Address) -> RemotingClient:
        """Connected. Raises PeerGone."""
        async with self._connecting.setdefault(address, asyncio.Lock()):
            client = self._clients.get(address)
            if client is None or not client.is_open:
                client = await RemotingClient.connect(
                    *address, tls=self._tls, credentials=self._credentials, timeout_s=ANSWER_TIMEOUT_S
                )
                self._clients[address] = client
            return client

    async def _ask(
        self, address: Address, code: int, ext: Mapping[str, object], body: bytes = b"", *, also: tuple[int, ...] = ()
    ) -> RemotingCommand:
        """The answer; codes other than success and those of `also` raise RequestRefused."""
        client = await self._client(address)
        fields = {name: str(value) for name, value in ext.items()}
        answer = await client.request(RemotingCommand(code, ext=fields, body=body), ANSWER_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            text = f"controller {address[0]}:{address[1]} refused request {code} with {answer.code}: {answer.remark}"
            raise RequestRefused(text, answer.code)
        return answer

    @property
    def _names(self) -> dict[str, object]:
        return {"clusterName": self._settings.cluster, "brokerName": self._settings.name}

    async def _find_leader(self) -> Address:
        """The address of the controller that decides. Raises PeerGone."""
        reasons = []
        for address in self._controllers:
            try:
                answer = await self._ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO, {})
                if found := parse_name_servers(answer.ext.get("controllerLeaderAddress", "")):
                    return found[0]
                reasons.append(f"{address[0]}:{address[1]} knows no leader")
            except (*_FAILURES, BadConfig) as error:
                reasons.append(str(error))
        raise PeerGone(f"controllerAddr: expected a controller that answers, found none: {'; '.join(reasons)}")

    async def _get_id(self) -> int:
        for _ in range(JOIN_TRIES):
            leader = await self._find_leader()
            claim = self._identity.read_claim()
            if claim is None:
                answer = await self._ask(leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self._names)
                claim = Claim(int_field(answer, "nextBrokerId"), f"{self._settings.name};{secrets.token_hex(16)}")
                self._identity.claim(claim)
            ext = {**self._names, "appliedBrokerId": claim.id, "registerCheckCode": claim.check_code}
            invalid = ResponseCode.CONTROLLER_BROKER_ID_INVALID
            answer = await self._ask(leader, RequestCode.CONTROLLER_APPLY_BROKER_ID, ext, also=(invalid,))
            if answer.code == ResponseCode.SUCCESS:
                self._identity.confirm(claim.id)
                return claim.id
            self._identity.drop_claim()  # Another broker was faster.
        raise PeerGone(f"expected a free broker id within {JOIN_TRIES} tries, found others that took each one")

    async def _beat(self, address: Address) -> None:
        assert self._candidate is not None
        while True:
            try:
                if self._has_twin or not self._is_registered:
                    await asyncio.sleep(min(self._settings.heartbeat_s, ASK_AGAIN_S))
                    continue  # The id may be that of another process.
                client = await self._client(address)
                ends = self._candidate.ends()
                ext = {
                    **self._names,
                    "brokerAddr": self._candidate.address,
                    "brokerId": self._id,
                    "epoch": ends.epoch,
                    "maxOffset": ends.end,
                    "confirmOffset": ends.confirmed,
                    "heartbeatTimeoutMills": self._settings.heartbeat_timeout_ms,
                    "electionPriority": self._settings.priority,
                }
                fields = {name: str(value) for name, value in ext.items()}
                client.oneway(RemotingCommand(RequestCode.BROKER_HEARTBEAT, ext=fields))
            except _FAILURES as error:
                _log.debug("controller %s:%d: no heartbeat sent: %s", *address, error)
            await asyncio.sleep(self._settings.heartbeat_s)

    async def _follow(self) -> None:
        assert self._look is not None
        while True:
            self._look.clear()
            try:
                await self._step()
                self._note("")
                is_settled = self._info.master is not None and self._wanted is None and self._has_ha_address
            except _FAILURES as error:
                self._note(str(error))
                self._leader, is_settled = None, False
            except Exception as error:  # noqa: BLE001 - the task's outermost edge: the broker keeps its role
                _log.exception("asking the controller failed")
                self._note(str(error))
                self._leader, is_settled = None, False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_s if is_settled else ASK_AGAIN_S):
                    await self._look.wait()

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("%s", problem)
        self.problem = problem

    async def _step(self) -> None:
        """Ask for the state of the set and take it; ask for what is missing."""
        assert self._candidate is not None
        if self._has_twin:
            raise ReplicationError(TWIN)
        leader = self._leader
        if leader is None:
            self._leader = leader = await self._find_leader()
        if not self._is_registered:
            ext = {**self._names, "brokerId": self._id, "brokerAddress": self._candidate.address}
            await self._ask(leader, RequestCode.CONTROLLER_REGISTER_BROKER, {**ext, "invokeTime": _now_ms()})
            self._is_registered = True
        unknown = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        name = {"brokerName": self._settings.name}
        answer = await self._ask(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, name, also=(unknown,))
        if answer.code == unknown:
            self._is_registered = False
            raise RequestRefused(f"the controller does not know broker set {self._settings.name} any more", unknown)
        info = set_info_of(answer)
        if info.master is None:
            ext = {**self._names, "brokerId": self._id, "designateElect": "false", "invokeTime": _now_ms()}
            still = (ResponseCode.CONTROLLER_MASTER_STILL_EXIST,)
            info = set_info_of(await self._ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, ext, also=still))
        await self._take(info)
        if self._wanted is not None:
            await self._alter(leader, *self._wanted)

    async def _take(self, info: SetInfo) -> None:
        if info.master is None or not is_news(self._info, info):
            return
        if info.epoch > self._info.epoch:
            self._wanted, self._recording = None, 0  # Of an earlier term.
        self._info = info
        is_master = info.master == self._id
        if is_master and self._candidate is not None and info.address != self._candidate.address:
            self._has_twin, self._wanted = True, None
            self._decide(Decision(epoch=info.epoch, replica_id=self._id))
            raise ReplicationError(TWIN)
        ha_address = "" if is_master else await self._ha_address_of(info)
        decision = Decision(
            role=Role.MASTER if is_master else Role.SLAVE,
            epoch=info.epoch,
            replica_id=self._id,
            address=info.address,
            ha_address=ha_address,
            members=info.members if is_master else frozenset(),
            recording=self._recording if is_master else 0,
        )
        self._decide(decision)

    def _decide(self, decision: Decision) -> None:
        if decision != self.decision:
            self.decision = decision
            if self._candidate is not None:
                self._candidate.on_change(decision)

    @property
    def _has_ha_address(self) -> bool:
        return self.decision.role is not Role.SLAVE or bool(self.decision.ha_address)

    async def _ha_address_of(self, info: SetInfo) -> str:
        """Where a slave copies from: controllers do not know it, the master does. The last one while it is silent."""
        known = self.decision
        last = known.ha_address if (known.epoch, known.address) == (info.epoch, info.address) else ""
        try:
            [master] = parse_name_servers(info.address)
            answer = await self._ask(master, RequestCode.EXCHANGE_BROKER_HA_INFO, {})
        except (*_FAILURES, BadConfig, ValueError) as error:
            _log.debug("master at %s: its HA address is not known: %s", info.address, error)
            return last
        return answer.ext.get("masterHaAddress", last)

    async def _alter(self, leader: Address, number: int, wanted: frozenset[int]) -> None:
        """Ask for another SyncStateSet; a refusal is found out about by the next look."""
        if self._info.master != self._id:
            self._wanted = None
            return
        if wanted == self._info.members:
            self._wanted, self._recording = None, number
            self._decide(replace(self.decision, recording=number))  # It was recorded before.
            return
        ext = {
            "brokerName": self._settings.name,
            "masterBrokerId": self._id,
            "masterEpoch": self._info.epoch,
            "invokeTime": _now_ms(),
        }
        body = json.dumps({"syncStateSet": sorted(wanted), "syncStateSetEpoch": self._info.set_epoch}).encode()
        answer = await self._ask(leader, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)
        recorded = decode_object(answer.body)
        members = frozenset(as_int(each) for each in recorded.get("syncStateSet") or [])
        if members == wanted:
            self._recording = number
        await self._take(self._info._replace(members=members, set_epoch=int_field(answer, "newSyncStateSetEpoch")))
        if self._wanted == (number, members):
            self._wanted = None


def controller_election(
    config: BrokerConfig, root: str, credentials: Credentials | None, tls: ssl.SSLContext | None
) -> ControllerElection:
    """The election of a broker in controller mode whose store is in `root`. Raises BadConfig."""
    settings = ControllerSettings(
        addresses=config.controller_addr,
        cluster=config.broker_cluster_name,
        name=config.broker_name,
        heartbeat_s=config.broker_heartbeat_interval / 1000,
        heartbeat_timeout_ms=config.controller_heart_beat_timeout_mills,
        poll_s=config.sync_broker_metadata_period / 1000,
        priority=config.broker_election_priority,
    )
    identity = BrokerIdentity(root, config.broker_cluster_name, config.broker_name)
    return ControllerElection(settings, identity, credentials=credentials, tls=tls)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

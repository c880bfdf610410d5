"""A controller over the wire: the requests of brokers and of mqadmin, lost brokers, and several controllers at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.floods import CHANGES_TOO_LARGE
from simulation.manual_clock import ManualClock
from tiermq.controller.controller import Controller
from tiermq.controller.controller_config import ControllerConfig
from tiermq.controller.heartbeats import LISTEN_S, SetKey
from tiermq.remoting.access import ADMINISTRATOR
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import AccessFile, Credentials
from tiermq.remoting.server import RemotingServer
from tiermq.settings import read_properties
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from waiting import until

SET = {"clusterName": "C", "brokerName": "b"}


@contextmanager
def running(path: Path, clock: ManualClock | None = None, **settings: object) -> Iterator[Controller]:
    config = ControllerConfig(listen_port=0, scan_not_active_broker_interval=20, scan_inactive_master_interval=20)
    with Controller(config.with_settings(**settings), PosixDriver(path), clock=clock, identity=path.name) as controller:
        yield controller


class FakeBroker:
    """A broker as a controller sees it: it asks, sends heartbeats, and listens for notifications."""

    def __init__(self, world: ExitStack, *controllers: Controller) -> None:
        self.notified: list[RemotingCommand] = []
        self.id = 0
        self._clients = [world.enter_context(client_of(each)) for each in controllers]
        self._port = world.enter_context(_Listener(self.notified))
        self.address = f"127.0.0.1:{self._port}"

    def ask(self, code: int, body: object = None, at: int = 0, **ext: object) -> RemotingCommand:
        data = b"" if body is None else json.dumps(body).encode()
        fields = {**SET, **{name: str(value) for name, value in ext.items()}}
        return self._clients[at].request(RemotingCommand(code, ext=fields, body=data))

    def join(self) -> None:
        answer = self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
        self.id = int(answer.ext["nextBrokerId"])
        code = f"{self.address};1"
        fields: dict[str, Any] = {"appliedBrokerId": self.id, "registerCheckCode": code}
        assert self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, **fields).code == 0
        self.register()
        self.beat()

    def register(self, at: int = 0) -> RemotingCommand:
        fields: dict[str, Any] = {"brokerId": self.id, "brokerAddress": self.address}
        answer = self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, at=at, **fields)
        assert answer.code == 0
        return answer

    def beat(self) -> None:
        fields: dict[str, Any] = {"epoch": 1, "maxOffset": 100, "brokerId": self.id, "brokerAddr": self.address}
        for at in range(len(self._clients)):
            answer = self.ask(RequestCode.BROKER_HEARTBEAT, at=at, **fields)
            assert (answer.code, answer.remark) == (0, "Heart beat success")

    def elect(self, **ext: object) -> RemotingCommand:
        fields: dict[str, Any] = {"brokerId": self.id, **ext}
        return self.ask(RequestCode.CONTROLLER_ELECT_MASTER, **fields)

    def alter(self, in_sync: list[int], set_epoch: int, epoch: int = 1, at: int = 0) -> RemotingCommand:
        body = {"syncStateSet": in_sync, "syncStateSetEpoch": set_epoch}
        fields: dict[str, Any] = {"masterBrokerId": self.id, "masterEpoch": epoch}
        return self.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body, at=at, **fields)

    def master(self, at: int = 0) -> tuple[int, int]:
        """Its id, 0 if there is none, and its epoch."""
        answer = self.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, at=at)
        assert answer.code == 0
        return int(answer.ext.get("masterBrokerId", 0)), int(answer.ext["masterEpoch"])

    def die(self) -> None:
        for client in self._clients:
            client.close()


class _Listener:
    """A server that keeps the notifications that it gets."""

    def __init__(self, notified: list[RemotingCommand]) -> None:
        def take(_connection: Connection, command: RemotingCommand) -> None:
            notified.append(command)

        self._server = RemotingServer()
        self._server.register(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, take, ADMINISTRATOR)
        self._thread = LoopThread("listener")

    def __enter__(self) -> int:
        self._thread.run(self._server.start())
        return self._server.port

    def __exit__(self, *_error: object) -> None:
        self._thread.run(self._server.stop())
        self._thread.stop()


def client_of(controller: Controller) -> BlockingClient:
    return BlockingClient("127.0.0.1", controller.port, timeout_s=60)


@pytest.fixture
def world() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(world: ExitStack, *controllers: Controller) -> tuple[FakeBroker, FakeBroker]:
    """A master with a slave in sync, of epoch 1."""
    first, second = FakeBroker(world, *controllers), FakeBroker(world, *controllers)
    first.join()
    assert first.elect().code == 0
    second.join()
    assert first.alter([1, 2], 1).code == 0
    return first, second


def test_two_brokers_form_a_set_and_the_other_one_is_elected_when_the_master_dies(
    world: ExitStack, tmp_path: Path
) -> None:
    controller = world.enter_context(running(tmp_path))
    first, second = FakeBroker(world, controller), FakeBroker(world, controller)
    first.join()
    assert first.register().ext.get("masterBrokerId") is None
    elected = first.elect()
    assert elected.code == 0
    assert elected.ext == {
        "masterBrokerId": "1", "masterAddress": first.address, "masterEpoch": "1", "syncStateSetEpoch": "1",
    }  # fmt: skip
    assert json.loads(bytes(elected.body)) == {
        "brokerMemberGroup": {"brokerAddrs": {"1": first.address}, "brokerName": "b", "cluster": "C"},
        "syncStateSet": [1],
    }
    second.join()
    assert second.id == 2
    registered = second.register()
    assert {**SET, **elected.ext} == registered.ext
    assert json.loads(bytes(registered.body)) == {"syncStateSet": [1], "syncStateSetEpoch": 1}
    still = second.elect()
    assert (still.code, still.ext) == (ResponseCode.CONTROLLER_MASTER_STILL_EXIST, elected.ext)
    altered = first.alter([1, 2], 1)
    assert (altered.code, altered.ext) == (0, {"newSyncStateSetEpoch": "2"})
    assert json.loads(bytes(altered.body)) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
    assert first.alter([1], 1).code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    first.die()
    until(lambda: second.master() == (2, 2))
    until(lambda: any(each.ext["masterEpoch"] == "2" for each in second.notified))
    reported = next(each for each in second.notified if each.ext["masterEpoch"] == "2")
    assert reported.is_oneway
    assert reported.ext == {
        "masterBrokerId": "2", "masterAddress": second.address, "masterEpoch": "2", "syncStateSetEpoch": "3",
    }  # fmt: skip
    assert json.loads(bytes(reported.body)) == {"syncStateSet": [2], "syncStateSetEpoch": 3}


def advance(controller: Controller, clock: ManualClock, delta_ms: int) -> None:
    """Move the clock, and wait until the controller has seen it: a longer gap is a suspension."""
    clock.advance_ms(delta_ms)
    until(lambda: controller.scanned_s == clock.monotonic())


def test_a_silent_master_is_replaced_after_its_own_time_out(
    world: ExitStack, tmp_path: Path, manual_clock: ManualClock
) -> None:
    controller = world.enter_context(running(tmp_path, manual_clock))
    _, second = pair(world, controller)
    for _ in range(3):
        advance(controller, manual_clock, 4_000)
        second.beat()
    until(lambda: second.master() == (2, 2))


def test_a_controller_that_was_suspended_listens_before_it_elects(
    world: ExitStack, tmp_path: Path, manual_clock: ManualClock
) -> None:
    controller = world.enter_context(running(tmp_path, manual_clock))
    _, second = pair(world, controller)
    manual_clock.advance_ms(60_000)
    until(lambda: controller.scanned_s == manual_clock.monotonic())
    assert not controller.heartbeats.sets()
    second.beat()
    scans = threading.Semaphore(0)
    controller.server.call_threadsafe(_count_scans, controller, scans)
    for _ in range(3):
        scans.acquire()
    assert second.master() == (1, 1)


def _count_scans(controller: Controller, scans: threading.Semaphore) -> None:
    usual = controller.heartbeats.sets

    def counted() -> Any:
        scans.release()
        return usual()

    controller.heartbeats.sets = counted  # type: ignore[method-assign]


def test_a_controller_that_starts_does_not_depose_a_master_that_it_has_not_heard_yet(
    world: ExitStack, tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, manual_clock) as before:
        first, second = pair(world, before)
        ids = first.id, second.id
    controller = world.enter_context(running(tmp_path, manual_clock))
    again = FakeBroker(world, controller)
    again.id = ids[1]
    again.beat()
    assert again.register().ext["masterBrokerId"] == "1"
    assert again.elect().code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    for _ in range(3):
        advance(controller, manual_clock, int(LISTEN_S * 1000) // 3)
        again.beat()
    assert again.master() == (1, 1)
    advance(controller, manual_clock, 1)
    until(lambda: again.master() == (2, 2))


def test_of_two_controllers_either_may_be_killed(world: ExitStack, tmp_path: Path) -> None:
    other = world.enter_context(running(tmp_path))
    with running(tmp_path) as one:
        first, second = pair(world, one, other)
        assert first.master(at=1) == (1, 1)
    # The brokers' connections to the controller that has ended are closed: that elects no master.
    second_view = second.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, ["b"], at=1)
    assert json.loads(bytes(second_view.body))["replicasInfoTable"]["b"]["masterBrokerId"] == 1
    first.die()
    until(lambda: second.master(at=1) == (2, 2))


def test_two_controllers_that_see_a_master_die_elect_one(world: ExitStack, tmp_path: Path) -> None:
    controllers = [world.enter_context(running(tmp_path)) for _ in range(2)]
    first, second = pair(world, *controllers)
    third = FakeBroker(world, *controllers)
    third.join()
    assert first.alter([1, 2, 3], 2).code == 0
    first.die()
    until(lambda: second.master()[1] == 2)
    assert second.master(at=0) == second.master(at=1)

    def reported() -> list[str]:
        every = (*second.notified, *third.notified)
        return [each.ext["masterBrokerId"] for each in every if each.ext["masterEpoch"] == "2"]

    until(lambda: len(reported()) >= 2)
    assert set(reported()) == {str(second.master()[0])}


def test_an_administrator_moves_the_master_and_reads_the_state(world: ExitStack, tmp_path: Path) -> None:
    controller = world.enter_context(running(tmp_path))
    first, second = pair(world, controller)
    moved = second.elect(designateElect="true")
    assert (moved.code, moved.ext["masterBrokerId"], moved.ext["masterEpoch"]) == (0, "2", "2")
    shown = json.loads(bytes(first.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, ["b", "unknown"]).body))
    assert shown == {
        "replicasInfoTable": {
            "b": {
                "inSyncReplicas": [{"alive": True, "brokerAddress": second.address, "brokerId": 2, "brokerName": "b"}],
                "masterAddress": second.address,
                "masterBrokerId": 2,
                "masterEpoch": 2,
                "notInSyncReplicas": [
                    {"alive": True, "brokerAddress": first.address, "brokerId": 1, "brokerName": "b"}
                ],
                "syncStateSetEpoch": 3,
            }
        }
    }
    about = first.ask(RequestCode.CONTROLLER_GET_METADATA_INFO).ext
    address = f"127.0.0.1:{controller.port}"
    assert about == {
        "group": "tiermq",
        "controllerLeaderId": tmp_path.name,
        "controllerLeaderAddress": address,
        "isLeader": "true",
        "peers": f"{tmp_path.name}:{address}",
    }
    unknown = RemotingCommand(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext={"brokerName": "unknown"})
    with client_of(controller) as client:
        assert client.request(unknown).code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


def test_metadata_of_a_stopped_broker_is_deleted_and_of_a_living_one_kept(world: ExitStack, tmp_path: Path) -> None:
    controller = world.enter_context(running(tmp_path))
    first, second = pair(world, controller)
    clean = RequestCode.CLEAN_BROKER_DATA
    refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert first.ask(clean, brokerControllerIdsToClean="2").code == refused
    assert first.ask(clean, brokerControllerIdsToClean="two").code == refused
    second.die()
    until(lambda: 2 not in controller.heartbeats.lives(SetKey("C", "b")).alive)
    assert first.ask(clean, brokerControllerIdsToClean="2").code == 0
    fields: dict[str, Any] = {"brokerId": 2, "brokerAddress": second.address}
    answer = first.ask(RequestCode.CONTROLLER_REGISTER_BROKER, **fields)
    assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert first.ask(clean).code == refused
    assert first.ask(clean, isCleanLivingBroker="true").code == 0
    assert first.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO).code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


def test_settings_are_read_and_changed_by_request_except_where_it_listens(world: ExitStack, tmp_path: Path) -> None:
    controller = world.enter_context(running(tmp_path))
    _, second = pair(world, controller)
    third = FakeBroker(world, controller)
    third.join()
    shown = read_properties(bytes(third.ask(RequestCode.GET_CONTROLLER_CONFIG).body).decode())
    assert shown["enableElectUncleanMaster"] == "false"
    third_elected = third.elect(designateElect="true")
    assert third_elected.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    with client_of(controller) as client:

        def change(text: str) -> int:
            return client.request(RemotingCommand(RequestCode.UPDATE_CONTROLLER_CONFIG, body=text.encode())).code

        assert change("listenPort=1\n") == ResponseCode.NO_PERMISSION
        assert change("enableElectUncleanMaster=perhaps\n") == ResponseCode.NO_PERMISSION
        for body in CHANGES_TOO_LARGE.values():
            assert change(body.decode()) in (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER), body[:20]
        assert change("enableElectUncleanMaster=true\n") == 0
    assert third.elect(designateElect="true").code == 0
    assert second.master() == (3, 2)


def test_heartbeats_without_the_id_of_a_controller_are_refused(world: ExitStack, tmp_path: Path) -> None:
    broker = FakeBroker(world, world.enter_context(running(tmp_path)))
    fields: dict[str, Any] = {"brokerAddr": broker.address}
    invalid = ResponseCode.CONTROLLER_INVALID_REQUEST
    assert broker.ask(RequestCode.BROKER_HEARTBEAT, **fields).code == invalid
    assert broker.ask(RequestCode.BROKER_HEARTBEAT, brokerId=0, **fields).code == invalid
    assert broker.ask(RequestCode.BROKER_HEARTBEAT, brokerId=1, heartbeatTimeoutMills=0, **fields).code == invalid


ACCOUNTS = """
[[accounts]]
accessKey = "administrator"
secretKey = "secret of the administrator"
admin = true

[[accounts]]
accessKey = "reader"
secretKey = "secret of the reader"
defaultTopicPerm = "SUB"
"""
ADMIN = Credentials("administrator", "secret of the administrator")
READER = Credentials("reader", "secret of the reader")


def test_each_request_needs_its_permission_and_an_unsigned_one_is_refused(world: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    acl = AccessFile(tmp_path / "accounts.toml")
    controller = world.enter_context(
        Controller(ControllerConfig(listen_port=0), MemoryDriver("accounts"), acl=acl, credentials=ADMIN)
    )
    signed = {
        credentials: world.enter_context(
            BlockingClient("127.0.0.1", controller.port, timeout_s=60, credentials=credentials)
        )
        for credentials in (None, READER, ADMIN)
    }
    readable = {
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    }
    assert len(controller.server.declared) == 12
    for code in controller.server.declared:
        answers = {each: client.request(RemotingCommand(code, ext=SET)).code for each, client in signed.items()}
        assert answers[None] == ResponseCode.NO_PERMISSION
        assert (answers[READER] != ResponseCode.NO_PERMISSION) == (code in readable)
        assert answers[ADMIN] != ResponseCode.NO_PERMISSION


def test_notifications_are_signed_where_there_are_accounts(world: ExitStack, tmp_path: Path) -> None:
    config = ControllerConfig(listen_port=0)
    controller = world.enter_context(Controller(config, PosixDriver(tmp_path), credentials=ADMIN))
    broker = FakeBroker(world, controller)
    broker.join()
    assert broker.elect().code == 0
    until(lambda: broker.notified)
    assert broker.notified[0].ext["AccessKey"] == ADMIN.access_key

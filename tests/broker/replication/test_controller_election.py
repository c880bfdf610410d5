"""Brokers of TierMQ in controller mode, under our controller."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import SMALL, Producer, broker_config, send_command, stored
from broker.replication.elections import ElectionByHand
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.elected_broker import ElectedBroker
from tiermq.broker.replication.controller_election import (
    BrokerIdentity,
    Claim,
    ControllerElection,
    SetInfo,
    controller_election,
    is_news,
)
from tiermq.broker.replication.replication import Elected
from tiermq.config import StoreConfig
from tiermq.controller.broker_set import BrokerSet, Outcome
from tiermq.controller.controller import Controller
from tiermq.controller.controller_config import ControllerConfig
from tiermq.errors import BadConfig, PeerGone, RequestRefused, StoreDamaged
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.replication.election import Decision, Role
from tiermq.tier.driver.posix import PosixDriver
from waiting import until

SET = {"clusterName": "DefaultCluster", "brokerName": "b"}


class Member:
    """A broker in controller mode: its election and its life."""

    def __init__(self, path: Path, name: str, controllers: str, **settings: Any) -> None:
        self.root = path / name
        fields: dict[str, Any] = {"ha_listen_port": 0, "master_sync_interval": 50, "broker_heartbeat_interval": 50}
        fields |= {"sync_broker_metadata_period": 100, "enable_controller_mode": True, "controller_addr": controllers}
        config = broker_config(**{**fields, "broker_name": "b", **settings})
        self.election: ControllerElection = controller_election(config, str(self.root), None, None)
        store = StoreConfig(store_path_root_dir=str(self.root), **SMALL)
        self.keeper = ElectedBroker(self.election, config, store, self._open)

    def _open(self, config: BrokerConfig, elected: Elected) -> Broker:
        return Broker.open(self.root, config=config, elected=elected, slave_timeout=600_000, **SMALL)

    @property
    def broker(self) -> Broker:
        found = self.keeper.broker
        assert found is not None
        return found

    def is_open_as(self, role: Role, epoch: int) -> bool:
        applied = self.keeper.decision
        return applied is not None and (applied.role, applied.epoch) == (role, epoch) and self.keeper.broker is not None

    def leads_both(self, epoch: int) -> bool:
        return self.is_open_as(Role.MASTER, epoch) and self.election.decision.members == {1, 2}


@contextmanager
def controller_at(path: Path, port: int = 0) -> Iterator[Controller]:
    config = ControllerConfig(listen_port=port, scan_not_active_broker_interval=50, scan_inactive_master_interval=50)
    with Controller(config, PosixDriver(path / "state")) as controller:
        yield controller


@pytest.fixture
def world() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(world: ExitStack, path: Path, name: str, *controllers: Controller, **settings: Any) -> Member:
    member = Member(path, name, ";".join(f"127.0.0.1:{each.port}" for each in controllers), **settings)
    member.keeper.start()
    world.callback(member.keeper.stop)
    return member


def pair(world: ExitStack, path: Path, *controllers: Controller, **settings: Any) -> tuple[Member, Member]:
    """A master of epoch 1, and a slave in sync."""
    first = start(world, path, "first", *controllers, **settings)
    until(lambda: first.is_open_as(Role.MASTER, 1))
    second = start(world, path, "second", *controllers, **settings)
    until(lambda: first.election.decision.members == {1, 2})
    return first, second


def send(to: Member, *bodies: bytes) -> list[int]:
    with Producer(to.broker) as producer:
        answers = [producer.send(body=body) for body in bodies]
    assert {each.code for each in answers} == {ResponseCode.SUCCESS}, [each.remark for each in answers]
    return [int(each.ext["queueOffset"]) for each in answers]


def bodies(of: Member) -> list[bytes]:
    return [each.body for each in stored(of.broker)]


def epochs(of: Member) -> list[tuple[int, int]]:
    return [(each.epoch, each.start) for each in of.broker.replication.epochs]


def test_brokers_get_ids_and_roles_and_the_slave_takes_over_when_the_master_leaves(
    world: ExitStack, tmp_path: Path
) -> None:
    controller = world.enter_context(controller_at(tmp_path))
    first, second = pair(world, tmp_path, controller)
    assert send(first, b"0", b"1") == [0, 1]
    assert (first.root / "brokerIdentity").read_text() == "DefaultCluster#b#1"
    assert (second.root / "brokerIdentity").read_text() == "DefaultCluster#b#2"
    assert not (second.root / "brokerIdentity-temp").exists()
    first.keeper.stop()
    until(lambda: second.is_open_as(Role.MASTER, 2))
    assert send(second, b"2") == [2]

    again = start(world, tmp_path, "first", controller)
    until(lambda: second.election.decision.members == {1, 2})
    assert send(second, b"3") == [3]
    until(lambda: bodies(again) == [b"0", b"1", b"2", b"3"])
    assert epochs(again) == epochs(second)
    assert (again.root / "epochFileCheckpoint").read_text() == (second.root / "epochFileCheckpoint").read_text()


def test_an_administrator_moves_the_master_there_and_back(world: ExitStack, tmp_path: Path) -> None:
    controller = world.enter_context(controller_at(tmp_path))
    first, second = pair(world, tmp_path, controller)
    sent = send(first, b"0")
    masters = {1: first, 2: second}
    for epoch, winner in ((2, 2), (3, 1), (4, 2)):
        with BlockingClient("127.0.0.1", controller.port, timeout_s=60) as client:
            ext = {**SET, "brokerId": str(winner), "designateElect": "true"}
            assert client.request(RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, ext=ext)).code == 0
        until(partial(masters[winner].leads_both, epoch))
        sent += send(masters[winner], b"%d" % epoch)
    assert sent == [0, 1, 2, 3]
    until(lambda: bodies(first) == bodies(second) == [b"0", b"2", b"3", b"4"])
    assert [epoch for epoch, _ in epochs(second)] == [1, 2, 3, 4]


def test_7017_an_old_master_that_no_controller_reaches_acknowledges_nothing(world: ExitStack, tmp_path: Path) -> None:
    """apache/rocketmq#7017: under a partition two masters acknowledge, and what the old one took is lost."""
    controller = world.enter_context(controller_at(tmp_path))
    first, second = pair(world, tmp_path, controller)
    send(first, b"0")
    first.election.stop()  # Cut off from the controller; clients still reach it.
    until(lambda: second.is_open_as(Role.MASTER, 2))
    assert first.is_open_as(Role.MASTER, 1), "it does not know"
    with Producer(first.broker) as producer:
        waiting = producer.client.request_later(send_command(body=b"lost?"), 600)
        assert send(second, b"1") == [1]
        local = first.broker.parts.local
        until(lambda: local.max_physical_offset > local.confirm_offset)
        assert not waiting.done()
    assert bodies(first) == [b"0"], "nor is it shown"


def test_9689_a_master_that_is_elected_again_begins_a_new_epoch_and_its_slave_follows(
    world: ExitStack, tmp_path: Path
) -> None:
    """apache/rocketmq#9689: an epoch that begins without a change of roles stops the slaves."""
    controller = world.enter_context(controller_at(tmp_path))
    first, second = pair(world, tmp_path, controller)
    send(first, b"0")

    def again(state: BrokerSet | None) -> Outcome:
        assert state is not None
        return Outcome(0, replace(state, in_sync=frozenset({1}), master_epoch=3, set_epoch=state.set_epoch + 1))

    controller.processor.sets.change("b", again)  # It had none in between.
    until(lambda: first.leads_both(3))
    assert send(first, b"1") == [1]
    until(lambda: bodies(second) == [b"0", b"1"])
    assert [epoch for epoch, _ in epochs(second)] == [1, 3]
    assert epochs(first) == epochs(second)


def test_a_master_goes_on_while_every_controller_is_away(world: ExitStack, tmp_path: Path) -> None:
    with controller_at(tmp_path) as controller:
        first, second = pair(world, tmp_path, controller)
        port = controller.port
    until(lambda: first.election.problem)
    assert send(first, b"0") == [0]
    with controller_at(tmp_path, port) as controller:
        until(lambda: not first.election.problem and not second.election.problem)
        until(lambda: controller.heartbeats.sets())
        assert first.is_open_as(Role.MASTER, 1), "it is not replaced by a controller that has just started"
        assert send(first, b"1") == [1]


def test_a_slave_that_is_gone_leaves_the_set_and_with_too_few_sends_are_refused(
    world: ExitStack, tmp_path: Path
) -> None:
    controller = world.enter_context(controller_at(tmp_path))
    first, second = pair(world, tmp_path, controller, min_in_sync_replicas=2)
    send(first, b"0")
    reported: list[str] = []
    local = first.broker.parts.local
    usual = local.set_few_replicas

    def note(detail: str) -> None:
        usual(detail)
        reported.append(detail)

    local.set_few_replicas = note  # type: ignore[method-assign]
    second.keeper.stop()
    until(lambda: reported and reported[-1] == "1 of 2")
    with Producer(first.broker) as producer:
        assert producer.send(body=b"1").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert first.election.decision.members == {1}
    assert bodies(first) == [b"0"]


def test_one_of_two_controllers_may_die_and_a_forged_notification_changes_nothing(
    world: ExitStack, tmp_path: Path
) -> None:
    other = world.enter_context(controller_at(tmp_path))
    with controller_at(tmp_path) as doomed:
        first, second = pair(world, tmp_path, doomed, other)
    with BlockingClient(*_address(first.broker), timeout_s=60) as client:
        ext = {"masterBrokerId": "2", "masterAddress": "127.0.0.1:1", "masterEpoch": "9", "syncStateSetEpoch": "9"}
        assert client.request(RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext=ext)).code == 0
        until(lambda: not first.election.problem)
        assert first.is_open_as(Role.MASTER, 1)
        shown = decode_object(client.request(RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE)).body)
        assert (shown["brokerName"], shown["brokerId"], shown["epochList"][0]["epoch"]) == ("b", 0, 1)
    send(first, b"0")
    first.keeper.stop()
    until(lambda: second.is_open_as(Role.MASTER, 2))
    assert bodies(second) == [b"0"]


def _address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.address.rpartition(":")
    return host, int(port)


def test_clients_find_the_new_master_by_the_name_server(world: ExitStack, tmp_path: Path) -> None:
    names = world.enter_context(NameServer(NameServerConfig(listen_port=0, kv_config_path="")))
    controller = world.enter_context(controller_at(tmp_path))
    first, second = pair(world, tmp_path, controller, namesrv_addr=f"127.0.0.1:{names.port}")

    def addresses() -> dict[int, str]:
        broker = names.table.broker("b")
        return {} if broker is None else dict(broker.addresses)

    until(lambda: addresses() == {0: first.keeper.address, 2: second.keeper.address})
    first.election.resign(0)
    until(lambda: addresses() == {0: second.keeper.address, 1: first.keeper.address})


def test_a_broker_that_dies_while_it_asks_for_an_id_gets_the_same_one(world: ExitStack, tmp_path: Path) -> None:
    controller = world.enter_context(controller_at(tmp_path))
    member = Member(tmp_path, "first", f"127.0.0.1:{controller.port}")
    world.callback(member.keeper.stop)
    identity = BrokerIdentity(str(member.root), "DefaultCluster", "b")
    with BlockingClient("127.0.0.1", controller.port, timeout_s=60) as client:
        ext = {**SET, "appliedBrokerId": "1", "registerCheckCode": "b;7"}
        assert client.request(RemotingCommand(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext=ext)).code == 0
    identity.claim(Claim(1, "b;7"))  # Its answer was lost.
    assert member.election.join() == 1
    assert identity.read() == 1
    assert identity.read_claim() is None
    other = Member(tmp_path, "second", f"127.0.0.1:{controller.port}")
    world.callback(other.keeper.stop)
    BrokerIdentity(str(other.root), "DefaultCluster", "b").claim(Claim(1, "b;8"))  # Another broker was faster.
    assert other.election.join() == 2


def test_a_copy_of_a_running_brokers_directory_is_refused_by_the_controller(world: ExitStack, tmp_path: Path) -> None:
    controller = world.enter_context(controller_at(tmp_path))
    first = start(world, tmp_path, "first", controller)
    until(lambda: first.is_open_as(Role.MASTER, 1))
    until(lambda: controller.heartbeats.sets())
    send(first, b"0")
    shutil.copytree(first.root, tmp_path / "copy", ignore=shutil.ignore_patterns("lock", "abort"))
    copy = start(world, tmp_path, "copy", controller)
    until(lambda: "directory was copied" in copy.election.problem)
    assert copy.election.decision.role is Role.NONE
    assert send(first, b"1") == [1]


def test_of_two_processes_with_one_id_the_one_whose_address_the_controller_has_is_the_master(
    world: ExitStack, tmp_path: Path
) -> None:
    """As under a controller of RocketMQ, which takes every address."""
    controller = world.enter_context(controller_at(tmp_path))
    first = start(world, tmp_path, "first", controller)
    until(lambda: first.is_open_as(Role.MASTER, 1))

    def moved(state: BrokerSet | None) -> Outcome:
        assert state is not None
        return Outcome(0, replace(state, members={1: replace(state.members[1], address="127.0.0.1:1")}))

    controller.processor.sets.change("b", moved)
    until(lambda: first.keeper.decision is not None and first.keeper.decision.role is Role.NONE)
    assert "another address" in first.election.problem
    assert not first.election.may_acknowledge(1)


def test_two_brokers_that_ask_for_an_id_in_one_millisecond_get_two(
    world: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = world.enter_context(controller_at(tmp_path))
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    members = [Member(tmp_path, name, f"127.0.0.1:{controller.port}") for name in ("first", "second")]
    claims = []
    for member in members:
        world.callback(member.keeper.stop)
        identity = member.election._identity
        confirm = identity.claim

        def note(claim: Claim, confirm: Callable[[Claim], None] = confirm) -> None:
            claims.append(claim.check_code)
            confirm(claim)

        monkeypatch.setattr(identity, "claim", note)
        member.election.join()
    assert len(set(claims)) == 2


def test_an_id_of_another_name_and_a_damaged_one_end_the_start(tmp_path: Path) -> None:
    BrokerIdentity(str(tmp_path), "C", "b").confirm(3)
    with pytest.raises(BadConfig, match="correct the settings"):
        BrokerIdentity(str(tmp_path), "C", "other").read()
    (tmp_path / "brokerIdentity").write_text("nonsense")
    with pytest.raises(StoreDamaged):
        BrokerIdentity(str(tmp_path), "C", "b").read()
    with pytest.raises(BadConfig, match="#"):
        BrokerIdentity(str(tmp_path), "C", "a#b")


def test_without_a_controller_a_new_broker_does_not_start_and_says_which_ones_it_asked(tmp_path: Path) -> None:
    member = Member(tmp_path, "first", "127.0.0.1:1;127.0.0.1:2")
    with pytest.raises(PeerGone, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        member.keeper.start()
    member.election.stop()
    with pytest.raises(RequestRefused, match="enableElectUncleanMaster"):
        member.election.accept_loss()
    with pytest.raises(BadConfig, match="controllerAddr"):
        Member(tmp_path, "second", "")


def test_a_master_that_is_opened_again_in_its_term_needs_the_recorded_set_from_its_first_message(
    tmp_path: Path,
) -> None:
    election = ElectionByHand(1)
    election.decision = Decision(role=Role.MASTER, epoch=3, replica_id=1, members=frozenset({1, 2}))
    config = broker_config(ha_listen_port=0, broker_name="b")
    with Broker.open(
        tmp_path / "store", config=config, elected=Elected(election.decision, election), **SMALL
    ) as broker:
        master = broker.replication.master
        assert master is not None
        assert master.sync is not None
        assert master.sync.effective == {1, 2}


def test_late_answers_do_not_take_back_what_is_known() -> None:
    known = SetInfo(1, "a", 3, frozenset({1, 2}), 7)
    assert is_news(known, known)
    assert is_news(known, known._replace(set_epoch=8))
    assert is_news(known, known._replace(epoch=4, set_epoch=8))
    assert not is_news(known, known._replace(set_epoch=6))
    assert not is_news(known, known._replace(epoch=2, set_epoch=9))

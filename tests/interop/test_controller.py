"""Our controllers elect the masters of RocketMQ's own brokers, and mqadmin administers them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.controller_set import (
    ControlledBroker,
    ControlledJavaBroker,
    ControllerProcess,
    JavaController,
    ask_controller,
    known_brokers,
    sync_state,
)
from interop.mqadmin import Mqadmin
from interop.official import Official, acknowledged, with_programs
from interop.peer import Peer, PeerError
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, Distribution, Unavailable, fetch
from interop.two_brokers import name_server_config
from tiermq.namesrv.name_server import NameServer
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import decode_object
from waiting import LOOK_AT_MOST_S, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]
COUNT = 200
PAGE = 2_000


def send_until_acknowledged(peer: Peer, body: bytes) -> int:
    """Send as an application does that tries again while a master is missing; the queue offset."""
    while True:
        try:
            sent = peer.send({"topic": "T", "queue": 0, "body": body})
        except PeerError:
            time.sleep(LOOK_AT_MOST_S)  # The client learns of the new master by its own poll of the name server.
            continue
        if sent["status"] == "SEND_OK":
            return int(sent["offset"])


def require_acknowledged(peer: Peer, acknowledged: dict[bytes, int]) -> None:
    """Every acknowledged message is at its offset, later ones behind earlier ones, and no offset is missing."""
    offsets = list(acknowledged.values())
    assert offsets == sorted(set(offsets))
    messages = peer.read("T", 0)
    assert [message["offset"] for message in messages] == list(range(len(messages)))
    bodies = [message["body"] for message in messages]
    assert [bodies[offset] for offset in offsets] == list(acknowledged)


def log_bytes(store: Path, end: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").glob("0*")))[:end]


def epochs(broker: ControlledJavaBroker | ControlledBroker) -> list[str]:
    return (broker.store / "epochFileCheckpoint").read_text().split("\n")[2:]


def test_two_rocketmq_brokers_fail_over_under_our_controllers(release: Distribution, tmp_path: Path) -> None:
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        state = f"file://{tmp_path}/state"
        doomed, controller = ControllerProcess(state), ControllerProcess(state)
        for each in (doomed, controller):
            world.callback(each.stop)
        both = f"{doomed.address};{controller.address}"
        first, second = (
            ControlledJavaBroker(release, tmp_path / name, names.port, both) for name in ("first", "second")
        )
        for broker in (first, second):
            world.callback(broker.stop)
            broker.start()
        until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
        assert sync_state(controller.address) == {"master": 1, "epoch": 1, "in_sync": {1, 2}, "alive": {1, 2}}
        assert sync_state(doomed.address) == sync_state(controller.address)
        address = (f"127.0.0.1:{names.port}", CLUSTER_NAME, BROKER_NAME, first.address)
        peer = Peer(release.java(tmp_path, "Peer", *address, heap="256m"), tmp_path / "peer.err")
        world.callback(peer.close)
        peer.create_topic("T", 1)
        acknowledged = {b"%d" % number: send_until_acknowledged(peer, b"%d" % number) for number in range(COUNT)}

        # One controller dies: nothing changes. The master dies: the other broker is elected.
        doomed.kill()
        first.stop(kill=True)
        until(lambda: sync_state(controller.address)["master"] == 2)
        assert sync_state(controller.address)["epoch"] == 2
        for number in range(COUNT, 2 * COUNT):
            acknowledged[b"%d" % number] = send_until_acknowledged(peer, b"%d" % number)

        # It returns as a slave, and gets into the SyncStateSet again.
        first.start()
        until(lambda: sync_state(controller.address) == {
            "master": 2, "epoch": 2, "in_sync": {1, 2}, "alive": {1, 2},
        })  # fmt: skip
        with Mqadmin(release, tmp_path / "admin", f"127.0.0.1:{names.port}") as mqadmin:
            shown = mqadmin.run("getSyncStateSet", "-a", controller.address, "-b", BROKER_NAME)
            assert f"#MasterBrokerId\t2\n#MasterAddr\t{second.address}\n#MasterEpoch\t2" in shown
            assert "#SyncStateSetNums\t2" in shown
            about = mqadmin.run("getControllerMetaData", "-a", controller.address)
            assert f"#ControllerLeaderAddress\t{controller.address}" in about
            assert "enableElectUncleanMaster" in mqadmin.run("getControllerConfig", "-a", controller.address)
            words = (
                "updateControllerConfig",
                "-a",
                controller.address,
                "-k",
                "enableElectUncleanMaster",
                "-v",
                "false",
            )
            assert "success" in mqadmin.run(*words)
            elected = mqadmin.run(
                "electMaster", "-a", controller.address, "-b", "1", "-bn", BROKER_NAME, "-c", CLUSTER_NAME
            )
            assert f"#BrokerMasterAddr\t{first.address}" in elected
            assert "#MasterEpoch\t3" in elected
            until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
            acknowledged[b"last"] = send_until_acknowledged(peer, b"last")
            require_acknowledged(peer, acknowledged)
            clean = ("cleanBrokerMetadata", "-a", controller.address, "-bn", BROKER_NAME, "-c", CLUSTER_NAME, "-b", "2")
            assert "may be alive" in mqadmin.run(*clean)
            second.stop()
            until(lambda: sync_state(controller.address)["in_sync"] == {1})
            assert "success" in mqadmin.run(*clean)
            assert known_brokers(controller.address) == {1}
        assert epochs(first)[: len(epochs(second)) - 1] == epochs(second)[:-1]


@pytest.mark.parametrize("controller_of", ["rocketmq", "tiermq"])
def test_a_tiermq_and_a_rocketmq_broker_fail_over_in_both_directions(
    release: Distribution, tmp_path: Path, controller_of: str
) -> None:
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        controller: JavaController | ControllerProcess
        if controller_of == "rocketmq":
            controller = JavaController(release, tmp_path / "controller")
        else:
            controller = ControllerProcess(f"file://{tmp_path}/state")
        world.callback(controller.stop)
        java = ControlledJavaBroker(release, tmp_path / "java", names.port, controller.address)
        ours = ControlledBroker(tmp_path / "ours", names.port, controller.address)
        for broker in (java, ours):
            world.callback(broker.stop)
        java.start()
        until(lambda: sync_state(controller.address)["master"] == 1)
        address = (f"127.0.0.1:{names.port}", CLUSTER_NAME, BROKER_NAME, java.address)
        peer = Peer(release.java(tmp_path, "Peer", *address, heap="256m"), tmp_path / "peer.err")
        world.callback(peer.close)
        peer.create_topic("T", 1)
        ours.start()
        acknowledged: dict[bytes, int] = {}

        def send_some(tag: str) -> None:
            for number in range(COUNT):
                body = f"{tag} {number}".encode()
                acknowledged[body] = send_until_acknowledged(peer, body)

        everybody = {1, 2}
        until(lambda: sync_state(controller.address)["in_sync"] == everybody)
        send_some("java")
        java.stop(kill=True)
        until(lambda: sync_state(controller.address)["master"] == 2)
        send_some("ours")
        java.start()
        until(lambda: sync_state(controller.address)["in_sync"] == everybody)
        send_some("ours with java")
        ours.stop(kill=True)
        until(lambda: sync_state(controller.address)["master"] == 1)
        send_some("java again")
        ours.start()
        until(lambda: sync_state(controller.address)["in_sync"] == everybody)
        send_some("java with ours")
        require_acknowledged(peer, acknowledged)
        until(lambda: epochs(java) == epochs(ours))
        status = decode_object(ask_controller(java.address, RequestCode.GET_BROKER_HA_STATUS).body)
        end = int(status["masterCommitLogMaxOffset"])
        assert log_bytes(java.store, end) == log_bytes(ours.store, end)


def test_masters_of_either_kind_are_killed_under_the_official_producer(tmp_path: Path) -> None:
    """RocketMQ's Producer of 5.3.3 sends all the time: to its own master, then to ours, then to its own again."""
    try:
        release = with_programs(fetch("5.3.3"))
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    record = tmp_path / "acknowledged"
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        controller = ControllerProcess(f"file://{tmp_path}/state")
        world.callback(controller.stop)
        java = ControlledJavaBroker(release, tmp_path / "java", names.port, controller.address)
        ours = ControlledBroker(tmp_path / "ours", names.port, controller.address)
        for broker in (java, ours):
            world.callback(broker.stop)
            broker.start()
        until(lambda: sync_state(controller.address) == {
            "master": 1, "epoch": 1, "in_sync": {1, 2}, "alive": {1, 2},
        })  # fmt: skip
        address = (f"127.0.0.1:{names.port}", CLUSTER_NAME, BROKER_NAME, java.address)
        peer = Peer(release.java(tmp_path, "Peer", *address, heap="256m"), tmp_path / "peer.err")
        world.callback(peer.close)
        peer.create_topic("T", 2)
        official = world.enter_context(Official(release, f"127.0.0.1:{names.port}", tmp_path))
        world.callback(official.kill)
        official.produce_until_killed(record, "-t", "T", "-w", 4, "-s", 64)

        def send_more() -> None:
            wanted = len(acknowledged(record)) + COUNT
            until(lambda: len(acknowledged(record)) >= wanted)

        masters: list[tuple[ControlledJavaBroker | ControlledBroker, int]] = [(java, 1), (ours, 2)]
        for (master, _), (_, other) in (masters, masters[::-1]):
            send_more()
            until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
            master.stop(kill=True)
            until(lambda other=other: sync_state(controller.address)["master"] == other)  # type: ignore[misc]
            send_more()
            master.start()
            until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
        send_more()
        official.kill()
        promised = acknowledged(record)
        found: dict[tuple[int, int], str] = {}
        for queue in range(2):
            last = max(offset for of, offset in promised.values() if of == queue)
            for begin in range(0, last + 1, PAGE):
                end = min(begin + PAGE, last + 1)
                messages = [each for each in peer.read("T", queue, begin, end=end) if each["offset"] < end]
                assert [each["offset"] for each in messages] == list(range(begin, end)), "offsets are unbroken"
                found |= {(queue, each["offset"]): each["properties"]["UNIQ_KEY"] for each in messages}
        assert {found.get(place): place for place in promised.values()} == promised

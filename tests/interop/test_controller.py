"""Our controllers elect the masters of RocketMQ's own brokers, and mqadmin administers them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.controller_set import ControlledJavaBroker, ControllerProcess, sync_state, until
from interop.mqadmin import Mqadmin
from interop.peer import Peer, PeerError
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, Distribution, Unavailable, fetch
from interop.two_brokers import name_server_config
from tiermq.namesrv.name_server import NameServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]
COUNT = 200


@pytest.fixture(scope="module", params=["5.3.3", "5.5.0"])
def release(request: pytest.FixtureRequest) -> Distribution:
    try:
        return fetch(request.param)
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")


def send_until_acknowledged(peer: Peer, body: bytes) -> int:
    """Send as an application does that tries again while a master is missing; the queue offset."""
    while True:
        try:
            sent = peer.send({"topic": "T", "queue": 0, "body": body})
        except PeerError:
            continue
        if sent["status"] == "SEND_OK":
            return int(sent["offset"])


def acknowledged_are_there(peer: Peer, acknowledged: dict[bytes, int]) -> bool:
    """Whether every acknowledged message is at its offset."""
    found = {message["body"]: message["offset"] for message in peer.read("T", 0)}
    return all(found.get(body) == offset for body, offset in acknowledged.items())


def epochs(broker: ControlledJavaBroker) -> list[str]:
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
        assert list(acknowledged.values()) == list(range(2 * COUNT))

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
            assert acknowledged[b"last"] == 2 * COUNT
            assert acknowledged_are_there(peer, acknowledged)
            clean = ("cleanBrokerMetadata", "-a", controller.address, "-bn", BROKER_NAME, "-c", CLUSTER_NAME, "-b", "2")
            assert "still alive" in mqadmin.run(*clean) or sync_state(controller.address)["in_sync"] == {1, 2}
            second.stop()
            until(lambda: sync_state(controller.address)["in_sync"] == {1})
            assert "success" in mqadmin.run(*clean)
            assert "2" not in {str(each) for each in sync_state(controller.address)["alive"]}
        assert epochs(first)[: len(epochs(second)) - 1] == epochs(second)[:-1]

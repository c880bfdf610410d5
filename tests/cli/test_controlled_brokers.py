"""`tiermq serve` in controller mode, as its user runs it: processes that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.brokers import send_command
from broker.consuming import messages_of, pull_fields
from interop.controller_set import ControlledBroker, ControllerProcess, sync_state
from interop.rocketmq import BROKER_NAME
from interop.two_brokers import name_server_config
from tiermq.cli.main import cli
from tiermq.errors import RemotingError
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from waiting import until

IN_FLIGHT = 8
ACKNOWLEDGED = 200
REFUSED = [
    ("enableControllerMode=true\nnamesrvAddr=127.0.0.1:1\n", "controllerAddr: expected"),
    ("enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\n", "expected --namesrv"),
    (
        "enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\nnamesrvAddr=127.0.0.1:1\nbrokerRole=SLAVE\n",
        "leave them out",
    ),
    ("enableControllerMode=true\ncontrollerAddr=nonsense\nnamesrvAddr=127.0.0.1:1\n", "host:port"),
    ("enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\nnamesrvAddr=127.0.0.1:1\n", "a controller that answers"),
    ("allAckInSyncStateSet=true\n", "set enableControllerMode=true"),
    ("fetchControllerAddrByDnsLookup=true\n", "name them in controllerAddr"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_controller_mode_that_cannot_be_kept_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broker.conf").write_text(text)
    command = ["serve", str(tmp_path / "store"), "-c", str(tmp_path / "broker.conf"), "--port", "0"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2
    assert words in result.output


NOT_YET = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Answers of a broker that is no master, or has too few replicas; nothing is stored."""


def send_until_acknowledged(broker: ControlledBroker, body: bytes) -> int | None:
    """The queue offset; None where no answer came."""
    host, _, port = broker.address.rpartition(":")
    try:
        with BlockingClient(host, int(port), timeout_s=60) as client:
            while (answer := client.request(send_command("T", body))).code in NOT_YET:
                pass
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return int(answer.ext["queueOffset"])
    except RemotingError:
        return None


def create_topic(broker: ControlledBroker) -> None:
    host, _, port = broker.address.rpartition(":")
    topic = TopicConfig("T", 1, 1)
    ext = {
        "topic": topic.name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    with BlockingClient(host, int(port), timeout_s=60) as client:
        assert client.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)).code == 0


@contextmanager
def controlled(
    path: Path, **settings: object
) -> Iterator[tuple[NameServer, ControllerProcess, dict[int, ControlledBroker]]]:
    """A name server, a controller, and two brokers of one set by id, both in sync and with topic T; 1 is the master."""
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        controller = ControllerProcess(f"file://{path}/state")
        world.callback(controller.stop)
        brokers = {
            number: ControlledBroker(path / str(number), names.port, controller.address, **settings)
            for number in (1, 2)
        }
        for number, broker in brokers.items():
            world.callback(broker.stop)
            broker.start()
            until(lambda: number in sync_state(controller.address)["in_sync"])  # noqa: B023 - it is waited for here
        create_topic(brokers[1])
        topics = path / "2/store/config/topics.json"
        until(lambda: topics.exists() and '"T"' in topics.read_text())
        yield names, controller, brokers


def test_the_master_of_a_controllers_set_is_moved_by_tiermq_broker(tmp_path: Path) -> None:
    with controlled(tmp_path) as (names, controller, brokers):
        offsets = [send_until_acknowledged(brokers[1], b"%d" % number) for number in range(5)]
        at = ["-n", f"127.0.0.1:{names.port}"]
        moves = (
            (["broker", "demote", brokers[1].address], 2),
            (["broker", "promote", brokers[1].address], 1),
            (["broker", "demote", BROKER_NAME, "--successor", "2"], 2),
        )
        for words, master in moves:
            until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
            moved = CliRunner().invoke(cli, [*words, *at])
            assert moved.exit_code == 0, moved.output
            assert sync_state(controller.address)["master"] == master
            while (offset := send_until_acknowledged(brokers[master], b"x")) is None:
                pass
            offsets.append(offset)
        assert offsets == list(range(8)), "nothing is lost, and the topic is known"
        said = CliRunner().invoke(cli, ["broker", "status", brokers[2].address]).output
        assert f"controller {controller.address}: replica 2 is the master" in said
        brokers[1].stop(kill=True)
        until(lambda: sync_state(controller.address)["in_sync"] == {2})
        refused = CliRunner().invoke(cli, ["broker", "demote", brokers[2].address])
        assert refused.exit_code == 1
        assert "expected another replica in sync to take over" in refused.output
        while (offset := send_until_acknowledged(brokers[2], b"x")) is None:
            pass
        assert offset == 8, "it is the master, and accepts messages"


def test_a_killed_master_is_replaced_and_returns_as_a_slave_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with controlled(tmp_path) as (_, controller, brokers):
        offsets = [send_until_acknowledged(brokers[1], b"%d" % number) for number in range(20)]
        for old, new in ((1, 2), (2, 1)):
            brokers[old].stop(kill=True)
            until(lambda: sync_state(controller.address)["master"] == new)  # noqa: B023 - it is waited for here
            for _ in range(20):
                while (offset := send_until_acknowledged(brokers[new], b"x")) is None:
                    pass
                offsets.append(offset)
            brokers[old].start()
            until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
        assert offsets == list(range(60))
        assert sync_state(controller.address)["epoch"] == 3


LAGGING = {"tieredStoreGroupCommitTimeout": 86_400_000, "tieredStoreGroupCommitCount": 1_000_000}
"""Nothing is uploaded before the broker ends."""
DUE = {
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1_000,
    "fileReservedTime": 0,
    "deleteCommitLogFilesInterval": 1,
    "cleanResourceInterval": 100,
}
"""Files of the log are small, and may be deleted as soon as they are full."""


def test_a_slave_of_a_set_keeps_what_the_tier_lacks_and_takes_over_with_all_of_it(tmp_path: Path) -> None:
    with controlled(tmp_path, tierUrl=f"file://{tmp_path}/tier", **LAGGING, **DUE) as (_, controller, brokers):
        bodies = [b"%03d" % number + b"." * 4_000 for number in range(300)]
        assert [send_until_acknowledged(brokers[1], body) for body in bodies] == list(range(300))
        log, said = tmp_path / "2/store/commitlog", tmp_path / "2/home/errors"
        kept = sorted(log.glob("0*"))
        assert len(kept) > 3
        host, _, port = brokers[2].address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60) as client:
            assert client.request(RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        until(lambda: "is due to be deleted" in said.read_text() or sorted(log.glob("0*")) != kept)
        assert sorted(log.glob("0*")) == kept, "they are due, and the tier has nothing of them"
        brokers[1].stop(kill=True)
        until(lambda: sync_state(controller.address)["master"] == 2)
        while (offset := send_until_acknowledged(brokers[2], b"x")) is None:
            pass
        assert offset == 300
        assert bodies_at(brokers[2]) == [*bodies, b"x"]


def send_until_it_dies(broker: ControlledBroker, name: int, acknowledged: dict[int, bytes]) -> None:
    """Sends one message after the other on a connection of its own; the last one is in flight when the broker dies."""
    host, _, port = broker.address.rpartition(":")
    with suppress(RemotingError), BlockingClient(host, int(port), timeout_s=60) as client:
        for number in count():
            body = b"%d of %d" % (number, name)
            answer = client.request(send_command("T", body))
            if answer.code == ResponseCode.SUCCESS:
                acknowledged[int(answer.ext["queueOffset"])] = body


def bodies_at(broker: ControlledBroker) -> list[bytes]:
    """All messages of the queue, as a consumer gets them."""
    host, _, port = broker.address.rpartition(":")
    found: list[bytes] = []
    with BlockingClient(host, int(port), timeout_s=60) as client:
        while True:
            ext = {**pull_fields(len(found)), "sysFlag": 4, "subscription": "*", "expressionType": "TAG"}
            reported = {name: str(value) for name, value in ext.items()}
            answer = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=reported))
            if answer.code in NOT_YET:
                continue
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += [each.body for each in messages_of(answer)]


def test_of_sends_in_flight_at_a_kill_those_acknowledged_are_at_their_offset_ever_after(tmp_path: Path) -> None:
    with controlled(tmp_path) as (_, controller, brokers):
        acknowledged: dict[int, bytes] = {}
        with ThreadPoolExecutor(IN_FLIGHT) as producers:
            sends = [producers.submit(send_until_it_dies, brokers[1], name, acknowledged) for name in range(IN_FLIGHT)]
            until(lambda: len(acknowledged) >= ACKNOWLEDGED)
            brokers[1].stop(kill=True)
            for each in sends:
                each.result()
        until(lambda: sync_state(controller.address)["master"] == 2)
        until(lambda: send_until_acknowledged(brokers[2], b"by the second") is not None)  # It serves as the master.
        found = bodies_at(brokers[2])
        assert {offset: found[offset] for offset in acknowledged} == acknowledged
        brokers[1].start()
        until(lambda: sync_state(controller.address)["in_sync"] == {1, 2})
        brokers[2].stop(kill=True)
        until(lambda: sync_state(controller.address)["master"] == 1)
        until(lambda: send_until_acknowledged(brokers[1], b"by the first") is not None)
        assert bodies_at(brokers[1]) == [*found, b"by the first"], "what the old master had alone is gone"

"""`tiermq serve` with enableSlaveActingMaster, as its user runs it: a master that is killed, and returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tiermq
from broker.brokers import send_command
from broker.consuming import messages_of, pull_fields
from broker.pop.pop_peer import pop_fields
from servers.serving import Serving
from tiermq.cli.main import cli
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.client.member.transactions import Decision
from tiermq.clock import SystemClock
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, TRANSACTION_GROUP
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.store.delay_offsets import decode_delay_offsets
from waiting import until

DELAY_MS = 3_000
ACTING: dict[str, Any] = {
    "enable_slave_acting_master": True,
    "enable_remote_escape": True,
    "message_delay_level": "3s 1s",
    "timer_precision_ms": 100,
    "timer_flush_interval_ms": 100,
    "flush_delay_offset_interval": 100,
    "revive_interval": 100,
    "master_sync_interval": 100,
    "broker_heartbeat_interval": 100,
    "transaction_time_out": 1,
    "ha_listen_port": 0,
}
DELAYS = RequestCode.GET_ALL_DELAY_OFFSET
CHECKS_SOON = {"transaction_check_interval": 200}
GROUP = "CG"
WITH_SUBSCRIPTION = {"sysFlag": 4, "subscription": "*", "expressionType": "TAG", "suspendTimeoutMillis": 0}


class Cluster:
    """Broker a with a slave, broker b, and their name server."""

    def __init__(self, path: Path, names: NameServer, of_slave: dict[str, Any]) -> None:
        self.names = names
        at = ("--namesrv", f"127.0.0.1:{names.port}")
        self.master = Serving(path / "a", *at, broker_name="a", transaction_check_interval=600_000, **ACTING)
        self.slave = Serving(
            path / "a1", *at, broker_name="a", broker_id=1, broker_role="SLAVE", **{**CHECKS_SOON, **ACTING, **of_slave}
        )
        self.other = Serving(path / "b", *at, broker_name="b", **CHECKS_SOON, **ACTING)

    def ask(self, broker: Serving, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
        with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as client:
            return client.request(RemotingCommand(code, ext={k: str(v) for k, v in ext.items()}, body=body))

    def send(self, broker: Serving, body: bytes, properties: str = "") -> None:
        reported = f"UNIQ_KEY\x01{body.decode()}\x02{properties}"
        command = send_command("T", body, properties=reported, queues=1)
        command.ext["g"] = str(SystemClock().now_ms())  # A half message that is years old would be given up.
        with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as client:
            answer = client.request(command)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def send_timer(self, broker: Serving, body: bytes, delay_ms: int = DELAY_MS) -> None:
        self.send(broker, body, f"TIMER_DELAY_MS\x01{delay_ms}\x02")

    def send_delayed(self, broker: Serving, body: bytes, level: int = 1) -> None:
        self.send(broker, body, f"DELAY\x01{level}\x02")

    def end(self, broker: Serving, topic: str) -> int:
        answer = self.ask(broker, RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0)
        return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else 0

    def caught_up(self) -> None:
        """Wait until the slave has the log and the tables."""
        end = self.log_end(self.master, of_slave=False)
        until(lambda: self.log_end(self.slave, of_slave=True) >= end)
        version = decode_object(self.ask(self.master, RequestCode.GET_ALL_TOPIC_CONFIG).body)["dataVersion"]
        until(
            lambda: decode_object(self.ask(self.slave, RequestCode.GET_ALL_TOPIC_CONFIG).body)["dataVersion"] == version
        )

    def log_end(self, broker: Serving, *, of_slave: bool) -> int:
        status = decode_object(self.ask(broker, RequestCode.GET_BROKER_HA_STATUS).body)
        return int(status["haClientRuntimeInfo"]["maxOffset"] if of_slave else status["masterCommitLogMaxOffset"])

    def messages(self, broker: Serving, topic: str = "T") -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while True:
            ext = {**pull_fields(len(found)), "topic": topic, "consumerGroup": GROUP, **WITH_SUBSCRIPTION}
            answer = self.ask(broker, RequestCode.PULL_MESSAGE, **ext)
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += messages_of(answer)

    def bodies(self, broker: Serving, topic: str = "T") -> Counter[bytes]:
        return Counter(each.body for each in self.messages(broker, topic))

    def route(self) -> tuple[dict[int, str], int]:
        """Addresses and permission of broker a in the route of T."""
        with BlockingClient("127.0.0.1", self.names.port, timeout_s=60) as client:
            answer = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"}))
        if answer.code != ResponseCode.SUCCESS:
            return {}, 0
        found = decode_object(answer.body)
        addresses = [each["brokerAddrs"] for each in found["brokerDatas"] if each["brokerName"] == "a"]
        perms = [each["perm"] for each in found["queueDatas"] if each["brokerName"] == "a"]
        return {int(key): value for each in addresses for key, value in each.items()}, sum(perms)

    def acts(self) -> bool:
        return self.route() == ({0: self.slave.address}, 4)

    def master_is_back(self) -> bool:
        return self.route() == ({0: self.master.address, 1: self.slave.address}, 6)


@contextmanager
def cluster(path: Path, **of_slave: Any) -> Iterator[Cluster]:
    config = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path="", support_acting_master=True,
        notify_min_broker_id_changed=True,
    )  # fmt: skip
    with ExitStack() as world:
        made = Cluster(path, world.enter_context(NameServer(config)), of_slave)
        for broker in (made.other, made.master, made.slave):
            world.enter_context(broker)
        for broker in (made.master, made.other):
            made.send(broker, b"first-" + broker.store.name.encode())
        until(made.master_is_back)
        yield made


@contextmanager
def transaction_producer(names: NameServer, asked: list[bytes]) -> Iterator[None]:
    """A producer that answers COMMIT; `asked` gets the bodies."""

    def check(message: ReceivedMessage) -> Decision:
        asked.append(message.body)
        return Decision.COMMIT

    with (
        tiermq.connect(f"127.0.0.1:{names.port}", heartbeat_s=0.2) as cluster,
        cluster.producer("PG", check=check) as producer,
    ):
        producer.serve("T")
        yield


def test_a_slave_goes_on_with_everything_that_waits_and_the_returned_master_repeats_nothing(tmp_path: Path) -> None:
    asked: list[bytes] = []
    with cluster(tmp_path) as made, transaction_producer(made.names, asked):
        popped = made.ask(made.master, RequestCode.POP_MESSAGE, **{**pop_fields(), "invisibleTime": DELAY_MS})
        assert popped.code == ResponseCode.SUCCESS, popped.remark
        made.send_delayed(made.master, b"delayed")
        made.send_timer(made.master, b"timer")
        made.send(made.master, b"half", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02")
        made.caught_up()
        made.master.kill()
        until(made.acts)

        until(lambda: made.bodies(made.other) == Counter([b"first-b", b"delayed", b"timer", b"half"]))
        assert b"half" in asked
        until(lambda: made.bodies(made.other, "%RETRY%G_T") == Counter([b"first-a"]))
        assert made.bodies(made.slave) == Counter([b"first-a"])
        commit: dict[str, Any] = {"consumerGroup": GROUP, "topic": "T", "queueId": 0, "commitOffset": 1}
        assert made.ask(made.slave, RequestCode.UPDATE_CONSUMER_OFFSET, **commit).code == ResponseCode.SUCCESS

        made.master.start()
        until(made.master_is_back)
        found = made.ask(made.master, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic="T", queueId=0)
        assert found.ext["offset"] == "1"
        table = decode_object(made.ask(made.master, RequestCode.GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
        assert table[f"{HALF_TOPIC}@{TRANSACTION_GROUP}"] == {"0": 1}
        made.send_delayed(made.master, b"later", 2)  # What the master delivers now is behind what it does not repeat.
        made.send_timer(made.master, b"later timer", 500)
        until(lambda: len(made.messages(made.master)) == 3)
        assert made.bodies(made.master) == Counter([b"first-a", b"later", b"later timer"])
        popped = made.ask(made.master, RequestCode.POP_MESSAGE, **{**pop_fields(), "invisibleTime": 1})
        assert popped.code == ResponseCode.SUCCESS
        until(lambda: sum(made.bodies(made.master, "%RETRY%G_T").values()) >= 2)
        assert made.bodies(made.master, "%RETRY%G_T") == Counter([b"later", b"later timer"])
        assert made.bodies(made.other) == Counter([b"first-b", b"delayed", b"timer", b"half"])


def test_what_the_acting_slave_did_not_have_is_delivered_by_the_returned_master(tmp_path: Path) -> None:
    with cluster(tmp_path) as made:
        made.send_delayed(made.master, b"delayed")
        made.send_timer(made.master, b"timer")
        made.caught_up()
        made.slave.kill()
        made.send_delayed(made.master, b"delayed tail")
        made.send_timer(made.master, b"timer tail")
        made.master.kill()
        made.slave.start()
        until(made.acts)
        until(lambda: made.bodies(made.other) == Counter([b"first-b", b"delayed", b"timer"]))
        made.send_timer(made.other, b"tick")  # The tail is due, and its slot passed at the slave.
        until(lambda: made.bodies(made.other)[b"tick"])
        made.master.start()
        until(made.master_is_back)
        until(lambda: len(made.messages(made.master)) >= 3)
        assert made.bodies(made.master) == Counter([b"first-a", b"delayed tail", b"timer tail"])
        assert made.bodies(made.other) == Counter([b"first-b", b"delayed", b"timer", b"tick"])


def test_what_the_master_delivered_before_it_died_is_not_delivered_again(tmp_path: Path) -> None:
    """Its tables, which say so, have not been copied since; its log, which shows it, was."""
    with cluster(tmp_path, master_sync_interval=3_600_000) as made:
        made.send_delayed(made.master, b"delayed", 2)
        made.send_timer(made.master, b"timer", 500)
        until(lambda: len(made.messages(made.master)) == 3)
        made.send_delayed(made.master, b"later")
        made.send_timer(made.master, b"later timer")
        end = made.log_end(made.master, of_slave=False)
        until(lambda: made.log_end(made.slave, of_slave=True) >= end)
        made.master.kill()
        until(made.acts)
        until(lambda: len(made.messages(made.other)) >= 3)
        until(lambda: decode_delay_offsets(bytes(made.ask(made.slave, DELAYS).body))[0] == {1: 1, 2: 1})
        assert made.bodies(made.other) == Counter([b"first-b", b"later", b"later timer"])


REFUSED = [
    ("enableRemoteEscape=true\n", "expected enableSlaveActingMaster=true"),
    (
        "enableSlaveActingMaster=true\nenableControllerMode=true\ncontrollerAddr=127.0.0.1:1\nnamesrvAddr=127.0.0.1:1\n",
        "expected roles by brokerRole",
    ),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_acting_that_cannot_be_kept_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broker.conf").write_text(text)
    command = ["serve", str(tmp_path / "store"), "-c", str(tmp_path / "broker.conf"), "--port", "0"]
    if "namesrvAddr" not in text:  # Its own name server, at a port that no other program has.
        command += ["--namesrv-port", "0"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2
    assert words in result.output

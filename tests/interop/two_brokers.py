"""The real broker and ours, side by side, with the same topics, messages, groups and offsets, for mqadmin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.brokers import send_command
from interop.mqadmin import Mqadmin, masked
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Cluster, Distribution
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode as Code
from tiermq.remoting.command import RemotingCommand
from waiting import until

PROPERTIES = "UNIQ_KEY\x017F0000010A1B2C3D{number:016X}\x02KEYS\x01key-{number}\x02TAGS\x01A\x02WAIT\x01true\x02"


def name_server_config() -> NameServerConfig:
    return NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")


def broker_config(name_server: NameServer, **settings: object) -> BrokerConfig:
    return BrokerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        broker_name=BROKER_NAME,
        namesrv_addr=f"127.0.0.1:{name_server.port}",
        **settings,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class Side:
    """One broker, as a client and as mqadmin see it."""

    client: BlockingClient
    mqadmin: Mqadmin
    address: str

    def ask(self, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
        reported = {name: str(value) for name, value in ext.items()}
        return self.client.request(RemotingCommand(code, ext=reported, body=body), 60)


@dataclass(frozen=True, slots=True)
class World:
    real: Side
    ours: Side

    def run(self, *words: str) -> tuple[str, str]:
        """What mqadmin prints of the real broker, and of ours, masked."""
        real, ours = (
            masked(side.mqadmin.run(*(word.format(address=side.address) for word in words)))
            for side in (self.real, self.ours)
        )
        return real, ours

    def same(self, *words: str) -> str:
        """What both print, which is the same."""
        real, ours = self.run(*words)
        assert ours == real, words
        return ours

    def ask(self, code: int, body: bytes = b"", **ext: object) -> tuple[RemotingCommand, RemotingCommand]:
        return self.real.ask(code, body, **ext), self.ours.ask(code, body, **ext)


@contextmanager
def two_brokers(distribution: Distribution, scratch: Path) -> Iterator[World]:
    """Both brokers, each with a name server of its own kind and an mqadmin."""
    settings = {**SMALL_FILES, "timerWheelEnable": True}  # Without it the real broker cannot delete a topic.
    with ExitStack() as open_now:
        cluster = open_now.enter_context(Cluster(distribution, scratch / "real", scratch / "home", settings))
        name_server = open_now.enter_context(NameServer(name_server_config()))
        broker = open_now.enter_context(Broker.open(scratch / "ours", config=broker_config(name_server)))
        assert broker.registration is not None
        assert broker.registration.wait_registered(60)
        sides = []
        for name, address, names in (
            ("real", cluster.broker_address, f"127.0.0.1:{cluster._name_server_port}"),
            ("ours", broker.address, f"127.0.0.1:{name_server.port}"),
        ):
            host, _, port = address.rpartition(":")
            client = open_now.enter_context(BlockingClient(host, int(port), timeout_s=60))
            mqadmin = open_now.enter_context(Mqadmin(distribution, scratch / f"admin-{name}", names))
            sides.append(Side(client, mqadmin, address))
        await_registered("127.0.0.1", cluster._name_server_port)
        yield World(*sides)


def await_registered(host: str, port: int) -> None:
    """Until the name server knows the broker, and clients find it."""
    route = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, ext={"topic": CLUSTER_NAME})
    with BlockingClient(host, port, timeout_s=60) as client:
        until(lambda: client.request(route).code == 0)


def send_alike(world: World, topic: str, count: int) -> list[tuple[str, str]]:
    """Messages with the same keys to the same queues of both; their ids."""
    ids = []
    for number in range(count):
        properties = PROPERTIES.format(number=number)
        answers = [
            side.client.request(send_command(topic, b"body %d" % number, queue=number % 2, properties=properties), 60)
            for side in (world.real, world.ours)
        ]
        assert [answer.code for answer in answers] == [0, 0]
        ids.append((answers[0].ext["msgId"], answers[1].ext["msgId"]))
    for side in (world.real, world.ours):  # Until they can be consumed and found.
        for queue_id in range(2):
            while int(side.ask(Code.GET_MAX_OFFSET, topic=topic, queueId=queue_id).ext["offset"]) < count // 2:
                pass
    return ids

"""A broker and its name servers: one behind a network that fails, one behind a good one.

The good one learns of every topic while the other is out of reach; when the network heals, the other learns of all of
them; when the broker ends, it ends in good time, and the good one forgets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.topic.test_broker_registration import Topics
from campaign.networks.faults import Step, apply
from campaign.networks.proxy import CLEAR, Proxy, Weather
from campaign.networks.scheduled_part import ScheduledPart, ending_its_threads
from campaign.part import Outcome
from tiermq.broker.topic.broker_registration import BrokerIdentity, BrokerRegistration
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

IDENTITY = BrokerIdentity(cluster="C", name="broker-a", address="127.0.0.1:10911", ha_address="127.0.0.1:10912")


@dataclass(frozen=True, kw_only=True)
class NameServersPart(ScheduledPart):
    """See the module."""

    steps: int = 12
    rounds: int = 60
    name: str = "network-namesrv"
    title: str = "partitions, slow and half-open links and cut frames between a broker and a name server"
    promise = "no name server waits for another, each learns of all topics, and a broker ends although one is gone"

    def live(self, seed: int, scratch: Path, steps: list[Step], outcome: Outcome) -> list[str]:
        del scratch
        wrong: list[str] = []
        with (
            ending_its_threads(wrong),
            _name_server() as far,
            _name_server() as near,
            Proxy("127.0.0.1", far.port) as proxy,
        ):
            wrong += _live(seed, steps, (far, near), proxy, outcome)
        outcome.counts["faults_injected"] += 1  # The broker's end.
        return wrong


def _name_server() -> NameServer:
    return NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=""))


def _live(
    seed: int, steps: list[Step], servers: tuple[NameServer, NameServer], proxy: Proxy, outcome: Outcome
) -> list[str]:
    far, near = servers
    topics = Topics("first", "second")  # One alone would be taken for a change, not for all.
    registration = BrokerRegistration(
        IDENTITY,
        topics,
        [("127.0.0.1", proxy.port), ("127.0.0.1", near.port)],
        period_s=0.5,
        timeout_s=0.4,
        rest_first_s=0.02,
    )
    registration.start()
    _until(near, "first", registered=True)
    for number, step in enumerate(steps):
        apply(step, proxy)
        before = _turns(registration)
        topics.put(f"topic-{number}")
        registration.topics_changed([f"topic-{number}"])
        _until(near, f"topic-{number}", registered=True)
        outcome.counts["registrations_checked"] += 1
        # The other one is served on, until the fault was met: the first turn may have begun before it.
        while _turns(registration) < before + 2:
            _until(near, "first", registered=True)
    proxy.set(CLEAR)
    for topic in topics.table:
        _until(far, topic, registered=True)
        outcome.counts["registrations_checked"] += 1
    failed = registration.status()[0].failed_count
    outcome.counts["errors_met"] += failed
    if seed % 2:
        proxy.set(Weather(hold_up=True, hold_down=True))  # The end comes while one of them is out of reach.
    registration.stop()
    _until(near, "first", registered=False)
    connections = len(far.server.connections)
    wrong = [f"{connections} connections of one broker"] if connections > 1 + failed else []
    wrong += [f"{each.server.handler_errors} mistakes of handlers" for each in servers if each.server.handler_errors]
    return wrong


def _turns(registration: BrokerRegistration) -> int:
    """How often the name server behind the failing network was notified, or could not be."""
    far = registration.status()[0]
    return far.accepted_count + far.failed_count


def _until(server: NameServer, topic: str, *, registered: bool) -> None:
    """Ask until the answer is so. A caller that never gets it is ended by its runner."""
    with BlockingClient("127.0.0.1", server.port, timeout_s=60.0) as client:
        while True:
            answer = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}))
            if (answer.code == ResponseCode.SUCCESS) is registered:
                return

"""RocketMQ's own Java client and a broker, over a network that fails between them.

The broker gives clients an address of the proxy's, so that everything but the name server goes through it. What the
client was acknowledged is stored; a consumer that lives through it all gets every stored message; when the network has
healed, the client goes on without a notification.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from campaign.networks.faults import Step, apply
from campaign.networks.proxy import CLEAR, Proxy
from campaign.networks.scheduled_part import ScheduledPart, count_links
from campaign.part import Outcome
from interop.java_client import JavaClient
from interop.rocketmq import Unavailable, fetch
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

TOPIC, QUEUES = "FromJava", 4
PROXY_HOST = "127.0.0.2"
MESSAGES = 12
ENDLESS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class JavaPart(ScheduledPart):
    """See the module."""

    steps: int = 4
    rounds: int = 10
    name: str = "network-java"
    title: str = "partitions, slow and half-open links and cut frames between RocketMQ's Java client and a broker"
    promise = (
        "what a Java client was acknowledged is stored and delivered, and the client goes on when the network heals"
    )

    def missing(self) -> str:
        try:
            fetch()
        except Unavailable as reason:
            return f"the real RocketMQ's client: {reason}"
        return ""

    def live(self, seed: int, scratch: Path, steps: list[Step], outcome: Outcome) -> list[str]:
        del seed
        store = scratch / "store"
        (store / "config").mkdir(parents=True)
        (store / "config" / FILE).write_bytes(
            encode_topics({TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES)}, NO_VERSION.next(1))
        )
        with (
            Serving(store, broker_ip1=PROXY_HOST) as served,
            Proxy("127.0.0.1", served.port, listen_host=PROXY_HOST, listen_port=served.port) as proxy,
        ):
            name_server = served.name_server.replace(PROXY_HOST, "127.0.0.1")
            client = JavaClient(fetch(), name_server, scratch)
            return _live(steps, client, served, proxy, outcome)


class _Enough(Exception):
    """Everything was received."""


def _live(steps: list[Step], client: JavaClient, served: Serving, proxy: Proxy, outcome: Outcome) -> list[str]:
    wrong, acknowledged, failed = [], 0, 0
    job = {"kind": "send", "topic": TOPIC, "threads": 3, "bytes": 200, "messages": MESSAGES}
    deliveries = 0
    with (
        contextlib.suppress(_Enough),
        client.standing(receive=ENDLESS, topic=TOPIC, group="javans") as events,
        client.loading() as load,
    ):
        for step in (None, *steps):
            if step is not None:
                apply(step, proxy)
            reported = load(**job)
            failed += reported["failed"]
            acknowledged += reported["messages"] - reported["failed"]
        proxy.set(CLEAR)
        proxy.reset_links()
        # The first sends may still meet what was before; a client that is whole again sends all of them.
        while (reported := load(**job))["failed"]:
            acknowledged += reported["messages"] - reported["failed"]
        acknowledged += reported["messages"]
        ends = _ends(served.port)
        missing = {(queue, offset) for queue, end in ends.items() for offset in range(end)}
        outcome.counts["messages_checked"] += len(missing)
        if len(missing) < acknowledged:
            wrong.append(f"{acknowledged} messages were acknowledged, {len(missing)} are stored")
        while missing:
            message = next(events).get("received")
            if message is not None:
                missing.discard((message["queue"], message["offset"]))
                deliveries += 1
        raise _Enough  # A consumer that waits for more does not end by itself.
    outcome.counts["deliveries"] += deliveries
    outcome.counts["sends_that_failed"] += failed
    count_links(proxy, outcome)
    return wrong


def _ends(port: int) -> dict[int, int]:
    with BlockingClient("127.0.0.1", port, timeout_s=60.0) as client:
        asked = (
            RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": str(n)}) for n in range(QUEUES)
        )
        return {queue: int(client.request(command).ext["offset"]) for queue, command in enumerate(asked)}

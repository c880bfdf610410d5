"""RocketMQ's Java producer sends messages for a time of their own to `tiermq serve`, and takes some back."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.java_client import JavaClient, bodies
from interop.rocketmq import Distribution
from servers.serving import Serving
from tiermq.broker.send.recall_processor import decode_recall_handle
from tiermq.client.cluster_client import Access
from tiermq.client.delayed_messages import cancel_timer

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]


def test_a_java_producer_takes_timers_back_and_a_java_consumer_gets_the_others(
    distribution: Distribution, tmp_path: Path
) -> None:
    with Serving(tmp_path / "store", recall_message_enable=True) as served:
        client = JavaClient(distribution, served.name_server, tmp_path)
        job = {"topic": "T", "delaySeconds": 20, "bodies": ["a", "b", "c", "d"], "recalled": ["b"]}
        with client._started("Recalling", job) as process:
            events = list(client._events(process))
        sent = {event["sent"]["body"]: event["sent"] for event in events if "sent" in event}
        [recalled] = [event["recalled"] for event in events if "recalled" in event]
        assert recalled["id"] == sent["b"]["id"]
        handle = decode_recall_handle(sent["a"]["handle"])
        assert (handle.topic, handle.broker_name, handle.unique_key) == ("T", "b1", sent["a"]["id"])
        # One more goes by our own command's way.
        access = Access(served.name_server, "", "", False)
        assert access.run(lambda cluster: cancel_timer(cluster, "T", sent["c"]["id"]))
        got = client.run(topic="T", group="G", receive=2)
        assert sorted(bodies(got)) == ["a", "d"]

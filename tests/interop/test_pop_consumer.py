"""RocketMQ's own push consumer in POP mode against our broker: everything is consumed, what failed comes again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker.consuming import Peer, put, until
from broker.pop.pop_peer import pops
from interop.rocketmq import Distribution
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode

pytestmark = pytest.mark.interop


def test_a_push_consumer_that_pops_consumes_everything_and_acknowledges_it(
    distribution: Distribution, tmp_path: Path
) -> None:
    names = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
    with NameServer(names) as name_server:
        address = f"127.0.0.1:{name_server.port}"
        config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="b", namesrv_addr=address)
        with Broker.open(tmp_path / "store", config=config) as broker:
            assert broker.registration is not None
            assert broker.registration.wait_registered(60)
            broker.parts.topics.put(TopicConfig("T", 4, 4))
            with Peer(broker) as operator:
                mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
                assert operator.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, mode).code == 0
            bodies = {f"m{number}" for number in range(40)} | {"retry-1", "retry-2"}
            for number, body in enumerate(sorted(bodies)):
                put(broker, body, queue_id=number % 4)
            command = distribution.java(tmp_path, "PopConsumer", address, "G", "T", str(len(bodies)), heap="256m")
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            tries = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("consumed")]
            assert {body for body, _, _ in tries} == bodies
            assert {topic for _, _, topic in tries} == {"T"}
            for body in ("retry-1", "retry-2"):
                assert {"0", "1"} <= {times for each, times, _ in tries if each == body}
            assert sum(broker.parts.offsets.queues("G", "T").values()) == len(bodies), "it popped, and did not pull"
            until(broker, lambda: len(pops(broker).log.points) == 0)

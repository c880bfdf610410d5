"""What a broker tells of its consumers: given, behind, connected."""

from __future__ import annotations

from pathlib import Path

from broker.consuming import Peer, on_loop, put, running, until
from tiermq.broker.broker import Broker
from tiermq.namesrv.topic_config import TopicConfig

OWNER = 'cluster="DefaultCluster",node_type="broker",node_id="b"'


def told(broker: Broker, name: str) -> dict[str, float]:
    """The samples of a metric, by their labels without the broker's own."""
    lines = broker.parts.metrics.render_prometheus().splitlines()
    found = {}
    for line in lines:
        if line.startswith((f"{name}{{", f"{name} ")):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            found[labels.strip("{}").removeprefix(OWNER).removeprefix(",")] = float(value)
    return found


def test_what_a_group_was_given_and_what_it_lacks(tmp_path: Path) -> None:
    labels = 'topic="T",consumer_group="G",is_retry="false"'
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abcde")
        answer = peer.pull(0, maxMsgNums=3)
        assert told(broker, "rocketmq_messages_out_total") == {f'{labels},is_system="false"': 3}
        assert told(broker, "rocketmq_throughput_out_total") == {f'{labels},is_system="false"': len(answer.body)}
        assert told(broker, "rocketmq_consumer_lag_messages") == {}, "it has committed nothing"
        broker.parts.offsets.commit("G", "T", 0, 2)
        assert told(broker, "rocketmq_consumer_lag_messages") == {labels: 3}
        assert told(broker, "rocketmq_consumer_inflight_messages") == {labels: 1}
        peer.pull(3)
        assert told(broker, "rocketmq_messages_out_total") == {f'{labels},is_system="false"': 5}
        broker.parts.offsets.remove_group("G")
        assert told(broker, "rocketmq_consumer_lag_messages") == {labels: 0}


def test_a_count_that_was_forgotten_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abc")
        peer.pull(0)
        assert list(told(broker, "rocketmq_messages_out_total").values()) == [3]
        pulling = next(each for each in broker.processors if hasattr(each, "admission"))
        on_loop(broker, pulling.admission.remembered.clear)
        peer.pull(1)
        assert list(told(broker, "rocketmq_messages_out_total").values()) == [5]


def test_who_is_connected_and_who_has_left(tmp_path: Path) -> None:
    consumer = 'consumer_group="G",language="PYTHON",version="479",consume_mode="push"'
    with running(tmp_path) as broker:
        with Peer(broker) as peer:
            peer.join()
            assert told(broker, "rocketmq_consumer_connections") == {consumer: 1}
            assert told(broker, "rocketmq_producer_connections") == {'language="PYTHON",version="479"': 1}
            held = peer.pull_later(0, sysFlag=2)
            until(broker, lambda: told(broker, "tiermq_pulls_held") == {"": 1})
            put(broker, "a")
            assert held.result(60).code == 0
            assert told(broker, "tiermq_pulls_held") == {"": 0}
        until(broker, lambda: not broker.parts.clients.consumer_groups)
        assert told(broker, "rocketmq_consumer_connections") == {consumer: 0}


def test_dead_letters_and_delays_are_told(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", "b")
        first, second = broker.parts.local.get("T", 0, 0).messages
        assert peer.ask(36, offset=first.physical_offset, group="G", delayLevel=-1).code == 0
        assert peer.ask(36, offset=second.physical_offset, group="G", delayLevel=18).code == 0
        broker.parts.local.dispatch_now()
        dead = told(broker, "rocketmq_send_to_dlq_messages_total")
        assert dead == {'topic="T",consumer_group="G"': 1}
        assert told(broker, "tiermq_delayed_waiting") == {"": 1}
        assert told(broker, "tiermq_delayed_delivered_total") == {"": 0}


def test_offsets_of_a_topic_that_is_gone_are_no_lag(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        broker.parts.topics.put(TopicConfig("U"))
        broker.parts.offsets.commit("G", "U", 0, 0)
        broker.parts.offsets.commit("G", "gone", 0, 0)
        assert list(told(broker, "rocketmq_consumer_lag_messages")) == ['topic="U",consumer_group="G",is_retry="false"']

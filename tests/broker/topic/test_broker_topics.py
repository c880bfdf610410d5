"""No client writes a topic in which the broker keeps its own state, by any request; one table says which those are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiermq
from broker.brokers import BORN_MS, broker_config, running, send_command, stored
from broker.consuming import part
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.topic_name import BROKER_TOPICS, SYSTEM_TOPICS, is_system_topic
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.tier.dispatch.plan import TopicFilter

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
NOT_FOR_CLIENTS = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
]
"""RocketMQ's, as its TopicValidator has them: written out, so that a name which the table loses is missed here."""
SYSTEM = [*NOT_FOR_CLIENTS, "TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"]
OWN = [*NOT_FOR_CLIENTS, "CHECKPOINT_TOPIC", "rmq_sys_wheel_timer", REVIVE, "rmq_sys_SYNC_BROKER_MEMBER_b1"]
OWN += ["rmq_sys_anything"]
OWN += ["RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ANYTHING", "rmq_SYS_index"]
FOR_CLIENTS = ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn", "BenchmarkTest", "DefaultCluster_REPLY_TOPIC", "orders"]
TABLE = "message/topic_name.py"


@pytest.fixture
def client(broker: Broker) -> Iterator[BlockingClient]:
    with BlockingClient("127.0.0.1", broker.port, timeout_s=30.0) as made:
        yield made


def sends(topic: str) -> list[RemotingCommand]:
    """Every way in which a client can send to a topic."""
    batch = encode_client_batch([BatchElement(0, b"x", b"")])
    half = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K\x02"
    timer = f"TIMER_DELIVER_MS\x01{BORN_MS * 2}\x02UNIQ_KEY\x01K\x02"
    real = f"{timer}REAL_TOPIC\x01{REVIVE}\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{BORN_MS}\x02"
    return [
        *(send_command(topic, code=code) for code in (10, 310, 324, 325)),
        send_command(topic, batch, code=320, batch=True),
        send_command(topic, batch, code=310, batch=True),
        *(send_command(topic, properties=each) for each in (half, timer, real, "DELAY\x013\x02")),
        send_command(topic, properties=half, sys_flag=4),
    ]


@pytest.mark.parametrize("topic", ["CURRENT", "LOCK", "lock", "abort", "checkpoint", "manifest", "lease"])
def test_a_broker_starts_again_whatever_a_client_calls_its_topic(tmp_path: Path, topic: str) -> None:
    for count in (1, 2):
        with running(tmp_path) as broker, BlockingClient("127.0.0.1", broker.port, timeout_s=30.0) as client:
            assert client.request(send_command(topic)).code == 0
            assert len(stored(broker, topic)) == count


@pytest.mark.parametrize("topic", OWN)
def test_every_way_to_send_to_a_broker_s_own_topic_is_refused(
    broker: Broker, client: BlockingClient, topic: str
) -> None:
    topics, end = sorted(broker.parts.topics.table), broker.parts.local.max_physical_offset
    for _ in range(2):  # The second is no usual send either.
        answers = [client.request(command) for command in sends(topic)]
        assert {answer.code for answer in answers} == {ResponseCode.NO_PERMISSION}
        assert all(f"topic {topic}: its messages are the broker's own" in str(answer.remark) for answer in answers)
    assert broker.parts.local.max_physical_offset == end
    assert sorted(broker.parts.topics.table) == topics


@pytest.mark.parametrize("topic", FOR_CLIENTS)
def test_clients_send_where_rocketmq_s_clients_do(broker: Broker, client: BlockingClient, topic: str) -> None:
    for _ in range(2):
        assert client.request(send_command(topic)).code == ResponseCode.SUCCESS
    assert len(stored(broker, topic)) == 2


def test_a_broker_s_own_record_is_not_given_back_to_a_group(broker: Broker, client: BlockingClient) -> None:
    assert client.request(send_command("orders", properties="DELAY\x013\x02UNIQ_KEY\x01K\x02")).code == 0
    end = broker.parts.local.max_physical_offset
    back = {"group": "G", "delayLevel": "1", "offset": "0", "originTopic": "orders", "originMsgId": "K"}
    answer = client.request(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext=back))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert broker.parts.local.max_physical_offset == end


@pytest.mark.parametrize("body", [b'{"aol":5}', b'{"n":0}', b'{"n":-1}', b'{"n":50000000}'])
def test_no_send_keeps_a_broker_from_starting_again(tmp_path: Path, body: bytes) -> None:
    for tag in ("ack", "ck", "bAck"):
        with running(tmp_path) as broker, BlockingClient("127.0.0.1", broker.port, timeout_s=30.0) as client:
            answer = client.request(send_command(REVIVE, body, properties=f"TAGS\x01{tag}\x02UNIQ_KEY\x01K\x02"))
            assert answer.code == ResponseCode.NO_PERMISSION
    with running(tmp_path) as broker:
        assert len(part(broker, PopProcessor).log.points) == 0


def test_broker_and_tier_agree_on_what_is_the_system_s(tmp_path: Path) -> None:
    config = broker_config()
    topics = TopicTable(str(tmp_path), config, ManualClock())
    never_tiered = TopicFilter(config.broker_name, config.broker_cluster_name)
    for name in [*SYSTEM, *OWN, "rmq_sys_TRACE_DATA_cn", "orders", "%RETRY%G", "%DLQ%G"]:
        is_system = name in SYSTEM or name.lower().startswith("rmq_sys_")
        assert (is_system_topic(name), topics.is_system(name), never_tiered.is_filtered(name)) == (is_system,) * 3
    assert sorted(SYSTEM) == sorted(SYSTEM_TOPICS)
    assert sorted([*NOT_FOR_CLIENTS, "CHECKPOINT_TOPIC"]) == sorted(BROKER_TOPICS)


def test_the_names_are_spelled_in_one_place() -> None:
    """Documentation apart. Two tables of them gave two answers."""
    names = ("rmq_sys_", "RMQ_SYS_", *(SYSTEM_TOPICS - {"BenchmarkTest"}))
    root = Path(tiermq.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        if not any(name in text for name in names):
            continue
        tree = ast.parse(text)
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
                found += [f"{path.relative_to(root)}: {node.value}" for name in names if node.value.startswith(name)]
    assert [each for each in found if not each.startswith(TABLE)] == ["tier/names.py: rmq_sys_INDEX"]

"""RocketMQ's official benchmark programs against `tiermq serve`: to their end, without a failure, with equal counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.official import Official, with_programs
from interop.rocketmq import Distribution, Unavailable
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]

QUEUES = 8
TOPICS = ("Of128", "Of1024", "OfBatch", "OfDrained", "OfTransactions", "OfTimers")
MESSAGES = 200_000
BATCH = 16


@pytest.fixture(scope="module")
def programs(distribution: Distribution) -> Distribution:
    try:
        return with_programs(distribution)
    except Unavailable as reason:
        pytest.skip(f"no official benchmark programs here: {reason}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = tmp_path_factory.mktemp("official") / "store"
    (store / "config").mkdir(parents=True)
    table = {name: TopicConfig(name, QUEUES, QUEUES) for name in TOPICS}
    (store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
    with Serving(store) as served:
        yield served


@pytest.fixture(scope="module")
def official(programs: Distribution, broker: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Official]:
    with Official(programs, broker.name_server, tmp_path_factory.mktemp("programs")) as running:
        yield running


def asked(broker: Serving, code: RequestCode, topic: str, **fields: str) -> list[int]:
    """What the broker answers as `offset` for each queue of a topic."""
    with BlockingClient("127.0.0.1", broker.port, timeout_s=30.0) as client:
        commands = (
            RemotingCommand(code, ext={"topic": topic, "queueId": str(queue), **fields}) for queue in range(QUEUES)
        )
        return [int(client.request(command).ext["offset"]) for command in commands]


def ends(broker: Serving, topic: str) -> list[int]:
    return asked(broker, RequestCode.GET_MAX_OFFSET, topic)


@pytest.mark.parametrize("size", [128, 1024])
def test_the_official_producer_counts_what_the_broker_has(official: Official, broker: Serving, size: int) -> None:
    topic = f"Of{size}"
    reported = official.run("Producer", "-t", topic, "-w", 64, "-s", size, messages=MESSAGES)
    assert (reported.messages, reported.failed) == (MESSAGES, 0)
    printed = reported.last_report
    assert reported.said[-1].startswith("[Complete]")
    assert (printed["Send Total"], printed["Send Failed"], printed["Response Failed"]) == (MESSAGES, 0, 0)
    assert sum(ends(broker, topic)) == MESSAGES
    assert min(ends(broker, topic)) > 0, "it sends to all queues"


def test_the_official_batch_producer_sends_whole_batches_without_a_failure(official: Official, broker: Serving) -> None:
    # Its reports begin when it is ten seconds old; one that comes after the last message tells of all of them.
    options = ("-t", "OfBatch", "-w", 64, "-s", 128, "-b", BATCH)
    reported = official.run("BatchProducer", *options, messages=BATCH * MESSAGES // 4, batch=BATCH, reports=1)
    assert (reported.messages, reported.failed) == (BATCH * MESSAGES // 4, 0)
    assert reported.last_report["Send Failed"] == 0
    assert sum(ends(broker, "OfBatch")) == reported.messages
    assert {end % BATCH for end in ends(broker, "OfBatch")} == {0}


def test_the_official_consumer_drains_what_the_official_producer_sent(official: Official, broker: Serving) -> None:
    official.run("Producer", "-t", "OfDrained", "-w", 64, "-s", 128, messages=MESSAGES)
    reported = official.run("Consumer", "-t", "OfDrained", "-g", "drainers", "-w", 20, messages=MESSAGES, reports=1)
    assert (reported.messages, reported.failed) == (MESSAGES, 0)
    assert reported.last_report["Consume Fail"] == 0
    fields = {"consumerGroup": "drainers", "setZeroIfNotFound": "false"}
    committed = asked(broker, RequestCode.QUERY_CONSUMER_OFFSET, "OfDrained", **fields)
    assert committed == ends(broker, "OfDrained")


def test_the_official_transaction_producer_commits_what_it_sends(official: Official, broker: Serving) -> None:
    reported = official.run("TransactionProducer", "-t", "OfTransactions", "-w", 32, "-s", 256, messages=20_000)
    assert (reported.messages, reported.failed) == (20_000, 0)
    while sum(ends(broker, "OfTransactions")) < 20_000:  # Commits are sent one way.
        continue
    assert sum(ends(broker, "OfTransactions")) == 20_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_official_timer_consumer_gets_what_the_official_timer_producer_sent(
    official: Official, broker: Serving
) -> None:
    """The producer's messages are for a time two minutes later, whatever it is told."""
    options = ("-t", "OfTimers", "-tc", 4, "-ms", 128, "-st", 5, "-mt", 100)
    reported = official.run("timer.TimerProducer", *options, messages=2_000)
    assert (reported.messages, reported.failed) == (2_000, 0)
    reported = official.run("timer.TimerConsumer", "-t", "OfTimers", messages=2_000)
    assert (reported.messages, reported.failed) == (2_000, 0)
    assert sum(ends(broker, "OfTimers")) == 2_000

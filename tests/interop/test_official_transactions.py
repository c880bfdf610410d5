"""RocketMQ's official TransactionProducer against `tiermq serve`: each transaction ends once, as its message says.

A message of the program says in its body how it will end: after 16 bytes of ids the producer's own decision, then what
it answers to the first, the second … question (0 commit, 1 rollback, 2 unknown).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.official import Official, with_programs
from interop.rocketmq import Distribution, Unavailable
from servers.serving import SIZES, Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.delivery.transactions.open_halves import open_halves
from tiermq.message.topic_name import HALF_TOPIC
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.store.local_store import LocalStore

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]

MESSAGES = 10_000
COMMIT, ROLLBACK, UNKNOWN = 0, 1, 2
QUEUES = 8


def outcome_of(body: bytes) -> int:
    """What the program does with a message in the end."""
    return next(each for each in body[16:] if each != UNKNOWN)


def bodies(store: LocalStore, topic: str, queue_id: int) -> Iterator[bytes]:
    offset = store.min_offset(topic, queue_id)
    while (page := store.get(topic, queue_id, offset)).count:
        yield from (message.body for message in page.messages)
        offset = page.next_offset


def test_the_official_transaction_producer_ends_each_transaction_once(
    distribution: Distribution, tmp_path: Path
) -> None:
    try:
        programs = with_programs(distribution)
    except Unavailable as reason:
        pytest.skip(f"no official benchmark programs here: {reason}")
    store = tmp_path / "store"
    (store / "config").mkdir(parents=True)
    table = {"OfTransactions": TopicConfig("OfTransactions", QUEUES, QUEUES)}
    (store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
    # Not so soon that a send which takes long is asked about before its end; then each second, while reports come.
    quick = {"transaction_time_out": 15_000, "transaction_check_interval": 1_000}
    rates = ("-sr", 0.1, "-su", 0.1, "-cr", 0.3, "-cu", 0.2)
    with Serving(store, **quick) as broker, Official(programs, broker.name_server, tmp_path) as official:
        options = ("-t", "OfTransactions", "-w", 32, "-s", 128, *rates)
        reported = official.run("TransactionProducer", *options, messages=MESSAGES, reports=30)
        broker.terminate()
    assert (reported.messages, reported.failed) == (MESSAGES, 0)
    # Each report tells of the last ten seconds.
    reports = [dataclasses.replace(reported, said=(line,)).last_report for line in reported.said if "TPS: " in line]
    names = ("Send TPS", "Send Failed", "Check", "UnexpectedCheck", "DuplicatedCheck")
    most = {name: max(report[name] for report in reports) for name in names}
    print(most)
    assert (most["Send Failed"], most["UnexpectedCheck"]) == (0, 0), "nobody asks about what was ended"
    assert most["Check"] > 0, "it was asked about what it did not know"
    assert list(open_halves(store)) == []
    with LocalStore.open(store, **SIZES) as local:
        prepared = Counter(bodies(local, HALF_TOPIC, 0))
        found = Counter(body for queue_id in range(QUEUES) for body in bodies(local, "OfTransactions", queue_id))
    assert len(prepared) == MESSAGES
    assert set(found) == {body for body in prepared if outcome_of(body) == COMMIT}
    assert set(found.values()) == {1}, "and each once"
    assert {outcome_of(body) for body in prepared} == {COMMIT, ROLLBACK}

"""From bytes produced to bytes queryable: what a round counts, what Spark is asked, and a tiny run of the real one."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.broker_side import QUEUES, Loaded
from benchmarks.compare import peer_process, spark_works
from benchmarks.compare.spark_works import BODY_BYTES, BROKER_NAME, WORKS, Pipeline, make_topic
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Kind, Place, by_name
from benchmarks.report import Round
from interop.rocketmq import Unavailable, fetch
from tiermq.testing import LocalBroker

SENT_SECONDS = 1_000.0  # More than a test ever takes.


class Asked:
    """Stands for the process that has Spark: keeps what it was asked."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def run(self, **parameters: object) -> Round:
        self._events.append(("spark", parameters))
        return Round(100, 100 * BODY_BYTES, 5.0, 0.25)


def test_a_round_ends_when_spark_has_answered_after_the_follower(tmp_path: Path) -> None:
    events: list[Any] = []
    may_finish = threading.Event()

    def send(**job: Any) -> dict[str, Any]:
        events.append(("sent", job["topic"], job["bytes"]))
        may_finish.set()
        return {"messages": 100, "failed": 0, "seconds": SENT_SECONDS}

    def follow(topic: str) -> None:
        may_finish.wait()  # It runs beside the producer, or this would never end.
        events.append(("followed", topic))

    with LocalBroker(tmp_path / "store") as broker:
        side = Loaded("any", send, 1, broker.name_server, 1)
        spark: Any = Asked(events)
        done = Pipeline(side, spark, 100, follow, lambda topic: {"kind": "any", "topic": topic}).round()
        topic = events[0][1]
        broker.send(topic, b"x", queue_id=QUEUES - 1)
        assert len(broker.messages(topic)) == 1
    assert events == [
        ("sent", topic, BODY_BYTES),
        ("followed", topic),
        ("spark", {"messages": 100, "bytes": 100 * BODY_BYTES, "kind": "any", "topic": topic}),
    ]
    assert (done.messages, done.bytes) == (100, 100 * BODY_BYTES)
    assert SENT_SECONDS < done.seconds < 2 * SENT_SECONDS


def test_a_round_whose_messages_fail_ends_and_leaves_no_follower_waiting(tmp_path: Path) -> None:
    given_up = threading.Event()

    def send(**_job: Any) -> dict[str, Any]:
        return {"messages": 97, "failed": 3, "seconds": 1.0}

    with LocalBroker(tmp_path / "store") as broker:
        side = Loaded("any", send, 1, broker.name_server, 1)
        spark: Any = Asked([])
        pipeline = Pipeline(side, spark, 100, lambda _topic: given_up.wait(), lambda _topic: {}, given_up.set)
        with pytest.raises(SystemExit, match="3 of 97"):
            pipeline.round()


def test_a_topic_of_a_round_has_all_its_queues_when_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalBroker(tmp_path / "store") as broker:
        make_topic(broker.name_server, "Queryable")
        broker.send("Queryable", b"x", queue_id=QUEUES - 1)
        assert len(broker.messages("Queryable")) == 1
    assert capsys.readouterr().out == ""  # The report's own output may be JSON.


def test_the_end_to_end_row_is_a_rate_without_a_goal() -> None:
    work = by_name(WORKS)["spark_queryable"]
    assert (work.kind, work.goal, work.grows) == (Kind.RATE, None, True)
    assert "Parquet" in work.limit


@pytest.mark.slow
def test_spark_counts_a_live_store_and_json_lines_and_parquet_alike(tmp_path: Path) -> None:
    bodies = [b"%0100d" % number for number in range(500)]
    lines = [json.dumps({"topic": "T", "queueId": 0, "body": base64.b64encode(body).decode()}) for body in bodies]
    (tmp_path / "lines.json").write_text("\n".join(lines) + "\n")
    parquet = tmp_path / "parquet"
    with LocalBroker(tmp_path / "store") as broker, ExitStack() as stack:
        broker.create_topic("T", queues=2)
        for number, body in enumerate(bodies):
            broker.send("T", body, queue_id=number % 2)
        spark = peer_process.start_tiermq(stack, "spark_peer", "Queries")
        spark.prepare(messages=500, body_bytes=100, parquet=parquet)
        (tmp_path / "tier").mkdir()
        store = {
            "store": broker.directory,
            "tier": (tmp_path / "tier").as_uri(),
            "brokerName": BROKER_NAME,
            "topic": "T",
        }
        whole = {"messages": 500, "bytes": 50_000}
        for place in ({"kind": "tiermq", **store}, {"kind": "rocketmq", "files": tmp_path / "lines.json"}):
            done = spark.run(**whole, **place)
            assert (done.messages, done.bytes) == (500, 50_000)
        assert spark.run(kind="limit", parquet=parquet, **whole).messages == 500
        assert sum(file.stat().st_size for file in parquet.glob("*.parquet")) > 50_000
        with pytest.raises(peer_process.PeerFailed, match=r"expected \(501, 50000\)"):
            spark.run(kind="rocketmq", files=tmp_path / "lines.json", messages=501, bytes=50_000)


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
def test_both_pipelines_end_in_the_same_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    monkeypatch.setattr(spark_works, "QUICK_MESSAGES", 1_000)
    with ExitStack() as stack:
        sides = by_name(WORKS)["spark_queryable"].opener(Place(tmp_path, tmp_path, quick=True), stack)
        for _ in range(2):  # The second round must not see what the first has left.
            done = {side: run() for side, run in sides.rounds.items()}
            assert set(done) == {TIERMQ, ROCKETMQ, LIMIT}
            assert {(each.messages, each.bytes) for each in done.values()} == {(1_000, 1_000 * BODY_BYTES)}
        assert set(sides.pids) == {TIERMQ, ROCKETMQ}

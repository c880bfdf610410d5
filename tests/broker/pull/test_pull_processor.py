"""What a pull finds, and what it is told: every row of the protocol's table."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import waiting
from broker.consuming import (
    SIZES,
    Peer,
    bodies_of,
    damage_unit,
    messages_of,
    on_loop,
    part,
    put,
    running,
    tiered,
    until,
)
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.pull.pull_processor import PullProcessor, _code_of
from tiermq.errors import TierUnavailable
from tiermq.kernel import GetPage
from tiermq.message.topic_name import TOOLS_GROUP
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import FLAG_ONEWAY, HeaderType, RemotingCommand
from tiermq.status import GetStatus
from tiermq.tier.tiered_store import TieredStore

NOT_FOUND, MOVED = ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED
OWNER = 'cluster="DefaultCluster",node_type="broker",node_id="b"'


@pytest.mark.parametrize("header_type", [HeaderType.JSON, HeaderType.ROCKETMQ])
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_pull_gets_the_messages_from_its_offset_on(tmp_path: Path, header_type: HeaderType, code: int) -> None:
    with running(tmp_path) as broker, Peer(broker, header_type=header_type) as peer:
        peer.join()
        put(broker, *"abcde", keys=["k"])
        answer = peer.pull(1, code=code, maxMsgNums=3)
        assert (answer.code, answer.remark, bodies_of(answer)) == (0, "FOUND", ["b", "c", "d"])
        assert answer.ext == {"suggestWhichBrokerId": "0", "nextBeginOffset": "4", "minOffset": "0", "maxOffset": "5"}
        assert [(each.queue_offset, each.topic, each.keys) for each in messages_of(answer)] == [
            (1, "T", ["k"]),
            (2, "T", ["k"]),
            (3, "T", ["k"]),
        ]
        assert broker.parts.offsets.query_pulled("G", "T", 0) == 4


def test_the_group_of_tools_copies_queues_by_large_pages_and_others_get_rocketmqs(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *(str(number) for number in range(300)))
        own = {"sysFlag": 4, "subscription": "*", "expressionType": "TAG", "consumerGroup": TOOLS_GROUP}
        assert len(bodies_of(peer.pull(0, maxMsgNums=1024, **own))) == 300
        assert len(bodies_of(peer.pull(0, maxMsgNums=200, **own))) == 200
        assert len(bodies_of(peer.pull(0, maxMsgNums=32, **own))) == 32
        assert len(bodies_of(peer.pull(0, maxMsgNums=1024))) == 32


@pytest.mark.parametrize(
    ("queue_id", "offset", "code", "next_offset", "status"),
    [
        (1, 0, NOT_FOUND, 0, "NO_MATCHED_LOGIC_QUEUE"),
        (1, 5, MOVED, 0, "NO_MATCHED_LOGIC_QUEUE"),
        (0, 3, NOT_FOUND, 3, "OFFSET_OVERFLOW_ONE"),
        (0, 4, MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
        (0, -1, MOVED, 0, "OFFSET_TOO_SMALL"),
        (0, 2**62, MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
    ],
)
def test_an_offset_that_has_no_message_is_corrected_or_waits(
    tmp_path: Path, queue_id: int, offset: int, code: int, next_offset: int, status: str
) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abc")
        answer = peer.pull(offset, queueId=queue_id)
        assert (answer.code, answer.ext["nextBeginOffset"], answer.remark) == (code, str(next_offset), status)
        assert not answer.body


def test_an_offset_before_the_beginning_is_sent_to_the_beginning(tmp_path: Path) -> None:
    small = {**SIZES, "mapped_file_size_commit_log": 16 * 1024, "file_reserved_time": 0, "delete_when": "00"}
    with running(tmp_path, store=small) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *("x" * 1000 for _ in range(60)))
        broker.parts.local.flush()
        while (low := broker.parts.local.min_offset("T", 0)) == 0:
            broker.parts.local.clean_now()
        answer = peer.pull(0)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (MOVED, str(low))
        assert peer.pull(low).code == 0


def test_a_filter_that_lets_nothing_pass_moves_on(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join(expression="B")
        put(broker, *"abc", tags="A")
        answer = peer.pull(0)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")


def test_tags_and_sql_choose_messages_on_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        for number in range(6):
            put(broker, f"{number}", tags="AB"[number % 2], properties={"n": str(number)})
        peer.join(expression="A || C")
        answer = peer.pull(0)
        assert (bodies_of(answer), answer.ext["nextBeginOffset"]) == (["0", "2", "4"], "6")
        peer.join(expression="n > 1 AND TAGS = 'B'", expression_type="SQL92", version=2)
        assert bodies_of(peer.pull(0)) == ["3", "5"]
        own = {"sysFlag": 4, "subscription": "n = 2 OR n = 3", "expressionType": "SQL92"}
        assert bodies_of(peer.pull(0, **own)) == ["2", "3"]


def test_an_offset_that_comes_with_a_pull_is_committed_once(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abc")
        peer.pull(1, sysFlag=1, commitOffset=1)
        assert broker.parts.offsets.query("G", "T", 0) == 1
        peer.pull(2, sysFlag=0, commitOffset=2)
        assert broker.parts.offsets.query("G", "T", 0) == 1
        peer.pull(2, sysFlag=1, commitOffset=-1)
        assert broker.parts.offsets.query("G", "T", 0) == 1
        held = peer.pull_later(3, sysFlag=3, commitOffset=3)
        until(broker, lambda: part(broker, PullProcessor).long_polling.held)
        broker.parts.offsets.commit("G", "T", 0, 2)
        put(broker, "d")
        assert bodies_of(held.result(60)) == ["d"]
        assert broker.parts.offsets.query("G", "T", 0) == 2, "what was said when the pull came is old by now"


def test_a_reset_is_reported_to_the_next_pull_and_to_one_that_waits(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abc")
        held = peer.pull_later(3, sysFlag=2)
        until(broker, lambda: part(broker, PullProcessor).long_polling.held)
        broker.parts.offsets.reset("G", "T", 0, 1)
        answer = held.result(60)
        assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (MOVED, "OFFSET_RESET", "1")
        assert bodies_of(peer.pull(1)) == ["b", "c"]
        broker.parts.offsets.reset("G", "T", 0, 2)
        assert peer.pull(3).ext["nextBeginOffset"] == "2"


def test_a_one_way_pull_is_never_answered(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a")
        command = RemotingCommand(RequestCode.PULL_MESSAGE, ext={"consumerGroup": "G", "topic": "T"}, flag=FLAG_ONEWAY)
        command.ext.update({"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0"})
        peer.client.oneway(command)
        assert bodies_of(peer.pull(0)) == ["a"]
        assert broker.parts.server.handler_errors == 0


@pytest.mark.parametrize("count", [0, -5, 2**31 - 1])
def test_any_number_of_wanted_messages_is_understood(tmp_path: Path, count: int) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abc")
        assert bodies_of(peer.pull(0, maxMsgNums=count)) == (["a"] if count <= 0 else ["a", "b", "c"])


@pytest.mark.parametrize(
    ("status", "offset", "next_offset", "expected"),
    [
        (GetStatus.FOUND, 0, 5, 0),
        (GetStatus.NO_MATCHED_MESSAGE, 0, 5, 20),
        (GetStatus.MESSAGE_WAS_REMOVING, 0, 5, 20),
        (GetStatus.OFFSET_FOUND_NULL, 0, 5, 20),
        (GetStatus.OFFSET_FOUND_NULL, 0, 50, 19),
        (GetStatus.OFFSET_OVERFLOW_ONE, 10, 10, 19),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 11, 10, 21),
        (GetStatus.OFFSET_TOO_SMALL, 0, 5, 21),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 19),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 3, 0, 21),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 19),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 3, 0, 21),
    ],
)
def test_every_status_of_a_store_has_its_code(status: GetStatus, offset: int, next_offset: int, expected: int) -> None:
    assert _code_of(GetPage(status, next_offset, 0, 10), offset) == expected


# Cold reads.


def first_words(answer: RemotingCommand) -> list[str]:
    return [body.split()[0] for body in bodies_of(answer)]


def test_what_only_the_tier_has_is_read_by_another_thread(tmp_path: Path) -> None:
    with tiered(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        pulling = part(broker, PullProcessor)
        offset, seen = 0, []
        while offset < 60:
            answer = peer.pull(offset)
            assert answer.code == 0
            seen += first_words(answer)
            offset = int(answer.ext["nextBeginOffset"])
        assert seen == [str(number) for number in range(60)]
        assert pulling.cold_count > 0
        cold = pulling.cold_count
        assert peer.pull(59).code == 0
        assert pulling.cold_count == cold, "what the local store has is read on the loop"


def test_a_pull_that_only_the_tier_may_answer_is_woken_by_the_upload_and_not_by_the_arrival(tmp_path: Path) -> None:
    with tiered(tmp_path, tiered_storage_level="FORCE") as broker, Peer(broker) as peer:
        store = broker.store
        assert isinstance(store, TieredStore)
        assert store.tier.engine.pause()
        peer.join()
        polling = part(broker, PullProcessor).long_polling
        answer = peer.pull_later(60, sysFlag=6, suspendTimeoutMillis=100_000)
        until(broker, lambda: polling.held == 1)
        put(broker, "61 came")
        until(broker, lambda: store.local.max_offset("T", 0) == 61)
        assert on_loop(broker, lambda: polling.held) == 1, "the tier has nothing new yet"
        store.tier.engine.resume()
        assert store.flush_to_tier(60)
        assert first_words(answer.result(60)) == ["61"]
        assert (polling.woken, polling.timed_out) == (1, 0)
        assert "tiermq_pulls_woken_total 1\n" in broker.render_metrics()


def test_hot_pulls_do_not_wait_for_a_tier_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiered(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        store = broker.store
        assert isinstance(store, TieredStore)
        let_go, fetch = threading.Event(), store.tier.fetcher.get

        def slow(*arguments: object, **keywords: object) -> object:
            let_go.wait(60)
            return fetch(*arguments, **keywords)  # type: ignore[arg-type]

        monkeypatch.setattr(store.tier.fetcher, "get", slow)
        cold = [peer.pull_later(0) for _ in range(20)]
        for _ in range(20):
            assert peer.pull(59).code == 0
        assert not any(each.done() for each in cold)
        let_go.set()
        assert {first_words(each.result(60))[0] for each in cold} == {"0"}


def test_what_memory_has_of_the_tier_is_answered_without_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiered(tmp_path, tiered_storage_level="FORCE") as broker, Peer(broker) as peer:
        peer.join()
        assert first_words(peer.pull(0, maxMsgNums=8))[-1] == "7"
        store, pulling = broker.store, part(broker, PullProcessor)
        assert isinstance(store, TieredStore)
        store.tier.fetcher.pace.is_slow = False  # Nothing is due to be read ahead.

        def gone(*_arguments: object, **_keywords: object) -> object:
            raise TierUnavailable("the tier is out of reach")

        monkeypatch.setattr(store.tier.fetcher, "get", gone)
        cold = pulling.cold_count
        assert first_words(peer.pull(8, maxMsgNums=8)) == [str(number) for number in range(8, 16)]
        assert pulling.cold_count == cold + 1
        assert peer.pull(0, maxMsgNums=60, subscription="a || b", sysFlag=4).code == ResponseCode.SYSTEM_ERROR


def test_a_tier_out_of_reach_is_an_error_that_clients_try_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with tiered(tmp_path) as broker, Peer(broker) as peer, caplog.at_level(logging.INFO):
        peer.join()
        store = broker.store
        assert isinstance(store, TieredStore)

        def gone(*_arguments: object, **_keywords: object) -> object:
            raise TierUnavailable("the tier is out of reach")

        with monkeypatch.context() as broken:
            broken.setattr(store.tier.fetcher, "get", gone)
            answer = peer.pull(0)
            assert (answer.code, "TierUnavailable" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
            assert "the tier is out of reach" in caplog.text
        assert first_words(peer.pull(0))[0] == "0"


def test_a_broker_that_stops_answers_cold_pulls_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = tiered(tmp_path)
    broker.start()
    with Peer(broker) as peer:
        peer.join()
        store = broker.store
        assert isinstance(store, TieredStore)
        let_go, fetch = threading.Event(), store.tier.fetcher.get

        def slow(*arguments: object, **keywords: object) -> object:
            let_go.wait(60)
            return fetch(*arguments, **keywords)  # type: ignore[arg-type]

        monkeypatch.setattr(store.tier.fetcher, "get", slow)
        cold = peer.pull_later(0)
        until(broker, lambda: part(broker, PullProcessor).cold_count == 1)
        stopping = threading.Thread(target=broker.stop, args=(60.0,))
        stopping.start()
        waiting.until(lambda: broker._thread is None)
        on_loop(broker, lambda: None)
        let_go.set()
        assert first_words(cold.result(60))[0] == "0"
        stopping.join()


def test_a_reset_without_a_running_broker_only_commits(tmp_path: Path) -> None:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="b")
    broker = Broker.open(tmp_path, config=config, **SIZES)
    broker.parts.offsets.reset("G", "T", 0, 5)
    assert broker.parts.offsets.query("G", "T", 0) == 5
    broker.stop()


def test_a_consumer_at_the_end_of_a_tier_that_is_behind_waits_and_does_not_spin(tmp_path: Path) -> None:
    with tiered(tmp_path, tiered_storage_level="FORCE") as broker, Peer(broker) as peer:
        peer.join()
        store = broker.store
        assert isinstance(store, TieredStore)
        store.tier.engine.pause()
        put(broker, "only here")
        polling = part(broker, PullProcessor).long_polling
        held = peer.pull_later(60, sysFlag=2, suspendTimeoutMillis=1_000)
        until(broker, lambda: polling.held == 1 or polling.timed_out == 1)
        put(broker, "another")
        assert held.result(60).code == NOT_FOUND
        assert (polling.woken, polling.timed_out) == (0, 1)
        assert "tiermq_pulls_timed_out_total 1\n" in broker.render_metrics()


def test_too_many_cold_pulls_are_asked_to_come_back(tmp_path: Path) -> None:
    with tiered(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        pulling = part(broker, PullProcessor)
        on_loop(broker, setattr, pulling, "_cold_waiting", 1_000_000)
        assert peer.pull(0).code == ResponseCode.FLOW_CONTROL
        on_loop(broker, setattr, pulling, "_cold_waiting", 0)
        assert peer.pull(0).code == 0


def test_a_pull_of_what_is_damaged_in_the_tier_is_an_error_with_words_and_moves_no_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tiered(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        broker.parts.offsets.commit("G", "T", 0, 0)
        log = next(path for path in (tmp_path / "tier").rglob("T/0/COMMIT_LOG/*") if path.suffix == "")
        data = bytearray(log.read_bytes())
        data[500] ^= 1
        log.write_bytes(data)
        for offset in (0, 3):
            answer = peer.pull(offset, sysFlag=1, commitOffset=0)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "nextBeginOffset" not in answer.ext
            assert (answer.remark or "").startswith(f"queue T-0 cannot be read at offset {offset} (CorruptSegment)")
            assert "not what was written" in caplog.text
        (line,) = warnings_of(caplog)
        assert line.startswith("queue T-0 cannot be read at offset 0: CorruptSegment: ")
        assert broker.parts.offsets.query("G", "T", 0) == 0
        data[500] ^= 1
        log.write_bytes(data)
        assert first_words(peer.pull(0))[0] == "0"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log has of queues that cannot be read, at the level that operators see."""
    found = [each for each in caplog.records if "cannot be read at" in each.getMessage()]
    assert all(each.levelno == logging.WARNING and each.exc_info is None for each in found)
    return [each.getMessage() for each in found]


def test_a_pull_of_a_damaged_unit_names_queue_and_offset_and_logs_a_line_a_minute_for_each_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with running(tmp_path, clock=clock) as broker, Peer(broker) as peer:
        peer.join()
        for queue_id in (0, 1):
            put(broker, "a", "secret", "c", queue_id=queue_id)
            damage_unit(tmp_path, queue_id, 1)
        for queue_id in (0, 1, 0, 1):
            assert bodies_of(peer.pull(0, queueId=queue_id)) == ["a"], "a page ends before what is damaged"
            answer = peer.pull(1, queueId=queue_id)
            remark = f"queue T-{queue_id} cannot be read at offset 1 (CorruptRecord): the broker's log has the details"
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert [line[:9] for line in warnings_of(caplog)] == ["queue T-0", "queue T-1"]
        assert "physical offset 7" in warnings_of(caplog)[0]
        clock.advance_ms(61_000)
        peer.pull(1)
        assert "(1 more requests failed since the last line)" in warnings_of(caplog)[2]
        assert "tiermq_pulls_failed_total 5" in broker.render_metrics()
        assert broker.parts.server.handler_errors == 0
        assert "Traceback" not in caplog.text


def reads_by_two(broker: Broker, groups: tuple[str, str], count: int) -> int:
    """How often the tier's back end is read while two clients read a queue through, far from each other, in turns."""
    store = broker.store
    assert isinstance(store, TieredStore)
    file = store.tier.files.find("T", 0)
    assert file is not None
    store.tier.fetcher.forget(file)
    before, behind = downloads(broker), count // 2
    with Peer(broker) as ahead, Peer(broker) as late:
        for peer, group, client_id in ((ahead, groups[0], "one"), (late, groups[1], "two")):
            peer.join(group=group, client_id=client_id, model="BROADCASTING")
        for offset in range(0, count + behind, 32):
            if offset < count:
                assert first_words(ahead.pull(offset, consumerGroup=groups[0]))[0] == str(offset)
            if offset >= behind:
                assert first_words(late.pull(offset - behind, consumerGroup=groups[1]))[0] == str(offset - behind)
    return downloads(broker) - before


def downloads(broker: Broker) -> int:
    head = "rocketmq_tiered_store_provider_download_bytes_count{"
    lines = broker.render_metrics().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(head)))


def test_two_clients_of_a_broadcasting_group_read_ahead_like_two_groups(tmp_path: Path) -> None:
    count = 9_600
    settings: dict[str, Any] = {"tiered_storage_level": "FORCE", "read_ahead_message_count_threshold": 64}
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="b")
    tier = (tmp_path / "tier").as_uri()
    with Broker.open(tmp_path / "store", tier=tier, config=config, **SIZES, **settings) as broker:
        broker.parts.topics.put(TopicConfig("T", 4, 4))
        put(broker, *(f"{number} ".ljust(200, "x") for number in range(count)))
        store = broker.store
        assert isinstance(store, TieredStore)
        assert store.flush_to_tier(60)
        store.tier.fetcher.pace._waits_so_far = itertools.count().__next__  # A back end that one has to wait for.
        windows = 2 * count // 64
        # Read-ahead fetches several windows at once: 26 to 69 reads as two groups, 163 when they cut each other's off.
        for groups in (("G", "H"), ("K", "K")):
            assert reads_by_two(broker, groups, count) < windows / 3, groups


def reported(broker: Broker, name: str) -> dict[str, float]:
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
        assert reported(broker, "rocketmq_messages_out_total") == {f'{labels},is_system="false"': 3}
        assert reported(broker, "rocketmq_throughput_out_total") == {f'{labels},is_system="false"': len(answer.body)}
        assert reported(broker, "rocketmq_consumer_lag_messages") == {}, "it has committed nothing"
        broker.parts.offsets.commit("G", "T", 0, 2)
        assert reported(broker, "rocketmq_consumer_lag_messages") == {labels: 3}
        assert reported(broker, "rocketmq_consumer_inflight_messages") == {labels: 1}
        assert reported(broker, "rocketmq_consumer_ready_messages") == {labels: 2}
        now_ms = broker.parts.clock.now_ms()
        for name, offset in (("lag", 2), ("queueing", 3)):
            age_ms = now_ms - broker.parts.local.store_time_of("T", 0, offset)
            assert reported(broker, f"rocketmq_consumer_{name}_latency")[labels] == pytest.approx(age_ms, abs=5_000)
        peer.pull(3)
        assert reported(broker, "rocketmq_messages_out_total") == {f'{labels},is_system="false"': 5}
        broker.parts.offsets.remove_group("G")
        assert reported(broker, "rocketmq_consumer_lag_messages") == {labels: 0}


def test_a_count_that_was_forgotten_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"abc")
        peer.pull(0)
        assert list(reported(broker, "rocketmq_messages_out_total").values()) == [3]
        pulling = next(each for each in broker.processors if hasattr(each, "admission"))
        on_loop(broker, pulling.admission.remembered.clear)
        peer.pull(1)
        assert list(reported(broker, "rocketmq_messages_out_total").values()) == [5]


def test_who_is_connected_and_who_has_left(tmp_path: Path) -> None:
    consumer = 'consumer_group="G",language="PYTHON",version="479",consume_mode="push"'
    with running(tmp_path) as broker:
        with Peer(broker) as peer:
            peer.join()
            assert reported(broker, "rocketmq_consumer_connections") == {consumer: 1}
            assert reported(broker, "rocketmq_producer_connections") == {'language="PYTHON",version="479"': 1}
            held = peer.pull_later(0, sysFlag=2)
            until(broker, lambda: reported(broker, "tiermq_pulls_held") == {"": 1})
            put(broker, "a")
            assert held.result(60).code == 0
            assert reported(broker, "tiermq_pulls_held") == {"": 0}
        until(broker, lambda: not broker.parts.clients.consumer_groups)
        assert reported(broker, "rocketmq_consumer_connections") == {consumer: 0}


def test_dead_letters_and_delays_are_reported(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", "b")
        first, second = broker.parts.local.get("T", 0, 0).messages
        assert peer.ask(36, offset=first.physical_offset, group="G", delayLevel=-1).code == 0
        assert peer.ask(36, offset=second.physical_offset, group="G", delayLevel=18).code == 0
        broker.parts.local.dispatch_now()
        dead = reported(broker, "rocketmq_send_to_dlq_messages_total")
        assert dead == {'topic="T",consumer_group="G"': 1}
        assert reported(broker, "tiermq_delayed_waiting") == {"": 1}
        assert reported(broker, "tiermq_delayed_delivered_total") == {"": 0}


def test_offsets_of_a_topic_that_is_gone_are_no_lag(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        broker.parts.topics.put(TopicConfig("U"))
        broker.parts.offsets.commit("G", "U", 0, 0)
        broker.parts.offsets.commit("G", "gone", 0, 0)
        assert list(reported(broker, "rocketmq_consumer_lag_messages")) == [
            'topic="U",consumer_group="G",is_retry="false"'
        ]

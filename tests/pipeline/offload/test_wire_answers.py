"""What brokers and name servers answer to an offload: wrong once, wrong always, odd, slow. Nothing is lost by it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import wait as futures_wait
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.scripted_fleet import Answer, ScriptedBroker, ScriptedFleet, body, rows, scripted_fleet
from pipeline.offload.wire_world import Waiting
from tiermq.cli.pipeline.offload import exit_code
from tiermq.pipeline.offload.gap_check import GAP_MESSAGES_MAX
from tiermq.pipeline.offload.job import LOOK_WAIT_S
from tiermq.pipeline.offload.plan import COMMON_TASK_S, OffloadTask, Stop, cut
from tiermq.pipeline.offload.wire_fleet import FAILED_WAIT_S
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.testing import MovableClock

STATS, PULL = int(RequestCode.GET_TOPIC_STATS_INFO), int(RequestCode.PULL_MESSAGE)


def orders(count: int = 10, **more: Any) -> ScriptedBroker:
    return ScriptedBroker({"orders": rows(count, more.get("low", 0))}, **more)


# Gaps


def test_a_wrong_min_offset_makes_no_gap_and_the_queue_continues_with_the_right_one(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.offload()
        broker = fleet.brokers["b"]
        broker.answers[STATS] = lambda _ext: broker.stats("orders", 10**6, 10**6 + 5)
        report = fleet.offload()
        assert "reports messages 1000000 to 1000004, and the tier continues at 10" in report.problems[0]
        assert fleet.copied() == (0, 10, 0)
        del broker.answers[STATS]
        broker.topics["orders"] += rows(10, 10)
        assert (fleet.offload().problems, fleet.copied()) == ([], (0, 20, 0))


def test_a_jump_that_the_min_offset_does_not_confirm_makes_no_gap(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.offload()
        broker = fleet.brokers["b"]
        broker.topics["orders"] += rows(10, 10)

        def jump(ext: dict[str, str]) -> Answer | None:
            is_lost = 10 <= int(ext["queueOffset"]) < 15
            return (int(ResponseCode.PULL_OFFSET_MOVED), {"nextBeginOffset": "15"}, b"") if is_lost else None

        broker.answers[PULL] = jump
        report = fleet.offload()
        assert "a pull at 10 returned code 21 with next offset 15" in report.problems[0]
        assert (exit_code(report, by_wire=True), fleet.copied()) == (1, (0, 10, 0))
        del broker.answers[PULL]
        assert (fleet.offload().problems, fleet.copied()) == ([], (0, 20, 0))


@pytest.mark.parametrize("is_back", [False, True])
def test_a_gap_is_recorded_by_two_looks_that_agree_and_not_by_one(tmp_path: Path, is_back: bool) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.offload()
        broker = fleet.brokers["b"]
        whole = rows(30)
        broker.low, broker.topics["orders"] = 20, whole[20:]

        def come_back() -> None:
            broker.low, broker.topics["orders"] = 0, whole

        stop = Waiting()
        if is_back:
            stop.happens[1] = come_back
        report = fleet.offload(stop)
        assert (report.problems, stop.waits) == ([], [15.0])
        assert [(row["from"], row["to"]) for row in report.details["gaps"]] == ([] if is_back else [(10, 20)])
        assert fleet.copied() == (0, 30, 0 if is_back else 1)


def test_a_huge_gap_needs_the_operators_consent(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.offload()
        broker, low = fleet.brokers["b"], 11 + GAP_MESSAGES_MAX
        broker.low, broker.topics["orders"] = low, rows(5, low)
        report = fleet.offload()
        assert "--accept-gaps" in report.problems[0]
        assert (report.details["gaps"], fleet.copied()) == ([], (0, 10, 0))
        report = fleet.offload(scope={"accept_gaps": True})
        assert (report.problems, fleet.copied()) == ([], (0, low + 5, 1))


def test_a_queue_begins_above_zero_only_where_pulls_confirm_it(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=orders(), d=orders(low=700)) as fleet:
        broker = fleet.brokers["b"]
        broker.answers[STATS] = lambda _ext: broker.stats("orders", 5, 10)
        report = fleet.offload()
        assert ["it returns message 4 as well" in text for text in report.problems] == [True]
        assert fleet.copied("d") == (700, 710, 0)
        del broker.answers[STATS]
        assert (fleet.offload().problems, fleet.copied()) == ([], (0, 10, 0))


# History


@pytest.mark.parametrize("count", [4, 5, 6], ids=["shorter", "as long", "longer"])
def test_a_lost_tail_is_refused_also_where_nothing_is_left_to_copy(tmp_path: Path, count: int) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.offload()
        broker = fleet.brokers["b"]
        broker.topics["orders"], broker.boot = rows(5) + rows(count, 5, tag=b"NEW"), "2"
        report = fleet.offload()
        (row,) = report.details["refused"]
        assert (row["offset"], row["tier"]["body_bytes"], row["source"]["body_bytes"]) == (5, 1, 3)
        assert (exit_code(report, by_wire=True), fleet.copied()) == (3, (0, 10, 0))


@pytest.mark.parametrize("trigger_s", [None, 20.0])
def test_a_broker_that_has_less_than_the_tier_is_a_problem_and_never_silence(
    tmp_path: Path, trigger_s: float | None
) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.offload()
        for left in (rows(5), []):
            fleet.brokers["b"].topics["orders"] = left
            stop = Waiting()
            stop.happens[2] = stop.set
            report = fleet.offload(stop, trigger_s=trigger_s)
            assert f"the tier has messages up to 9, but the source ends at {len(left)}" in report.problems[0]
            assert exit_code(report, by_wire=True) == 1


@pytest.mark.parametrize("junk", [b"", b"\xff" * 500])
def test_messages_that_a_broker_reports_and_does_not_return_are_a_problem(tmp_path: Path, junk: bytes) -> None:
    def pull(ext: dict[str, str]) -> Answer:
        return (0 if junk else int(ResponseCode.PULL_NOT_FOUND)), {"nextBeginOffset": ext["queueOffset"]}, junk

    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.brokers["b"].answers[PULL] = pull
        report = fleet.offload()
        assert "the broker reports messages 0 to 9" in report.problems[0]
        assert (report.done["messages"], exit_code(report, by_wire=True)) == (0, 1)


def test_what_was_seen_before_a_restart_does_not_count_as_settled(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=orders(flushed=False)) as fleet:
        counted: list[Any] = []
        stop = Waiting()

        def restart() -> None:
            fleet.brokers["b"].boot = "2"

        def count() -> None:
            counted.append(fleet.copied())

        stop.happens = {1: restart, 2: count, 3: count, 4: stop.set}
        # Looks at 0, 6 (restarted), 12 and 18 s; it settles after 10 s.
        fleet.offload(stop, trigger_s=6.0, scope={"settle_s": 10.0})
        assert (counted, fleet.copied()) == ([None, None], (0, 10, 0))


def test_a_young_message_of_a_queue_that_was_quiet_for_long_is_in_no_danger(tmp_path: Path) -> None:
    clock = MovableClock()
    old_ms = clock.now_ms()
    with scripted_fleet(tmp_path, b=ScriptedBroker({"orders": rows(10, store_ms=old_ms)})) as fleet:
        fleet.offload(clock=clock)
        clock.advance(timedelta(hours=47))
        fleet.brokers["b"].topics["orders"] += rows(1, 10, store_ms=clock.now_ms() - 1000)
        report = fleet.offload(clock=clock)
        assert (report.details["danger"], report.done["messages"]) == ([], 1)
        assert exit_code(report, by_wire=True) == 0


# Requests


def test_a_look_asks_once_for_each_topic_and_not_for_each_queue(tmp_path: Path) -> None:
    topics, queues = ("audit", "orders", "payments"), range(8)

    def broker() -> ScriptedBroker:
        more = {(topic, each): rows(4, topic=topic, queue_id=each) for topic in topics for each in queues[1:]}
        made = ScriptedBroker({topic: rows(4, topic=topic) for topic in topics}, more=more)
        made.settings = ""  # No retention is known, so no message is in danger.
        return made

    def asked_by_driver(fleet: ScriptedFleet) -> list[Counter[tuple[str, int]]]:
        """The requests of each wave and the look before it. Tasks pull more than one message."""
        waves: list[Counter[tuple[str, int]]] = [Counter()]
        for name, each in fleet.brokers.items():

            def count(code: int, ext: dict[str, str], name: str = name) -> None:
                if code == STATS or int(ext["maxMsgNums"]) == 1:
                    waves[-1][name, code] += 1

            each.answers = {STATS: partial(count, STATS), PULL: partial(count, PULL)}
        return waves

    with scripted_fleet(tmp_path, b=broker(), d=broker()) as fleet:
        waves, stop = asked_by_driver(fleet), Waiting()

        def next_wave() -> None:
            waves.append(Counter())

        def two_more_messages_each() -> None:  # Of one a task pulls no more than the driver does.
            next_wave()
            for each in fleet.brokers.values():
                for topic in topics:
                    each.topics[topic] += rows(2, 4, topic)
                for (topic, queue_id), records in each.more.items():
                    records += rows(2, 4, topic, queue_id=queue_id)

        stop.happens = {1: two_more_messages_each, 2: next_wave, 3: stop.set}
        report = fleet.offload(stop, trigger_s=20.0)
        assert (report.problems, report.done["messages"]) == ([], 2 * 3 * 8 * 6)
        for name in fleet.brokers:
            # Looks: before the checks, with the first wave that has nothing left, and before each later wave.
            assert waves[0][name, PULL] == len(topics), "the check of permissions"
            assert waves[0][name, STATS] % len(topics) == 0
            assert [wave[name, PULL] for wave in waves[1:]] == [0, 0]
            assert waves[2][name, STATS] == len(topics), "a wave that finds nothing looks once"
        waves = asked_by_driver(fleet)
        assert fleet.offload().done["messages"] == 0
        for name in fleet.brokers:
            assert waves[0][name, PULL] == len(topics) + len(topics) * len(queues), "each history is compared once"


# Queues for readers and for writers


def two_queues() -> ScriptedBroker:
    return ScriptedBroker({"orders": rows(5)}, more={("orders", 1): rows(7, queue_id=1)})


@pytest.mark.parametrize("is_known", [False, True], ids=["new to the tier", "in the tier"])
def test_a_queue_that_has_no_writers_any_more_is_copied_though_rocketmq_4_9_does_not_list_it(
    tmp_path: Path, is_known: bool
) -> None:
    with scripted_fleet(tmp_path, b=two_queues()) as fleet:
        if is_known:
            fleet.offload()
        broker = fleet.brokers["b"]
        broker.more["orders", 1] += rows(3, 7, queue_id=1)
        broker.writers = broker.listed = 1
        report = fleet.offload()
        assert (report.problems, report.done["messages"]) == ([], 3 if is_known else 15)
        assert (fleet.copied(), fleet.copied(queue_id=1)) == ((0, 5, 0), (0, 10, 0))


@pytest.mark.parametrize("listed", [2, 1], ids=["listed", "not listed"])
def test_messages_in_a_queue_behind_the_read_queues_are_a_problem_until_they_are_copied(
    tmp_path: Path, listed: int
) -> None:
    with scripted_fleet(tmp_path, b=two_queues()) as fleet:
        broker = fleet.brokers["b"]
        broker.queues, broker.listed = 1, listed
        for dry_run in (True, False):
            report = fleet.offload(dry_run=dry_run)
            assert len(report.problems) == 1
            assert "orders-1: the broker has 7 messages in this queue that the tier has not" in report.problems[0]
            assert "updateTopic -r 2" in report.problems[0]
            assert exit_code(report, by_wire=True) == 1
        assert (fleet.copied(), fleet.copied(queue_id=1)) == ((0, 5, 0), None)
        broker.queues = 2
        assert (fleet.offload().problems, fleet.copied(queue_id=1)) == ([], (0, 7, 0))
        broker.queues = 1
        assert fleet.offload().problems == []  # All of it is in the tier.


@pytest.mark.parametrize("trigger_s", [None, 20.0])
def test_what_a_removed_queue_still_has_is_a_problem_though_no_count_of_its_topic_reaches_it(
    tmp_path: Path, trigger_s: float | None
) -> None:
    with scripted_fleet(tmp_path, b=two_queues()) as fleet:
        fleet.offload()
        broker = fleet.brokers["b"]
        broker.queues = broker.writers = broker.listed = 1
        assert fleet.offload().problems == []
        broker.more["orders", 1] += rows(3, 7, queue_id=1)
        for dry_run in (True, False):
            stop = Waiting()
            stop.happens[2] = stop.set
            report = fleet.offload(stop, trigger_s=trigger_s, dry_run=dry_run)
            assert "orders-1: the broker has 3 messages" in report.problems[0]
        assert fleet.copied(queue_id=1) == (0, 7, 0)


def test_a_topic_of_which_the_broker_lists_none_of_very_many_queues_is_a_problem_of_its_own(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=ScriptedBroker({"orders": rows(5), "wide": rows(5, topic="wide")})) as fleet:
        wide = {"readQueueNums": (1 << 31) - 1, "perm": 6}
        table = {"orders": {"readQueueNums": 1, "perm": 6}, "wide": wide}
        fleet.brokers["b"].answers[TOPICS] = lambda _ext: body({"topicConfigTable": table})
        report = fleet.offload()
        assert ["wide" in text and "left out" in text for text in report.problems] == [True]
        assert fleet.copied() == (0, 5, 0)


# Two clusters


def test_a_broker_whose_name_two_clusters_have_is_copied_only_if_it_shows_its_cluster(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        fleet.names.clusters = {"c": ["b"], "other": ["b"]}
        report = fleet.offload(cluster=None)
        assert [text.split(":")[0].split()[0] for text in report.problems] == ["other/b", "c/b"]
        assert fleet.copied() is None
        fleet.brokers["b"].settings += "brokerName=b\nbrokerClusterName=other\n"
        assert "found other/b at that address" in fleet.offload().problems[0]
        fleet.brokers["b"].settings = "brokerName=b\nbrokerClusterName=c\n"
        assert fleet.offload().problems == []
        assert (fleet.copied(), fleet.copied(cluster="other")) == ((0, 10, 0), None)


# Odd answers


def stats_of(table: Any) -> Callable[[ScriptedFleet], None]:
    def change(fleet: ScriptedFleet) -> None:
        fleet.brokers["odd"].answers[STATS] = lambda _ext: body({"offsetTable": table})

    return change


def answer(code: int, given: Answer) -> Callable[[ScriptedFleet], None]:
    def change(fleet: ScriptedFleet) -> None:
        fleet.brokers["odd"].answers[code] = lambda _ext: given

    return change


def entry(value: Any, name: str = "odd") -> Callable[[ScriptedFleet], None]:
    def change(fleet: ScriptedFleet) -> None:
        fleet.names.clusters["c"] = ["b", name]
        fleet.names.entries[name] = value or fleet.names.entries["odd"]

    return change


KEY = json.dumps({"queueId": 0})
TOPICS = int(RequestCode.GET_ALL_TOPIC_CONFIG)
CONFIG = int(RequestCode.GET_BROKER_CONFIG)
BIG = 1 << 62
ODD: dict[str, Callable[[ScriptedFleet], None]] = {
    "address without a port": entry({"brokerAddrs": {"0": "nonsense"}}),
    "addresses in a list": entry({"brokerAddrs": ["x"]}),
    "broker named ../../x": entry(None, "../../x"),
    "topic row is a number": answer(TOPICS, body({"topicConfigTable": {"orders": 5}})),
    "stats row is a number": stats_of({KEY: 7}),
    "stats key is a list": stats_of({"[1]": {"maxOffset": 5}}),
    "queue id -1": stats_of({json.dumps({"queueId": -1}): {"maxOffset": 5}}),
    "offsets of 2^62": stats_of({KEY: {"minOffset": BIG, "maxOffset": BIG + 5, "flushedOffset": BIG + 5}}),
    "offsets of 100 bits": stats_of({KEY: {"maxOffset": 10**30}}),
    "stats refused": answer(STATS, (1, {}, b"")),
    "no next offset": answer(PULL, (0, {}, b"")),
    "next offset is text": answer(PULL, (0, {"nextBeginOffset": "x"}, b"")),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD.keys())
def test_an_odd_answer_is_the_problem_of_its_broker_alone(
    tmp_path: Path, change: Callable[[ScriptedFleet], None]
) -> None:
    with scripted_fleet(tmp_path, b=orders(), odd=orders()) as fleet:
        change(fleet)
        stop = Waiting()
        stop.happens[3] = stop.set
        report = fleet.offload(stop, trigger_s=20.0)
        assert fleet.copied() == (0, 10, 0)
        assert len(report.problems) == 1
        assert "odd" in report.problems[0] or "../../x" in report.problems[0]


@pytest.mark.parametrize("settings", [b"\xff\xfe=1\n", b"a=\\uZZZZ\n", b"fileReservedTime=abc\n"])
def test_settings_that_cannot_be_read_stop_no_copy(tmp_path: Path, settings: bytes) -> None:
    with scripted_fleet(tmp_path, odd=orders()) as fleet:
        answer(CONFIG, (0, {}, settings))(fleet)
        assert (fleet.offload().problems, fleet.copied("odd")) == ([], (0, 10, 0))


def test_a_topic_with_an_illegal_name_is_noted_and_the_others_are_copied(tmp_path: Path) -> None:
    topics = {"orders": rows(10), "a/b": rows(3, topic="a/b"), "../../x": [], "t" * 300: [], "t\ud800": []}
    with scripted_fleet(tmp_path, b=ScriptedBroker(topics)) as fleet:
        report = fleet.offload()
        assert (report.problems, fleet.copied()) == ([], (0, 10, 0))
        (note,) = [text for text in report.details["notes"] if "names that no topic can have" in text]
        assert "a/b" in note
        assert not list((tmp_path / "t").rglob("x"))


def test_a_topic_that_fails_once_is_copied_by_the_same_run_when_it_answers_again(tmp_path: Path) -> None:
    with scripted_fleet(tmp_path, b=ScriptedBroker({"orders": rows(10), "odd": rows(3, topic="odd")})) as fleet:
        left = [1]

        def once(ext: dict[str, str]) -> Answer | None:
            return (1, {}, b"") if ext["topic"] == "odd" and left and left.pop() else None

        fleet.brokers["b"].answers[STATS] = once
        report = fleet.offload()
        assert report.problems == []
        assert (fleet.copied(), fleet.copied(topic="odd")) == ((0, 10, 0), (0, 3, 0))


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_topic_whose_check_was_not_answered_is_a_problem_and_left_out_until_it_is(
    tmp_path: Path, is_dry: bool
) -> None:
    pulls: list[tuple[str, int]] = []
    junk: Answer = (0, {"nextBeginOffset": "x"}, b"")  # As good as none, and at once.

    def hidden(ext: dict[str, str]) -> Answer | None:
        pulls.append((ext["topic"], int(ext["maxMsgNums"])))
        return junk if ext["topic"] == "odd" else None

    with scripted_fleet(tmp_path, b=ScriptedBroker({"orders": rows(10), "odd": rows(3, topic="odd")})) as fleet:
        broker, stop = fleet.brokers["b"], Waiting()
        broker.answers[PULL] = hidden
        report = fleet.offload(stop, dry_run=is_dry)
        (problem,) = report.problems
        assert "odd: whether this account may read it is not known" in problem
        assert exit_code(report, by_wire=True) == 1
        assert {most for topic, most in pulls if topic == "odd"} == {1}, "by the check alone"
        assert (fleet.copied(), fleet.copied(topic="odd")) == (None if is_dry else (0, 10, 0), None)
        del broker.answers[PULL]
        assert (fleet.offload().problems, fleet.copied(topic="odd")) == ([], (0, 3, 0))


def test_a_job_that_runs_checks_a_topic_again_and_refuses_what_it_may_not_read(tmp_path: Path) -> None:
    junk: Answer = (0, {"nextBeginOffset": "x"}, b"")
    denied: Answer = (int(ResponseCode.NO_PERMISSION), {}, b"")
    with scripted_fleet(tmp_path, b=orders()) as fleet:
        stop = Waiting()
        seen: list[Any] = []

        def change(given: Answer | None) -> Callable[[], None]:
            def happen() -> None:
                seen.append(fleet.copied())
                fleet.brokers["b"].answers[PULL] = lambda _ext: given

            return happen

        change(junk)()
        stop.happens = {1: change(denied), 2: change(None), 3: change(None), 4: stop.set}
        lines: list[str] = []
        report = fleet.offload(stop, trigger_s=20.0, say=lines.append)
        assert seen == [None, None, None, (0, 10, 0)]
        assert report.problems == []
        found = [line.split(" ", 1)[1] for line in lines if "orders" in line]
        assert ["is not known" in found[0], "scripted" in found[1]] == [True, True]


# Slow brokers


def test_a_slow_broker_does_not_hold_back_the_messages_of_others(tmp_path: Path) -> None:
    released = threading.Event()

    def wait(ext: dict[str, str]) -> None:
        if int(ext["maxMsgNums"]) > 1:  # Not the driver's own.
            released.wait()

    with scripted_fleet(tmp_path, b=orders(), slow=orders()) as fleet:
        fleet.brokers["slow"].answers[PULL] = wait
        seen: list[Any] = []
        stop = Waiting()

        def look() -> None:
            if not released.is_set() and fleet.copied() == (0, 10, 0):
                seen.append(fleet.copied("slow"))
                released.set()
            elif fleet.copied("slow") == (0, 10, 0):
                stop.set()

        stop.happens = dict.fromkeys(range(1, 1000), look)
        report = fleet.offload(stop, trigger_s=20.0, task_s=0.5)
        assert seen[0] is None or seen[0][1] < 10
        assert (report.problems, fleet.copied("slow")) == ([], (0, 10, 0))


def test_waves_of_others_hardly_wait_for_a_broker_that_failed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, stop = threading.Event(), Waiting()
    waits: list[tuple[int, float | None]] = []
    state = ["up"]

    def waited(futures: Any, timeout: float | None = None) -> Any:
        waits.append((len(futures), timeout))
        return futures_wait(futures, 0.0 if timeout == FAILED_WAIT_S else None)

    def hang(_ext: dict[str, str]) -> None:
        if state[0] == "hangs":
            released.wait()

    def look() -> None:
        if state[0] == "hangs":
            stop.set()
        elif state[0] == "fails":
            waits.clear()
        state[0] = {"up": "fails"}.get(state[0], "hangs")

    with scripted_fleet(tmp_path, b=orders(), down=orders()) as fleet:
        answers = fleet.brokers["down"].answers
        answers[int(RequestCode.GET_ALL_TOPIC_CONFIG)] = lambda _: (1, {}, b"") if state[0] == "fails" else None
        answers[int(RequestCode.GET_BROKER_RUNTIME_INFO)] = hang
        monkeypatch.setattr("tiermq.pipeline.offload.wire_fleet.wait", waited)
        stop.happens = dict.fromkeys(range(1, 1000), look)
        fleet.offload(stop, trigger_s=20.0)
        released.set()
    assert waits[:2] == [(1, LOOK_WAIT_S), (1, FAILED_WAIT_S)]


class WatchedRunner(LocalRunner):
    """Notes the brokers of each wave's tasks; a wave of `slow` alone waits until `may_end`."""

    def __init__(self) -> None:
        self.waves: list[set[str]] = []
        self.may_end = threading.Event()

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, name: str = "", progress: Any = None
    ) -> list[Any]:
        if isinstance(tasks[0], OffloadTask):
            self.waves.append({task.wire.broker for task in tasks})
            if self.waves[-1] == {"slow"}:
                self.may_end.wait()
        return super().run(function, tasks, name=name, progress=progress)


def test_a_broker_that_ran_out_of_time_has_waves_of_its_own_until_it_is_in_time(tmp_path: Path) -> None:
    stuck = threading.Event()
    runner, stop = WatchedRunner(), Waiting()

    def wait(ext: dict[str, str]) -> None:
        if int(ext["maxMsgNums"]) > 1:  # Not the driver's own.
            stuck.wait()

    def look() -> None:
        common = runner.waves.count({"b"})
        if {"slow"} in runner.waves and common < 3:  # Its own wave is under way, and those of the other go on.
            fleet.brokers["b"].topics["orders"] = rows(10 * (common + 2))
        elif common >= 3 and not runner.may_end.is_set():
            seen.append(fleet.copied())
            stuck.set()
            runner.may_end.set()
        elif fleet.copied("slow") == (0, 20, 0):  # It was in time, so the next wave is common again.
            fleet.brokers["b"].topics["orders"] = rows(100)
            fleet.brokers["slow"].topics["orders"] = rows(21)
        elif fleet.copied("slow") == (0, 21, 0):
            stop.set()

    seen: list[Any] = []
    with scripted_fleet(tmp_path, b=orders(), slow=ScriptedBroker({"orders": rows(20)})) as fleet:
        fleet.brokers["slow"].answers[PULL] = wait
        stop.happens = dict.fromkeys(range(1, 100_000), look)
        report = fleet.offload(stop, trigger_s=20.0, task_s=0.5, runner=runner)
    assert seen == [(0, 40, 0)]
    assert runner.waves[0] == {"b", "slow"}
    assert {"b", "slow"} in runner.waves[4:]
    assert report.problems == []
    assert report.done["messages"] == 121


def test_a_task_has_less_time_beside_those_of_other_brokers_and_its_broker_returns_when_that_is_enough(
    tmp_path: Path,
) -> None:
    waves: list[dict[str, float]] = []
    stop = Waiting()

    class Timed(LocalRunner):
        """The tasks of broker `slow`: the first one runs out of time, the second one needs too long, the third not."""

        def run(self, function: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
            if not isinstance(tasks[0], OffloadTask):
                return super().run(function, tasks, **options)
            waves.append({task.wire.broker: task.settings.task_s for task in tasks})
            number = sum("slow" in wave for wave in waves)
            is_short = number < 3
            results = []
            for task in tasks:
                is_cut = is_short and task.wire is not None and task.wire.broker == "slow"
                works = tuple(cut(work, 3) for work in task.works) if is_cut else task.works
                [result] = super().run(function, [replace(task, works=works)], **options)
                end = Stop.SLOW if is_cut and number == 1 else Stop.TARGET
                commits = tuple(replace(each, stop=end) for each in result.commits)
                results.append(replace(result, commits=commits, took_s=COMMON_TASK_S + 1 if is_cut else 0.0))
            return results

    def look() -> None:
        if fleet.copied("slow") == (0, 11, 0):
            stop.set()
        elif fleet.copied("slow") == (0, 10, 0):
            for broker in fleet.brokers.values():
                broker.topics["orders"] = rows(11)

    with scripted_fleet(tmp_path, b=orders(), slow=orders()) as fleet:
        stop.happens = dict.fromkeys(range(1, 100_000), look)
        fleet.offload(stop, trigger_s=20.0, task_s=60.0, runner=Timed())
    assert waves[0] == {"b": COMMON_TASK_S, "slow": COMMON_TASK_S}
    assert [wave["slow"] for wave in waves if "slow" in wave] == [COMMON_TASK_S, 60.0, 60.0, COMMON_TASK_S]
    assert waves[1:3] == [{"slow": 60.0}] * 2


@pytest.mark.parametrize(("copied", "tasks"), [(1, 1), (90, 4)], ids=["slow", "a backlog"])
def test_a_broker_whose_backlog_takes_time_is_copied_by_all_executors_and_a_slow_one_by_one(
    tmp_path: Path, copied: int, tasks: int
) -> None:
    topics = {f"t{number}": rows(100, topic=f"t{number}", tag=b"x" * 2_000) for number in range(8)}
    stop, waves = Waiting(), list[int]()

    class OutOfTime(LocalRunner):
        """Ends each task of the first wave after `copied` messages of a queue, as if its time was over."""

        parallelism = 4

        def run(self, function: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
            if not isinstance(tasks[0], OffloadTask):
                return super().run(function, tasks, **options)
            waves.append(len(tasks))
            if len(waves) > 1:
                stop.set()
                return super().run(function, tasks, **options)
            cut_short = [replace(task, works=tuple(cut(work, copied) for work in task.works)) for task in tasks]
            results = super().run(function, cut_short, **options)
            return [
                replace(result, commits=tuple(replace(each, stop=Stop.SLOW, took_s=9.0) for each in result.commits))
                for result in results
            ]

    with scripted_fleet(tmp_path, b=ScriptedBroker(topics)) as fleet:
        fleet.offload(stop, trigger_s=20.0, runner=OutOfTime(), task_bytes=20_000)
        assert [fleet.copied(topic=topic) for topic in topics] == [(0, 100, 0)] * 8
    assert waves == [8, tasks]


def test_more_queues_than_a_wave_takes_are_copied_by_several(tmp_path: Path) -> None:
    topics = {f"t{number}": rows(3, topic=f"t{number}") for number in range(7)}
    runner = WatchedRunner()
    looks: list[str] = []
    with scripted_fleet(tmp_path, b=ScriptedBroker(topics)) as fleet:
        fleet.brokers["b"].answers[STATS] = lambda ext: looks.append(ext["topic"])
        report = fleet.offload(runner=runner, wave_queues=3)
        assert sorted(looks) == sorted(2 * [*topics]), "before the first wave, and when nothing was left of that"
        assert [fleet.copied(topic=topic) for topic in topics] == [(0, 3, 0)] * 7
    assert (report.problems, report.done["messages"], len(runner.waves)) == ([], 21, 3)

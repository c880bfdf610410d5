"""`tiermq pipeline offload --namesrv`, as an operator types it: reports, exit codes, accounts."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

from cli.wire_commands import Shell, shell
from pipeline.offload.scripted_fleet import Answer, ScriptedBroker, rows, scripted_fleet
from pipeline.offload.wire_world import fill, wire_world
from present import present
from servers.serving import Serving
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.cli.pipeline.offload import exit_code
from tiermq.message.topic_name import HALF_TOPIC
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline.job_report import JobReport
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.tls import make_self_signed
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.names import SegmentType
from waiting import until

ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "a long secret"
admin = true
[[accounts]]
accessKey = "reader"
secretKey = "another secret"
defaultTopicPerm = "SUB"
defaultGroupPerm = "SUB"
[[accounts]]
accessKey = "blind"
secretKey = "a third secret"
defaultTopicPerm = "SUB"
defaultGroupPerm = "SUB"
topicPerms = ["orders=DENY"]
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Shell]:
    with shell(tmp_path) as made:
        for number in range(30):
            made.broker.send("orders", b"x" * number, number % 2, keys=[f"k{number}"])
        made.broker.send("audit-log", b"who did what")
        made.broker.broker.parts.local.flush()
        yield made


def offload(world: Shell, tmp_path: Path, *words: str, code: int = 0) -> Result:
    tier = (tmp_path / "t").as_uri()
    return world.run("pipeline", "offload", "--tier", tier, "--master", "here", *words, code=code)


def test_running_brokers_are_planned_copied_and_then_nothing_is_left(world: Shell, tmp_path: Path) -> None:
    def report(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(offload(world, tmp_path, *words, "--json").stdout)
        return found

    chosen = ("--cluster", "DefaultCluster", "--broker", "broker-a", "--exclude", "audit-*", "--rate", "50MB")
    planned = report(*chosen, "--dry-run")["planned"]
    assert planned.pop("bytes") > 0  # By an average, which the broker may not have yet.
    assert planned == {"brokers": 1, "queues": 2, "messages": 30}
    assert not (tmp_path / "t").exists()
    assert report(*chosen)["done"]["messages"] == 30
    reported = report("--metrics", str(tmp_path / "metrics"))
    assert reported["done"]["messages"] == 1
    assert (reported["problems"], reported["details"]["gaps"], reported["details"]["refused"]) == ([], [], [])
    assert "tiermq_offload_up" in (tmp_path / "metrics").read_text()
    assert report()["done"]["messages"] == 0
    found = world.run("tier", "ls", (tmp_path / "t").as_uri()).output
    assert "orders" in found
    assert "audit-log" in found


def test_history_that_a_broker_deleted_is_shown_with_its_range_and_has_its_own_exit_code(
    world: Shell, tmp_path: Path
) -> None:
    offload(world, tmp_path)
    for _ in range(12_000):
        world.broker.send("orders", b"y" * 500)
    parts = world.broker.broker.parts
    parts.local.flush()
    world.broker.advance(hours=100)
    parts.local.clean_now()
    low = parts.store.min_offset("orders", 0)
    assert low > 15
    found = offload(world, tmp_path, "--settle", "1s", code=3)
    assert f"gap: broker-a orders-0: messages 15 to {low - 1}" in found.output
    assert "the broker keeps messages for 72 h, and the next one for another " in found.output
    offload(world, tmp_path)


def test_the_commands_of_the_page_run_in_their_order(
    world: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "offload.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands = [line.removeprefix("$ ") for fence in fences for line in fence.splitlines()]
    assert len(commands) == 4
    monkeypatch.chdir(tmp_path)
    for command in commands:
        reported = command.replace("127.0.0.1:9876", world.broker.name_server).replace("$PWD", str(tmp_path))
        assert world.run(*shlex.split(reported)[1:]).output


def test_exit_codes_tell_lost_history_from_problems_and_from_danger() -> None:
    def code(by_wire: bool = True, problems: int = 0, **details: list[int]) -> int:
        return exit_code(JobReport("offload", "t", problems=["p"] * problems, details=dict(details)), by_wire=by_wire)

    assert code() == 0
    assert code(problems=1, danger=[1]) == 1
    assert code(problems=1, gaps=[1]) == code(refused=[1]) == 3
    assert code(danger=[1]) == 4
    assert code(by_wire=False, gaps=[1]) == 0


def test_options_that_do_not_go_together_are_refused_in_words(world: Shell, tmp_path: Path) -> None:
    for words, expected in (
        (("--store", str(tmp_path), "-n", "h:1"), "give one of the two"),
        (("--store", str(tmp_path), "--rate", "5M"), "--rate is for brokers over the wire"),
        (("--recover",), "they need --store"),
        (("--settle", "soon"), "--settle is a time"),
        (("--include", "all"), "--include is retry, dlq, transactions"),
        (("--topic", "order"), "did you mean 'orders'"),
        (("--cluster", "Other"), "expected brokers of cluster Other, found none"),
    ):
        assert expected in offload(world, tmp_path, *words, code=1).output
    assert not (tmp_path / "t").exists()
    bare = CliRunner().invoke(cli, ["pipeline", "offload", "--tier", "file:///t"], env={"NAMESRV_ADDR": ""})
    assert "--namesrv host:port (running brokers), or --store DIR" in bare.output


def test_an_account_that_may_not_read_a_topic_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text(ACCOUNTS)
    made = make_self_signed("broker")
    (tmp_path / "broker.pem").write_text(made.certificate + made.key)
    (tmp_path / "ca.pem").write_text(made.certificate)
    by_tls = ("--tls-cert", str(tmp_path / "broker.pem"), "--tls", "enforcing")
    flushes: dict[str, object] = {"flush_commit_log_thorough_interval": 100}  # Of few pages: after 10 s otherwise.
    with Serving(tmp_path / "s", "--acl", str(tmp_path / "acl.toml"), *by_tls, **flushes) as broker:
        secrets = {"root": "a long secret", "reader": "another secret", "blind": "a third secret"}

        def tiermq(account: str | None, *words: str, code: int = 0) -> Result:
            keys = {} if account is None else {"ROCKETMQ_ACCESS_KEY": account, "ROCKETMQ_SECRET_KEY": secrets[account]}
            trusted = ("--tls-ca", str(tmp_path / "ca.pem"))
            result = CliRunner().invoke(cli, [*words, "--namesrv", broker.name_server, *trusted], env=keys)
            assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
            return result

        tiermq("root", "topic", "create", "orders")
        tiermq("root", "produce", "orders", "--count", "20")
        tier = (tmp_path / "t").as_uri()
        words = ("pipeline", "offload", "--tier", tier, "--master", "here", "--json")
        refused = tiermq("blind", *words, code=1).output
        assert "found 1 that cannot be. orders:" in refused
        assert "Grant the account SUB on these topics and on the group TOOLS_CONSUMER" in refused
        assert "set ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY" in tiermq(None, *words, code=1).output
        assert not (tmp_path / "t").exists()
        # No administrator: topics come from the name server, and nothing is known of the broker's settings.
        assert json.loads(tiermq("reader", *words).stdout)["done"]["messages"] == 20
        assert json.loads(tiermq("blind", *words, "--exclude", "orders").stdout)["problems"] == []


# Brokers that are down, in use, or held by a job that was killed


def metric(path: Path, name: str, broker: str) -> int:
    (found,) = re.findall(rf'^tiermq_offload_{name}{{cluster="\S+",broker="{broker}"}} (\d+)$', path.read_text(), re.M)
    return int(found)


def test_a_broker_that_no_name_server_knows_any_more_is_exit_code_1_and_not_up(tmp_path: Path) -> None:
    with wire_world(tmp_path, 2) as fleet:
        at, metrics = Shell(fleet.broker), tmp_path / "offload.prom"
        for broker in fleet.brokers:
            fill(broker, 20)
        words = ("--metrics", str(metrics), "--cluster", "DefaultCluster")
        offload(at, tmp_path, *words)
        assert metric(metrics, "up", "broker-1") == 1
        fleet.brokers[1]._stop_broker()
        for more in ((), ("--dry-run",)):
            reported = offload(at, tmp_path, *words, *more, code=1).output
            assert (
                "problem: broker broker-1 of DefaultCluster: it has history in the tier, but no name server" in reported
            )
        assert (metric(metrics, "up", "broker-1"), metric(metrics, "left_out", "broker-1")) == (0, 1)
        assert (metric(metrics, "up", "broker-0"), metric(metrics, "left_out", "broker-0")) == (1, 0)
        offload(at, tmp_path, *words, "--exclude-broker", "broker-1")


def test_a_broker_in_use_is_up_and_named_once_with_the_advice_for_its_holder(world: Shell, tmp_path: Path) -> None:
    metrics, driver = tmp_path / "offload.prom", open_driver((tmp_path / "t").as_uri())
    for owner, advice in (
        ("vm:/var/store", "set tierDispatchEnable=false there"),
        ("vm:77 (pipeline offload)", "That is a job: wait for its end, or stop it."),
    ):
        lease = BrokerLease(driver, "DefaultCluster", "broker-a", owner)
        lease.acquire()
        for more in ((), ("--dry-run",)):
            reported = offload(world, tmp_path, "--no-wait", "--metrics", str(metrics), *more, code=1).output
            assert reported.count(f"{owner} holds its lease for another") == 1
            assert advice in reported
        assert [metric(metrics, name, "broker-a") for name in ("up", "in_use", "left_out")] == [1, 1, 1]
        lease.release()
    offload(world, tmp_path, "--metrics", str(metrics))
    assert [metric(metrics, name, "broker-a") for name in ("up", "in_use", "left_out")] == [1, 0, 0]


HOLD = """
import sys
from tiermq.clock import SystemClock
from tiermq.pipeline.leased_broker import Home, job_lease
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tier_config import TierConfig
home = Home("DefaultCluster", "broker-a")
job_lease(open_driver(sys.argv[1]), home, "offload", TierConfig(), SystemClock()).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lease_of_a_job_that_was_killed_on_this_machine_is_taken_over_at_once(world: Shell, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, (tmp_path / "t").as_uri()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"held\n"
        shown = offload(world, tmp_path, "--no-wait", code=1).output
        assert re.search(rf":{job.pid}-[0-9a-f]+ \(pipeline offload\) holds its lease", shown)
        job.kill()
        job.wait()
    assert "31 messages" in offload(world, tmp_path, "--no-wait").output


def test_the_lease_of_a_job_that_was_killed_elsewhere_is_waited_for(
    world: Shell, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = open_driver((tmp_path / "t").as_uri())
    BrokerLease(driver, "DefaultCluster", "broker-a", "vm:77 (pipeline offload)", term_ms=1_500).acquire()
    assert "31 messages" in offload(world, tmp_path).output
    (line,) = [record.message for record in caplog.records if record.message.startswith("waiting up to")]
    assert "for the lease of broker DefaultCluster/broker-a: vm:77 (pipeline offload) holds it" in line


def test_the_leases_of_many_brokers_are_ended_by_one_command(world: Shell, tmp_path: Path) -> None:
    tier = (tmp_path / "t").as_uri()
    driver = open_driver(tier)
    leases = [BrokerLease(driver, "prod", f"broker-{name}", "vm:77 (pipeline offload)") for name in "abc"]
    for lease in leases:
        lease.acquire()
    leases[2].release()

    def ended(*words: str, code: int = 0) -> list[tuple[str, bool]]:
        rows = json.loads(world.run("tier", "takeover", tier, *words, "--yes", "--json", code=code).stdout)["leases"]
        return [(row["broker"], row["wasHeld"]) for row in rows]

    assert ended("--cluster", "prod", "--broker", "*-a") == [("broker-a", True)]
    assert ended("--all") == [("broker-a", False), ("broker-b", True), ("broker-c", False)]
    assert ended("--cluster", "prod", "--broker", "nope", code=1) == []
    assert [present(lease.read()).owner for lease in leases] == ["", "", ""]
    assert "name brokers by --broker" in world.run("tier", "takeover", tier, code=2).output


# Topics and options


def test_topics_that_cannot_be_copied_by_their_kind_stop_no_fleet(world: Shell, tmp_path: Path) -> None:
    topics = world.broker.broker.parts.topics
    topics.put(TopicConfig("batches", 1, 1, attributes={"queue.type": "BatchCQ"}))
    topics.put(TopicConfig("compacted", 1, 1, attributes={"cleanup.policy": "COMPACTION"}))
    topics.put(TopicConfig("closed", 1, 1, perm=2))
    reported = offload(world, tmp_path, "--topic", "batches", code=1).output
    assert "--topic batches: it cannot be copied: topics of batches (BatchCQ)" in reported
    reported = offload(world, tmp_path).output
    assert "31 messages" in reported
    for topic, kind in (("batches", "topics of batches"), ("compacted", "compacted topics"), ("closed", "closed for")):
        assert f"note: not copied: {topic}: {kind}" in reported


def test_options_of_the_wire_are_refused_with_store_directories(world: Shell, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    ca = str(tmp_path / "ca.pem")
    for words in (("--settle", "1h"), ("--tls",), ("--tls-ca", ca), ("--tls-cert", ca), ("--tls-key", ca),
                  ("--exclude-broker", "b"), ("--broker", "b"), ("--cluster", "c"), ("--exclude", "t")):  # fmt: skip
        reported = offload(world, tmp_path, "--store", str(tmp_path / "store"), *words, code=1).output
        assert f"{words[0]} is for brokers over the wire: it needs --namesrv" in reported


@pytest.mark.parametrize("words", [("--include", "transactions"), ("--config", "broker.conf")])
def test_one_setting_or_option_copies_transactions_from_both_sources(
    world: Shell, tmp_path: Path, words: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broker.conf").write_text("tierTransactionsEnable=true\n")
    local = world.broker.broker.parts.local
    assert local.put(Message(HALF_TOPIC, b"half", 0)).ok
    local.dispatch_now()
    local.flush()
    offload(world, tmp_path, *words)
    assert HALF_TOPIC in world.run("tier", "ls", (tmp_path / "t").as_uri(), "--json").stdout
    store = f"{tmp_path / 'store'}=DefaultCluster/broker-a"
    other = (tmp_path / "other").as_uri()
    world.run("pipeline", "offload", "--store", store, "--tier", other, "--master", "here", *words)
    assert HALF_TOPIC in world.run("tier", "ls", other, "--json").stdout


def test_a_service_writes_lines_while_it_runs_and_ends_by_a_signal(world: Shell, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from tiermq.cli.main import main; main()", "pipeline", "offload",
             "--namesrv", world.broker.name_server, "--tier", (tmp_path / "t").as_uri(),
             "--master", "here", "--trigger", "200ms"]  # fmt: skip
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert re.fullmatch(r"\S+Z copying 1 broker into file:\S+, every 0.2 s\n", job.stderr.readline())
        assert re.fullmatch(r"\S+Z copied 31 messages, \S+ KiB\n", job.stderr.readline())
        job.send_signal(signal.SIGINT)
        reported, _ = job.communicate()
    assert job.returncode == 0
    assert "31 messages" in reported


# The rate


def test_a_broker_gives_no_more_bytes_a_second_than_the_rate(tmp_path: Path) -> None:
    """Of all queues and tasks together, as the broker counts them, from its first pull to its last."""
    rate, body = 300_000, b"x" * 1_000
    more = {("orders", 1): rows(400, tag=body, queue_id=1)}
    broker, given = ScriptedBroker({"orders": rows(400, tag=body)}, more=more), list[tuple[float, int]]()

    def pull(ext: dict[str, str]) -> Answer:
        found = broker.pull(broker.records(ext), int(ext["queueOffset"]), int(ext["maxMsgNums"]))
        given.append((time.monotonic(), len(found[2])))
        return found

    broker.answers[RequestCode.PULL_MESSAGE] = pull
    broker.settings = ""  # No retention is known, so no message is in danger.
    with scripted_fleet(tmp_path, b=broker) as fleet:
        words = ("--namesrv", fleet.names.address, "--cluster", "c", "--tier", fleet.tier, "--master", "here", "--json")
        result = CliRunner().invoke(cli, ["pipeline", "offload", *words, "--rate", "300KB"])
    assert (result.exit_code, json.loads(result.stdout)["done"]["messages"]) == (0, 800), result.output
    times, sizes = zip(*sorted(given), strict=True)
    answer = max(sizes)
    assert sum(sizes) > 20 * answer, "otherwise the first answers, whose size is a guess, are all there is"
    assert sum(sizes) <= rate * (times[-1] - times[0]) + 4 * answer


# Jobs beside a continuous offload


class Service:
    """A continuous offload in a process of its own, and its lines."""

    def __init__(self, world: Shell, tier: str, *words: str) -> None:
        self.lines: list[str] = []
        command = [sys.executable, "-c", "from tiermq.cli.main import main; main()", "pipeline", "offload", "--namesrv",
                   world.broker.name_server, "--tier", tier, "--master", "here", "--json", *words]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(iter(self._process.stderr.readline, ""))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.join()
        self._process.__exit__(None, None, None)

    def count(self, text: str) -> int:
        return sum(text in line for line in list(self.lines))

    def has(self, count: int, text: str) -> bool:
        return self.count(text) == count

    def end(self) -> dict[str, Any]:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        reported: dict[str, Any] = json.loads(self._process.stdout.read())
        assert self._process.wait() == 0, self.lines
        return reported


@pytest.mark.parametrize("trigger", ["200ms", "10m"])
def test_jobs_change_the_tier_between_two_waves_of_a_continuous_offload(
    world: Shell, tmp_path: Path, trigger: str
) -> None:
    """Also while it rests for long: with the lease's own renewals, whose interval is set to seconds here."""
    root, config, metrics = tmp_path / "t", tmp_path / "broker.conf", tmp_path / "offload.prom"
    config.write_text("tierLeaseTerm=3000\n")
    with Service(
        world, root.as_uri(), "--trigger", trigger, "--config", str(config), "--metrics", str(metrics)
    ) as service:
        until(lambda: service.count("copied 31 messages"))
        shown = world.run("pipeline", "compact", root.as_uri(), "--no-wait", "--master", "here", code=1).output
        assert "It lends its lease to a job that waits for it: leave out --no-wait." in shown
        keys = [info.key for info in open_driver(root.as_uri()).list_segments()]
        units = root / next(key.path for key in keys if key.type is SegmentType.CONSUME_QUEUE)
        damaged = bytearray(units.read_bytes())
        damaged[5] ^= 0xFF
        units.write_bytes(damaged)
        done, jobs = {}, (["verify", "--repair"], ["compact"], ["reindex"], ["expire", "--keep", "1y"])
        for lent, (job, *options) in enumerate(jobs, 1):
            command = ("pipeline", job, root.as_uri(), *options, "--master", "here", "--json")
            done[job] = json.loads(world.run(*command).stdout)["done"]
            until(partial(service.has, lent, " is lent to "))
            assert service.count(f"(pipeline {job}") == 1
            if trigger == "10m":
                break  # The next wave is minutes away.
            world.broker.send("orders", b"after", keys=["late"])
            world.broker.broker.parts.local.flush()
            until(partial(service.has, lent, "copied 1 message,"))
            assert service.count(" is copied again, ") == lent
            assert metric(metrics, "in_use", "broker-a") == 0
            until(lambda: metric(metrics, "left_out", "broker-a") == 0)
        assert done["verify"]["repaired"] == 1
        reported = service.end()
    assert (reported["problems"], service.count("problem:")) == ([], 0)
    assert json.loads(offload(world, tmp_path, "--json").stdout)["done"]["messages"] == 0
    assert world.json("pipeline", "verify", root.as_uri(), "--master", "here")["problems"] == []

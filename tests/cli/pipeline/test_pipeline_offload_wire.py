"""`tiermq pipeline offload --namesrv`, as an operator types it: reports, exit codes, accounts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.wire_commands import Shell, shell
from servers.serving import Serving
from tiermq.cli.main import cli
from tiermq.cli.pipeline.offload import exit_code
from tiermq.pipeline.job_report import JobReport
from tiermq.remoting.tls import make_self_signed

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
    assert report(*chosen, "--dry-run")["planned"] == {"brokers": 1, "queues": 2, "messages": 30} | {
        "bytes": report(*chosen, "--dry-run")["planned"]["bytes"]
    }
    assert not (tmp_path / "t").exists()
    assert report(*chosen)["done"]["messages"] == 30
    told = report("--metrics", str(tmp_path / "metrics"))
    assert told["done"]["messages"] == 1
    assert (told["problems"], told["details"]["gaps"], told["details"]["refused"]) == ([], [], [])
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
    found = offload(world, tmp_path, code=3)
    assert f"gap: broker-a orders-0: messages 15 to {low - 1}" in found.output
    assert "the broker keeps messages for 72 h" in found.output
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
        told = command.replace("127.0.0.1:9876", world.broker.name_server).replace("$PWD", str(tmp_path))
        assert world.run(*shlex.split(told)[1:]).output


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
    with Serving(tmp_path / "s", "--acl", str(tmp_path / "acl.toml"), *by_tls) as broker:
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

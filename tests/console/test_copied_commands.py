"""Commands that pages offer for copying: a shell reads them as they are meant, and they do what the page shows."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from console.console_world import ORDERS, Browser, console, orders_broker, place_of
from tiermq.cli.main import cli
from tiermq.client.cluster_client import Access
from tiermq.console.copied_commands import command, for_spark, message_command, replay_command, reset_command
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.history.scan_values import StorePlace
from tiermq.remoting.tls import ClientTls
from tiermq.testing import LocalBroker

HOSTILE = "SELECT count(*) AS n FROM \"orders\" WHERE tags = 'paid' AND tags <> '`id` $HOME \\ \"x\" ; | & it''s'"
GROUP = "a|reboot"


def words_of(line: str) -> list[str]:
    """The words that a shell makes of a line."""
    script = f'tiermq() {{ printf "%s\\0" "$@"; }}\n{line}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\0")[:-1]


def run(line: str, *more: str, code: int = 0) -> str:
    """What the command prints, run as it was copied; without any name server in the environment."""
    done = CliRunner().invoke(cli, [*words_of(line), *more], env={"NAMESRV_ADDR": ""})
    assert done.exit_code == code, f"{line}\n{done.output}\n{done.exception!r}"
    return done.stdout


def copied(page: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r'data-copy="([^"]*)"', page)]


@contextmanager
def each_source(directory: Path, *names: str) -> Iterator[dict[str, Browser]]:
    """Consoles over the same messages: by brokers, by files, by a tier alone."""
    with orders_broker(directory) as broker:
        places = {
            "wire": place_of(directory, broker, store=False, tier=False),
            "files": place_of(directory),
            "tier": place_of(directory, store=False),
            "all": place_of(directory, broker),
        }
        found = {}
        with console(places[names[0]]) as first:
            found[names[0]] = first
            if len(names) == 1:
                yield found
                return
            with console(places[names[1]]) as second:
                yield {**found, names[1]: second}


@pytest.mark.parametrize("source", ["wire", "files", "tier", "all"])
def test_a_copied_query_prints_the_message_of_the_page(tmp_path: Path, source: str) -> None:
    with each_source(tmp_path, source) as consoles:
        page = consoles[source].get("/message?topic=orders&queue=1&offset=3")
        [line] = copied(page.text)
        assert line == consoles[source].api("message.show", topic="orders", queue=1, offset=3)["command"]
        [message] = [json.loads(each) for each in run(line, "--json").splitlines()]
        assert (message["body"], message["queueId"], message["queueOffset"]) == ('{"order": 7}', 1, 3)


def test_a_copied_reset_moves_the_group_of_the_page_whatever_its_name(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        run(command(["group", "create"], [GROUP], ["--namesrv", broker.name_server]))
        broker.broker.parts.offsets.commit(GROUP, "orders", 0, 5)
        broker.broker.parts.offsets.flush()
        page = at.get("/groups/" + GROUP.replace("|", "%7C") + "?topic=orders&to=first")
        [line] = copied(page.text)
        assert words_of(line)[:4] == ["group", "reset", GROUP, "orders"]
        run(line)
        assert broker.committed_offset(GROUP, "orders", 0) == 0


def test_a_copied_query_of_sql_is_the_query_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    with each_source(tmp_path, "files", "wire") as consoles:
        asked = urlencode({"query": HOSTILE, "only": "estimate", "begin": "1d"})
        here, on_spark = copied(consoles["files"].get(f"/sql?{asked}").text)
        assert words_of(here)[:2] == ["sql", HOSTILE]
        assert json.loads(run(here, "--json"))["details"]["rows"] == [[30]]
        assert words_of(on_spark)[:3] == ["pipeline", "sql", HOSTILE.replace('"orders"', "`orders`")]
        assert words_of(on_spark)[3:] == words_of(here)[2:], "the same sources, from the same time on"
        assert copied(consoles["wire"].get(f"/sql?{asked}").text) == [], "no command reads brokers by SQL"


def test_the_copied_verification_verifies_the_tier_of_the_page(tmp_path: Path) -> None:
    with each_source(tmp_path, "tier") as consoles:
        [line] = copied(consoles["tier"].get("/tier").text)
        assert json.loads(run(line, "--json"))["counts"]["records"] == ORDERS


def test_a_copied_replay_plans_what_the_page_shows(tmp_path: Path) -> None:
    with each_source(tmp_path, "all", "wire") as consoles:
        [line] = copied(consoles["all"].get("/history?topic=orders&at=1h").text)
        report = json.loads(run(line, "--dry-run", "--json"))
        assert report["planned"]["messages"] == ORDERS + 1, report
        assert copied(consoles["wire"].get("/history?topic=orders&at=1h").text) == [], "a replay reads files or a tier"


def test_names_and_places_are_words_of_their_own() -> None:
    access = Access("ns1:9876;ns2:9876", tls=True, certificates=ClientTls(trusted_path="/etc/my ca.pem"))
    visit = Visit(Sources(SourcePlace(access)))
    assert words_of(message_command(visit, "-odd", 1, 2, "broker-a")) == [
        "query", "--queue", "1", "--offset", "2", "--broker", "broker-a", "--namesrv", "ns1:9876;ns2:9876", "--tls",
        "--tls-ca", "/etc/my ca.pem", "--", "-odd",
    ]  # fmt: skip
    assert "ns1:9876;ns2:9876" in words_of(reset_command(visit, "a", "b", "1h"))
    assert replay_command(visit, "orders", 1) is None
    files = Visit(Sources(SourcePlace(None, None, (StorePlace("/my store", "c", "b"),))))
    assert words_of(message_command(files, "orders", 0, 0, ""))[-2:] == ["--store", "/my store=c/b"]
    assert words_of(command(["x"], ["it's", "$(id)"], ["-y", "`id`"])) == ["x", "it's", "$(id)", "-y", "`id`"]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ('SELECT * FROM "a-b"', "SELECT * FROM `a-b`"),
        ('SELECT \'"a-b"\' FROM "a-b"', "SELECT '\"a-b\"' FROM `a-b`"),
        ("SELECT 'it''s \"a-b\"' FROM x", "SELECT 'it''s \"a-b\"' FROM x"),
        ('SELECT "other" FROM a', 'SELECT "other" FROM a'),
    ],
)
def test_spark_gets_topics_in_its_own_quotes(query: str, wanted: str) -> None:
    assert for_spark(query, ["a-b"]) == wanted


def test_no_command_has_a_key_of_an_account() -> None:
    secret: dict[str, Any] = {"access_key": "the-key", "secret_key": "the-secret"}
    visit = Visit(Sources(SourcePlace(Access("ns:9876", **secret))))
    line = reset_command(visit, "a", "b", "first") + message_command(visit, "a", 0, 0, "")
    assert "the-key" not in line
    assert "the-secret" not in line


def test_brokers_are_asked_by_the_name_of_the_message(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store") as broker:
        broker.send("orders", b"x")
        words = ["query", "orders", "--queue", "0", "--offset", "0", "--namesrv", broker.name_server]
        assert CliRunner().invoke(cli, [*words, "--broker", "broker-a"]).exit_code == 0
        refused = CliRunner().invoke(cli, [*words, "--broker", "broker-z"])
        assert (refused.exit_code, "expected one that has the topic (broker-a)" in refused.output) == (1, True)

"""`tiermq status`, lists with figures, and consoles as processes: over brokers, and over files without any."""

from __future__ import annotations

import http.client
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.wire_commands import Shell, process, shell
from tiermq import Message, TieredStore
from tiermq.cli.main import cli
from tiermq.log_levels import change_log_levels
from waiting import until


@pytest.fixture(scope="module")
def completing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    directory = tmp_path_factory.mktemp("completing")
    with shell(directory, tier=f"file://{directory}/tier") as at:
        for name in ("orders", "orders-late", "payments"):
            at.broker.create_topic(name)
        at.run("group", "create", "audit")
        at.broker.send("orders", b"x")
        assert at.broker.broker.parts.tiered is not None
        assert at.broker.broker.parts.tiered.flush_to_tier()
        yield at


def get(url: str, path: str) -> Any:
    host = url.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)


def test_the_status_says_what_needs_attention(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"x")
        reported = at.json("status")
        assert (reported["topics"], reported["warnings"], reported["brokers"][0]["role"]) == (1, [], "master")
        assert at.lines("status")[-1] == "nothing needs attention"
        at.broker.create_topic("%DLQ%audit", queues=1)
        warned = at.run("status", code=1).stdout
        assert "1 group has dead letters" in warned
    assert "! " in at.run("status", "--store", str(tmp_path / "store"), "-n", "", code=1).stdout


def test_the_status_says_what_is_not_in_the_tier_yet(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier) as at:
        at.run("topic", "create", "orders", "--queues", "1")
        tiered = at.broker.broker.parts.tiered
        assert tiered is not None
        assert tiered.flush_to_tier()
        assert at.json("status")["tierBehind"] == {"messages": 0, "bytes": 0, "oldestMs": 0}
        assert tiered.tier.engine.pause()
        for _ in range(5):
            at.broker.send("orders", b"x" * 100)
        at.broker.broker.parts.local.flush()  # What a power cut may take is not uploaded, and not waited for.
        at.broker.advance(minutes=5)
        waiting = at.json("status")["tierBehind"]
        assert (waiting["messages"], waiting["bytes"] > 500, waiting["oldestMs"] // 60_000) == (5, True, 5)
        [line] = [line for line in at.lines("status") if line.startswith("backlog")]
        assert line.split()[1:3] == ["5", "messages,"]
        assert line.endswith("the oldest since 300 s")
        at.broker.advance(hours=1)
        [warning] = at.json_of("status", code=1)["warnings"]
        assert "has 5 messages that are not in the tier, the oldest since 65 minutes" in warning
        tiered.tier.engine.resume()
        assert tiered.flush_to_tier()
        assert (at.json("status")["tierBehind"]["messages"], at.lines("status")[-1]) == (0, "nothing needs attention")
    with shell(tmp_path / "plain") as at:
        assert at.json("status")["tierBehind"] is None
        assert not [line for line in at.lines("status") if line.startswith("backlog")]


def test_uploads_of_a_topic_that_fail_are_shown_by_ready_and_the_status(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri(), metrics_port=0, tier_close_timeout=1_000) as at:
        at.broker.send("orders", b"x")
        broker = at.broker.broker
        assert broker.parts.tiered is not None
        assert broker.parts.tiered.flush_to_tier()
        [orders] = (tmp_path / "tier").glob("*/*/orders")
        in_the_way = orders.with_name("payments")
        in_the_way.write_text("no directory")
        at.broker.send("payments", b"x")

        def warnings() -> list[str]:
            """Of /ready and of the status."""
            at.broker.advance(seconds=40)
            page = get(f"http://{broker.metrics_address}", "/ready")
            assert (page["status"], page["problems"]) == ("up", {})
            shown = json.loads(CliRunner().invoke(cli, ["status", "--json"], env=at.environment).stdout)["warnings"]
            listed = [*page.get("warnings", {}).values(), *shown]
            return [each for each in listed if "the uploads of queue" in each]

        until(lambda: len(warnings()) == 2)
        for line in warnings():
            assert re.search(r"the uploads of queue payments-\d fail, [\d,]+ times in a row: ", line), line
            assert f"found the file {in_the_way} in the way: move it away" in line


def test_lists_have_figures_with_and_without_a_broker(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--queues", "2")
        for number in range(5):
            at.broker.send("orders", b"x", queue_id=number % 2)
        at.broker.broker.parts.offsets.commit("audit", "orders", 0, 1)
        at.broker.broker.parts.offsets.flush()
        for words in ((), ("--store", str(tmp_path / "store"), "-n", "")):
            [topic] = at.json("topic", "list", *words)["topics"]
            assert (topic["topic"], topic["messages"], topic["groups"], topic["behind"]) == ("orders", 5, 1, 4)
            groups = {row["group"]: row["behind"] for row in at.json("group", "ls", *words)["groups"]}
            assert groups["audit"] == 4
            assert at.lines("topic", "list", *words)[1].split() == ["orders", "2", "5", "–", "1", "4"]


def test_a_table_never_cuts_a_figure(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        name = "a-topic-with-a-name-of-many-characters-that-would-fill-a-line-by-itself-and-then-some"
        at.broker.send(name, b"x")
        line = at.lines("topic", "list")[1]
        assert line.split() == [name, "4", "1", "–", "0", "0"]


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_a_terminal_of_any_width_shows_whole_figures(columns: int) -> None:
    """In a pseudo-terminal, as `rich` finds it there."""
    code = (
        f"import os; os.environ['COLUMNS'] = '{columns}'\n"
        "from tiermq.cli.terminal import print_table\n"
        "print_table(('topic', 'queues', 'messages', 'behind'),"
        " [('a-name-that-must-fold-somewhere', '1,024', '123,456,789,012', '999,456,789,012')])\n"
    )
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdout=slave, close_fds=True) as child:
        assert child.wait() == 0
    os.close(slave)
    shown = os.read(master, 65_536).decode()
    os.close(master)
    assert all(figure in shown for figure in ("1,024", "123,456,789,012", "999,456,789,012")), shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["topc"], "topic"), (["tier", "lst"], "ls"), (["pipeline", "ofload"], "offload"), (["dlq", "resnd"], "resend"),
        (["topic", "list", "--serch", "x"], "--search"), (["serve", "--prot", "3"], "--port"),
        (["namesrv", "--hots", "x"], "--host"),
    ],
)  # fmt: skip
def test_a_misspelt_command_or_option_is_answered_with_the_right_one(words: list[str], hint: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, hint in result.stderr.partition("id you mean")[2]) == (2, True), result.stderr


def test_servers_have_the_same_names_for_the_same_options() -> None:
    from tiermq.cli.console import console
    from tiermq.cli.controller import controller
    from tiermq.cli.namesrv import namesrv
    from tiermq.cli.serve import serve

    def options(command: click.Command) -> set[str]:
        return {name for each in command.params for name in each.opts}

    shared = {"--host", "--port", "--json", "--log-level", "--log-format", "--acl", "-v", "--verbose"}
    for command in (serve, namesrv, console):
        assert shared <= options(command), command.name
    assert {"--json", "--log-level", "--log-format", "-v", "-c", "--config"} <= options(controller)
    for command in (serve, namesrv):
        assert "-c" in options(command)
        assert {"--config", "--accept-weaker", "--tls", "--tls-cert"} <= options(command)


def test_every_list_is_called_by_either_name() -> None:
    for group in ("topic", "group", "dlq", "delayed", "transaction", "tier"):
        for word in ("ls", "list"):
            result = CliRunner().invoke(cli, [group, word, "--help"])
            assert result.exit_code == 0, (group, word, result.output)


def test_offsets_take_ages_and_a_preview_changes_nothing(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for _ in range(3):
            at.broker.send("orders", b"x")
        at.run("group", "create", "audit")
        at.run("consume", "orders", "--group", "audit", "--quiet")
        shown = at.json("group", "reset", "audit", "orders", "--to", "1h", "--preview")
        assert (shown["skipped"], shown["repeated"]) == (0, 3)
        assert at.broker.committed_offset("audit", "orders", 0) == 3
        at.run("group", "reset", "audit", "orders", "--to", "1h")
        assert at.json("group", "show", "audit")["behind"] == 3
        assert "2026-01-31" in at.run("group", "reset", "audit", "orders", "--to", "soon", code=2).stderr


@pytest.mark.parametrize(
    "text", ["2026-01-31T10:00", "2026-01-31T10:00+02:00", "2026-01-31", "1700000000000", "1h", "2w", "1y"]
)
def test_every_command_takes_the_same_forms_of_a_time(tmp_path: Path, text: str) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"x", keys=["key"])
        at.run("group", "create", "audit")
        shown = at.lines("query", "orders", "--key", "key", "--begin", text)
        [stored] = [line.split()[1] for line in shown if line.startswith("storeTimestamp ")]
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stored)
        assert at.json("group", "reset", "audit", "orders", "--to", text, "--preview")["skipped"] == 0
        assert len(at.lines("consume", "orders", "--from", text)) >= 1
        assert json.loads(at.run("api", "message.find", "topic=orders", f"begin={text}").stdout)["messages"]
        store = str(at.broker.directory)
        assert at.lines("sql", "SELECT count(*) FROM orders", "--store", store, "--since", text)[-1].strip() == "1"


def test_a_console_of_a_store_and_a_broker_with_its_console_end_cleanly(tmp_path: Path) -> None:
    store = tmp_path / "store"
    serve = ("serve", str(store), "--port", "0", "--namesrv-port", "0", "--console", "--console-port", "0")
    with process(*serve) as ready:
        assert ready["event"] == "ready"
        overview = get(ready["console"], "/api/overview")
        assert [row["broker"] for row in overview["brokers"]] == [ready["name"]]
        assert overview["stores"][0]["state"] == "running"
        with process("console", "--store", str(store), "--port", "0") as alone:
            found = get(alone["url"], "/api/overview")
            assert (found["brokers"], found["stores"][0]["path"]) == ([], str(store))


@pytest.mark.parametrize("words", [["console"], ["console", "--store", "STORE", "--host", "0.0.0.0", "--port", "0"]])
def test_a_console_without_a_source_or_open_to_others_does_not_start(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "commitlog").mkdir()
    result = CliRunner().invoke(cli, [str(tmp_path) if word == "STORE" else word for word in words])
    assert (result.exit_code, "expected" in result.stderr) == (2, True), result.output


def test_settings_are_checked_shown_and_changed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=48\nfileReservdTime=1\nmaxMesageSize=1\nsendMessageThreadPoolNums=4\n")
    checked = CliRunner().invoke(cli, ["config", "check", str(file), "--json"])
    reported = json.loads(checked.stdout)
    assert (checked.exit_code, reported["settings"], reported["ignored"]) == (
        1, {"fileReservedTime": "48"}, ["sendMessageThreadPoolNums"],
    )  # fmt: skip
    assert ["fileReservedTime" in each for each in reported["misspelled"]] == [True]
    assert ["maxMessageSize" in each for each in reported["unknown"]] == [True]
    file.write_text("fileReservedTime=48\nstorePathRootDir=/data\nmessageDelayLevel=1s\n")
    assert CliRunner().invoke(cli, ["config", "check", str(file)]).stdout == f"{file}: 3 settings\n"
    file.write_text("fileReservedTime=soon\n")
    assert "fileReservedTime" in CliRunner().invoke(cli, ["config", "check", str(file)]).stderr
    with shell(tmp_path) as at:
        assert at.json("config", "show", "--search", "fileReserved")["brokers"] == {
            "broker-a": {"fileReservedTime": "72"}
        }
        assert "fileReservedTime=48" in at.lines("config", "set", "fileReservedTime", "48")[0]
        assert at.lines("config", "show", "--search", "fileReserved") == ["# broker-a", "fileReservedTime=48"]
        assert "cannot be changed" in at.run("config", "set", "storePathRootDir", "/x", code=1).stderr


def test_a_log_can_be_json_lines_with_a_level_for_each_module(tmp_path: Path) -> None:
    code = (
        "import logging\nfrom tiermq.cli.server_log import start_log\n"
        "start_log(['ERROR', 'tiermq.tier=DEBUG'], 'json')\n"
        "logging.getLogger('tiermq.tier.x').debug('uploaded %d', 3)\nlogging.getLogger('other').warning('hidden')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [line] = done.stderr.splitlines()
    reported = json.loads(line)
    assert (reported["level"], reported["logger"], reported["message"]) == ("DEBUG", "tiermq.tier.x", "uploaded 3")
    assert reported["time"].endswith("+00:00")
    bad = CliRunner().invoke(cli, ["namesrv", "--log-level", "LOUD"])
    assert (bad.exit_code, "expected one of DEBUG" in bad.output) == (2, True)


@pytest.fixture
def levels_as_they_were() -> Iterator[None]:
    """Levels are the process's: the tests after this one read lines of INFO."""
    yield
    change_log_levels("")


@pytest.mark.usefixtures("levels_as_they_were")
def test_levels_of_modules_change_while_a_broker_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tiermq.tier.somewhere")
    with shell(tmp_path) as at:
        assert not log.isEnabledFor(logging.DEBUG)
        at.run("config", "set", "logLevels", "tiermq.tier=DEBUG")
        assert log.isEnabledFor(logging.DEBUG)
        log.debug("now it is")
        assert "now it is" in caplog.text
        assert at.lines("config", "show", "--search", "logLevels")[1] == "logLevels=tiermq.tier=DEBUG"
        assert "expected one of DEBUG" in at.run("config", "set", "logLevels", "tiermq.tier=LOUD", code=1).stderr
        at.run("config", "set", "logLevels", "tiermq.broker=ERROR")
        assert not log.isEnabledFor(logging.DEBUG), "a change takes back the one before"
        assert not logging.getLogger("tiermq.broker.x").isEnabledFor(logging.WARNING)
        at.run("config", "set", "logLevels", "tiermq=WARNING")
        assert not logging.getLogger("tiermq.broker.x").isEnabledFor(logging.INFO)


def test_lines_of_the_log_have_the_distance_from_utc(tmp_path: Path) -> None:
    code = (
        "import logging\nfrom tiermq.cli.server_log import start_log\nstart_log([], 'text')\n"
        "logging.getLogger('x').warning('here')\n"
    )
    environment = {**os.environ, "TZ": "Asia/Kolkata"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+05:30 WARNING x: here\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tiermq topic show or", ["orders", "orders-late"]), ("tiermq produce or", ["orders", "orders-late"]),
        ("tiermq consume pay", ["payments"]), ("tiermq query pay", ["payments"]),
        ("tiermq consume payments --group aud", ["audit"]), ("tiermq delayed cancel pay", ["payments"]),
        ("tiermq delayed ls --topic pay", ["payments"]),
        ("tiermq dlq ls audit --topic or", ["orders", "orders-late"]),
        ("tiermq sql --store {store} --topic or", ["orders", "orders-late"]),
        ("tiermq tier verify {tier} --topic or", ["orders"]), ("tiermq tier ls {tier} --topic nothing", []),
        ("tiermq dlq ls aud", ["audit"]), ("tiermq dlq resend aud", ["audit"]), ("tiermq group show aud", ["audit"]),
    ],
)  # fmt: skip
def test_names_are_completed_where_a_command_takes_one(completing: Shell, words: str, found: list[str]) -> None:
    words = words.format(
        store=completing.broker.directory, tier=f"file://{Path(completing.broker.directory).parent}/tier"
    )
    count = str(len(words.split()) - 1)
    asked = {"_TIERMQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    done = CliRunner().invoke(cli, [], prog_name="tiermq", env={**completing.environment, **asked})
    assert done.stdout.split() == [f"plain,{name}" for name in found], done.output


def test_a_shell_completes_names_of_topics_and_groups(tmp_path: Path) -> None:
    script = CliRunner().invoke(cli, ["completion", "bash"])
    assert (script.exit_code, "_TIERMQ_COMPLETE" in script.stdout) == (0, True)
    with shell(tmp_path) as at:
        for name in ("orders", "orders-late", "payments"):
            at.broker.create_topic(name)
        environment = {
            **os.environ, **at.environment, "_TIERMQ_COMPLETE": "bash_complete", "COMP_WORDS": "tiermq topic show or",
            "COMP_CWORD": "3",
        }  # fmt: skip
        words = [sys.executable, "-c", "from tiermq.cli.main import cli; cli(prog_name='tiermq')"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["plain,orders", "plain,orders-late"], done.stderr


@pytest.mark.parametrize("words", [["status"], ["topic", "list"], ["console", "--port", "0"]], ids=" ".join)
@pytest.mark.parametrize("exists", [True, False], ids=["empty", "nowhere"])
@pytest.mark.parametrize("as_path", [True, False], ids=["path", "url"])
def test_a_tier_without_history_is_refused_as_tier_stat_does(
    tmp_path: Path, words: list[str], exists: bool, as_path: bool
) -> None:
    tier = tmp_path / "typo"
    if exists:
        tier.mkdir()
    found = subprocess.run(
        [sys.executable, "-m", "tiermq.cli", *words, "--tier", str(tier) if as_path else tier.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode != 0
    assert f"{tier.as_uri()}: expected a tier, found no message history there; check the address" in found.stderr
    assert found.stdout == ""
    assert tier.exists() == exists


def test_a_tier_may_be_a_directory(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path / "s", tier=tmp_path / "t") as store:
        store.put(Message("orders", b"coffee"))
    found = CliRunner().invoke(cli, ["topic", "list", "--tier", str(tmp_path / "t"), "--json"])
    assert [row["topic"] for row in json.loads(found.output)["topics"]] == ["orders"]

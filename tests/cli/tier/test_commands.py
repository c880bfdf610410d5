"""`tiermq tier ls | stat | cat | verify | orphans`: what is printed, and with which exit code."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from small_store import SIZES
from tiermq import Message
from tiermq.cli.conventions import EXIT_NO_TIER
from tiermq.cli.main import cli
from tiermq.cli.terminal import size_words
from tiermq.cli.tier.options import broker_metadata, metadata_path, new_metadata, opened
from tiermq.errors import StoreError, TierUnavailable
from tiermq.pipeline.offload.job import offload
from tiermq.store.local_store import LocalStore
from tiermq.tier.tiered_store import TieredStore

GOLDEN = Path(__file__).parents[2] / "golden" / "rocketmq-5.3.3-tier"
URL = (GOLDEN / "tier").as_uri()


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["tier", *words])


def values(*words: str) -> Any:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def damaged(tmp_path: Path) -> Path:
    tier = Path(shutil.copytree(GOLDEN / "tier", tmp_path / "tier"))
    log = tier / "212d6b50_DefaultCluster" / "broker-a" / "later" / "0" / "COMMIT_LOG" / "cfcd208400000000000000000000"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    return tier


def test_ls_shows_queues_with_offsets_and_segments() -> None:
    result = run("ls", URL, "--segments")
    assert result.exit_code == 0
    assert "payments" in result.output
    assert "rmq_sys_INDEX" in result.output
    found = values("ls", URL, "--topic", "orders", "--json")
    assert [(q["queueId"], q["minOffset"], q["maxOffset"]) for q in found["queues"]] == [
        (0, 12, 29),
        (1, 0, 20),
        (2, 0, 18),
    ]
    assert {segment["type"] for queue in found["queues"] for segment in queue["segments"]} == {
        "COMMIT_LOG",
        "CONSUME_QUEUE",
    }


def on_a_terminal(columns: int, *words: str) -> list[str]:
    """The lines that a command writes to a terminal of this width."""
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "tiermq.cli", "tier", *words]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(terminal)
        written = b""
        with contextlib.suppress(OSError):  # EIO: no process has the terminal open any more.
            while data := os.read(main, 65_536):
                written += data
        os.close(main)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).splitlines()


def test_ls_on_a_terminal_of_80_columns_has_one_line_for_each_queue() -> None:
    rows = [(each["topic"], str(each["queueId"])) for each in values("ls", URL, "--json")["queues"]]
    lines = on_a_terminal(80, "ls", URL)
    assert max(map(len, lines)) <= 80
    assert [tuple(line.split()[:2]) for line in lines[1 : 1 + len(rows)]] == rows
    assert lines[0].split() == ["topic", "queue", "from", "to", "size", "oldest", "(UTC)", "newest", "(UTC)"]
    (last,) = (line for line in lines if line.split()[:2] == ["orders", "0"])
    assert re.fullmatch(r"orders +0 +12 +29 +[0-9.]+ k?B( +20\d\d-\d\d-\d\d \d\d:\d\d){2} *", last)
    wide = on_a_terminal(200, "ls", URL)
    assert "messages" in wide[0]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB")]
)
def test_a_size_in_words_has_at_most_eight_characters(size: int, text: str) -> None:
    assert size_words(size) == text
    assert len(size_words(10**17)) <= 8


def test_stat_adds_everything_up() -> None:
    result = run("stat", URL)
    assert result.exit_code == 0
    assert "116 in 5 queues of 3 topics" in result.output
    found = values("stat", URL, "--json")
    assert (found["messages"], found["size"]) == (116, 165_570)
    assert found["brokers"] == [{"cluster": "DefaultCluster", "broker": "broker-a"}]
    assert found["size"] == found["commitLogSize"] + found["consumeQueueSize"] + found["indexSize"]


def test_cat_prints_messages_as_json_lines() -> None:
    result = run("cat", URL, "--topic", "orders", "--queue", "0", "--offset", "20", "--count", "3")
    assert result.exit_code == 0
    assert [json.loads(line)["queueOffset"] for line in result.output.splitlines()] == [20, 21, 22]
    assert len(run("cat", URL, "--topic", "orders").output.splitlines()) == 55


def test_cat_says_what_there_is_instead_of_a_queue_or_a_topic_that_is_not() -> None:
    for words in (("--queue", "9"), ("--queue", "9", "--key", "key-10")):
        result = run("cat", URL, "--topic", "orders", *words)
        assert result.exit_code == EXIT_NO_TIER
        assert "expected queue 9 of topic 'orders', found none; it has queues 0, 1, 2" in result.stderr
    for more in ([], ["--queue", "0"]):
        result = run("cat", URL, "--topic", "nope", *more)
        assert result.exit_code == EXIT_NO_TIER
        assert "expected topic 'nope', found none of that name; there are later, orders, payments" in result.stderr


def test_a_damaged_manifest_is_named_once_and_one_thing_is_not_many(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with TieredStore.open(tmp_path / "store", tier=tier.as_uri(), broker_name="broker-a", **SIZES) as store:
        assert store.put(Message("orders", b"body")).ok
        assert store.flush_to_tier(60)
    assert "1 in 1 queue of 1 topic\n" in run("stat", tier.as_uri()).stdout
    [manifest] = [path for path in tier.rglob("*.json") if "/orders/" in str(path)]
    manifest.write_bytes(b"{" + manifest.read_bytes()[2:])
    for command in ("ls", "verify"):
        lines = [line for line in run(command, tier.as_uri()).stdout.splitlines() if manifest.name in line]
        assert [line.count(manifest.name) for line in lines] == [1]


def test_ls_names_brokers_where_there_are_several(tmp_path: Path) -> None:
    url = (tmp_path / "tier").as_uri()
    for name in ("broker-a", "broker-b"):
        with TieredStore.open(tmp_path / name, tier=url, broker_name=name, **SIZES) as store:
            assert store.put(Message("orders", b"body")).ok
            assert store.flush_to_tier(60)
        rows = [line for line in run("ls", url).stdout.splitlines() if "orders" in line]
        if name == "broker-a":
            assert "broker" not in run("ls", url).stdout
    assert ["broker-a" in rows[0], "broker-b" in rows[1]] == [True, True]


def test_cat_finds_messages_by_key_and_by_unique_id() -> None:
    by_key = [json.loads(line) for line in run("cat", URL, "--topic", "orders", "--key", "key-10").stdout.splitlines()]
    assert by_key
    assert all("key-10" in message["properties"]["KEYS"].split() for message in by_key)
    unique = by_key[0]["properties"]["UNIQ_KEY"]
    (found,) = run(
        "cat", URL, "--topic", "orders", "--key", unique, "--queue", str(by_key[0]["queueId"])
    ).stdout.splitlines()
    assert json.loads(found) == by_key[0]


def test_cat_prints_damage_as_a_line_and_exits_with_1(tmp_path: Path) -> None:
    result = run("cat", damaged(tmp_path).as_uri(), "--topic", "later", "--queue", "0")
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert "error" in lines[0]
    assert [line["queueOffset"] for line in lines] == list(range(6))


def test_cat_names_the_block_that_is_not_what_was_written(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with TieredStore.open(tmp_path / "store", tier=tier.as_uri(), broker_name="broker-a", **SIZES) as store:
        for number in range(4):
            assert store.put(Message("orders", b"body %d" % number)).ok
        assert store.flush_to_tier(60)
    [log] = [path for path in tier.rglob("orders/0/COMMIT_LOG/*") if path.is_file()]
    data = bytearray(log.read_bytes())
    data[data.index(b"body 2")] ^= 1
    log.write_bytes(data)
    result = run("cat", tier.as_uri(), "--topic", "orders", "--queue", "0")
    assert result.exit_code == 1
    errors = [json.loads(line)["error"] for line in result.stdout.splitlines()]
    assert len(errors) == 4
    assert all(f"its block of {len(data)} bytes at 0 is not what was written" in error for error in errors)


@pytest.mark.parametrize("words", [("--topic", "orders", "--queue", "7"), ("--topic", "refunds")])
def test_cat_of_a_queue_that_is_not_there_exits_with_2(words: tuple[str, ...]) -> None:
    result = run("cat", URL, *words)
    assert result.exit_code == 2
    assert "found none" in result.output


def test_a_sound_tier_verifies_with_exit_code_0() -> None:
    result = run("verify", URL)
    assert result.exit_code == 0
    assert "clean" in result.output
    assert values("verify", URL, "--json", "--no-index")["counts"]["indexFiles"] == 0


def test_problems_of_a_tier_are_listed_with_exit_code_1(tmp_path: Path) -> None:
    url = damaged(tmp_path).as_uri()
    result = run("verify", url)
    assert result.exit_code == 1
    assert "damaged_record" in result.output
    assert "queue offset 0, log offset 0" in result.output
    found = json.loads(run("verify", url, "--json", "--topic", "later").output)
    assert (found["clean"], found["problemCount"]) == (False, 1)
    assert run("verify", url, "--topic", "orders").exit_code == 0


@pytest.mark.parametrize("command", ["ls", "stat", "verify", "orphans"])
@pytest.mark.parametrize("url", ["ftp://somewhere", "s3://", "file://relative"])
def test_a_url_that_is_none_exits_with_2_and_says_what_is_one(command: str, url: str) -> None:
    result = run(command, url)
    assert result.exit_code == 2
    assert "expected" in result.output


def test_a_tier_that_cannot_be_reached_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "tier").write_bytes(b"no directory")
    result = run("cat", (tmp_path / "tier").as_uri(), "--topic", "x")
    assert result.exit_code == 2


@pytest.mark.parametrize("command", ["stat", "ls", "verify"])
@pytest.mark.parametrize("exists", [True, False], ids=["empty", "nowhere"])
def test_where_there_is_no_tier_that_is_said_with_exit_code_1(tmp_path: Path, command: str, exists: bool) -> None:
    if exists:
        (tmp_path / "tier").mkdir()
    url = (tmp_path / "tier").as_uri()
    result = run(command, url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{url}: expected a tier, found no message history there" in result.stderr
    in_json = run(command, url, "--json")
    assert in_json.exit_code == 1
    assert json.loads(in_json.stdout)
    assert (tmp_path / "tier").exists() == exists


def test_a_broker_that_the_tier_does_not_have_is_named() -> None:
    result = run("stat", URL, "--broker", "broker-z")
    assert result.exit_code == 1
    assert "expected history of */broker-z, found no message history" in result.stderr


def test_a_look_up_by_key_says_that_the_tier_may_not_have_every_key(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "s") as store:
        store.put(Message("orders", b"x", 0, keys=["order-42"]))
    tier = (tmp_path / "t").as_uri()
    offload([f"{tmp_path / 's'}=c/b"], tier, index="later")
    lacking = run("cat", tier, "--topic", "orders", "--key", "order-42")
    assert (lacking.exit_code, lacking.stdout) == (0, "")
    assert "not known to hold every key of b orders-0" in lacking.stderr
    assert f"tiermq pipeline reindex {tier}" in lacking.stderr
    offload([f"{tmp_path / 's'}=c/b"], tier)
    found = run("cat", tier, "--topic", "orders", "--key", "order-42")
    assert (found.exit_code, found.stderr) == (0, "")
    assert json.loads(found.stdout)["queueOffset"] == 0
    with LocalStore.open(tmp_path / "s") as store:
        store.put(Message("orders", b"y", 0))
    offload([f"{tmp_path / 's'}=c/b"], tier, index="later")
    assert "not known to hold every key" in run("cat", tier, "--topic", "orders", "--key", "order-42").stderr


def test_a_look_up_by_key_in_damaged_history_is_an_error(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "s", **SIZES) as store:
        store.put_many(Message("orders", b"x", number % 2, keys=[f"order-{number:02}"]) for number in range(20))
    tier = (tmp_path / "t").as_uri()
    offload([f"{tmp_path / 's'}=c/b"], tier)
    segment = next(path for path in tmp_path.glob("t/**/0/COMMIT_LOG/*") if path.is_file())
    segment.write_bytes(segment.read_bytes().replace(b"order-10", b"XXXXX-10"))
    for key in ("order-10", "order-12"):  # The second is intact, and which record of the block is not is unknown.
        result = run("cat", tier, "--topic", "orders", "--key", key)
        assert result.exit_code == 1
        line = json.loads(result.stdout)
        assert (line["topic"], line["queueId"]) == ("orders", 0)
        assert "is not what was written" in line["error"]
        assert "tiermq tier repair" in line["error"]
    intact = run("cat", tier, "--topic", "orders", "--key", "order-11")
    assert (intact.exit_code, json.loads(intact.stdout)["properties"]["KEYS"]) == (0, "order-11")


def test_a_store_that_knows_of_no_tier_is_refused(tmp_path: Path) -> None:
    result = run("verify", URL, "--store", str(tmp_path))
    assert result.exit_code == 2
    assert "`restore` creates it" in result.output


def test_orphans_are_found_and_go_only_when_asked_to(tmp_path: Path) -> None:
    tier = Path(shutil.copytree(GOLDEN / "tier", tmp_path / "tier"))
    url, store = tier.as_uri(), str(tmp_path / "store")
    assert run("import", url, "--metadata", str(GOLDEN / "tieredStoreMetadata.json"), "--store", store).exit_code == 0
    words = ("orphans", url, "--store", store, "--broker", "broker-a")
    assert run(*words).exit_code == 0
    root = tier / "212d6b50_DefaultCluster" / "broker-a" / "orders"
    stray = root / "9" / "COMMIT_LOG" / "cfcd208400000000000000000000"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"stray")
    assert run(*words).exit_code == 0  # It is too young.
    os.utime(stray, (1, 1))
    assert run(*words).exit_code == 1
    found = json.loads(run(*words, "--json").output)
    assert [(orphan["kind"], orphan["size"]) for orphan in found["orphans"]] == [("segment", 5)]
    assert stray.exists()
    result = run(*words, "--clean")
    assert (result.exit_code, stray.exists()) == (0, False)
    assert "deleted" in result.output
    assert run("orphans", url, "--store", store).exit_code == 2  # Whose?


def test_every_command_teaches_by_example() -> None:
    group = run("--help").output
    commands = ("ls", "stat", "cat", "verify", "repair", "restore", "import", "export-metadata", "orphans")
    for command in commands:
        assert command in group
        text = run(command, "--help").output
        assert f"tiermq tier {command} " in text
        assert "Exit code" in text
        assert "--json" in text


def test_nothing_of_a_tier_is_changed_by_looking_at_it() -> None:
    before = {path: path.stat().st_mtime_ns for path in GOLDEN.rglob("*")}
    for words in (("ls",), ("stat",), ("cat", "--topic", "orders"), ("verify",), ("orphans",)):
        run(words[0], URL, *words[1:])
    assert {path: path.stat().st_mtime_ns for path in GOLDEN.rglob("*")} == before


def test_cat_behind_the_end_says_where_the_queue_ends() -> None:
    result = run("cat", URL, "--topic", "orders", "--queue", "0", "--offset", "9999")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no message at offset 9999 or later in the tier, which ends" in result.stderr
    assert "Note" not in run("cat", URL, "--topic", "orders", "--queue", "0", "--offset", "20", "--count", "3").stderr


def test_whatever_keeps_a_tier_from_being_read_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, opened("memory://x"):
        raise TierUnavailable("no answer")
    assert ended.value.code == EXIT_NO_TIER
    assert "no answer" in capsys.readouterr().err


def test_what_a_broker_knows_must_be_there_already_and_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="found no such file"), broker_metadata(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    with broker_metadata(None) as nothing:
        assert nothing is None


def test_new_metadata_lies_where_a_broker_looks_for_it(tmp_path: Path) -> None:
    with new_metadata(tmp_path / "store") as made:
        assert made.is_empty()
    assert metadata_path(tmp_path / "store").is_file()
    with broker_metadata(tmp_path / "store") as found:
        assert found is not None

"""Stores, tiers and documents of every version that was ever made are opened, read, written and opened again.

The corpora are in `tests/golden/tiermq-*.tar.xz`; what is promised is in docs/upgrade.md.
"""

from __future__ import annotations

import ast
import json
import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.brokers import send_command
from golden.tiermq_corpus import (
    KINDS,
    SHORT_TERM,
    TIMER_FREE,
    await_master,
    body,
    controlled,
    corpora,
    opened,
    run,
    settings_of,
    status_of,
    tier_of,
)
from interop.controller_set import sync_state
from interop.two_brokers import name_server_config
from servers.serving import Serving
from tiermq import __version__
from tiermq.cli.main import cli
from tiermq.delivery.tiered_timers.timer_object import HEAD
from tiermq.delivery.tiered_timers.timer_object import MAGIC as TIMERS_MAGIC
from tiermq.namesrv.name_server import NameServer
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import ResponseCode
from tiermq.tier.metadata.database import MIGRATIONS
from tiermq.tier.metadata.document import open_document
from waiting import until

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "upgrade.md"
SOURCE = ROOT / "src" / "tiermq"
CORPORA = corpora()
EVERY = pytest.mark.parametrize("corpus", CORPORA, ids=[each.name for each in CORPORA])
STORES = ("posix", "objects", "bundles")
DOCUMENT = re.compile(rb'\{"body":')


WAITED = {"delayed": "delayed messages", "timed": "timers"}
"""Messages that wait in a corpus, and are delivered at some time after it was made; how a drain counts them."""


def all_bodies(name_server: str) -> list[str]:
    return sorted(run(name_server, "consume", "orders", "--bodies", "--from", "first").splitlines())


def bodies(name_server: str) -> list[str]:
    return [each for each in all_bodies(name_server) if each not in WAITED]


def expected(facts: dict[str, Any]) -> list[str]:
    return sorted(body(number) for number in range(facts["messages"]))


def check_all(served: Serving, facts: dict[str, Any], more: list[str]) -> None:
    """Everything of the earlier version is there: messages, keys, the group's offsets."""
    assert bodies(served.name_server) == sorted([*expected(facts), *more])
    found = json.loads(run(served.name_server, "group", "show", "audit", "--json"))
    offsets = {str(each["queueId"]): each["offset"] for each in found["queues"] if each["topic"] == "orders"}
    assert {queue: offsets[queue] for queue in facts["consumed"]} == facts["consumed"]
    shown = run(served.name_server, "query", "orders", "--key", "order-7", "--json")
    assert [json.loads(line)["body"] for line in shown.splitlines()] == [body(7)]


def left_of(served: Serving) -> dict[str, int]:
    """What waits in the broker's own log."""
    words = ["broker", "drain", f"127.0.0.1:{served.port}", "--timeout", "0", "--unread", "--json"]
    result = CliRunner().invoke(cli, words, env={"NAMESRV_ADDR": served.name_server})
    found: dict[str, int] = json.loads(result.stdout)["held"]
    return found


def is_found(served: Serving, name: str, counted: str, count: int) -> bool:
    """Whether so many of those messages wait or are delivered."""
    return left_of(served).get(counted, 0) + all_bodies(served.name_server).count(name) == count


def clean(*words: str) -> None:
    result = CliRunner().invoke(cli, [*words])
    assert result.exit_code == 0, result.output


def test_every_version_has_a_corpus() -> None:
    assert f"tiermq-{__version__}.tar.xz" in [each.name for each in CORPORA]


@EVERY
@pytest.mark.parametrize("kind", STORES)
def test_a_store_and_its_tier_go_on_where_an_earlier_version_ended(tmp_path: Path, corpus: Path, kind: str) -> None:
    facts, tier = opened(corpus, kind, tmp_path), tier_of(tmp_path, kind)
    store = tmp_path / kind / "store"
    clean("store", "check", str(store))
    clean("tier", "verify", tier)
    with Serving(store, "--tier", tier, **settings_of(kind)) as served:
        check_all(served, facts, [])
        run(served.name_server, "produce", "orders", "a new one", "--queue", "2", "--key", "new")
        check_all(served, facts, ["a new one"])
        served.terminate()
        clean("store", "check", str(store))
        clean("tier", "verify", tier)
        served.start()  # What this version wrote into those files.
        check_all(served, facts, ["a new one"])
        waiting = facts.get("waiting", {})
        assert left_of(served).get("open transactions") == waiting.get("open transactions")
        for name, counted in WAITED.items():  # By the day on which this runs it may be due.
            until(partial(is_found, served, name, counted, waiting.get(counted, 0)))
    shown = CliRunner().invoke(cli, ["delayed", "ls", "--tier", tier, "--json"]).stdout.splitlines()
    assert len(shown) == facts.get("tiered_timers", 0)


@EVERY
@pytest.mark.parametrize("kind", STORES)
def test_a_tier_of_an_earlier_version_is_restored_without_its_store(tmp_path: Path, corpus: Path, kind: str) -> None:
    facts, tier = opened(corpus, kind, tmp_path), tier_of(tmp_path, kind)
    store = tmp_path / "restored"
    clean("tier", "restore", tier, "--store", str(store))
    with Serving(store, "--tier", tier, **{**settings_of(kind), **TIMER_FREE}) as served:
        check_all(served, facts, [])


@EVERY
@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS) + 1))
def test_metadata_of_an_earlier_schema_are_taken_over(tmp_path: Path, corpus: Path, schema: int) -> None:
    """A schema that was in the tree before the corpus is made from it: the same rows, without later columns."""
    facts, tier = opened(corpus, "posix", tmp_path), tier_of(tmp_path, "posix")
    store = tmp_path / "posix" / "store"
    downgrade(store / "config" / "tieredStoreMetadata.db", schema)
    with Serving(store, "--tier", tier, **settings_of("posix")) as served:
        check_all(served, facts, [])
    with closing(sqlite3.connect(store / "config" / "tieredStoreMetadata.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    clean("tier", "verify", tier)


def downgrade(path: Path, schema: int) -> None:
    """Write the rows of a database into one of that schema."""
    new = path.with_suffix(".older")
    with closing(sqlite3.connect(new)) as older, closing(sqlite3.connect(path)) as newer:
        for statement in (statement for step in MIGRATIONS[:schema] for statement in step):
            older.execute(statement)
        tables = [name for (name,) in older.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = 0
        for table in tables:
            columns = [row[1] for row in older.execute(f"PRAGMA table_info({table})")]
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            for row in newer.execute(f"SELECT {names} FROM {table}"):
                older.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", row)
                rows += 1
        assert rows > 3
        (mark,) = newer.execute("PRAGMA application_id").fetchone()
        older.execute(f"PRAGMA application_id = {mark}")
        older.execute(f"PRAGMA user_version = {schema}")
        older.commit()
    for left in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        left.unlink(missing_ok=True)
    new.rename(path)


@EVERY
def test_a_replica_of_an_earlier_version_is_elected_again_in_a_later_epoch(tmp_path: Path, corpus: Path) -> None:
    facts, tier = opened(corpus, "standby", tmp_path), tier_of(tmp_path, "standby")
    with NameServer(name_server_config()) as names:
        words = ("--namesrv", f"127.0.0.1:{names.port}", "--standby", "--tier", tier)
        settings = {**settings_of("standby"), **SHORT_TERM}
        with Serving(tmp_path / "standby" / "store", *words, **settings) as served:
            await_master(served)
            assert status_of(served)["epoch"] > facts["epoch"]
            check_all(served, facts, [])
            run(served.name_server, "produce", "orders", "a new one", "--queue", "0")
            check_all(served, facts, ["a new one"])


@EVERY
def test_a_controller_of_an_earlier_version_knows_its_set(tmp_path: Path, corpus: Path) -> None:
    facts = opened(corpus, "controller", tmp_path)
    with controlled(tmp_path / "controller") as (controller, broker):
        until(lambda: sync_state(controller.address)["master"] == facts["master"])
        assert sync_state(controller.address)["epoch"] >= facts["epoch"]
        host, _, port = broker.address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60) as client:
            until(lambda: client.request(send_command("T", b"again")).code == ResponseCode.SUCCESS)


def documents(path: Path) -> dict[str, int]:
    """The highest version of each kind of document of ours below a directory."""
    found: dict[str, int] = {}
    for each in sorted(path.rglob("*")):
        if not each.is_file():
            continue
        version, data = None, each.read_bytes()
        if DOCUMENT.match(data):
            version = json.loads(data)["version"]
            open_document(data, each.name, version)
        elif each.name in ("coverage.tiermq.json", "tiermq.clean"):
            version = json.loads(data)["version"]
        elif data.startswith(TIMERS_MAGIC):
            version = HEAD.unpack_from(data)[1]
        elif each.suffix == ".db":
            with closing(sqlite3.connect(each)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
        if version is not None:
            kind = re.sub(r"[0-9a-f]{8,}|\d+", "n", each.name)
            found[kind] = max(found.get(kind, 0), version)
    return found


NEW_SINCE = {"tiermq-0.1.0-95ed5d70.tar.xz": {"state-offsets-n-n-n.tiermq.json"}}
"""Kinds of documents that a corpus lacks, and that its code ignores, as docs/upgrade.md says of each."""


@EVERY
def test_what_is_written_now_has_kinds_and_versions_that_the_earlier_version_takes(
    tmp_path: Path, corpus: Path
) -> None:
    """A rollback: an older program refuses a document of a higher version than its own."""
    for kind in KINDS:
        opened(corpus, kind, tmp_path)
    before = documents(tmp_path)
    assert {"manifest.tiermq.json", "lease.tiermq.json", "lease-master.tiermq.json", "tiermq.clean"} <= before.keys()
    for kind in STORES:
        with Serving(tmp_path / kind / "store", "--tier", tier_of(tmp_path, kind), **settings_of(kind)) as served:
            run(served.name_server, "produce", "orders", "a new one", "--queue", "2")
            run(served.name_server, "consume", "orders", "--group", "audit", "--queue", "2", "--max", "1", "--quiet")
    after = documents(tmp_path)
    assert {kind: version for kind, version in after.items() if version > before.get(kind, version)} == {}
    assert after.keys() - before.keys() == NEW_SINCE.get(corpus.name, set())


NOT_KEPT = {
    "remoting/codes.py": "the protocol's version, in frames",
    "broker/admin/relay_processor.py": "of Java classes of clients, in frames",
}
"""Modules whose versions are of nothing that is kept, and what they are of."""
_VERSION_NAME = re.compile(r"(\w+_)?(VERSION|FORMAT)(_OF_[A-Z]+)?")


def versions_in_code() -> dict[str, int]:
    """The highest version that each module writes: its constants whose names end in VERSION or FORMAT."""
    found: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for each in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(each, ast.Assign)
                and isinstance(each.value, ast.Constant)
                and type(each.value.value) is int
                and isinstance(each.targets[0], ast.Name)
                and _VERSION_NAME.fullmatch(each.targets[0].id)
            ):
                name = path.relative_to(SOURCE).as_posix()
                found[name] = max(found.get(name, 0), each.value.value)
    return found


def test_the_page_names_every_format_with_the_version_that_is_written() -> None:
    found = versions_in_code()
    assert NOT_KEPT.keys() <= found.keys()
    kept = {name: version for name, version in found.items() if name not in NOT_KEPT}
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\|[^|]+\| (?=\d+ \| `([^`]+)`)(\d+)", text, re.MULTILINE))
    assert {name: int(version) for name, version in rows.items()} == {
        **kept, "tier/metadata/database.py": len(MIGRATIONS),
    }  # fmt: skip


def test_a_document_is_sealed_with_a_version_that_the_page_names() -> None:
    """So that no number stands in the code beside the constants that the test above finds."""
    for path in sorted(SOURCE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "seal_document":
                version = call.args[1]
                if isinstance(version, ast.Constant):
                    assert version.value == 1, f"{path}:{call.lineno}"
                else:
                    assert isinstance(version, ast.Name), f"{path}:{call.lineno}"
                    assert _VERSION_NAME.fullmatch(version.id), f"{path}:{call.lineno}"

"""Stores, tiers and documents of every version that was ever made are opened, read, written and opened again.

The corpora are in `tests/golden/tiermq-*.tar.xz`; what is promised is in docs/upgrade.md.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
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
from tiermq.namesrv.name_server import NameServer
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import ResponseCode
from tiermq.tier.metadata.database import MIGRATIONS
from tiermq.tier.metadata.document import open_document
from waiting import until

PAGE = Path(__file__).resolve().parent.parent / "docs" / "upgrade.md"
CORPORA = corpora()
EVERY = pytest.mark.parametrize("corpus", CORPORA, ids=[each.name for each in CORPORA])
STORES = ("posix", "objects", "bundles")
DOCUMENT = re.compile(rb'\{"body":')


def bodies(name_server: str) -> list[str]:
    return sorted(run(name_server, "consume", "orders", "--bodies", "--from", "first").splitlines())


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
        assert left_of(served) == facts.get("waiting", {})


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
    """The highest version of each kind of sealed document below a directory."""
    found: dict[str, int] = {}
    for each in sorted(path.rglob("*")):
        if each.is_file() and DOCUMENT.match(data := each.read_bytes()):
            version = json.loads(data)["version"]
            open_document(data, each.name, version)
            kind = re.sub(r"[0-9a-f]{8,}|\d+", "n", each.name)
            found[kind] = max(found.get(kind, 0), version)
    return found


@EVERY
def test_what_is_written_now_has_versions_that_the_earlier_version_takes(tmp_path: Path, corpus: Path) -> None:
    """A rollback: an older program refuses a document of a higher version than its own."""
    for kind in KINDS:
        opened(corpus, kind, tmp_path)
    before = documents(tmp_path)
    assert {"manifest.tiermq.json", "lease.tiermq.json", "lease-master.tiermq.json"} <= before.keys()
    for kind in STORES:
        with Serving(tmp_path / kind / "store", "--tier", tier_of(tmp_path, kind), **settings_of(kind)) as served:
            run(served.name_server, "produce", "orders", "a new one", "--queue", "2")
    after = documents(tmp_path)
    assert {kind: version for kind, version in after.items() if version > before.get(kind, version)} == {}


def test_the_page_names_every_format_with_the_version_that_is_written() -> None:
    from tiermq.controller.set_store import SET_VERSION
    from tiermq.replication.master_lease import VERSION as MASTER_LEASE_VERSION
    from tiermq.store.checkpoint import CLEAN_MARKER_VERSION
    from tiermq.tier.driver.bundle import DIRECTORY_VERSION
    from tiermq.tier.metadata.broker_lease import LEASE_VERSION
    from tiermq.tier.metadata.broker_state import STATE_VERSION
    from tiermq.tier.metadata.manifest import MANIFEST_VERSION
    from tiermq.tier.metadata.manifest_changes import CHANGES_VERSION
    from tiermq.tier.verify.verification_record import RUNS_VERSION

    rows = dict(re.findall(r"^\| `([^`]+)`[^|]*\| (\d+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name: int(version) for name, version in rows.items()} == {
        "manifest.tiermq.json": MANIFEST_VERSION,
        "lease.tiermq.json": LEASE_VERSION,
        "lease-master.tiermq.json": MASTER_LEASE_VERSION,
        "state-….tiermq.json": STATE_VERSION,
        "changes.tiermq.json": CHANGES_VERSION,
        "verification.tiermq.json": RUNS_VERSION,
        "bundles.tiermq/": DIRECTORY_VERSION,
        "config/tieredStoreMetadata.db": len(MIGRATIONS),
        "tiermq.clean": CLEAN_MARKER_VERSION,
        "controller": SET_VERSION,
    }

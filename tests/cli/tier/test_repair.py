"""`tiermq tier repair`: from a broker's own directory, dry or not, with the exit codes that it promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scenarios.broker_world import SETTINGS
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.tier.tiered_store import TieredStore

COUNT = 60


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["tier", *words])


def broker(path: Path, url: str) -> None:
    """A broker that wrote some messages, tiered them, and was stopped."""
    with TieredStore.open(path, background=False, **{**SETTINGS, "tier_url": url, "broker_name": "broker-a"}) as store:
        for number in range(COUNT):
            message = Message("orders", b"body %d" % number, queue_id=number % 2, keys=f"k{number}", tags="t")
            assert store.put(message).ok
        assert store.flush_to_tier()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    broker(tmp_path / "store", (tmp_path / "tier").as_uri())
    return tmp_path / "store"


def segment(tmp_path: Path, kind: str, queue_id: int = 0) -> Path:
    (found,) = (p for p in (tmp_path / "tier").glob(f"*/broker-a/orders/{queue_id}/{kind}/*") if len(p.name) == 28)
    return found


def flip(path: Path, at: int) -> bytes:
    before = path.read_bytes()
    data = bytearray(before)
    data[at] ^= 1
    path.write_bytes(data)
    return before


def test_a_damaged_record_comes_back_from_the_brokers_own_store(store: Path, tmp_path: Path) -> None:
    url, log = (tmp_path / "tier").as_uri(), segment(tmp_path, "COMMIT_LOG")
    before = flip(log, 100)
    assert run("verify", url).exit_code == 1
    dry = run("repair", url, "--store", str(store), "--dry-run")
    assert (dry.exit_code, "planned" in dry.output, "nothing was changed" in dry.output) == (1, True, True)
    assert log.read_bytes() != before
    done = run("repair", url, "--store", str(store))
    assert done.exit_code == 0, done.output
    assert log.read_bytes() == before
    (kept,) = log.parent.glob("*.damaged-*")
    assert kept.read_bytes() != before
    assert run("verify", url, "--store", str(store)).exit_code == 0
    assert "nothing to repair" in run("repair", url, "--store", str(store)).output


def test_lost_files_come_back_and_the_broker_goes_on(store: Path, tmp_path: Path) -> None:
    url = (tmp_path / "tier").as_uri()
    paths = [segment(tmp_path, "COMMIT_LOG"), segment(tmp_path, "CONSUME_QUEUE"), segment(tmp_path, "CONSUME_QUEUE", 1)]
    before = [path.read_bytes() for path in paths]
    for path in paths[::2]:
        path.unlink()
    found: dict[str, Any] = json.loads(run("repair", url, "--store", str(store), "--json").output)
    assert (found["complete"], found["problemsAfter"]) == (True, 0), found
    assert [path.read_bytes() for path in paths] == before
    broker(store, url)
    report = json.loads(run("verify", url, "--store", str(store), "--json").output)
    assert (report["problems"], report["counts"]["records"]) == ([], 2 * COUNT)


def test_what_no_store_has_is_said_and_the_exit_code_is_1(store: Path, tmp_path: Path) -> None:
    url = (tmp_path / "tier").as_uri()
    flip(segment(tmp_path, "COMMIT_LOG"), 100)
    result = run("repair", url)
    assert result.exit_code == 1
    assert "not possible: messages 0 to 1 at log offset 0 are lost: no local store was given" in result.output
    shutil.rmtree(store / "commitlog")
    shutil.rmtree(store / "consumequeue")
    assert run("repair", url, "--store", str(store)).exit_code == 1


def test_a_tier_that_is_in_order_is_left_alone(store: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tier").rglob("*")}
    assert run("repair", (tmp_path / "tier").as_uri(), "--store", str(store)).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tier").rglob("*")} == before


def test_a_broker_at_work_is_named_with_exit_code_2(store: Path, tmp_path: Path) -> None:
    url = (tmp_path / "tier").as_uri()
    flip(segment(tmp_path, "CONSUME_QUEUE"), 10)
    settings = {**SETTINGS, "tier_url": url, "broker_name": "broker-a"}
    with TieredStore.open(store, background=False, **settings) as working:
        assert working.put(Message("orders", b"more", queue_id=1)).ok
        working.flush_to_tier()
        result = run("repair", url)
    assert result.exit_code == 2
    assert "holds it" in result.output

"""`tiermq pipeline offload`, as somebody types it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tiermq import Message
from tiermq.cli.main import cli
from tiermq.cli.pipeline.offload import seconds_of, settings_of_file
from tiermq.errors import BadConfig
from tiermq.testing import LocalBroker
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata import database
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.queue.segments import list_brokers
from tiermq.tier.tiered_store import TieredStore


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["pipeline", "offload", *map(str, words)])


def report_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_dry_run_then_a_run_then_nothing_left(store: Path, tmp_path: Path) -> None:
    words = ("--store", f"{store}=c/b", "--tier", (tmp_path / "t").as_uri(), "--master", "here", "--json")
    assert report_of(run(*words, "--dry-run"))["planned"]["messages"] == 30
    assert not (tmp_path / "t").exists()
    assert report_of(run(*words, "--once"))["done"]["messages"] == 30
    assert report_of(run(*words))["done"]["messages"] == 0


def test_the_report_for_eyes_names_what_was_done(store: Path, tmp_path: Path) -> None:
    tier = (tmp_path / "t").as_uri()
    looked = run("--store", f"{store}=prod/b1", "--tier", tier, "--dry-run")
    assert f"{store} orders-0: 15 messages" in looked.output
    done = run("--store", f"{store}=prod/b1", "--tier", tier, "--master", "here")
    assert f"{store} as prod/b1: copied 30 messages of 2 queues" in done.output
    again = run("--store", store, "--tier", tier, "--master", "here")
    assert f"{store} as prod/b1: nothing new" in again.output


def test_a_store_that_a_broker_of_another_machine_has_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, store = (tmp_path / "t").as_uri(), tmp_path / "store"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(database, "this_machine", lambda: "another-boot vm-2")
        broker = LocalBroker(store, tier=tier, tier_dispatch_enable=False)
        broker.start()
    words = ("--store", f"{store}=DefaultCluster/broker-a", "--tier", tier, "--master", "here", "--json")
    try:
        broker.send("orders", b"x")
        broker.broker.parts.local.flush()
        for more in ((), ("--dry-run",), ("--forget-tier",)):
            refused = run(*words, *more)
            assert refused.exit_code == 1
            assert "found that those of vm-2 have. SQLite's files must not be open on two machines" in refused.output
        assert list_brokers(open_driver(tier), "DefaultCluster") == []
    finally:
        broker.stop()
    assert report_of(run(*words))["done"]["messages"] == 1


def test_a_store_that_does_not_know_its_broker_is_refused_until_it_is_named(store: Path, tmp_path: Path) -> None:
    words = ("--store", store, "--tier", (tmp_path / "t").as_uri(), "--master", "here")
    for more in ((), ("--dry-run",)):
        refused = run(*words, *more)
        assert refused.exit_code != 0
        assert f"--store {store}=DefaultCluster/BROKERNAME" in refused.output
    assert not (tmp_path / "t").exists()
    settings = tmp_path / "broker.conf"
    settings.write_text("brokerName=b1\n")
    done = run(*words, "--config", settings)
    assert f"{store} as DefaultCluster/b1: copied 30 messages of 2 queues" in done.output


@pytest.mark.parametrize("dispatch", [True, False])
def test_a_store_is_copied_under_the_names_of_the_broker_that_has_it(tmp_path: Path, dispatch: bool) -> None:
    tier, root = (tmp_path / "t").as_uri(), tmp_path / "s"
    names: dict[str, Any] = {"broker_cluster_name": "prod", "broker_name": "j1", "tier_dispatch_enable": dispatch}
    with TieredStore.open(root, tier=tier, background=False, **names) as live:
        if dispatch:
            live.close()
        else:
            live.local.put(Message("orders", b"x"))
            live.local.dispatch_now()
        done = report_of(run("--store", root, "--tier", tier, "--master", "here", "--json"))
    assert [(row["cluster"], row["broker"]) for row in done["details"]["stores"]] == [("prod", "j1")]
    assert done["done"]["messages"] == (not dispatch)


def test_a_dead_lease_holder_is_ended_by_the_command_that_the_error_names(store: Path, tmp_path: Path) -> None:
    tier = (tmp_path / "t").as_uri()
    BrokerLease(open_driver(tier), "prod", "b1", "another machine").acquire()
    words = ("--store", f"{store}=prod/b1", "--tier", tier, "--master", "here", "--recover")
    refused = run(*words)
    assert refused.exit_code != 0
    assert "another machine" in refused.output
    command = re.search("`tiermq (tier takeover [^`]+)`", refused.output)
    assert command is not None, refused.output
    asked = CliRunner().invoke(cli, shlex.split(command[1]), input="n\n")
    assert (asked.exit_code, "holder    another machine" in asked.output) == (1, True), asked.output
    assert run(*words).exit_code != 0
    ended = CliRunner().invoke(cli, shlex.split(command[1]), input="y\n")
    assert ended.exit_code == 0, ended.output
    assert "30 messages of 2 queues" in run(*words).output


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--store", "nowhere", "--tier", "file:///tmp/x"], "expected a store directory"),
        (["--store", "a=b", "--tier", "file:///tmp/x"], "DIR=cluster/broker"),
        (["--store", "a=c/b", "--tier", "ftp://x"], "ftp"),
        (["--store", "a", "--tier", "file:///tmp/x", "--trigger", "soon"], "a time such as 20s"),
        (["--store", "a", "--tier", "file:///tmp/x", "--trigger", "2s", "--once"], "exclude each other"),
        (["--store", "a", "--tier", "file:///tmp/x", "--index", "never"], "'now', 'small', 'later'"),
        (["--tier", "file:///tmp/x"], "--store"),
    ],
)
def test_bad_input_is_reported_in_words(words: list[str], reported: str) -> None:
    result = run(*words, "--master", "here")
    assert result.exit_code != 0
    assert reported in result.output
    assert "Traceback" not in result.output


def test_a_crashed_store_is_refused_and_recovered_when_asked(store: Path, tmp_path: Path) -> None:
    (store / "abort").write_bytes(b"1")
    words = ("--store", f"{store}=c/b", "--tier", (tmp_path / "t").as_uri(), "--master", "here")
    refused = run(*words)
    assert refused.exit_code == 1
    assert "--recover" in refused.output
    assert report_of(run(*words, "--recover", "--json"))["done"]["messages"] == 30


def test_times_are_read_with_their_units() -> None:
    assert [seconds_of(text) for text in ("20s", "500ms", "1.5m", "2 h")] == [20, 0.5, 90, 7_200]
    for text in ("20", "0s", "s", "-1s"):
        with pytest.raises(BadConfig):
            seconds_of(text)


def test_settings_of_a_broker_are_taken_from_its_file_but_not_its_place(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=x\ntieredStoreCommitLogMaxSize=5000\n")
    (tmp_path / "b.toml").write_text("[tier]\ntiered_store_commit_log_max_size = 6000\n")
    assert settings_of_file(str(tmp_path / "broker.conf")) == {"tiered_store_commit_log_max_size": 5_000}
    assert settings_of_file(str(tmp_path / "b.toml")) == {"tiered_store_commit_log_max_size": 6_000}
    assert settings_of_file(None) == {}


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_follows_a_store_ends_in_order_when_it_is_asked_to(
    store: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "tiermq.cli", "pipeline", "offload", "--store", f"{store}=c/b", "--json"]
    command += ["--tier", (tmp_path / "t").as_uri(), "--master", "here", "--trigger", "100ms"]
    settings = tmp_path / "b.conf"
    settings.write_text("tieredStoreGroupCommit=false\n")
    job = subprocess.Popen([*command, "--config", str(settings)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list((tmp_path / "t").rglob("COMMIT_LOG/*")):
        assert job.poll() is None
        time.sleep(0.01)
    os.kill(job.pid, number)
    out, reported = job.communicate()
    assert job.returncode == 0, reported
    assert json.loads(out)["problems"] == []
    assert b"stopping after this wave" in reported


def test_another_tier_than_the_one_that_the_store_was_copied_to_is_refused_in_words(
    store: Path, tmp_path: Path
) -> None:
    words = ("--store", f"{store}=c/b", "--master", "here", "--json")
    first, second = (tmp_path / "t").as_uri(), (tmp_path / "other").as_uri()
    assert report_of(run(*words, "--tier", first))["done"]["messages"] == 30
    for more in ((), ("--dry-run",)):
        refused = run(*words, "--tier", second, *more)
        assert refused.exit_code != 0
        assert f"{second}: expected the history that {store} recorded there" in refused.output
        assert "--forget-tier" in refused.output
    assert not (tmp_path / "other").exists()
    assert report_of(run(*words, "--tier", first))["done"]["messages"] == 0
    assert report_of(run(*words, "--tier", second, "--forget-tier", "--dry-run"))["planned"]["messages"] == 30
    done = report_of(run(*words, "--tier", second, "--forget-tier"))
    assert done["done"]["messages"] == 30
    assert "put away what it knew of a tier" in done["details"]["notes"][0]
    assert report_of(run(*words, "--tier", second, "--forget-tier"))["done"]["messages"] == 0

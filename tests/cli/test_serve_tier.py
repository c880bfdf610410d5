"""`tiermq serve` with a tier that refuses, or that does not answer: at the start, in /ready, and in the log."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import SMALL
from cli.test_serve_command import FREE, SMALL_FILE
from servers.preloaded import Preloaded
from servers.seaweedfs import GUEST_SECRET_KEY, SeaweedFS, missing
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.cli.server_process import TierTroubleFilter
from tiermq.errors import TierCredentials, TierUnavailable

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")


def serve(home: Path, environment: dict[str, str], *words: str) -> Preloaded:
    config = home / "small.toml"
    config.write_text(SMALL_FILE)
    command = ["serve", str(home / "store"), "-c", str(config), *FREE, "--json", "--metrics-port", "0", *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return Preloaded(command, stderr=subprocess.PIPE, environment=kept | environment)


def answered(address: str, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}") as page:
            return page.status, json.load(page)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("bucket", "changed", "word"),
    [
        ("nowhere", {}, "expected this bucket to exist"),
        ("history", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ("history", {"AWS_ACCESS_KEY_ID": "stranger"}, "found a refusal"),
    ],
)
def test_a_tier_that_refuses_ends_the_start_in_words(
    tmp_path: Path, seaweedfs: SeaweedFS, bucket: str, changed: dict[str, str], word: str
) -> None:
    process = serve(tmp_path, seaweedfs.guest_environment | changed, "--tier", f"s3://{bucket}/x")
    said, errors = process.communicate()
    assert (process.returncode, said) == (2, "")
    (line,) = errors.splitlines()
    assert word in line
    assert line.endswith(". To start without it: --tier-later")
    assert GUEST_SECRET_KEY not in line
    assert not (tmp_path / "store").exists()


def test_a_tier_that_accepts_is_ready_and_the_check_leaves_nothing(tmp_path: Path, seaweedfs: SeaweedFS) -> None:
    process = serve(tmp_path, seaweedfs.guest_environment, "--tier", "s3://history/good")
    ready = json.loads(process.stdout.readline())
    assert answered(ready["metrics"], "/ready") == (200, {"status": "up", "problems": {}})
    process.terminate()
    assert "ended" in process.communicate()[0]
    names = [each["path"] for page in seaweedfs.store("history").list("good") for each in page]
    assert not [name for name in names if "check" in name]


def test_a_tier_that_refuses_later_is_reported_by_ready_and_health_stays_up(
    tmp_path: Path, seaweedfs: SeaweedFS
) -> None:
    wrong = seaweedfs.guest_environment | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    process = serve(tmp_path, wrong, "--tier", "s3://history/later", "--tier-later")
    ready = json.loads(process.stdout.readline())
    status, page = answered(ready["metrics"], "/ready")
    while status == 200:  # Until a part of the broker has asked the tier.
        status, page = answered(ready["metrics"], "/ready")
    assert status == 503
    assert "found a refusal" in page["problems"]["tier"]
    assert answered(ready["metrics"], "/health")[0] == 200
    process.terminate()
    process.communicate()
    assert process.returncode == 0


def test_a_tier_that_does_not_answer_keeps_clients_and_starts_away_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "r",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0)
    with Broker.open(tmp_path / "store", tier="s3://history/x", config=config, **SMALL) as broker:
        while not broker.warnings():
            continue
        assert "could not" in broker.warnings()["tier"]
        assert broker.problems() == {}


def test_a_start_that_could_not_compare_the_disk_with_its_tier_says_so(tmp_path: Path) -> None:
    nowhere = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"}
    process = serve(tmp_path, nowhere | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "--tier", "s3://history/x")
    assert json.loads(process.stdout.readline())["event"] == "ready"
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 0
    assert "the tier does not answer, so uploads wait" in errors
    assert "the store was not compared with its tier" in errors
    assert "If its disk is an older copy, stop" in errors


def test_trouble_with_the_tier_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    caplog.handler.addFilter(filtering := TierTroubleFilter(clock))
    log = logging.getLogger("tiermq.test")
    try:
        for _ in range(20):
            log.warning("queue %s rests: %s", "orders-0", TierUnavailable("the bucket is gone"))
            log.warning("index upkeep: %s", TierCredentials("no permission"))
        log.warning("something else: %s", ValueError("x"))
        clock.advance_ms(60_000)
        log.warning("queue %s rests: %s", "orders-0", TierUnavailable("the bucket is 100% gone"))
    finally:
        caplog.handler.removeFilter(filtering)
    assert [record.getMessage() for record in caplog.records] == [
        "queue orders-0 rests: the bucket is gone",
        "something else: x",
        "queue orders-0 rests: the bucket is 100% gone (39 lines about the tier were left out)",
    ]

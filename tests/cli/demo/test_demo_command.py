"""`tiermq demo`: what a user sees, and what is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from broker.brokers import SMALL
from cli.demo.demo_cases import account_of, timeline_of
from servers.loopback import free_ports
from tiermq import Message
from tiermq.broker.settings_file import read_settings_file
from tiermq.cli.demo.broker import Place
from tiermq.cli.demo.command import _show
from tiermq.cli.main import cli
from tiermq.tier.tiered_store import TieredStore


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["demo", "--master", "here", *arguments])


@pytest.mark.crash
def test_all_numbers_come_as_json_and_everything_is_kept(tmp_path: Path) -> None:
    keep, page = tmp_path / "kept", tmp_path / "page.html"
    result = run("--messages", "2000", "--keep", str(keep), "--page", str(page), "--json")
    assert result.exit_code == 0, result.output
    numbers = json.loads(result.stdout)
    assert numbers["messages"] > 2_000
    assert all(check["agrees"] for check in numbers["checks"])
    assert numbers["page"] == str(page)
    assert page.read_text().startswith("<!doctype html>")
    assert (keep / "store" / "commitlog").is_dir()
    assert read_settings_file(keep / "broker.toml").tier["tier_url"] == (keep / "tier").as_uri()
    assert any((keep / "tier").rglob("COMMIT_LOG/*"))


def test_the_account_is_reported_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account, place = account_of(timeline_of()), Place(tmp_path / "store", "s3://bucket/a", tmp_path / "table")
    _show(account, place, tmp_path / "page.html", kept=True, own_tier=True, as_json=False)
    reported = capsys.readouterr().out
    for words in ("by offset", "Nothing was lost: 1,000 messages in 6.1 s", f"tiermq serve -c {place.settings}"):
        assert words in reported
    assert "The tier keeps its copy: s3://bucket/a" in reported
    assert f"Pictures: {(tmp_path / 'page.html').as_uri()}" in reported
    _show(account, place, None, kept=False, own_tier=False, as_json=False)
    assert not {"Kept", "keeps", "Pictures"} & set(capsys.readouterr().out.replace(":", " ").split())


def test_a_directory_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    result = run("--keep", str(tmp_path), "--no-page")
    assert result.exit_code == 1
    assert "not empty" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("tier", "words"),
    [
        ("ftp://host/dir", "ftp"),
        ("s3://user:secret@bucket", "environment"),
        ("file:///dev/null/tier", "/dev/null"),
    ],
)
def test_a_tier_that_cannot_be_is_refused_at_once(tmp_path: Path, tier: str, words: str) -> None:
    result = run("--tier", tier, "--keep", str(tmp_path / "kept"), "--no-page")
    assert result.exit_code == 1
    assert words in result.output
    assert "secret" not in result.output
    assert not (tmp_path / "kept" / "store").exists()


def test_an_s3_server_that_does_not_answer_is_noticed_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    result = run("--tier", "s3://bucket/prefix", "--keep", str(tmp_path / "kept"), "--no-page")
    assert result.exit_code == 1
    assert "s3://bucket/prefix" in result.output
    assert "a secret" not in result.output
    assert not (tmp_path / "kept" / "store").exists()


def test_a_tier_with_a_history_is_left_alone(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with TieredStore.open(tmp_path / "store", tier=tier, broker_name="somebody", **SMALL) as store:
        store.put(Message("history", b"precious"))
        assert store.flush_to_tier()
    before = sorted((tmp_path / "tier").rglob("*"))
    result = run("--messages", "1", "--tier", tier, "--no-page")
    assert result.exit_code == 1
    assert "has a history already" in result.output
    assert sorted((tmp_path / "tier").rglob("*")) == before


def test_a_disk_that_is_too_small_is_refused_with_both_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 1 << 29, 100 << 20))
    result = run("--messages", "1000000", "--keep", str(tmp_path / "kept"), "--no-page")
    assert result.exit_code == 1
    assert "1,000,000 messages need about" in result.output
    assert "100 MiB free" in result.output
    assert "--messages" in result.output


def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    result = run("--page", str(tmp_path / "no" / "page.html"), "--keep", str(tmp_path / "kept"))
    assert result.exit_code == 1
    assert "cannot be written" in result.output
    assert not (tmp_path / "kept").exists()


def test_a_place_where_spark_cannot_run_is_refused_before_the_work(tmp_path: Path) -> None:
    result = run("--master", "nowhere[2]", "--keep", str(tmp_path / "kept"), "--no-page")
    assert result.exit_code == 1
    assert "expected here, local[2]" in result.output
    assert "found 'nowhere[2]'" in result.output
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("messages", ["0", "-5", "many"])
def test_a_number_of_messages_that_makes_no_sense_is_refused(messages: str) -> None:
    assert run("--messages", messages).exit_code == 2


def test_help_shows_how_to_run_it_on_s3() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "tiermq demo --tier s3://bucket/prefix" in result.output

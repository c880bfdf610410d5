"""A store that was used with a tier is its broker's, whatever the machine is called and whatever name is given."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.brokers import SMALL, send_command
from cli.test_serve_command import FREE, SMALL_FILE, at, serving
from servers.preloaded import Preloaded
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.cli.main import cli
from tiermq.errors import BadConfig, StoreDamaged
from tiermq.remoting.codes import ResponseCode
from tiermq.spark import explain_scan
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.tiered_store import TieredStore

COUNT = 5
NAMES: dict[str, Any] = {"broker_cluster_name": "DefaultCluster", "broker_name": "b1"}


@pytest.fixture
def tier(tmp_path: Path) -> str:
    """A tier with five messages of broker b1; its store is closed, in `store`."""
    url = (tmp_path / "tier").as_uri()
    with TieredStore.open(tmp_path / "store", tier=url, **NAMES, **SMALL) as store:
        for number in range(COUNT):
            assert store.put(Message("T", b"body %d" % number)).ok
        assert store.flush_to_tier(60)
    return url


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def refused(*words: str | Path) -> str:
    """What `serve` says when it does not start."""
    process = Preloaded(["serve", *map(str, words), *FREE], stderr=subprocess.PIPE)
    found, errors = process.communicate()
    assert (process.returncode, found) == (2, ""), errors
    return errors


def brokers(tier: str) -> list[tuple[str, str]]:
    return list_tier(open_driver(tier), TierScope()).brokers


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_broker_without_a_name_goes_on_as_the_one_whose_store_it_is(
    tmp_path: Path, tier: str, is_restored: bool
) -> None:
    store, config = tmp_path / "store", tmp_path / "small.toml"
    config.write_text(SMALL_FILE)
    if is_restored:
        store = tmp_path / "restored"
        assert run("tier", "restore", tier, "--store", store, "--broker", "b1").exit_code == 0
    with serving(store, "-c", config, "--tier", tier, *FREE) as (_, ready):
        assert ready["name"] == "b1"
        with at(ready["address"]) as client:
            answer = client.request(send_command())
        assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, str(COUNT))
    assert brokers(tier) == [("DefaultCluster", "b1")]
    with TieredStore.open(store, tier=tier, **SMALL) as after:
        assert [message.queue_offset for message in after.get("T", 0, 0, 32).messages] == list(range(COUNT + 1))


@pytest.mark.parametrize("with_tier", [True, False])
@pytest.mark.parametrize(
    ("settings", "words", "found"),
    [
        ("", ("--name", "b2"), "DefaultCluster/b2"),
        ("brokerName=b2\n", (), "DefaultCluster/b2"),
        ("brokerName=b1\nbrokerClusterName=other\n", (), "other/b1"),
    ],
)
def test_a_broker_of_another_name_is_refused_and_nothing_is_changed(
    tmp_path: Path, tier: str, settings: str, words: tuple[str, ...], found: str, with_tier: bool
) -> None:
    (tmp_path / "broker.conf").write_text(settings)
    place = (tmp_path / "store", "-c", tmp_path / "broker.conf", *(("--tier", tier) if with_tier else ()))
    before = {path: path.read_bytes() for path in (tmp_path / "tier").rglob("*") if path.is_file()}
    said = refused(*place, *words)
    assert "expected the names under which its history is in the tier (DefaultCluster/b1)" in said
    assert "Give those names" in said
    assert found.split("/")[1] in said
    assert before == {path: path.read_bytes() for path in (tmp_path / "tier").rglob("*") if path.is_file()}
    assert run("tier", "verify", tier, "--store", tmp_path / "store").exit_code == 0


def test_a_store_takes_its_own_names_and_refuses_others(tmp_path: Path, tier: str) -> None:
    with TieredStore.open(tmp_path / "store", tier=tier, **SMALL) as store:
        assert store.tier.config.broker_name == "b1"
    for others in ({"broker_name": "b2"}, {"broker_cluster_name": "other"}):
        with pytest.raises(BadConfig, match="copied a second time"):
            TieredStore.open(tmp_path / "store", tier=tier, **SMALL | others)
    with pytest.raises(BadConfig, match="copied a second time"):
        Broker.open(tmp_path / "store", tier=tier, config=BrokerConfig(broker_name="b2", listen_port=0), **SMALL)
    with pytest.raises(BadConfig, match="copied a second time"):
        Broker.open(tmp_path / "store", config=BrokerConfig(broker_name="b2", listen_port=0), **SMALL)
    assert brokers(tier) == [("DefaultCluster", "b1")]


def test_a_copy_that_forgets_its_tier_is_another_broker(tmp_path: Path, tier: str) -> None:
    copy = Path(shutil.copytree(tmp_path / "store", tmp_path / "copy"))
    (copy / "config" / "tieredStoreMetadata.db").unlink()
    shutil.rmtree(copy / "tiered_index_file")
    with TieredStore.open(copy, tier=tier, broker_name="b2", **SMALL) as store:
        assert store.flush_to_tier(60)
    assert brokers(tier) == [("DefaultCluster", "b1"), ("DefaultCluster", "b2")]


def test_a_store_keeps_its_names_before_anything_of_it_is_in_the_tier(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    TieredStore.open(tmp_path / "store", tier=tier, background=False, **NAMES, **SMALL).close()
    with TieredStore.open(tmp_path / "store", tier=tier, background=False, **SMALL) as store:
        assert store.tier.config.broker_name == "b1"
    with pytest.raises(BadConfig, match=r"\(DefaultCluster/b1\), found \*/b2"):
        TieredStore.open(tmp_path / "store", tier=tier, background=False, broker_name="b2", **SMALL)


@pytest.mark.parametrize("names", [{}, {"broker_name": "b2"}])
def test_damaged_metadata_do_not_make_a_new_broker_of_a_store(tmp_path: Path, tier: str, names: dict[str, str]) -> None:
    metadata = tmp_path / "store" / "config" / "tieredStoreMetadata.db"
    metadata.write_bytes(b"no database")
    with pytest.raises(StoreDamaged, match="but history of DefaultCluster/b1"):
        TieredStore.open(tmp_path / "store", tier=tier, **SMALL | names)
    assert brokers(tier) == [("DefaultCluster", "b1")]
    with TieredStore.open(tmp_path / "store", tier=tier, **NAMES, **SMALL) as store:
        assert len(store.get("T", 0, 0, 32).messages) == COUNT


def test_a_restore_while_opening_wants_the_name_where_there_are_only_others(tmp_path: Path, tier: str) -> None:
    with pytest.raises(StoreDamaged, match="but history of DefaultCluster/b1"):
        TieredStore.open(tmp_path / "new", tier=tier, restore=True, **SMALL)
    with TieredStore.open(tmp_path / "fleet", tier=tier, restore=True, broker_name="b7", **SMALL) as store:
        assert store.put(Message("T", b"the first of another broker")).ok


def test_a_scan_of_a_store_without_names_takes_its_own(tmp_path: Path, tier: str) -> None:
    with TieredStore.open(tmp_path / "second", tier=tier, broker_name="b2", **SMALL) as store:
        assert store.put(Message("T", b"of another")).ok
    scan = explain_scan(tier=tier, store=str(tmp_path / "store"), topic="T")
    assert {each.queue.broker for each in scan.plan.tasks} == {"b1", "b2"}


@pytest.mark.parametrize("command", ["restore", "export-metadata"])
def test_a_broker_that_the_tier_does_not_have_is_an_error_that_names_those_there_are(
    tmp_path: Path, tier: str, command: str
) -> None:
    place = ("--store", tmp_path / "new") if command == "restore" else ("--output", tmp_path / "out.json")
    result = run("tier", command, tier, *place, "--broker", "nope")
    assert result.exit_code == 2, result.output
    assert "*/nope" in result.output
    assert "There is DefaultCluster/b1" in result.output
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out.json").exists()
    reported = run("tier", command, tier, *place, "--broker", "b1", "--json")
    assert (reported.exit_code, json.loads(reported.stdout)["segments"]) == (0, 2), reported.output

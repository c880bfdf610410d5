"""What a SYNC_MASTER has stored and not committed is in no query, job or table that reads its directory or its port."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from broker.brokers import Producer, send_command
from broker.replication.pairs import master, sends_of, until
from replication.streams import SlaveSocket
from tiermq.broker.broker import Broker
from tiermq.cli.main import cli
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tier_view import view_tier


@contextmanager
def holding(path: Path, **settings: object) -> Iterator[tuple[Broker, Callable[[], None]]]:
    """A master that has committed `first` and holds `held`; what confirms that one, too."""
    sync = {"broker_role": "SYNC_MASTER", "slave_timeout": 600_000}
    with (
        master(path, store=sync, in_sync_replicas=2, ha_housekeeping_interval=2_000_000_000, **settings) as found,
        Producer(found) as producer,
        SlaveSocket(found.replication.master.port) as replica,  # type: ignore[union-attr]
    ):
        local = found.parts.local
        replica.report(0)
        until(lambda: found.replication.master.state.in_sync == 2)  # type: ignore[union-attr]
        first = producer.client.request_later(send_command("T", b"first"), 600)
        until(lambda: sends_of(found).durable.waiting == 1)
        replica.report(local.max_physical_offset)
        assert first.result(600).code == ResponseCode.SUCCESS
        held = producer.client.request_later(send_command("T", b"held"), 600)
        until(lambda: sends_of(found).durable.waiting == 1)
        until(lambda: local.max_offset("T", 0) == 1)
        local.flush()

        def confirm() -> None:
            replica.report(local.max_physical_offset)
            assert held.result(600).code == ResponseCode.SUCCESS
            until(lambda: local.max_offset("T", 0) == 2)

        yield found, confirm


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(cli, list(map(str, words)))
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


def test_what_is_not_confirmed_is_in_no_query(tmp_path: Path) -> None:
    with holding(tmp_path) as (_, confirm):
        words = ("sql", "select decode(body) b from T order by 1", "--store", tmp_path / "master" / "store")
        assert run(*words, "--format", "csv") == "b\nfirst\n"
        confirm()
        assert run(*words, "--format", "csv") == "b\nfirst\nheld\n"


@pytest.mark.parametrize("by_wire", [False, True])
def test_what_is_not_confirmed_is_not_offloaded(tmp_path: Path, by_wire: bool) -> None:
    tier = (tmp_path / "tier").as_uri()
    with (
        NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0)) as names,
        holding(tmp_path, namesrv_addr=f"127.0.0.1:{names.port}") as (_, confirm),
    ):
        at = f"127.0.0.1:{names.port}"
        source = ("--namesrv", at) if by_wire else ("--store", f"{tmp_path}/master/store=DefaultCluster/b1")

        def offloaded() -> int:
            run("pipeline", "offload", *source, "--tier", tier, "--master", "here")
            [queue] = [each for each in view_tier(open_driver(tier)).queues if each.key.topic == "T"]
            return queue.max_offset

        assert offloaded() == 1
        confirm()
        assert offloaded() == 2


def test_what_is_not_confirmed_is_not_exported(tmp_path: Path) -> None:
    with holding(tmp_path) as (_, confirm):
        words = ("--store", tmp_path / "master" / "store", "--to", f"parquet:{tmp_path}/t", "--master", "here")

        def exported() -> list[bytes]:
            json.loads(run("pipeline", "export", *words, "--json"))
            return sorted(pq.read_table(tmp_path / "t").column("body").to_pylist())

        assert exported() == [b"first"]
        confirm()
        assert exported() == [b"first", b"held"]

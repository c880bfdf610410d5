"""docs/wire.md keeps its word: its settings, codes, limits and its accounts file are the program's."""

from __future__ import annotations

import re
from pathlib import Path

import click

from broker.brokers import running
from simulation.manual_clock import ManualClock
from tiermq.cli.namesrv import namesrv
from tiermq.cli.serve import serve
from tiermq.controller.controller import Controller
from tiermq.controller.controller_config import ControllerConfig
from tiermq.namesrv.kv_config import (
    KEYS_MAX,
    NAME_BYTES_MAX,
    NAMESPACES_MAX,
    TABLE_BYTES_MAX,
    VALUE_BYTES_MAX,
    KvConfig,
)
from tiermq.namesrv.name_processor import NameProcessor
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.route_table import RouteTable
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.limits import SLICE_S, ServerLimits
from tiermq.remoting.permissions import AccessTable, Permission
from tiermq.remoting.server import RemotingServer
from tiermq.settings import settings_of
from tiermq.tier.driver.memory import MemoryDriver

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
MIB = 1 << 20


def test_every_setting_of_a_name_server_is_in_its_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", TEXT, re.MULTILINE))
    settings = settings_of(NameServerConfig).values()
    assert rows == {setting.property_name: setting.render(setting.default) for setting in settings}


def test_the_codes_of_the_document_are_those_that_are_served() -> None:
    server = RemotingServer()
    processor = NameProcessor(NameServerConfig(kv_config_path=""), RouteTable(ManualClock()), KvConfig())
    server.serve(processor)
    listed = [int(code) for row in re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE) for code in row.split(",")]
    assert sorted(listed) == sorted(map(int, server.codes))


def table_of(servers: dict[str, RemotingServer]) -> str:
    """Every request that is served: its number, who may make it, and where it runs."""
    rows = [
        f"| `{RequestCode(code).name}` | {code} | {access.text} | {where}{', pool' if in_pool else ''} |"
        for where, server in servers.items()
        for code, (access, in_pool) in sorted(server.declared.items())
    ]
    return "\n".join(["| request | code | who may make it | served by |", "|---|---|---|---|", *rows])


def test_the_table_of_requests_is_what_the_handlers_declare(tmp_path: Path) -> None:
    names = RemotingServer()
    names.serve(NameProcessor(NameServerConfig(kv_config_path=""), RouteTable(ManualClock()), KvConfig()))
    with running(tmp_path) as broker:
        controller = Controller(ControllerConfig(), MemoryDriver("table")).server
        table = table_of({"broker": broker.parts.server, "name server": names, "controller": controller})
    assert table in TEXT, f"docs/wire.md: expected this table:\n{table}"


def test_the_limits_of_the_document_are_those_of_a_server() -> None:
    limits = ServerLimits()
    assert f"beyond {limits.write_high_bytes // MIB} MiB of answers" in TEXT
    assert f"beyond {limits.write_bytes_max // MIB} MiB it is closed" in TEXT
    assert f"beyond {limits.partial_bytes_max // MIB} MiB over all peers, the one that holds" in TEXT
    assert f"beyond {limits.write_bytes_total_max // MIB} MiB over all peers, the one that has not taken" in TEXT
    assert f"served for {SLICE_S * 1000:.0f} ms" in TEXT
    assert f"wait in the line ({limits.blocking_line_max:,})" in TEXT
    assert f"nothing for {limits.idle_s:.0f} s" in TEXT
    assert f"{limits.connections_max:,} are let in" in TEXT
    assert f"at most {limits.frame_bytes_max // MIB} MiB" in TEXT


def test_the_bounds_of_key_value_settings_are_those_of_the_document() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "broker.md").read_text(encoding="utf-8")
    assert f"names of {NAME_BYTES_MAX} bytes, values of {VALUE_BYTES_MAX:,} bytes, {NAMESPACES_MAX} name" in text
    assert f"{KEYS_MAX:,} keys, {TABLE_BYTES_MAX // MIB} MiB of all together" in text


def test_the_accounts_of_the_document_can_be_read(tmp_path: Path) -> None:
    (fence,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "accounts.toml").write_text(fence)
    table = AccessTable.load(tmp_path / "accounts.toml")
    assert table.accounts["operator"].admin
    assert table.accounts["orders-service"].may_use_topic("orders", Permission.PUB)
    assert not table.accounts["orders-service"].may_use_topic("secret", Permission.SUB)


def test_the_options_and_modules_of_the_document_exist() -> None:
    options = {
        word for each in (*namesrv.params, *serve.params) if isinstance(each, click.Option) for word in each.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT)) <= options
    modules = set(re.findall(r"`(tiermq(?:\.\w+){2,})`", TEXT))
    assert len(modules) >= 4
    assert [name for name in modules if not (ROOT / "src" / (name.replace(".", "/") + ".py")).is_file()] == []

"""Settings of a broker."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tiermq.broker.broker_config import BrokerConfig, outward_address
from tiermq.cli.main import cli
from tiermq.errors import BadConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.settings import settings_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")


def test_defaults_are_rocketmq_s() -> None:
    config = BrokerConfig()
    assert (config.listen_port, config.broker_cluster_name, config.broker_id) == (10911, "DefaultCluster", 0)
    assert (config.default_topic_queue_nums, config.auto_create_topic_enable) == (8, True)
    assert config.broker_name == socket.gethostname()


def test_a_broker_conf_is_read_by_rocketmq_s_names() -> None:
    config, ignored = BrokerConfig.from_properties(
        "brokerClusterName=C\nbrokerName=b\nbrokerIP1=10.0.0.1\nlistenPort=20911\nnamesrvAddr=a:1;b:2\ndeleteWhen=3\n"
    )
    assert (config.broker_cluster_name, config.broker_name, config.broker_ip1) == ("C", "b", "10.0.0.1")
    assert (config.listen_port, config.namesrv_addr, ignored) == (20911, "a:1;b:2", ["deleteWhen"])
    assert BrokerConfig.from_properties(config.to_properties()) == (config, [])


def test_clients_dial_loopback_where_nobody_else_can_come() -> None:
    assert BrokerConfig(bind_address="127.0.0.1").broker_ip1 == "127.0.0.1"
    assert BrokerConfig(bind_address="localhost").broker_ip1 == "127.0.0.1"
    assert BrokerConfig(bind_address="127.0.0.1", broker_ip1="10.1.1.1").broker_ip1 == "10.1.1.1"
    assert BrokerConfig().broker_ip1 == outward_address()


@pytest.mark.parametrize(
    "settings",
    [{"listen_port": 70_000}, {"bind_address": ""}, {"broker_permission": 8}, {"send_thread_pool_queue_capacity": 0}],
)
def test_impossible_values_are_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=next(iter(settings))):
        BrokerConfig(**settings)  # type: ignore[arg-type]


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`[^`]*`|none) \|", TEXT, re.MULTILINE))
    expected = {}
    for setting in settings_of(BrokerConfig).values():
        shown = setting.render(setting.default)
        expected[setting.property_name] = f"`{shown}`" if shown else "none"
    assert rows == expected


def test_codes_have_their_names() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    assert len(rows) > 8
    assert all(ResponseCode(int(code)).name == name for code, name in rows)


def test_every_option_is_one_of_a_command_of_its_line_or_of_serve() -> None:
    reported = 0
    for line in TEXT.splitlines():
        options = re.findall(r"(?<![\w-])(--[a-z][\w-]+)", " ".join(re.findall(r"`([^`]*)`", line)))
        reported += len(options)
        commands = re.findall(r"tiermq ((?:topic|group) \w+|\w+)", line)
        shown = "".join(help_of(command) for command in {*commands, "serve"}) if options else ""
        assert [option for option in options if option not in shown] == [], line
    assert reported > 8


def help_of(command: str) -> str:
    result = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert result.exit_code == 0, command
    return result.output


def test_the_code_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")


def test_named_tests_exist() -> None:
    for name in re.findall(r"`(tests/[\w/]+\.py)`", TEXT):
        assert (ROOT / name).is_file(), name

"""Settings of a name server by RocketMQ's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.errors import BadConfig
from tiermq.namesrv.name_server_config import NameServerConfig


def test_defaults_are_rocketmq_s() -> None:
    config = NameServerConfig()
    assert config.listen_port == 9876
    assert config.scan_not_active_broker_interval == 5000
    assert config.kv_config_path.endswith("/namesrv/kvConfig.json")
    assert not config.kv_config_path.startswith("~")


def test_a_properties_file_and_one_in_yaml_or_toml_say_the_same(tmp_path: Path) -> None:
    properties, toml, yaml = tmp_path / "ns.conf", tmp_path / "ns.toml", tmp_path / "ns.yaml"
    yaml.write_text('listenPort: 19876\nbindAddress: "127.0.0.1"\nkvConfigPath: /tmp/kv.json\n')
    properties.write_text("listenPort=19876\nbindAddress=127.0.0.1\nkvConfigPath=/tmp/kv.json\nserverWorkerThreads=8\n")
    toml.write_text('[namesrv]\nlisten_port = 19876\nbind_address = "127.0.0.1"\nkvConfigPath = "/tmp/kv.json"\n')
    expected = NameServerConfig(listen_port=19876, bind_address="127.0.0.1", kv_config_path="/tmp/kv.json")
    assert NameServerConfig.from_file(properties) == (expected, ["serverWorkerThreads"])
    assert NameServerConfig.from_file(toml) == NameServerConfig.from_file(yaml) == (expected, [])
    assert NameServerConfig.from_properties(expected.to_properties()) == (expected, [])


def test_some_settings_change_while_it_runs_and_others_do_not() -> None:
    config = NameServerConfig().with_properties({"orderMessageEnable": "true", "whatever": "1"})
    assert config.order_message_enable
    assert NameServerConfig.fixed_properties({"listenPort": "1", "orderMessageEnable": "true", "kvConfigPath": ""}) == [
        "kvConfigPath",
        "listenPort",
    ]


def test_impossible_values_are_refused() -> None:
    with pytest.raises(BadConfig, match="listen_port"):
        NameServerConfig(listen_port=70_000)
    with pytest.raises(BadConfig, match="bind_address"):
        NameServerConfig(bind_address="")
    with pytest.raises(BadConfig, match="order_message_enable"):
        NameServerConfig().with_properties({"orderMessageEnable": "perhaps"})

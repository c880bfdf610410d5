"""Settings of a broker."""

from __future__ import annotations

import socket

import pytest

from tiermq.broker.broker_config import FIXED_WHILE_RUNNING, BrokerConfig, outward_address
from tiermq.errors import BadConfig
from tiermq.settings import settings_of


def test_defaults_are_rocketmq_s() -> None:
    config = BrokerConfig()
    assert (config.listen_port, config.broker_cluster_name, config.broker_id) == (10911, "DefaultCluster", 0)
    assert (config.default_topic_queue_nums, config.auto_create_topic_enable) == (8, True)
    assert config.broker_name == socket.gethostname()


def test_a_broker_conf_is_read_by_rocketmq_s_names() -> None:
    config, ignored = BrokerConfig.from_properties(
        "brokerClusterName=C\nbrokerName=b\nbrokerIP1=10.0.0.1\nlistenPort=20911\nnamesrvAddr=a:1;b:2\nhaListenPort=3\n"
    )
    assert (config.broker_cluster_name, config.broker_name, config.broker_ip1) == ("C", "b", "10.0.0.1")
    assert (config.listen_port, config.namesrv_addr, ignored) == (20911, "a:1;b:2", ["haListenPort"])
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


def test_what_cannot_change_while_it_runs_are_settings() -> None:
    assert settings_of(BrokerConfig).keys() >= FIXED_WHILE_RUNNING

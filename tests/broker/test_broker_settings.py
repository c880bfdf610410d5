"""Settings of a running broker: told, and changed where that can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.brokers import send_command
from broker.consuming import Peer, running
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.broker_settings import CHANGEABLE_OF_BROKER, CHANGEABLE_OF_STORE
from tiermq.broker.settings_file import read_settings_file
from tiermq.config import StoreConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_body
from tiermq.settings import read_properties, settings_of


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker) as made:
        yield made


def told(peer: Peer) -> dict[str, str]:
    return read_properties(bytes(peer.ask(RequestCode.GET_BROKER_CONFIG).body).decode())


def counter(peer: Peer) -> int:
    return int(decode_body(peer.ask(RequestCode.GET_BROKER_CONFIG).ext["version"].encode())["counter"])


def test_every_setting_of_broker_and_store_is_told(broker: Broker, peer: Peer) -> None:
    found = told(peer)
    for config in (broker.config, broker.parts.local.config):
        for setting in settings_of(type(config)).values():
            assert found[setting.property_name] == setting.render(getattr(config, setting.name))


def test_a_change_takes_effect_at_once(broker: Broker, peer: Peer) -> None:
    before = counter(peer)
    assert peer.client.request(send_command("comes-by-itself")).code == 0
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateTopicEnable=false\nmaxMessageSize=100\n").code == 0
    assert told(peer)["autoCreateTopicEnable"] == "false"
    assert peer.client.request(send_command("does-not")).code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.client.request(send_command("T", b"x" * 101)).code == ResponseCode.MESSAGE_ILLEGAL
    assert counter(peer) == before + 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"nosuch=1", "nosuch"),
        (b"brokerName=another", "cannot be changed"),
        (b"mappedFileSizeCommitLog=4096", "cannot be changed"),
        (b"brokerPermission=abc", "whole number"),
        (b"brokerPermission=9", "lies within"),
        (b"deleteWhen=99", "hours"),
        (b"longPollingEnable=false\nnosuch=1", "nosuch"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_what_cannot_be_changes_nothing(peer: Peer, text: bytes, word: str) -> None:
    before = told(peer)
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, text)
    assert (answer.code, word in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), answer.remark
    assert told(peer) == before


def test_the_value_that_a_setting_has_already_is_no_change(peer: Peer) -> None:
    before = counter(peer)
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerName=b\n").code == 0
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG).code == 0
    assert counter(peer) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [("broker.conf", "brokerName=b\n# kept\n"), ("broker.toml", '[broker]\nbroker_name = "b" # kept\n')],
)
def test_a_change_is_in_the_file_that_the_broker_was_started_with(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with running(tmp_path / "store", store={"settings_file": file}) as broker, Peer(broker) as peer:
        answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateTopicEnable=false\nfileReservedTime=7\n")
        assert (answer.code, answer.remark) == (0, None)
        assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"nosuch=1\nmaxMessageSize=9\n").code != 0
    found = read_settings_file(file)
    again = BrokerConfig(**found.broker), StoreConfig(**found.store)
    assert (again[0].broker_name, again[0].auto_create_topic_enable) == ("b", False)
    assert (again[1].file_reserved_time, again[1].max_message_size) == (7, StoreConfig().max_message_size)
    assert "# kept" in file.read_text()


def test_a_change_that_no_file_can_keep_says_so_and_holds(broker: Broker, peer: Peer, tmp_path: Path) -> None:
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=7\n")
    assert (answer.code, "without a file" in (answer.remark or "")) == (0, True)
    broker.parts.settings_file = tmp_path / "gone" / "broker.conf"
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=8\n")
    assert answer.code == 0
    assert "until the process ends" in (answer.remark or "")
    assert "broker.conf" in (answer.remark or "")
    assert told(peer)["fileReservedTime"] == "8"


def test_what_can_be_changed_are_settings() -> None:
    assert settings_of(BrokerConfig).keys() >= CHANGEABLE_OF_BROKER
    assert settings_of(StoreConfig).keys() >= CHANGEABLE_OF_STORE

"""Settings of a running broker: told, and changed where that can be."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.brokers import send_command
from broker.consuming import Peer, running
from broker.floods import CHANGES_TOO_LARGE
from tiermq.broker.admin.settings_processor import Change, change_settings_file, with_changes
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import CHANGEABLE_OF_BROKER, CHANGEABLE_OF_STORE, BrokerConfig
from tiermq.broker.settings_file import read_settings_file, settings_in_properties, settings_in_toml
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_body
from tiermq.settings import read_properties, settings_of


def reported(peer: Peer) -> dict[str, str]:
    return read_properties(bytes(peer.ask(RequestCode.GET_BROKER_CONFIG).body).decode())


def counter(peer: Peer) -> int:
    return int(decode_body(peer.ask(RequestCode.GET_BROKER_CONFIG).ext["version"].encode())["counter"])


def test_every_setting_of_broker_and_store_is_reported(broker: Broker, peer: Peer) -> None:
    found = reported(peer)
    for config in (broker.config, broker.parts.local.config):
        for setting in settings_of(type(config)).values():
            assert found[setting.property_name] == setting.render(getattr(config, setting.name))


def test_a_change_takes_effect_at_once(broker: Broker, peer: Peer) -> None:
    before = counter(peer)
    assert peer.client.request(send_command("comes-by-itself")).code == 0
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateTopicEnable=false\nmaxMessageSize=100\n").code == 0
    assert reported(peer)["autoCreateTopicEnable"] == "false"
    assert peer.client.request(send_command("does-not")).code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.client.request(send_command("T", b"x" * 101)).code == ResponseCode.MESSAGE_ILLEGAL
    assert counter(peer) == before + 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"nosuch=1", "nosuch"),
        (b"brokerName=another", "cannot be changed"),
        *((body, "at most") for body in CHANGES_TOO_LARGE.values()),
        (b"mappedFileSizeCommitLog=4096", "cannot be changed"),
        (b"brokerPermission=abc", "whole number"),
        (b"brokerPermission=9", "must be within"),
        (b"deleteWhen=99", "hours"),
        (b"longPollingEnable=false\nnosuch=1", "nosuch"),
        (b"logLevels=tiermq." + b"a." * 300 + b"b=DEBUG", "20 dots"),
        (b"logLevels=tiermq." + b"a" * 200 + b"=DEBUG", "200 characters"),
        (b"logLevels=tirmq.tier=DEBUG", "expected loggers of"),
        (b"logLevels=" + b"tiermq=DEBUG," * 400, "4096 characters"),
        (b"deleteWhen=04" + b";" * 5_000, "4096 characters"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_what_cannot_be_changes_nothing(peer: Peer, text: bytes, word: str) -> None:
    before = reported(peer)
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, text)
    assert (answer.code, word in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), answer.remark
    assert reported(peer) == before


def test_the_value_that_a_setting_has_already_is_no_change(peer: Peer) -> None:
    before = counter(peer)
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerName=b\n").code == 0
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG).code == 0
    assert counter(peer) == before


def test_a_refused_level_is_not_in_the_file_and_makes_no_logger(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n")
    loggers = len(logging.root.manager.loggerDict)
    level = "logLevels=tiermq." + "long." * 300 + "b=DEBUG\n"
    with running(tmp_path / "store", store={"settings_file": file}) as broker, Peer(broker) as peer:
        assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, level.encode()).code == ResponseCode.SYSTEM_ERROR
    assert file.read_text() == "brokerName=b\n"
    assert len(logging.root.manager.loggerDict) < loggers + 300
    file.write_text(level)
    with pytest.raises(BadConfig, match="20 dots"):
        BrokerConfig(**read_settings_file(file).broker)


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


def test_a_change_that_no_file_can_keep_reports_so_and_holds(peer: Peer, tmp_path: Path) -> None:
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=7\n")
    assert (answer.code, "without a file" in (answer.remark or "")) == (0, True)
    gone = tmp_path / "gone" / "broker.conf"
    with running(tmp_path / "other", store={"settings_file": gone}) as other, Peer(other) as peer_of_other:
        answer = peer_of_other.ask(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=8\n")
        assert answer.code == 0
        assert "until the process ends" in (answer.remark or "")
        assert "broker.conf" in (answer.remark or "")
        assert reported(peer_of_other)["fileReservedTime"] == "8"


def test_what_can_be_changed_are_settings() -> None:
    assert settings_of(BrokerConfig).keys() >= CHANGEABLE_OF_BROKER
    assert settings_of(StoreConfig).keys() >= CHANGEABLE_OF_STORE


def of_broker(name: str, value: object) -> Change:
    return Change(BrokerConfig, settings_of(BrokerConfig)[name], value)


def of_store(name: str, value: object) -> Change:
    return Change(StoreConfig, settings_of(StoreConfig)[name], value)


CHANGES = [
    of_broker("auto_create_topic_enable", False),
    of_store("file_reserved_time", 48),
    of_store("delete_when", "04;16"),
]

CONF = """\
# The broker of the shop.
brokerName = shop
  autoCreateTopicEnable : true
! kept for a \\
fileReservedTime=24
deleteWhen=0\\
   4
fileReservedTime=72"""

CONF_AFTER = """\
# The broker of the shop.
brokerName = shop
autoCreateTopicEnable=false
! kept for a \\
fileReservedTime=48
deleteWhen=04;16
"""

TOML = """\
# The broker of the shop.
fileReservedTime = 24  # hours

[store]  # on the fast disk
flush_disk_type = "SYNC_FLUSH"
"delete_when" = '04'

[broker]
broker_name = "shop"

[namesrv]
listen_port = 1
"""

TOML_AFTER = """\
# The broker of the shop.
fileReservedTime = 48  # hours

[store]  # on the fast disk
flush_disk_type = "SYNC_FLUSH"
"delete_when" = "04;16"

[broker]
auto_create_topic_enable = false
broker_name = "shop"

[namesrv]
listen_port = 1
"""


def test_a_broker_conf_keeps_its_other_lines() -> None:
    assert with_changes(CONF, CHANGES, suffix=".conf") == CONF_AFTER
    added = with_changes("brokerName=shop", CHANGES[1:], suffix=".conf")
    assert added == "brokerName=shop\nfileReservedTime=48\ndeleteWhen=04;16\n"


def test_toml_keeps_its_other_lines_and_a_setting_goes_to_its_table() -> None:
    assert with_changes(TOML, CHANGES, suffix=".toml") == TOML_AFTER
    added = with_changes("", CHANGES[:2], suffix=".toml")
    assert settings_in_toml(added).broker == {"auto_create_topic_enable": False}
    assert settings_in_toml(added).store == {"file_reserved_time": 48}


def test_yaml_keeps_its_other_lines() -> None:
    text = '# The shop.\nbrokerName: "shop"\n"fileReservedTime": 72\n'
    changed = (
        '# The shop.\nbrokerName: "shop"\nfileReservedTime: 48\nautoCreateTopicEnable: false\ndeleteWhen: "04;16"\n'
    )
    assert with_changes(text, [CHANGES[1], CHANGES[0], *CHANGES[2:]], suffix=".yml") == changed
    with pytest.raises(BadConfig, match="found others"):
        with_changes("{fileReservedTime: 72}\n", CHANGES[1:2], suffix=".yml")


def test_what_stands_in_a_table_counts_and_is_what_changes() -> None:
    text = "file_reserved_time = 1\n[store]\nfileReservedTime = 2\n"
    assert (
        with_changes(text, CHANGES[1:2], suffix=".toml") == "file_reserved_time = 1\n[store]\nfileReservedTime = 48\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "store = { file_reserved_time = 3 }\n",
        "store.file_reserved_time = 3\n",
        '[store]\nstore_path_root_dir = """\n[store]\n"""\nfile_reserved_time = """3"""\n',
        '[store]\nfile_reserved_time = """\n3"""\n',
    ],
)
def test_toml_that_is_written_otherwise_is_refused_and_not_damaged(text: str) -> None:
    with pytest.raises(BadConfig, match="of the form name = value"):
        with_changes(text, CHANGES[1:2], suffix=".toml")


VALUES = st.dictionaries(
    st.sampled_from(["brokerName", "fileReservedTime", "deleteWhen", "haListenPort", "autoCreateTopicEnable"]),
    st.integers(1, 9),
)
NOISE = st.lists(st.sampled_from(["", "# fileReservedTime=9", "! x", "\t", "#\\"]), max_size=3)


@given(VALUES, NOISE, st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["=", " = ", ":", " "]), st.booleans())
def test_any_broker_conf_reports_the_same_apart_from_the_change(
    values: dict[str, int], noise: list[str], end: str, equals: str, ended: bool
) -> None:
    texts = {"autoCreateTopicEnable": "true", "deleteWhen": "05"}
    lines = [*noise, *(f"{name}{equals}{texts.get(name, value)}" for name, value in values.items()), *noise]
    text = end.join(lines) + (end if ended else "")
    before, after = settings_in_properties(text), settings_in_properties(with_changes(text, CHANGES, suffix=".conf"))
    assert after.broker == before.broker | {"auto_create_topic_enable": "false"}
    assert after.store == before.store | {"file_reserved_time": "48", "delete_when": "04;16"}
    assert after.ignored == before.ignored


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "broker": st.fixed_dictionaries({}, optional={"broker_name": st.text(max_size=5)}),
            "store": st.fixed_dictionaries({}, optional={"file_reserved_time": st.integers(0, 9)}),
        },
    ),
    st.booleans(),
)
def test_any_toml_reports_the_same_apart_from_the_change(tables: dict[str, dict[str, Any]], at_top: bool) -> None:
    text = "deleteWhen = '05'\n" if at_top else ""
    for name, values in tables.items():
        text += f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    if "\\ud" in text or "\\u007f" in text or "\x7f" in text:
        return  # JSON's way to spell some characters is not TOML's.
    before, after = settings_in_toml(text), settings_in_toml(with_changes(text, CHANGES, suffix=".toml"))
    assert after.broker == before.broker | {"auto_create_topic_enable": False}
    assert after.store == before.store | {"file_reserved_time": 48, "delete_when": "04;16"}


def test_a_file_is_replaced_with_its_mode_and_its_former_self_is_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.conf", tmp_path / "broker.conf"
    real.write_text(CONF)
    real.chmod(0o640)
    link.symlink_to(real)
    change_settings_file(link, CHANGES)
    assert link.is_symlink()
    assert real.read_text() == CONF_AFTER
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert (tmp_path / "real.conf.bak").read_text() == CONF
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.conf", "real.conf", "real.conf.bak"]
    assert read_settings_file(link).store["file_reserved_time"] == "48"


def test_a_file_that_cannot_be_written_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(CONF)
    os.mkdir(tmp_path / "broker.conf.part")  # In the way, whoever runs this.
    with pytest.raises(OSError, match=r"broker\.conf"):
        change_settings_file(path, CHANGES)
    assert path.read_text() == CONF
    odd = tmp_path / "odd.toml"
    odd.write_bytes(b"\xff")
    with pytest.raises(BadConfig, match=r"odd\.toml"):
        change_settings_file(odd, CHANGES)
    assert odd.read_bytes() == b"\xff"

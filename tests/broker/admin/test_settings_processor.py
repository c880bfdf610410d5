"""Changed settings in the broker's own file: one line each, nothing else touched, and never a damaged file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.settings_edit import Change, change_settings_file, with_changes
from tiermq.broker.settings_file import read_settings_file, settings_in_properties, settings_in_toml
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.settings import settings_of


def broker(name: str, value: object) -> Change:
    return Change(BrokerConfig, settings_of(BrokerConfig)[name], value)


def store(name: str, value: object) -> Change:
    return Change(StoreConfig, settings_of(StoreConfig)[name], value)


CHANGES = [broker("auto_create_topic_enable", False), store("file_reserved_time", 48), store("delete_when", "04;16")]

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
    assert with_changes(CONF, CHANGES, is_toml=False) == CONF_AFTER
    added = with_changes("brokerName=shop", CHANGES[1:], is_toml=False)
    assert added == "brokerName=shop\nfileReservedTime=48\ndeleteWhen=04;16\n"


def test_toml_keeps_its_other_lines_and_a_setting_goes_to_its_table() -> None:
    assert with_changes(TOML, CHANGES, is_toml=True) == TOML_AFTER
    added = with_changes("", CHANGES[:2], is_toml=True)
    assert settings_in_toml(added).broker == {"auto_create_topic_enable": False}
    assert settings_in_toml(added).store == {"file_reserved_time": 48}


def test_what_stands_in_a_table_counts_and_is_what_changes() -> None:
    text = "file_reserved_time = 1\n[store]\nfileReservedTime = 2\n"
    assert with_changes(text, CHANGES[1:2], is_toml=True) == "file_reserved_time = 1\n[store]\nfileReservedTime = 48\n"


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
        with_changes(text, CHANGES[1:2], is_toml=True)


VALUES = st.dictionaries(
    st.sampled_from(["brokerName", "fileReservedTime", "deleteWhen", "haListenPort", "autoCreateTopicEnable"]),
    st.integers(1, 9),
)
NOISE = st.lists(st.sampled_from(["", "# fileReservedTime=9", "! x", "\t", "#\\"]), max_size=3)


@given(VALUES, NOISE, st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["=", " = ", ":", " "]), st.booleans())
def test_any_broker_conf_says_the_same_apart_from_the_change(
    values: dict[str, int], noise: list[str], end: str, equals: str, ended: bool
) -> None:
    texts = {"autoCreateTopicEnable": "true", "deleteWhen": "05"}
    lines = [*noise, *(f"{name}{equals}{texts.get(name, value)}" for name, value in values.items()), *noise]
    text = end.join(lines) + (end if ended else "")
    before, after = settings_in_properties(text), settings_in_properties(with_changes(text, CHANGES, is_toml=False))
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
def test_any_toml_says_the_same_apart_from_the_change(tables: dict[str, dict[str, Any]], at_top: bool) -> None:
    text = "deleteWhen = '05'\n" if at_top else ""
    for name, values in tables.items():
        text += f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    if "\\ud" in text or "\\u007f" in text or "\x7f" in text:
        return  # JSON's way to spell some characters is not TOML's.
    before, after = settings_in_toml(text), settings_in_toml(with_changes(text, CHANGES, is_toml=True))
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

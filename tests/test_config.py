"""Settings: names, defaults, validation, and the three ways of reading them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.config import SETTINGS, UNKEPT, WITHOUT_EFFECT, BrokerRole, FlushDiskType, StoreConfig, read_properties
from tiermq.errors import BadConfig
from tiermq.settings import did_you_mean


def test_defaults_are_those_of_the_original() -> None:
    config = StoreConfig()
    assert config.mapped_file_size_commit_log == 1 << 30
    assert config.mapped_file_size_consume_queue == 300_000 * 20
    assert config.index_file_bytes == 420_000_040
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.broker_role is BrokerRole.ASYNC_MASTER
    assert config.delete_hours == {4}
    assert config.file_reserved_time == 72
    assert len(config.delay_levels_ms) == 18
    assert config.delay_levels_ms[0] == 1_000
    assert config.delay_levels_ms[-1] == 7_200_000


def test_the_index_survives_a_crash_by_default_unlike_in_the_original() -> None:
    assert StoreConfig().message_index_safe is True


def test_a_consume_queue_size_is_rounded_up_to_whole_units() -> None:
    assert StoreConfig(mapped_file_size_consume_queue=6_000_001).mapped_file_size_consume_queue == 6_000_020
    assert StoreConfig(mapped_file_size_consume_queue=6_000_000).mapped_file_size_consume_queue == 6_000_000


@pytest.mark.parametrize(
    ("given_percent", "fraction"),
    [(5, 0.10), (75, 0.75), (99, 0.95)],
)
def test_the_used_space_ratio_is_clamped(given_percent: int, fraction: float) -> None:
    assert StoreConfig(disk_max_used_space_ratio=given_percent).disk_max_used_fraction == fraction


def test_the_warning_and_force_ratios_are_clamped() -> None:
    low = StoreConfig(disk_space_warning_level_ratio=1, disk_space_clean_forcibly_ratio=1)
    high = StoreConfig(disk_space_warning_level_ratio=100, disk_space_clean_forcibly_ratio=100)
    assert (low.disk_warning_fraction, low.disk_clean_forcibly_fraction) == (0.35, 0.30)
    assert (high.disk_warning_fraction, high.disk_clean_forcibly_fraction) == (0.90, 0.85)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mapped_file_size_commit_log": -1}, "mapped_file_size_commit_log"),
        ({"mapped_file_size_commit_log": True}, "mapped_file_size_commit_log is a whole number"),
        ({"mapped_file_size_commit_log": "1_000_000"}, "whole number"),
        ({"mapped_file_size_commit_log": 2**31}, "2147483647"),
        ({"flush_disk_type": "SOMETIMES"}, "ASYNC_FLUSH, SYNC_FLUSH"),
        ({"message_index_enable": "yes"}, "true or false"),
        ({"delete_when": "04;25"}, "delete_when"),
        ({"delete_when": "four"}, "delete_when"),
        ({"message_delay_level": "1s 2x"}, "2x"),
        ({"store_path_root_dir": 7}, "store_path_root_dir is text"),
        ({"max_index_num": 200_000_000}, "lower max_index_num"),
        ({"logical_disk_space_clean_forcibly_threshold": 0.0}, "fraction"),
    ],
)
def test_an_impossible_value_is_refused_with_the_name_of_its_setting(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        StoreConfig().with_settings(**settings)


def test_an_unknown_setting_suggests_the_nearest_name() -> None:
    with pytest.raises(BadConfig, match="did you mean flush_disk_type"):
        StoreConfig().with_settings(flush_disk_typ="SYNC_FLUSH")
    with pytest.raises(BadConfig, match="docs/operations.md"):
        StoreConfig().with_settings(zzzzqqq=1)


def test_values_may_be_given_as_text() -> None:
    config = StoreConfig().with_settings(
        flush_disk_type="SYNC_FLUSH",
        file_reserved_time=" 48 ",
        message_index_enable="FALSE",
        logical_disk_space_clean_forcibly_threshold="0.5",
    )
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.file_reserved_time == 48
    assert config.message_index_enable is False
    assert config.logical_disk_space_clean_forcibly_threshold == 0.5


def test_a_broker_conf_is_read_and_foreign_keys_are_named() -> None:
    config, ignored = StoreConfig.from_properties(
        "brokerName = broker-a\n"
        "# a comment\n"
        "deleteWhen=04;05\n"
        "fileReservedTime: 48\n"
        "flushDiskType SYNC_FLUSH\n"
        "checkCRCOnRecover=false\n"
        "listenPort=10911\n"
        "storePathRootDir=/var/lib/store\n"
    )
    assert ignored == ["brokerName", "listenPort"]
    assert config.delete_hours == {4, 5}
    assert config.file_reserved_time == 48
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.check_crc_on_recover is False
    assert [path.as_posix() for path in config.commit_log_paths] == ["/var/lib/store/commitlog"]


def test_several_commit_log_paths_are_separated_by_commas() -> None:
    config = StoreConfig(store_path_commit_log="/a/log, /b/log", read_only_commit_log_store_paths="/old")
    assert [path.as_posix() for path in config.commit_log_paths] == ["/a/log", "/b/log"]
    assert [path.as_posix() for path in config.read_only_commit_log_paths] == ["/old"]


def test_toml_takes_both_spellings_and_leaves_other_tables_alone() -> None:
    config = StoreConfig.from_toml(
        'flushDiskType = "SYNC_FLUSH"\n[store]\nfile_reserved_time = 12\n[broker]\nlisten_port = 10911\n'
    )
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.file_reserved_time == 12


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("LISTENPRT", "did you mean listenPort?"),
        ("customKey", ""),
        ("myOwnThing", ""),
        ("storetype", "did you mean storeType?"),
    ],
)
def test_only_a_near_name_is_suggested_whatever_its_case(name: str, answer: str) -> None:
    assert did_you_mean(name, ["listenPort", "storeType", "brokerName"]) == answer


def test_toml_with_an_unknown_key_or_broken_syntax_is_refused() -> None:
    with pytest.raises(BadConfig, match="did you mean file_reserved_time"):
        StoreConfig.from_toml("[store]\nfile_reserve_time = 12\n")
    with pytest.raises(BadConfig, match="TOML"):
        StoreConfig.from_toml("file_reserved_time = = 12\n")


def test_property_names_are_spelled_as_the_original_spells_them() -> None:
    spelled = {setting.property_name for setting in SETTINGS.values()}
    assert {"enabledAppendPropCRC", "checkCRCOnRecover", "forceVerifyPropCRC", "osPageCacheBusyTimeOutMills"} <= spelled
    assert {"enableLmq", "readUnCommitted", "travelCqFileNumWhenGetMessage", "warmMapedFileEnable"} <= spelled


def test_every_setting_is_read_by_the_store_or_reported_to_have_no_effect() -> None:
    source = Path(__file__).resolve().parent.parent / "src" / "tiermq"
    others = [path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.name != "config.py"]
    words = {word for text in others for word in re.findall(r"\w+", text)}

    def is_used(name: str) -> bool:
        return name in words

    # A setting may also be read through a method or property of the configuration that is derived from it.
    derived: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((source / "config.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "self":
                    derived.setdefault(inner.attr, set()).add(node.name)
    unread = {name for name in SETTINGS if not is_used(name) and not any(map(is_used, derived.get(name, ())))}
    assert unread == set(WITHOUT_EFFECT) | {"duplication_enable"}  # Which is refused.
    assert "duplication_enable" in UNKEPT


paths_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(root=paths_text, hours=st.integers(0, 2**31 - 1), flush=st.sampled_from(FlushDiskType), safe=st.booleans())
def test_a_configuration_written_as_properties_reads_back_equal(
    root: str, hours: int, flush: FlushDiskType, safe: bool
) -> None:
    config = StoreConfig(
        store_path_root_dir=root, file_reserved_time=hours, flush_disk_type=flush, message_index_safe=safe
    )
    assert StoreConfig.from_properties(config.to_properties()) == (config, [])


# Dense in the characters that mean something, so that random text meets every rule of the format.
properties_text = st.text(st.sampled_from("ab=: \t\f\\\r\n#!tnrfu0041d83dde00é"), max_size=60)


@given(properties_text)
def test_properties_are_read_as_an_independent_reader_reads_them(text: str) -> None:
    try:
        expected = dict(javaproperties.loads(text))
    except javaproperties.InvalidUEscapeError:
        with pytest.raises(BadConfig, match="four hex digits"):
            read_properties(text)
        return
    assert read_properties(text) == expected


def test_a_line_continues_after_an_odd_number_of_backslashes_only() -> None:
    assert read_properties("a=1\\\n   2\nb=1\\\\\nc=3\\") == {"a": "12", "b": "1\\", "c": "3"}

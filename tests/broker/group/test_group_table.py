"""Consumer groups: made, changed and deleted, and kept in RocketMQ's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.group_table import (
    FILE,
    GroupTable,
    SubscriptionGroup,
    check_group_name,
    decode_groups,
    encode_groups,
)
from tiermq.errors import RequestRefused, StoreDamaged
from tiermq.message.topic_name import PREDEFINED_GROUPS
from tiermq.namesrv.topic_config import DataVersion

GOLDEN = Path(__file__).parents[2] / "golden" / "rocketmq-5.3.3-clean" / "store" / "config" / FILE
NUMBERS = st.integers(-(2**31), 2**31 - 1)
GROUPS = st.builds(
    SubscriptionGroup,
    st.text(min_size=1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.booleans(),
    NUMBERS,
    NUMBERS,
    st.dictionaries(st.text(), st.text()),
    st.just({"type": "EXPONENTIAL"}),
)


def table(path: Path, **settings: object) -> GroupTable:
    return GroupTable(str(path), BrokerConfig(**settings), ManualClock())  # type: ignore[arg-type]


@given(GROUPS)
def test_a_group_survives_its_json(group: SubscriptionGroup) -> None:
    assert SubscriptionGroup.from_json(json.loads(json.dumps(group.to_json()))) == group


@given(st.lists(GROUPS, unique_by=lambda each: each.name), st.integers(0, 2**40))
def test_a_table_survives_its_file(groups: list[SubscriptionGroup], counter: int) -> None:
    known, version = {each.name: each for each in groups}, DataVersion(5, counter, 7)
    assert decode_groups(encode_groups(known, {"g": {"t": 4}}, version)) == (known, {"g": {"t": 4}}, version)


def test_the_file_of_a_real_broker_is_understood() -> None:
    groups, forbidden, version = decode_groups(GOLDEN.read_bytes())
    assert set(groups) == {*PREDEFINED_GROUPS, "interop-reader"}
    assert forbidden == {}
    assert version.counter > 0
    assert groups["SELF_TEST_C_GROUP"] == SubscriptionGroup("SELF_TEST_C_GROUP")


def test_what_was_put_is_there_after_a_restart_and_its_version_has_grown(tmp_path: Path) -> None:
    groups = table(tmp_path)
    before = groups.data_version.counter
    groups.put(SubscriptionGroup("g", retry_max_times=3))
    groups.set_forbidden("g", "t", 4)
    again = table(tmp_path)
    assert again.get("g") == SubscriptionGroup("g", retry_max_times=3)
    assert again.is_forbidden("g", "t", 4)
    assert not again.is_forbidden("g", "t", 2)
    assert again.data_version.counter == before + 2
    assert set(again.table) >= set(PREDEFINED_GROUPS)


def test_a_group_is_made_when_it_is_asked_for_if_that_is_allowed(tmp_path: Path) -> None:
    assert table(tmp_path).find_or_make("new") == SubscriptionGroup("new")
    assert table(tmp_path).get("new") is not None
    strict = table(tmp_path, auto_create_subscription_group=False)
    assert strict.find_or_make("other") is None
    assert strict.find_or_make("CID_RMQ_SYS_x") is not None
    assert strict.find_or_make("new") is not None


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 256, "a/b"])
def test_a_name_that_no_group_can_have_is_refused(tmp_path: Path, name: str) -> None:
    assert table(tmp_path).find_or_make(name) is None
    with pytest.raises(RequestRefused, match="expected a group"):
        check_group_name(name)


def test_a_deleted_group_is_gone_with_what_was_forbidden_to_it(tmp_path: Path) -> None:
    groups = table(tmp_path)
    groups.put(SubscriptionGroup("g"))
    groups.set_forbidden("g", "t", 4)
    assert groups.delete("g")
    assert not groups.delete("g")
    assert table(tmp_path).get("g") is None
    assert table(tmp_path).forbidden_table == {}


def test_what_is_no_longer_forbidden_leaves_nothing_behind(tmp_path: Path) -> None:
    groups = table(tmp_path)
    groups.set_forbidden("g", "t", 4)
    groups.set_forbidden("g", "t", 0)
    assert groups.forbidden_table == {}


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b'{"subscriptionGroupTable":{"g":7}}', b'{"subscriptionGroupTable":[]}']
)
def test_what_is_no_group_table_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(StoreDamaged, match=FILE):
        table(tmp_path)


def test_a_group_without_a_name_is_refused() -> None:
    with pytest.raises(RequestRefused, match="with a name"):
        SubscriptionGroup.from_json({})

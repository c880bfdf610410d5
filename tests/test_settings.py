"""Settings as values, apart from those of any store: names, types, tables."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import ClassVar

import pytest

from tiermq.broker.broker_config import BrokerConfig
from tiermq.config import StoreConfig
from tiermq.controller.controller_config import ControllerConfig
from tiermq.errors import BadConfig
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.settings import TABLES, Configuration, settings_of, whole
from tiermq.tier.tier_config import TierConfig


class Level(enum.IntEnum):
    """A number that has names."""

    OFF = 0
    ON = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine(Configuration):
    """A configuration of another part of the program."""

    TABLE: ClassVar[str] = "engine"

    level: Level = Level.OFF
    fuel_bytes: int = whole(5, low=1, high=9)
    name: str = ""

    def __post_init__(self) -> None:
        self.check_settings()


@pytest.mark.parametrize("value", [Level.ON, 2, "2", "ON", " ON "])
def test_a_number_that_has_a_name_may_be_given_as_either(value: object) -> None:
    assert Engine(level=value).level is Level.ON  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, "1", "on", "-2", True, 2.0])
def test_a_number_without_a_name_is_refused_with_those_that_have_one(value: object) -> None:
    with pytest.raises(BadConfig, match="level"):
        Engine(level=value)  # type: ignore[arg-type]


def test_only_the_own_table_is_read_where_the_top_belongs_to_another_part() -> None:
    engine = Engine.from_toml('file_reserved_time = 3\n[engine]\nfuelBytes = "7"\nlevel = 2\n[store]\nx = 1\n')
    assert engine == Engine(fuel_bytes=7, level=Level.ON)


def test_a_misspelled_name_in_the_own_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadConfig, match="did you mean fuel_bytes"):
        Engine.from_toml("[engine]\nfuel_byte = 7\n")
    with pytest.raises(BadConfig, match=re.escape("there is no table [engines]: did you mean engine?")):
        Engine.from_toml("[engines]\nfuel_bytes = 7\n")


def test_a_document_has_a_table_for_each_program() -> None:
    kinds = (BrokerConfig, ControllerConfig, NameServerConfig, StoreConfig, TierConfig)
    assert tuple(kind.TABLE for kind in kinds) == TABLES


def test_a_value_that_is_written_reads_back() -> None:
    engine = Engine(level=Level.ON, fuel_bytes=9, name="a = b: ü")
    assert Engine.from_properties(engine.to_properties()) == (engine, [])


def test_settings_of_two_kinds_do_not_mix() -> None:
    assert list(settings_of(Engine)) == ["level", "fuel_bytes", "name"]
    assert settings_of(Engine)["fuel_bytes"].property_name == "fuelBytes"


def test_bounds_are_kept_by_copies_too() -> None:
    with pytest.raises(BadConfig, match="fuel_bytes must be within 1 and 9, found 10"):
        Engine().with_settings(fuel_bytes=10)
    with pytest.raises(BadConfig, match="no setting named fuel"):
        Engine().with_settings(fuel=1)

"""docs/administration.md and docs/popping.md keep their word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.brokers import running
from tiermq.broker.broker_config import CHANGEABLE_OF_BROKER, CHANGEABLE_OF_STORE, BrokerConfig
from tiermq.config import StoreConfig
from tiermq.message.topic_name import TOPIC_QUEUES_MAX
from tiermq.settings import settings_of

ROOT = Path(__file__).resolve().parents[3]
ADMINISTRATION, POPPING = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("administration", "popping"))


def codes_in(text: str, column: int) -> set[int]:
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    return {int(code) for row in rows for code in re.findall(r"\b\d{2,6}\b", row[column])}


def test_every_code_is_served(tmp_path: Path) -> None:
    reported = codes_in(POPPING, 1)
    assert len(reported) > 6
    with running(tmp_path) as broker:
        assert reported - set(map(int, broker.parts.server.codes)) == set()


def test_settings_that_can_be_changed_are_listed() -> None:
    _, _, listed = ADMINISTRATION.partition("can be changed while the broker runs:")
    names = {
        settings_of(kind)[name].property_name
        for kind, changeable in ((BrokerConfig, CHANGEABLE_OF_BROKER), (StoreConfig, CHANGEABLE_OF_STORE))
        for name in changeable
    }
    assert set(re.findall(r"`(\w+)`", listed)) == names


def test_numbers_are_those_of_the_program() -> None:
    assert f"at most {TOPIC_QUEUES_MAX:,} queues" in ADMINISTRATION


@pytest.mark.parametrize("text", [ADMINISTRATION, POPPING])
def test_tests_that_are_named_exist(text: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []

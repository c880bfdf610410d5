"""The tables hold every option that users know."""

from __future__ import annotations

import dataclasses

from tiermq.spark.known_options import HINTS, SINK_OPTIONS, SOURCE_OPTIONS
from tiermq.spark.options import SourceOptions


def test_each_option_of_the_source_is_a_field_of_its_values() -> None:
    assert [option.field for option in SOURCE_OPTIONS] != []
    assert {option.field for option in SOURCE_OPTIONS} == {field.name for field in dataclasses.fields(SourceOptions)}


def test_the_names_of_the_kafka_source_are_there() -> None:
    names = {name for option in SOURCE_OPTIONS for name in (option.name, *option.aliases)}
    assert {
        "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
        "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss",
        "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "includeHeaders",
    } <= names  # fmt: skip


def test_no_hint_speaks_of_an_option_that_exists() -> None:
    names = {name.lower() for option in SOURCE_OPTIONS for name in (option.name, *option.aliases)}
    assert not names & {name.lower() for name in HINTS}
    assert {option.name for option in SINK_OPTIONS} >= {"store", "topic", "staging"}

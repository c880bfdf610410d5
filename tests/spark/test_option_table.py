"""A table of options and what is given against it."""

from __future__ import annotations

import dataclasses

import pytest

from tiermq.errors import BadOption
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.spark.option_table import HINTS, SINK_OPTIONS, SOURCE_OPTIONS, Use, read_given
from tiermq.spark.options import SourceOptions


def test_names_are_found_whatever_their_case_and_by_their_aliases() -> None:
    values = read_given(SOURCE_OPTIONS, {"TIERPATH": "s3://a", "startingoffsets": "latest"}, Use.BATCH)
    assert values["tier"] == "s3://a"
    assert values["starting_offsets"] == "latest"
    assert values["fail_on_data_loss"] is True


@pytest.mark.parametrize(
    ("given", "near"),
    [("subscibe", "subscribe"), ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"), ("tear", "tier"), ("key", "keys")],
)
def test_an_unknown_option_is_shown_the_nearest_one(given: str, near: str) -> None:
    with pytest.raises(BadOption, match=f"there is no option {given}; did you mean {near}?"):
        read_given(SOURCE_OPTIONS, {given: "x"}, Use.STREAM)


def test_an_option_like_no_other_is_reported_all_there_are() -> None:
    with pytest.raises(BadOption, match="there is no option zzz; there are tier, store, namesrv, tls, tlsCert"):
        read_given(SOURCE_OPTIONS, {"zzz": "x"}, Use.BATCH)


def test_an_option_of_another_program_gets_its_own_answer() -> None:
    with pytest.raises(BadOption, match="there is no option BOOTSTRAP: use tier"):
        read_given(SOURCE_OPTIONS, {"BOOTSTRAP": "x"}, Use.BATCH, {"bootStrap": "use tier"})


def test_an_option_for_another_use_is_refused() -> None:
    with pytest.raises(BadOption, match="option maxOffsetsPerTrigger is for streams only"):
        read_given(SOURCE_OPTIONS, {"maxOffsetsPerTrigger": "5"}, Use.BATCH)
    with pytest.raises(BadOption, match="option endingOffsets is for batch reads only"):
        read_given(SOURCE_OPTIONS, {"endingOffsets": "latest"}, Use.STREAM)


def test_an_option_and_its_alias_are_not_given_together() -> None:
    with pytest.raises(BadOption, match="options tier and tierPath mean the same thing"):
        read_given(SOURCE_OPTIONS, {"tier": "s3://a", "tierPath": "s3://b"}, Use.BATCH)


def test_a_bad_value_is_named_with_its_option() -> None:
    with pytest.raises(
        BadOption, match="option includeHeaders .that is, includeProperties.: expected true or false, found 'x'"
    ):
        read_given(SOURCE_OPTIONS, {"includeHeaders": "x"}, Use.BATCH)


@pytest.mark.parametrize("table", [SOURCE_OPTIONS, SINK_OPTIONS])
def test_names_and_aliases_of_a_table_are_unique_and_documented(table: tuple) -> None:  # type: ignore[type-arg]
    names = [name.lower() for option in table for name in (option.name, *option.aliases)]
    assert len(set(names)) == len(names)
    fields = [option.field for option in table]
    assert len(set(fields)) == len(fields)
    assert all(option.doc for option in table)


PLACE = {"tier", "stores", "name_servers", "tls", "tls_cert", "tls_key", "tls_ca", "cluster_name", "broker_names"}


def test_each_option_of_the_source_is_a_field_of_its_values() -> None:
    kept = {field.name for values in (SourceOptions, ScanSpec) for field in dataclasses.fields(values)}
    kept.add("condition")  # Joined with the pruning.
    assert {option.field for option in SOURCE_OPTIONS} - PLACE == kept - {
        "scan",
        "place",
        "brokers",
    }


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

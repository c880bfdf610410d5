"""From options to a request: what is named must exist, and what is asked for is what comes."""

from __future__ import annotations

import pytest

from spark.source_world import SourceWorld, rows_of
from tiermq.errors import BadHistory, BadOption, DataLoss
from tiermq.history.arrow_schema import COLUMNS
from tiermq.spark.option_table import Use
from tiermq.spark.options import KAFKA_COLUMNS, SourceOptions


def columns(**given: str) -> tuple[str, ...]:
    return SourceOptions.of({"tier": "s3://b", **given}, Use.BATCH).column_names


def test_columns_are_the_default_ones_less_what_is_left_out() -> None:
    assert columns() == tuple(COLUMNS)
    assert set(COLUMNS) - set(columns(includeBody="false", includeProperties="false")) == {"body", "properties"}
    assert columns(kafkaColumns="true", includeHeaders="true") == KAFKA_COLUMNS
    assert columns(kafkaColumns="true") == KAFKA_COLUMNS[:-1]
    assert columns(kafkaColumns="true", includeHeaders="false") == KAFKA_COLUMNS[:-1]
    assert columns(columns="body,topic") == ("body", "topic")


def test_hot_and_cold_are_one_history_with_each_message_once(filled: SourceWorld) -> None:
    assert rows_of(filled.both) == filled.wanted()


def test_topics_patterns_and_queues_choose(filled: SourceWorld) -> None:
    assert rows_of(filled.both, subscribe="returns") == filled.wanted(("returns", 0))
    assert rows_of(filled.both, subscribePattern="ret.*") == filled.wanted(("returns", 0))
    assert rows_of(filled.both, subscribe="orders", queueIds="1,3") == filled.wanted(("orders", 1), ("orders", 3))
    assigned = '{"orders": [0], "returns": {"broker-a": [0]}}'
    assert rows_of(filled.both, assign=assigned) == filled.wanted(("orders", 0), ("returns", 0))


def test_offsets_bound_each_queue(filled: SourceWorld) -> None:
    start = '{"orders": {"broker-a": {"0": 10, "1": -1}}}'
    end = '{"orders": {"0": 140, "2": 7}}'
    rows = rows_of(filled.both, subscribe="orders", startingOffsets=start, endingOffsets=end)
    wanted = [row for row in filled.wanted(("orders", 0)) if 10 <= row[2] < 140]
    wanted += [row for row in filled.wanted(("orders", 2)) if row[2] < 7]
    assert rows == wanted + filled.wanted(("orders", 3))


def test_an_offset_for_every_queue_reaches_as_far_as_a_queue_does(filled: SourceWorld) -> None:
    rows = rows_of(filled.both, startingOffsets="100", endingOffsets="125")
    assert rows == [row for row in filled.wanted() if 100 <= row[2] < 125]


def test_times_bound_each_message_and_the_end_is_exclusive(filled: SourceWorld) -> None:
    moments = sorted({sent.store_ms for queue in filled.sent.values() for sent in queue})
    assert len(moments) == 2
    late = rows_of(filled.both, startingTimestamp=str(moments[1]))
    early = rows_of(filled.both, endingTimestamp=str(moments[1]))
    assert len(late) == 35
    assert sorted(early + late) == filled.wanted()


def test_times_by_queue_become_offsets(filled: SourceWorld) -> None:
    late = max(sent.store_ms for sent in filled.sent["orders", 0])
    times = f'{{"orders": {{"0": {late}, "1": {late}}}}}'
    rows = rows_of(filled.both, subscribe="orders", startingOffsetsByTimestamp=times)
    wanted = filled.wanted(("orders", 0))[120:] + filled.wanted(("orders", 2), ("orders", 3))
    assert rows == wanted
    times = f'{{"orders": {{"0": {late}}}}}'
    rows = rows_of(filled.both, subscribe="orders", endingOffsetsByTimestamp=times, queueIds="0")
    assert rows == filled.wanted(("orders", 0))[:120]


def test_keys_and_tags_choose_messages(filled: SourceWorld) -> None:
    some = [filled.sent["orders", 1][7], filled.sent["orders", 0][140]]
    keys = ",".join(each.keys[0] for each in some)
    assert sorted(row[3] for row in rows_of(filled.both, keys=keys)) == sorted(each.body for each in some)
    tagged = rows_of(filled.both, subscribe="orders", tags="t1 || t2")
    wanted = {
        each.body
        for (topic, _), sent in filled.sent.items()
        for each in sent
        if topic == "orders" and each.tags != "t0"
    }
    assert {row[3] for row in tagged} == wanted


def test_a_topic_that_does_not_exist_is_shown_the_nearest(filled: SourceWorld) -> None:
    with pytest.raises(BadHistory, match="no topic 'ordes'.*did you mean 'orders'.*There are orders, returns"):
        rows_of(filled.both, subscribe="ordes")


def test_a_queue_or_broker_that_does_not_exist_is_named(filled: SourceWorld) -> None:
    with pytest.raises(BadOption, match="option startingOffsets: expected queue 9 of topic 'orders'.*0, 1, 2, 3"):
        rows_of(filled.both, startingOffsets='{"orders": {"9": 1}}')
    with pytest.raises(BadOption, match="option endingOffsets: .*no such topic"):
        rows_of(filled.both, subscribe="orders", endingOffsets='{"returns": {"0": 1}}')
    with pytest.raises(BadHistory, match="expected queue 9"):
        rows_of(filled.both, assign='{"orders": [9]}')
    with pytest.raises(BadHistory, match="no broker 'broker-x'.*broker-a"):
        rows_of(filled.cold, brokerName="broker-x")


def test_offsets_beyond_the_end_and_before_the_beginning_are_losses_with_reasons(filled: SourceWorld) -> None:
    with pytest.raises(DataLoss, match="orders/0.*beyond the end.*ends at 150"):
        rows_of(filled.both, subscribe="orders", endingOffsets='{"orders": {"0": 200}}')
    rows = rows_of(
        filled.both, subscribe="orders", queueIds="0", endingOffsets='{"orders": {"0": 200}}', failOnDataLoss="false"
    )
    assert rows == filled.wanted(("orders", 0))


def test_what_has_expired_is_an_error_with_its_reason_or_passed_over(filled: SourceWorld) -> None:
    filled.flush_to_tier()
    filled.expire()
    asked = {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 0}}', "queueIds": "0"}
    with pytest.raises(DataLoss, match="orders/0.*expired.*failOnDataLoss=false"):
        rows_of(filled.cold, **asked)
    left = rows_of(filled.cold, **asked, failOnDataLoss="false")
    assert left == filled.wanted(("orders", 0))[150 - len(left) :]
    assert len(left) < 150

"""What a query's own conditions prune. Everything that is not understood, or not implied, prunes nothing."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from tiermq.history.scan_pruning import ScanPruning
from tiermq.pipeline.sql.query_tables import condition_pruning, query_tables, written_table

VIEWS = {"messages", "orders", "returns"}
NOTHING = ScanPruning()
JANUARY_MS = 1767225600000  # 2026-01-01T00:00:00Z


def prunings(query: str) -> list[ScanPruning]:
    found = query_tables(query, VIEWS, "_t_", dt.UTC)
    assert found is not None
    return [read.pruning for read in found.reads]


def of(condition: str) -> ScanPruning:
    (found,) = prunings(f"select body from messages where {condition}")
    assert condition_pruning(condition, dt.UTC) == found
    return found


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("topic = 'rare'", ScanPruning(topics=frozenset({"rare"}))),
        ("'rare' = TOPIC", ScanPruning(topics=frozenset({"rare"}))),
        ("messages.topic <=> 'rare'", ScanPruning(topics=frozenset({"rare"}))),
        ("(topic in ('a', 'b')) and topic in ('b', 'c')", ScanPruning(topics=frozenset({"b"}))),
        ("topic = 'a' and topic = 'b'", ScanPruning(topics=frozenset())),
        (
            "brokerName = 'b1' and queueId in (1, 2)",
            ScanPruning(brokers=frozenset({"b1"}), queue_ids=frozenset({1, 2})),
        ),
        ("queueOffset >= 5 and queueOffset < 9", ScanPruning(begin_offset=5, end_offset=9)),
        ("5 < offset and offset <= 9", ScanPruning(begin_offset=6, end_offset=10)),
        ("queueOffset between 5 and 9", ScanPruning(begin_offset=5, end_offset=10)),
        ("queueOffset in (9, 4)", ScanPruning(begin_offset=4, end_offset=10)),
        ("tags = 'paid' and body is not null", ScanPruning(tags=frozenset({"paid"}))),
        ("array_contains(keys, 'order-42')", ScanPruning(keys=frozenset({"order-42"}))),
        ("uniqKey in ('A', 'B')", ScanPruning(keys=frozenset({"A", "B"}))),
        ("array_contains(keys, 'a') and array_contains(keys, 'b')", ScanPruning(keys=frozenset({"a"}))),
        ("uniqKey = 'A' and array_contains(keys, 'a')", ScanPruning(keys=frozenset({"A"}))),
        ("storeTimestamp >= '2026-01-01'", ScanPruning(begin_ms=JANUARY_MS)),
        ("storeTimestamp < timestamp '2026-01-01 00:00:01'", ScanPruning(end_ms=JANUARY_MS + 1001)),
        ("storeTimestamp >= '2026-01-01T01:00:00+01:00'", ScanPruning(begin_ms=JANUARY_MS)),
        ("storeTimestamp < date '2026-01-01'", ScanPruning(end_ms=JANUARY_MS + 1)),
    ],
)
def test_a_term_of_the_where_prunes(condition: str, expected: ScanPruning) -> None:
    assert of(condition) == expected


@pytest.mark.parametrize(
    "condition",
    [
        "topic = 'a' or queueId = 1",
        "not topic = 'a'",
        "topic <> 'a'",
        "topic not in ('a')",
        "queueOffset not between 1 and 2",
        "lower(topic) = 'a'",
        "topic = concat('a', 'b')",
        "topic = 'a' 'b'",
        "topic = 5",
        "queueId = '1'",
        "queueId = -1",
        "queueOffset > 1.5",
        "topic like 'a%'",
        r"topic = 'a\tb'",
        "topic = 'it''s'",
        r"topic = r'a\b'",
        "topic = 'a' collate UTF8_LCASE",
        "topic is null",
        "topic = null",
        "topic in (select 'a')",
        "exists (select 1 where topic = 'a')",
        "case when topic = 'a' then true else false end",
        "coalesce(topic = 'a', true)",
        "(topic = 'a') is null",
        "array_contains(properties, 'x')",
        "array_contains(keys, '')",
        "storeTimestamp > 'yesterday'",
        "storeTimestamp > current_timestamp()",
        "date(storeTimestamp) = '2026-01-01'",
        "other.topic = 'a'",
        "if(topic = 'a', true, true)",
        "(topic = 'a') = false",
    ],
)
def test_what_is_not_a_plain_comparison_with_a_literal_prunes_nothing(condition: str) -> None:
    assert of(condition) == NOTHING


def test_times_without_a_zone_are_of_the_sessions_and_one_that_is_there_twice_prunes_nothing() -> None:
    paris = ZoneInfo("Europe/Paris")
    assert condition_pruning("storeTimestamp >= '2026-01-01 01:00:00'", paris) == ScanPruning(begin_ms=JANUARY_MS)
    assert condition_pruning("storeTimestamp >= '2026-10-25 02:30:00'", paris) == NOTHING
    assert condition_pruning("storeTimestamp >= '2026-03-29 02:30:00'", paris) == NOTHING
    assert condition_pruning("storeTimestamp >= '2026-01-01'", None) == NOTHING


def test_each_reference_is_named_and_pruned_by_its_own_select() -> None:
    query = (
        "with c as (select * from orders where queueId = 1) select a.body, `returns`.body from ORDERS a "
        "left join `returns` on a.msgId = `returns`.msgId where a.queueId = 2 and returns.tags = 'x' "
        "union all select body, body from orders union all select body, body from c where queueOffset = 5"
    )
    found = query_tables(query, VIEWS, "_t_", dt.UTC)
    assert found is not None
    assert found.text == (
        "with c as (select * from _t_0 as orders where queueId = 1) select a.body, `returns`.body from _t_1 a "
        "left join _t_2 as `returns` on a.msgId = `returns`.msgId where a.queueId = 2 and returns.tags = 'x' "
        "union all select body, body from _t_3 as orders union all select body, body from c where queueOffset = 5"
    )
    assert [(read.name, read.view) for read in found.reads] == [
        ("_t_0", "orders"), ("_t_1", "ORDERS"), ("_t_2", "returns"), ("_t_3", "orders"),
    ]  # fmt: skip
    one, two = (ScanPruning(queue_ids=frozenset({n})) for n in (1, 2))
    tagged = ScanPruning(tags=frozenset({"x"}))
    assert [read.pruning for read in found.reads] == [one, two, tagged, NOTHING]


@pytest.mark.parametrize(
    "query",
    [
        "select body from orders join returns on true where topic = 'a'",  # Whose topic?
        "select body from orders o(a, b) where a = 'x' and topic = 'y'",
        "select body from orders lateral view explode(keys) as topic where topic = 'a'",
        "select body from orders o tablesample (10 rows) where topic = 'a'",
        "select body from (select * from orders) where topic = 'a'",
        "select topic from orders group by topic having topic = 'a'",
        "select body from orders o join returns r on o.topic = 'a'",
        "select (select count(*) from orders) from returns where topic in (select topic from orders)",
    ],
)
def test_conditions_of_another_place_prune_nothing(query: str) -> None:
    assert all(each == NOTHING for each in prunings(query))


@pytest.mark.parametrize(
    "query",
    [
        "with orders as (select 1 as topic) select * from orders where topic = 'a'",
        "from orders select topic",
        "from orders |> where queueId = 1",
        "describe orders",
        "selekt topic from orders",
        "select 1; select 2 from orders",
        "select body from orders tablesample (10 rows) where topic = 'a'",
        "insert into other select * from orders",
    ],
)
def test_a_query_that_is_not_plain_is_left_as_it_is(query: str) -> None:
    assert query_tables(query, VIEWS, "_t_", dt.UTC) is None


def test_a_pruning_can_be_an_option_and_comes_back_the_same() -> None:
    pruning = ScanPruning(frozenset({"a"}), None, frozenset({1}), frozenset(), frozenset({"k"}), 1, 5, 2, 3)
    assert ScanPruning.of_text(pruning.as_text()) == pruning
    assert ScanPruning.of_text(NOTHING.as_text()) == NOTHING


@pytest.mark.parametrize(
    ("query", "table"),
    [
        ("insert into orders select 1", "orders"),
        ("insert overwrite table `a-b` (body) values ('x')", "a-b"),
        ("delete from orders where queueId = 1", "orders"),
        ("update orders set body = null", "orders"),
        ("insert into other.orders select 1", None),
        ("select body from orders", None),
        ("selekt", None),
    ],
)
def test_the_table_that_a_statement_changes_is_known(query: str, table: str | None) -> None:
    assert written_table(query) == table

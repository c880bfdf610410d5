"""What the text of a query tells: views and columns."""

from __future__ import annotations

import pytest

from tiermq.spark.jobs.sql_views import columns_needed, views_named, views_of


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select topic, count(*) from messages group by topic", ("topic",)),
        ("select count(*) from orders", ("queueId",)),
        ("select count( * ), max(QUEUEOFFSET) from orders", ("queueOffset",)),
        ("select queueOffset * 2, storeSize*2 from orders where tags = 'a'", ("queueOffset", "tags", "storeSize")),
        ("select value, offset from orders order by offset desc", ("value", "offset")),
        ("select `body`, properties['a'] from orders", ("body", "properties")),
    ],
)
def test_columns_are_those_that_the_text_names(query: str, columns: tuple[str, ...]) -> None:
    assert columns_needed(query) == columns


@pytest.mark.parametrize(
    "query",
    [
        "select * from orders",
        "select o.* from orders o",
        "select topic, * from orders",
        "select distinct * from orders",
        "select struct(*) from orders",
        "select /* hm */ * from orders",
        "table orders",
        "from orders",
        "with o as (select 1) from orders",
        "select topic from orders natural join returns",
        "from orders |> where queueId = 1",
        "describe orders",
    ],
)
def test_a_query_that_may_want_everything_gets_everything(query: str) -> None:
    assert columns_needed(query) is None


def test_topics_get_legal_names_that_differ() -> None:
    views = views_of(["orders", "%RETRY%g", "a-b", "a.b", "7days", "messages", "支付", "订单"])
    assert views["orders"] == "orders"
    assert views["_retry_g"] == "%RETRY%g"
    assert (views["a_b"], views["a_b_2"]) == ("a-b", "a.b")
    assert views["t_7days"] == "7days"
    assert views["messages_2"] == "messages"
    assert sorted(views.values()) == sorted(["orders", "%RETRY%g", "a-b", "a.b", "7days", "messages", "支付", "订单"])


def test_only_views_that_are_named_are_made() -> None:
    assert views_named("select 1 from Orders o, `a_b`", ["orders", "a_b", "returns"]) == ["orders", "a_b"]

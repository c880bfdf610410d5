"""What the text of a query tells: views and columns."""

from __future__ import annotations

import pytest

from tiermq.errors import BadOption
from tiermq.pipeline.sql.topic_views import TopicViews, columns_needed


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


def test_topics_have_plain_names_and_their_own() -> None:
    views = TopicViews(["orders", "%RETRY%g", "a-b", "7days", "messages", "Pay"])
    assert views == {"orders": "orders", "_retry_g": "%RETRY%g", "a_b": "a-b", "t_7days": "7days", "pay": "Pay"}
    assert views.plain_names("a-b") == ["a_b", "a-b"]
    assert [views.topics_of(name) for name in ("PAY", "Pay", "a-b", "A_B")] == [["Pay"], ["Pay"], ["a-b"], ["a-b"]]
    assert views.topics_of("messages") == views.topics
    assert views.topics_of("a.b") == []


def test_a_topics_own_name_is_always_that_topic() -> None:
    views = TopicViews(["Orders", "orders", "a-b", "a_b", "x-y", "x.y"])
    for topic in views.topics:
        assert views.topics_of(topic) == [topic]
    assert views == {"a_b": "a_b", "a-b": "a-b", "x-y": "x-y", "x.y": "x.y"}
    assert views.shown() == "messages, `a-b`, a_b, `x-y`, `x.y`, Orders, orders"


@pytest.mark.parametrize(("name", "wanted"), [("ORDERS", "`Orders` or `orders`"), ("x_y", "`x-y` or `x.y`")])
def test_a_name_that_means_several_topics_is_an_error_that_lists_them(name: str, wanted: str) -> None:
    views = TopicViews(["Orders", "orders", "x-y", "x.y"])
    with pytest.raises(BadOption, match=f"Write {wanted}"):
        views.topics_of(name)
    with pytest.raises(BadOption, match=f"Write {wanted}"):
        views.named(f"from {name}")


def test_a_new_topic_cannot_change_what_an_own_name_reads() -> None:
    before, after = TopicViews(["a-b", "orders"]), TopicViews(["a-b", "a.b", "orders", "ORDERS"])
    for name in ("a-b", "orders"):
        assert before.topics_of(name) == after.topics_of(name) == [name]


def test_only_views_that_are_named_are_made() -> None:
    views = TopicViews(["orders", "a-b", "returns"])
    assert views.named("select 1 from Orders o, `a_b`, `a-b`") == ["orders", "a_b", "a-b"]
    with pytest.raises(BadOption, match="Write `Orders` or `orders`"):
        TopicViews(["orders", "Orders"]).named("from Orders")

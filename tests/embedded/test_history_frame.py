"""`tiermq.read` and queries on DuckDB: history for Python's data tools, without Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import tiermq
from tiermq import HistoryFrame, LocalStore, Message, TieredStore
from tiermq.embedded import duckdb_query
from tiermq.embedded.duckdb_query import DuckDBQuery, advice, query_history
from tiermq.embedded.history_dataset import HistoryDataset, filter_pruning
from tiermq.embedded.optional_modules import require
from tiermq.errors import BadHistory, BadOption, TierMQError, UnknownColumn
from tiermq.history.scan_pruning import ScanPruning

TAGS = ("paid", "sent", "open")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with 600 orders in four queues, and a topic whose name must be quoted."""
    here = tmp_path_factory.mktemp("history")
    with TieredStore.open(here / "s", tier=here / "t") as store:
        store.put_many(
            [Message("orders", b'{"n": %d}' % n, queue_id=n % 4, keys=[f"k{n}"], tags=TAGS[n % 3]) for n in range(600)]
        )
        store.put(Message("a-b", b"x"))
        assert store.flush_to_tier()
    return here / "t"


def offsets(rows: Any) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def test_every_tool_gets_the_same_rows(tier: Path) -> None:
    frame = tiermq.read(tier=tier, topic="orders", columns=["queueId", "queueOffset", "tags", "body"])
    table = frame.to_arrow()
    assert table.schema == frame.schema
    wanted = offsets(table.to_pylist())
    assert wanted == [(queue, offset) for queue in range(4) for offset in range(150)]
    assert offsets(pa.Table.from_batches(frame.batches()).to_pylist()) == wanted
    assert offsets(frame.reader().read_all().to_pylist()) == wanted
    assert offsets(pa.table(frame).to_pylist()) == wanted, "Arrow's own interface"
    assert offsets(frame.to_pandas().to_dict("records")) == wanted
    assert offsets(frame.polars().collect().to_dicts()) == wanted
    assert sorted(frame.duckdb().project("queueId, queueOffset").fetchall()) == wanted
    assert frame.sql("select count(*) from messages").fetchall() == [(600,)]
    assert frame.dataset().head(3).num_rows == 3
    assert frame.select("topic").to_arrow().column_names == ["topic"]
    again = pickle.loads(pickle.dumps(frame.dataset()))
    assert again.count_rows() == 600


def test_what_is_asked_for_is_what_is_read(tier: Path) -> None:
    def count(**arguments: Any) -> int:
        return tiermq.read(tier=tier, **arguments).dataset().count_rows()

    assert count() == 601
    assert count(topic="orders", queues=1) == 150
    assert count(topic=["orders", "a-b"]) == 601
    assert count(topic=re.compile("a-.*")) == 1
    assert count(topic="orders", tags="paid") == 200
    assert count(topic="orders", keys=["k7", "k8"]) == 2
    assert count(topic="orders", offsets=(0, 10)) == 40
    assert count(topic="orders", since="1h") == 600
    assert count(topic="orders", since=dt.timedelta(hours=1), until=dt.timedelta(0)) == 600
    assert count(topic="orders", until="1h") == 0
    assert count(topic="orders", since="2026-01-01", until=dt.datetime(2026, 1, 2, tzinfo=dt.UTC)) == 0


def test_conditions_of_polars_and_duckdb_prune_the_scan(tier: Path) -> None:
    whole = tiermq.read(tier=tier, topic="orders").dataset().plan().counters.bytes_planned

    def planned(work: Any) -> tuple[int, int]:
        dataset = tiermq.read(tier=tier, topic="orders").dataset()
        rows = work(dataset)
        assert dataset.counters.bytes_planned > 0
        return rows, dataset.counters.bytes_planned

    def in_polars(dataset: HistoryDataset) -> int:
        frame = pl.scan_pyarrow_dataset(dataset)
        return frame.filter((pl.col("queueId") == 1) & (pl.col("queueOffset") < 10)).select("body").collect().height

    def in_duckdb(dataset: HistoryDataset) -> int:
        connection = duckdb_query.connect()
        connection.register("m", dataset)
        return int(connection.execute("select count(*) from m where queueId = 1 and queueOffset < 10").fetchall()[0][0])

    for work in (in_polars, in_duckdb):
        rows, size = planned(work)
        assert rows == 10
        assert size * 20 < whole


def test_the_rows_are_right_whatever_the_filter_says(tier: Path) -> None:
    """Filters that prune nothing, half or all, against the same filters over a table in memory."""
    frame = tiermq.read(tier=tier, columns=["topic", "queueId", "queueOffset", "tags", "storeTimestamp"])
    table = frame.to_arrow()
    moment = table["storeTimestamp"][300].as_py()
    for condition in (
        (pl.col("topic") == "orders") & (pl.col("queueId").is_in([1, 3])),
        (pl.col("topic") == 'or"ders') | (pl.col("queueId") == 2),
        ~((pl.col("queueId") == 1) & (pl.col("tags") == "paid")),
        (pl.col("storeTimestamp") >= moment) & (pl.col("queueOffset") > 3),
        (pl.col("tags") == "{value_set=}") | (pl.col("queueOffset") == 149),
        (pl.col("topic") == "a-b") & (pl.col("queueId") == 0),
        pl.col("queueId") > pl.col("queueOffset"),
    ):
        there = frame.polars().filter(condition).collect()
        here = pl.DataFrame(table).filter(condition)
        assert offsets(there.to_dicts()) == offsets(here.to_dicts()), str(condition)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            '((queueId == 1) and (topic == "orders"))',
            ScanPruning(queue_ids=frozenset({1}), topics=frozenset({"orders"})),
        ),
        ("(storeTimestamp >= 1970-01-01 00:00:01.000000Z)", ScanPruning(begin_ms=1000)),
        ('((topic == "x 2026-01-01 00:00:00Z") and (queueId == 1))', None),
        ('((topic == "a\\"b") and (queueId == 1))', ScanPruning(queue_ids=frozenset({1}))),
        ('(is_in(topic, {value_set=string:[\n  "a"\n]}) and (queueId == 1))', ScanPruning(queue_ids=frozenset({1}))),
        ("((queueId == 1) or (queueId == 2))", ScanPruning()),
        ("invert((queueId == 1))", ScanPruning()),
        ("no filter at all ((", ScanPruning()),
    ],
)
def test_a_filter_prunes_only_what_it_implies(text: str, wanted: ScanPruning | None) -> None:
    found = filter_pruning(text)
    if wanted is None:
        wanted = ScanPruning(queue_ids=frozenset({1}), topics=frozenset({"x 2026-01-01 00:00:00Z"}))
    assert found == wanted


def test_an_open_store_is_read_with_everything_that_was_put(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "s", background=False) as store:
        store.put_many([Message("orders", b"%d" % n) for n in range(10)])
        assert tiermq.read(store=store).dataset().count_rows() == 10
        assert tiermq.read(store=tmp_path / "s", topic="orders").dataset().count_rows() == 10
    with TieredStore.open(tmp_path / "s", tier=tmp_path / "t") as tiered:
        frame = tiermq.read(store=tiered)
        assert frame.spec.place.tier == tiered.tier_url
        assert frame.to_arrow().num_rows == 10


def test_arguments_that_cannot_be_are_refused_in_words(tier: Path) -> None:
    with pytest.raises(BadOption, match="location of messages"):
        tiermq.read(topic="orders")
    with pytest.raises(UnknownColumn, match="did you mean 'queueId'"):
        tiermq.read(tier=tier, columns=["queueID"])
    with pytest.raises(BadHistory, match="did you mean 'orders'"):
        tiermq.read(tier=tier, topic="order").to_arrow()
    with pytest.raises(NotImplementedError, match="fragments"):
        tiermq.read(tier=tier).dataset().get_fragments()
    frame = tiermq.read(tier=tier, topic="orders", columns="body")
    assert "subscribe" in repr(frame)
    assert "body" in repr(frame.dataset())
    assert "4 queues" in frame.explain()


def test_a_library_that_is_missing_is_named_with_its_extra(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TierMQError, match=r"pyarrow, which is not installed: pip install 'tiermq\[sql\]'"):
        tiermq.read(tier=tier)
    with pytest.raises(TierMQError, match=r"tiermq\[polars\]"):
        require("polars", "polars")


# Queries.


def spec_of(tier: Path) -> Any:
    return tiermq.read(tier=tier).spec


def test_every_topic_is_a_table(tier: Path) -> None:
    frame = tiermq.read(tier=tier)
    assert frame.sql('select decode(body) from "a-b"').fetchall() == [("x",)]
    assert frame.sql("select count(*) from a_b").fetchall() == [(1,)]
    rows = frame.sql("select tags, count(*) from orders group by tags order by tags").fetchall()
    assert rows == [("open", 200), ("paid", 200), ("sent", 200)]
    joined = (
        "select count(*) from orders o join orders p "
        "on o.queueOffset = p.queueOffset and o.queueId = 1 and p.queueId = 2"
    )
    assert frame.sql(joined).fetchall() == [(150,)]
    assert frame.sql("from orders select queueId where queueOffset = 3 order by all").fetchall() == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]
    assert frame.sql("select decode(body)->>'n' from orders where array_contains(keys, 'k5')").fetchall() == [("5",)]
    with_name = frame.sql("with orders as (select 1 a) select a from orders").fetchall()
    assert with_name == [(1,)]


def test_conditions_of_a_query_prune_each_table(tier: Path) -> None:
    whole = DuckDBQuery("select body from orders", spec_of(tier)).plans()["orders"].counters.bytes_planned
    asked = DuckDBQuery(
        "select o.body, p.body from orders o, orders p where o.queueId = 1 and o.queueOffset < 5 and p.queueId = 2",
        spec_of(tier),
    )
    plans = asked.plans()
    assert plans["orders"].counters.bytes_planned * 20 < whole
    assert plans["orders (2)"].counters.bytes_planned * 3 < whole


KEY_TERMS = (
    "array_contains(keys, 'k5')", "contains(keys, 'k5')", "'k5' in keys", "'k5' in o.keys", "'k5' = any(keys)",
    "keys @> ['k5']", "['k5'] <@ keys", "keys && ['k5', 'none']", "'k5' in keys and 'k5' in keys",
)  # fmt: skip
OTHER_KEY_TERMS = (
    "'k5' not in keys", "keys @> []", "keys && ['k5', body::text]", "'k5' in [tags]", "'k5' in keys or true",
    "list_position(keys, 'k5') = 1", "keys = ['k5']", "array_contains(keys, tags)",
)  # fmt: skip


@pytest.mark.parametrize("term", KEY_TERMS + OTHER_KEY_TERMS)
def test_conditions_on_keys_ask_the_index_and_the_rows_are_right(tier: Path, term: str) -> None:
    table = tiermq.read(tier=tier, topic="orders").to_arrow()
    connection = duckdb_query.connect()
    connection.register("t", table)
    expected = connection.execute(f"select queueId, queueOffset from t o where {term} order by all").fetchall()
    asked = DuckDBQuery(f"select queueId, queueOffset from orders o where {term} order by all", spec_of(tier))
    assert asked.rows(0)[1] == expected
    [keys] = [dataset._spec.pruning.keys for _, dataset in asked.tables.values()]
    if term in KEY_TERMS:
        assert expected == [(1, 1)]
        assert keys in (frozenset({"k5"}), frozenset({"k5", "none"}))
    else:
        assert keys is None


def test_a_report_has_rows_that_json_can_hold(tier: Path) -> None:
    report = query_history("select body, storeTimestamp, keys from orders order by all limit 1", spec_of(tier))
    [[body, stored, keys]] = report.details["rows"]
    assert (body, keys) == ('{"n": 0}', ["k0"])
    assert dt.datetime.fromisoformat(stored).tzinfo is not None
    assert [column["name"] for column in report.details["columns"]] == ["body", "storeTimestamp", "keys"]
    assert (report.done["rows"], report.details["notes"]) == (1, [])
    assert len(query_history("select 1 from orders", spec_of(tier), limit=7).details["rows"]) == 7
    assert len(query_history("select 1 from orders", spec_of(tier), limit=0).details["rows"]) == 600


def test_a_dry_run_reads_no_message(tier: Path) -> None:
    report = query_history("select body from orders", spec_of(tier), dry_run=True)
    assert (report.done, "rows" in report.details) == ({}, False)
    assert any("4 queues" in line for line in report.details["scan"]["orders"])


def test_spark_is_named_where_it_is_the_better_engine(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert advice(duckdb_query.SPARK_BYTES - 1) == ""
    assert "tiermq pipeline sql --master" in advice(duckdb_query.SPARK_BYTES)
    monkeypatch.setattr(duckdb_query, "advice", lambda size: advice(size, least=1))
    report = query_history("select body from orders", spec_of(tier))
    assert "reads about" in report.details["notes"][0]


def test_a_query_that_cannot_be_is_explained(tier: Path) -> None:
    frame = tiermq.read(tier=tier)
    for query, words in (
        ("select nothing from orders", "Tables are messages"),
        ("select 1 from nowhere", "orders"),
        ("selec 1", "Tables are"),
    ):
        with pytest.raises(BadOption, match=words):
            query_history(query, frame.spec)
    report = query_history("select 1", frame.spec)
    assert "names none of the tables" in report.details["notes"][0]


def test_an_error_of_the_scan_is_that_error(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: Any, **_options: Any) -> Iterator[Any]:
        yield from ()
        raise BadHistory("the bucket is gone")

    monkeypatch.setattr(HistoryDataset, "_read", broken)
    with pytest.raises(TierMQError, match="the bucket is gone"):
        query_history("select body from orders", spec_of(tier))


def test_a_connection_of_one_s_own_may_be_used(tier: Path) -> None:
    connection = duckdb.connect()
    relation = tiermq.read(tier=tier, topic="orders").duckdb(connection)
    assert relation.filter("queueId = 3").count("*").fetchall() == [(150,)]
    assert isinstance(HistoryFrame(spec_of(tier)).schema, pa.Schema)


def test_the_directory_of_a_store_is_no_tier(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "s") as store:
        store.put(Message("orders", b"tea"))
    for frame in (tiermq.read(tier=tmp_path / "s"), tiermq.read(tier=tmp_path / "s", topic="orders")):
        with pytest.raises(BadHistory, match="expected a tier, found the directory of a store.*store="):
            frame.to_arrow()


def test_filters_of_a_wrong_type_are_refused_instead_of_finding_nothing(tier: Path) -> None:
    wrong: Any
    for wrong in ("1", [0.5], 0.5, -1, ["1"]):
        with pytest.raises(BadOption, match="queues: expected the number of a queue"):
            tiermq.read(tier=tier, queues=wrong)
    wrong = 1
    for name in ("tags", "keys", "topic", "broker"):
        given: Any = {name: wrong}
        with pytest.raises(BadOption, match=f"{name}: expected texts"):
            tiermq.read(tier=tier, **given)
    with pytest.raises(BadOption, match="store: expected a directory"):
        tiermq.read(store=wrong)
    with pytest.raises(BadOption, match="expected until at or after since, found since='1h' and until='2h'"):
        tiermq.read(tier=tier, since="1h", until="2h")
    with pytest.raises(BadOption, match="give tier= .* store=") as refused:
        tiermq.read()
    assert "namesrv" not in str(refused.value)


def test_a_broker_or_cluster_beside_a_store_is_refused_instead_of_ignored(tmp_path: Path, tier: Path) -> None:
    with LocalStore.open(tmp_path / "s") as store:
        store.put(Message("orders", b"tea"))
    with pytest.raises(BadOption, match="broker: it chooses from a tier, found 'nope' with a store"):
        tiermq.read(store=tmp_path / "s", broker="nope")
    with pytest.raises(BadOption, match="cluster: it chooses from a tier, found 'nope' with a store"):
        tiermq.read(store=tmp_path / "s", cluster="nope")
    named = tiermq.read(store=f"{tmp_path / 's'}=mine").to_arrow()
    assert named["brokerName"].to_pylist() == ["mine"]
    with pytest.raises(BadHistory, match="nope"):
        tiermq.read(tier=tier, broker="nope").to_arrow()

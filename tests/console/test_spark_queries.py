"""A query on Spark: it reports how far it is, and ends with its client, its console, its limit and a request."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from console.console_world import Answer, Browser, orders_broker, place_of
from console.test_query_limits import in_thread
from tiermq.console.query_runs import SPARK_LIMITS, QueryLimits
from tiermq.console.sources import SourcePlace, Sources
from tiermq.console.web.server import ConsoleServer
from waiting import until

pytest.importorskip("pyspark")
ANYBODY = "Basic eDp4"
QUERY = "SELECT count(*) FROM orders"
ENDLESS = "SELECT sum(length(a.body) * length(b.body)) FROM " + ", ".join(f"orders {name}" for name in "abcdef")


@contextmanager
def on_spark(directory: Path, limits: QueryLimits = SPARK_LIMITS) -> Iterator[tuple[Browser, Sources, ConsoleServer]]:
    with orders_broker(directory):
        place = place_of(directory)
        sources = Sources(SourcePlace(None, place.tier, place.stores, (), "local[2]"), spark_limits=limits)
        server = ConsoleServer(sources, port=0)
        server.start()
        try:
            yield Browser(server.port), sources, server
        finally:
            server.stop()


def post(at: Browser, name: str, **values: str) -> Answer:
    body = json.dumps(values).encode()
    return at.ask("POST", f"/api/{name}", body, Content_Type="application/json", Authorization=ANYBODY)


def group_of(sources: Sources) -> int:
    """The process group of the query that runs, once it does."""
    until(lambda: (query := sources.spark_query) is not None and query.process_id is not None)
    query = sources.spark_query
    assert query is not None
    assert query.process_id is not None
    os.killpg(query.process_id, 0)
    return query.process_id


def members(group: int) -> list[str]:
    """The processes of a group that have not ended, by Linux' own list."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = each.read_text()
            name, _, rest = text.rpartition(")")
            state, _, of_group = rest.split()[:3]
            if int(of_group) == group and state not in "ZX":
                found.append(name)
    return found


def require_gone(group: int) -> None:
    """It was killed; the kernel may take a moment."""
    until(lambda: members(group) == [])


def test_a_query_on_spark_ends_with_its_client(tmp_path: Path) -> None:
    with on_spark(tmp_path) as (at, sources, _):
        for path, kind in (("/api/sql.spark", "application/json"), ("/sql", "application/x-www-form-urlencoded")):
            token = at.token("/sql?" + urlencode({"query": QUERY, "only": "estimate"}))
            is_form = path == "/sql"
            body = urlencode({"query": QUERY, "token": token}) if is_form else json.dumps({"query": QUERY})
            client = http.client.HTTPConnection("127.0.0.1", at.port)
            sent = {"Content-Type": kind, **({"Cookie": at.cookie} if is_form else {"Authorization": ANYBODY})}
            client.request("POST", path, body.encode(), sent)
            group = group_of(sources)
            assert QUERY in at.get("/sql/running").text
            assert "at most 1 query on Spark at a time" in post(at, "sql.spark", query=QUERY).text
            client.close()
            until(lambda: sources.spark_queries.running_count == 0)
            require_gone(group)
            assert at.api("sql.running")["running"] is None


@pytest.mark.parametrize("ends_by", ["a stop", "a request"])
def test_a_query_on_spark_ends_with_its_console_and_by_a_request(tmp_path: Path, ends_by: str) -> None:
    with on_spark(tmp_path) as (at, sources, server):
        thread, found = in_thread(lambda: post(at, "sql.spark", query=QUERY))
        group = group_of(sources)
        if ends_by == "a stop":
            server.stop()
        else:
            assert post(Browser(at.port), "sql.end").json == {"ended": QUERY}
        thread.join()
        require_gone(group)
        assert ("the console is stopping" if ends_by == "a stop" else "it was ended by") in found[0].text


def test_a_query_on_spark_ends_at_its_time_limit(tmp_path: Path) -> None:
    limits = QueryLimits(seconds=0.5, count=1)
    with on_spark(tmp_path, limits) as (at, sources, _):
        answer = post(at, "sql.spark", query=QUERY)
        assert (answer.status, "ended after 0.5 s" in answer.text) == (400, True), answer.text
        assert sources.spark_queries.running_count == 0


@pytest.mark.slow
def test_a_query_on_spark_reports_its_tasks_and_leaves_no_process(tmp_path: Path) -> None:
    with on_spark(tmp_path) as (at, sources, _):
        thread, found = in_thread(lambda: post(at, "sql.spark", query=ENDLESS))
        group = group_of(sources)
        other = Browser(at.port)

        def tasks() -> int:
            running = other.api("sql.running")["running"]
            assert running is not None, found[0].text
            return running["tasks"] or 0

        until(lambda: tasks() > 0)
        assert [name for name in members(group) if "java" in name], members(group)
        assert " tasks done" in other.get("/sql/running").text
        assert post(other, "sql.end").status == 200
        thread.join()
        assert "it was ended by" in found[0].text
        require_gone(group)

"""SQL of the console over HTTP: a query is bounded in time, memory and number, and ends with its client and console."""

from __future__ import annotations

import http.client
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from console.console_world import ORDERS, Answer, Browser, orders_broker, place_of
from tiermq.client.wire_history import read_placed_task
from tiermq.console.operations import tier
from tiermq.console.query_runs import QueryEnded, QueryLimits, QueryRuns, client_has_left
from tiermq.console.sources import Sources
from tiermq.console.web.server import ConsoleServer
from waiting import until

pytest.importorskip("duckdb")
ENDLESS = "SELECT sum(a.i * b.i) FROM range(10000000) a(i), range(10000000) b(i), (SELECT 1 FROM orders LIMIT 1)"
LARGE = "SELECT count(DISTINCT hash(i)) FROM range(25000000) t(i), (SELECT 1 FROM orders LIMIT 1)"
FOREVER = QueryLimits(seconds=600)


def path_of(query: str) -> str:
    return "/api/sql.run?" + urlencode({"query": query})


@contextmanager
def limited(directory: Path, limits: QueryLimits) -> Iterator[tuple[Browser, Sources, ConsoleServer]]:
    with orders_broker(directory):
        sources = Sources(place_of(directory), limits=limits)
        server = ConsoleServer(sources, port=0)
        server.start()
        try:
            yield Browser(server.port), sources, server
        finally:
            server.stop()


def in_thread(work: Callable[[], Answer]) -> tuple[threading.Thread, list[Answer]]:
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def test_an_endless_query_is_answered_in_words_at_its_time_limit(tmp_path: Path) -> None:
    with limited(tmp_path, QueryLimits(seconds=0.2)) as (at, _, _):
        answer = at.get(path_of(ENDLESS))
        assert (answer.status, "ended after 0.2 s" in answer.json["error"]) == (400, True)
        assert "ended after 0.2 s" in at.get("/sql?" + urlencode({"query": ENDLESS})).text


def test_a_query_beyond_its_memory_is_answered_in_words_and_spills_nothing(tmp_path: Path) -> None:
    with limited(tmp_path, QueryLimits(seconds=600, memory_mib=64)) as (at, _, _):
        answer = at.get(path_of(LARGE))
        assert (answer.status, "more than 64 MiB of memory" in answer.json["error"]) == (400, True)
        assert at.api("sql.run", query="SELECT count(*) FROM orders")["rows"] == [[ORDERS + 1]]


def test_a_query_ends_when_its_client_leaves_and_a_third_one_is_refused(tmp_path: Path) -> None:
    with limited(tmp_path, FOREVER) as (at, sources, _):
        clients = [http.client.HTTPConnection("127.0.0.1", at.port) for _ in range(2)]
        for client in clients:
            client.request("GET", path_of(ENDLESS))
        until(lambda: sources.queries.running_count == 2)
        refused = at.get(path_of("SELECT count(*) FROM orders"))
        assert (refused.status, "at most 2 queries" in refused.json["error"]) == (429, True)
        for client in clients:
            client.close()
        until(lambda: sources.queries.running_count == 0)
        assert at.api("sql.run", query="SELECT count(*) FROM orders")["rows"] == [[ORDERS + 1]]


def test_a_stop_ends_the_queries_that_run(tmp_path: Path) -> None:
    with limited(tmp_path, FOREVER) as (at, sources, server):
        thread, found = in_thread(lambda: at.get(path_of(ENDLESS)))
        until(lambda: sources.queries.running_count == 1)
        server.stop()
        assert sources.queries.running_count == 0
        thread.join()
        assert "the console is stopping" in found[0].text


def until_full(port: int) -> list[http.client.HTTPConnection]:
    """Ask for endless queries until one is refused, so that as many run as may; on a slow machine some end meanwhile,
    by their time limit.
    """
    clients = []
    for _ in range(3):
        clients.append(http.client.HTTPConnection("127.0.0.1", port))
        clients[-1].request("GET", path_of(ENDLESS))
    while True:
        ready, _, _ = select.select([each.sock for each in clients], [], [])
        for client in [each for each in clients if each.sock in ready]:
            clients.remove(client)
            status = client.getresponse().status
            client.close()
            if status == 429:
                return clients
            clients.append(http.client.HTTPConnection("127.0.0.1", port))
            clients[-1].request("GET", path_of(ENDLESS))


class Forgetful:
    """A connection that forgets its first interrupts, as DuckDB does between two statements."""

    def __init__(self, forgets: int) -> None:
        self.forgets = forgets
        self.is_interrupted = threading.Event()

    def interrupt(self) -> None:
        self.forgets -= 1
        if self.forgets < 0:
            self.is_interrupted.set()


@pytest.mark.parametrize("ends_by", ["its limit", "a stop", "its client"])
def test_a_query_is_interrupted_until_it_ends(ends_by: str) -> None:
    runs = QueryRuns(QueryLimits(seconds=0.0 if ends_by == "its limit" else 600.0))
    left = threading.Event()
    token = client_has_left.set(left)
    connection = Forgetful(forgets=3)
    stopping = threading.Thread(target=runs.stop)

    def query() -> None:
        with runs.run(connection):
            if ends_by == "a stop":
                stopping.start()
            elif ends_by == "its client":
                left.set()
            connection.is_interrupted.wait()
            assert runs.running_count == 1
            raise RuntimeError("what the library raises")

    try:
        with pytest.raises(QueryEnded):
            query()
    finally:
        client_has_left.reset(token)
        if ends_by == "a stop":
            stopping.join()
    assert (runs.running_count, connection.forgets < 0) == (0, True)


def test_a_console_that_is_terminated_during_a_query_ends_with_code_0(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker:
        words = [sys.executable, "-m", "tiermq.cli", "console", "--namesrv", broker.name_server, "--port", "0"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "http://" in line)
            port = int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
            clients = until_full(port)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            for client in clients:
                client.close()
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, output


def test_a_search_ends_at_its_time_limit_with_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: Any) -> Iterator[Any]:
        while True:
            yield from read_placed_task(*arguments)

    with limited(tmp_path, QueryLimits(seconds=0.2)) as (at, _, _):
        monkeypatch.setattr("tiermq.console.message_reading.read_placed_task", endless)
        found = at.api("message.find", topic="orders", text='"order": 6}')
        assert {each["queueOffset"] for each in found["messages"]} == {3}
        [loss] = found["losses"]
        assert "ended after 0.2 s" in loss


def test_a_search_is_one_of_the_queries_that_may_run(tmp_path: Path) -> None:
    with limited(tmp_path, QueryLimits(count=0)) as (at, _, _):
        assert at.get("/api/message.find?topic=orders&text=x").status == 429
        assert at.api("message.find", topic="orders", key="order-7")["messages"]


def test_a_query_that_runs_long_holds_up_no_page(tmp_path: Path) -> None:
    with limited(tmp_path, FOREVER) as (at, sources, _):
        client = http.client.HTTPConnection("127.0.0.1", at.port)
        client.request("GET", path_of(ENDLESS))
        until(lambda: sources.queries.running_count == 1)
        for path in ("/", "/topics/orders", "/tier", "/history", "/messages?topic=orders"):
            assert at.get(path).status == 200
        assert sources.queries.running_count == 1
        client.close()


def test_a_name_in_a_query_is_no_variable_of_the_console(tmp_path: Path) -> None:
    with limited(tmp_path, FOREVER) as (at, _, _):
        for name in ("catalog", "running", "topics", "visit", "reader", "connection", "counters"):
            answer = at.get(path_of(f"SELECT * FROM orders, {name}"))
            assert answer.status == 400, name
            assert "Python" not in answer.text, answer.text
            assert "sql.py" not in answer.text, answer.text


@pytest.mark.parametrize("name", ["tier.verify", "tier.orphans"])
def test_reading_the_whole_tier_holds_up_no_page_and_ends_with_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reached, goes_on = threading.Event(), threading.Event()
    whole = {"tier.verify": "verify_tier", "tier.orphans": "find_orphans"}[name]
    real = getattr(tier, whole)

    def long(*arguments: Any, **options: Any) -> Any:
        reached.set()
        goes_on.wait()
        return real(*arguments, **options)

    monkeypatch.setattr(tier, whole, long)
    with limited(tmp_path, FOREVER) as (at, sources, _):
        sent: dict[str, str] = {"Content_Type": "application/json", "Authorization": "Basic eDp4"}

        def begin() -> Answer:
            browser = Browser(at.port)
            return (
                browser.ask("POST", f"/api/{name}", b"{}", None, **sent)
                if name == "tier.verify"
                else browser.get(f"/api/{name}")
            )

        thread, found = in_thread(begin)
        reached.wait()
        for path in ("/", "/topics/orders", "/tier", "/history", "/messages?topic=orders"):
            assert at.get(path).status == 200
        if name == "tier.verify":
            assert "at most 1 verification at a time" in begin().text
            stopping = threading.Thread(target=sources.stop_work)
            stopping.start()
            until(lambda: sources.verifying.is_stopped)
        goes_on.set()
        thread.join()
        assert found[0].status == (400 if name == "tier.verify" else 200), found[0].text
        assert ("the console is stopping" in found[0].text) is (name == "tier.verify")
        if name == "tier.verify":
            stopping.join()

"""The console's pages and API over a real broker, its tier and its files."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from console.console_world import ORDERS, Browser, console, console_of, orders_broker, place_of
from tiermq.cli.main import cli
from tiermq.client.cluster_client import Access
from tiermq.console.catalogue import operations
from tiermq.console.query_runs import QueryLimits
from tiermq.console.sources import SourcePlace, Sources
from tiermq.console.web.pages import PAGES
from tiermq.history.catalog import read_catalog
from tiermq.history.cold_reading import reads_of
from tiermq.history.open_history import open_history
from tiermq.history.planning import plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import HistoryPlace, ScanCounters, ScanRequest
from tiermq.testing import LocalBroker
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verification_record import NAME, RUNS_MAX, keep_run, kept_runs, run_of
from tiermq.tier.verify.verify_report import VerifyReport
from waiting import until

PATHS = (
    "/", "/topics", "/topics?all=true&search=ORD", "/topics/orders", "/topics/orders?by=offset",
    "/topics/orders/queues/1?offset=3", "/groups", "/groups/audit", "/messages?topic=orders",
    "/messages?topic=orders&key=order-7", "/message?topic=orders&queue=1&offset=2", "/waiting", "/sql", "/api",
    "/history", "/history?topic=orders&at=1h",
)  # fmt: skip
ANYBODY = "Basic eDp4"
OF_TIERS = (
    "/tier",
    "/tier?retentionDays=30&segmentMiB=64",
    "/tier/segments?topic=orders",
    "/tier/orphans",
    "/tier/days?topic=orders",
)
OF_BROKERS = ("/settings?search=broker", "/groups/audit?topic=orders&to=last", "/waiting?group=audit")


@pytest.fixture(scope="module", params=["all", "wire", "files", "tier"])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Browser]]:
    directory = tmp_path_factory.mktemp("console")
    with orders_broker(directory) as broker:
        wanted = {
            "all": place_of(directory, broker),
            "wire": place_of(directory, broker, store=False, tier=False),
            "files": place_of(directory),
            "tier": place_of(directory, store=False),
        }
        with console(wanted[request.param]) as made:
            yield request.param, made


def test_every_page_is_served_by_every_source(browser: tuple[str, Browser]) -> None:
    source, at = browser
    paths = PATHS + (OF_TIERS if source != "wire" else ()) + (OF_BROKERS if source in ("all", "wire") else ())
    if source == "tier":  # A broker's tables reach the tier a little later.
        paths = tuple(path for path in paths if not path.startswith("/groups/"))
    answers = {path: at.get(path) for path in paths}
    assert {path: answer.status for path, answer in answers.items() if answer.status != 200} == {}
    for answer in answers.values():
        assert "Undefined" not in answer.text
        assert " style=" not in answer.text, "the policy of the pages lets no inline style in"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_topic_shows_its_messages_wherever_they_are(browser: tuple[str, Browser]) -> None:
    source, at = browser
    [row] = at.api("topic.list", search="ord")["topics"]
    everywhere = ORDERS + (source != "tier")
    assert (row["topic"], row["queues"], row["messages"]) == ("orders", 2, everywhere)
    shown = at.api("topic.show", topic="orders")
    assert shown["messages"] == everywhere
    if source != "wire":
        where = {span["where"] for queue in at.api("topic.map", topic="orders")["queues"] for span in queue["spans"]}
        assert where == {"tiered"} if source == "tier" else where == {"both", "local"}


def test_a_message_is_found_by_key_offset_time_and_text(browser: tuple[str, Browser]) -> None:
    _, at = browser
    [by_key] = at.api("message.find", topic="orders", key="order-7")["messages"]
    assert by_key["body"] == '{"order": 7}'
    place = {"topic": "orders", "queue": by_key["queueId"], "offset": by_key["queueOffset"]}
    assert at.api("message.find", **place, limit=1)["messages"][0]["body"] == by_key["body"]
    shown = at.api("message.show", **place)
    assert [each["event"] for each in shown["life"]][:2] == ["born", "stored"]
    fields = {each["name"]: each for each in shown["fields"]}
    assert sum(each["length"] for each in shown["fields"]) == shown["size"]
    assert fields["queue_offset"]["value"] == str(by_key["queueOffset"])
    assert fields["body"]["hex"] == by_key["body"].encode().hex(" ")
    by_time = at.api("message.find", topic="orders", begin="1h", tag="open", limit=3)["messages"]
    assert [each["body"] for each in by_time] == [f'{{"order": {number}}}' for number in (0, 4, 8)]
    assert [m["body"] for m in at.api("message.find", topic="orders", text='"order": 33')["messages"]] == [
        '{"order": 33}'
    ]
    [newest] = at.api("message.find", topic="orders", limit=1)["messages"]
    assert newest["storeTimestampMs"] >= by_key["storeTimestampMs"]


def test_sql_counts_hot_and_cold_messages_as_one_table(browser: tuple[str, Browser]) -> None:
    pytest.importorskip("duckdb")
    source, at = browser
    query = 'SELECT tags, count(*) AS messages FROM "orders" GROUP BY ALL ORDER BY ALL'
    found = at.api("sql.run", query=query)
    last = int(source != "tier")
    assert (found["columns"], found["rows"]) == (["tags", "messages"], [["open", 10 + last], ["paid", 30]])
    assert at.api("sql.estimate", query=query)["rows"] == ORDERS + last
    for bad in ("DROP TABLE orders", "SELECT * FROM nothing", "SELECT no FROM orders"):
        assert at.get(f"/api/sql.run?{urlencode({'query': bad})}").status == 400
    reading = urlencode({"query": "SELECT * FROM orders, read_text('/etc/passwd')"})
    refused = at.get(f"/api/sql.run?{reading}")
    assert (refused.status, "disabled" in refused.json["error"]) == (400, True), refused.text


def test_the_document_of_the_api_has_every_operation(browser: tuple[str, Browser]) -> None:
    _, at = browser
    document = at.get("/api/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {f"/api/{name}" for name in operations()}
    for name, operation in operations().items():
        assert set(document["paths"][f"/api/{name}"]) == {"post" if operation.posts else "get"}


def test_bad_requests_are_answered_with_the_reason(browser: tuple[str, Browser]) -> None:
    _, at = browser
    for path, text in (
        ("/api/topic.lisst", "topic.list"),
        ("/api/topic.list?serch=x", "search"),
        ("/api/topic.list?page=0", "expected 1 to"),
        ("/api/topic.show", "expected topic"),
        ("/api/message.find?topic=orders&begin=yesterday", "expected milliseconds"),
        ("/api/message.find?topic=orders&offset=3", "expected queue"),
        ("/api/message.show?topic=orders&queue=0&offset=99999", "found none"),
    ):
        answer = at.get(path)
        assert (answer.status, text in answer.json["error"]) == (400, True), answer.text
    assert at.get("/api/topic.delete?topic=orders").status == 405
    assert at.get("/nothing").status == 404


def test_a_part_of_the_overview_arrives_as_an_event(browser: tuple[str, Browser]) -> None:
    _, at = browser
    connection = http.client.HTTPConnection("127.0.0.1", at.port)
    connection.request("GET", "/events/page?path=/", headers={"Host": "127.0.0.1"})
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    assert answer.readline() == b"event: part\n"
    assert answer.readline().startswith(b"data: <ul class=")
    connection.close()


def test_pages_of_the_table_are_reachable_from_the_navigation() -> None:
    from tiermq.console.web.site import NAVIGATION

    assert {path for path, _ in NAVIGATION} <= {page.path for page in PAGES} | {"/api"}


def test_the_bill_adds_up_and_shows_what_if(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        found = at.api("tier.bill", gbMonth=1_000_000, retentionDays=3650, readsADay=10)
        assert found["sheet"]["gbMonth"] == 1_000_000
        assert found["cost"] == pytest.approx(sum(line["total"] for line in found["topics"]), abs=1e-5)
        [orders] = [line for line in found["topics"] if line["topic"] == "orders"]
        assert orders["storage"] == pytest.approx(orders["bytes"] / 1000)
        assert orders["then"] > orders["total"] > orders["storage"]
        assert found["total"] == len(found["topics"]), "the number of topics, as in every list"


def test_a_bill_of_a_page_is_not_shown_as_that_of_the_bucket(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker:
        for name in ("payments", "returns"):
            broker.create_topic(name, queues=1)
            broker.send(name, b"x" * 1_000)
        assert broker.broker.parts.tiered is not None
        assert broker.broker.parts.tiered.flush_to_tier()
        with console(place_of(tmp_path)) as at:
            whole = at.api("tier.bill", gbMonth=1_000_000)
            names = [line["topic"] for line in whole["topics"]]
            assert (whole["isAll"], whole["all"]["topics"], {"orders", "payments", "returns"} <= set(names)) == (
                True, len(names), True,
            )  # fmt: skip
            assert whole["all"]["bytes"] == whole["bytes"] == sum(line["bytes"] for line in whole["topics"])
            assert whole["all"]["storage"] == pytest.approx(sum(line["storage"] for line in whole["topics"]), abs=1e-4)
            page = at.api("tier.bill", gbMonth=1_000_000, rows=1, page=2)
            assert (page["isAll"], page["all"], [line["topic"] for line in page["topics"]]) == (
                False, whole["all"], [names[1]],
            )  # fmt: skip
            assert page["cost"] < whole["cost"]
            text = at.get("/tier?rows=1&gbMonth=1000000").text
            assert f"of all {len(names)} topics" in text
            assert "The topics of this page" in text
            assert "All topics" in at.get("/tier").text
            # Each list has a page of its own.
            second = at.get("/tier?rows=1&topicsPage=2").text
            assert f'href="/tier/days?topic={names[0]}"' in second
            assert f'href="/tier/segments?topic={names[1]}"' in second


def test_figures_of_the_tier_are_those_of_its_objects(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        [line] = [each for each in at.api("tier.bill")["topics"] if each["topic"] == "orders"]
        [row] = [each for each in at.api("tier.show")["topics"] if each["topic"] == "orders"]
        logs = [path for path in (tmp_path / "tier").rglob("orders/*/COMMIT_LOG/*") if path.is_file()]
        units = [path for path in (tmp_path / "tier").rglob("orders/*/CONSUME_QUEUE/*") if path.is_file()]
        size = sum(path.stat().st_size for path in (*logs, *units))
        assert (line["bytes"], line["objects"]) == (row["bytes"], row["segments"]) == (size, len(logs) + len(units))
        assert row["logBytes"] == sum(path.stat().st_size for path in logs)
        days = at.api("tier.days", topic="orders")
        assert sum(day["messages"] for day in days["days"]) == ORDERS
        assert sum(day["bytes"] for day in days["days"]) == pytest.approx(row["logBytes"], abs=2)


def test_a_verification_lasts_whoever_made_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    with orders_broker(tmp_path):
        with console(place_of(tmp_path), allow_changes=True) as at:
            assert (at.api("tier.show")["verification"], "not yet" in at.get("/tier").text) == (None, True)
            assert 'action="/do/tier.verify"' in at.get("/tier").text
            done = at.submit("/do/tier.verify", token=at.token("/tier"), back="/tier")
            assert (done.status, '"isKept": true' in done.text) == (200, True), done.text
        with console(place_of(tmp_path)) as at:  # Another process.
            kept = at.api("tier.show")["verification"]
            assert (kept["clean"], kept["counts"]["records"], kept["by"].startswith("the console at ")) == (
                True, ORDERS, True,
            )  # fmt: skip
            assert ">clean<" in at.get("/tier").text
            [log] = sorted(path for path in (tmp_path / "tier").rglob("orders/0/COMMIT_LOG/*") if path.is_file())
            data = bytearray(log.read_bytes())
            data[len(data) // 2] ^= 1
            log.write_bytes(data)
            assert CliRunner().invoke(cli, ["tier", "verify", url, "--topic", "orders", "--keep"]).exit_code == 1
            assert CliRunner().invoke(cli, ["tier", "verify", url]).exit_code == 1, "without --keep it writes nothing"
            found = at.api("tier.show")
            assert [(each["clean"], each["topic"]) for each in found["verifications"]] == [
                (False, "orders"), (True, None),
            ]  # fmt: skip
            assert found["verification"]["by"].startswith("tier verify at ")
            assert found["verification"]["problems"][0]["kind"] in at.get("/tier").text
            assert CliRunner().invoke(cli, ["pipeline", "verify", url, "--master", "here", "--keep"]).exit_code == 1
            assert at.api("tier.show")["verification"]["by"].startswith("pipeline verify at ")
        assert CliRunner().invoke(cli, ["tier", "orphans", url, "--grace", "0"]).exit_code == 0


def test_only_the_last_verifications_are_kept_and_two_at_once_are_both(tmp_path: Path) -> None:
    driver = open_driver(f"file://{tmp_path}/tier")
    scope = TierScope()
    runs = [run_of(VerifyReport(driver.url), scope, "a test", number, number + 1) for number in range(RUNS_MAX + 3)]
    threads = [threading.Thread(target=keep_run, args=(driver, run)) for run in runs[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run["atMs"] for run in kept_runs(driver)] == [1, 0]
    for run in runs[2:]:
        keep_run(driver, run)
    assert [run["atMs"] for run in kept_runs(driver)] == [run["atMs"] for run in runs[: -RUNS_MAX - 1 : -1]]
    driver.put_object(NAME, b"damaged")
    assert kept_runs(driver) == []
    keep_run(driver, runs[0])
    assert len(kept_runs(driver)) == 1
    driver.close()


def test_a_console_that_only_reads_keeps_its_verification_to_itself(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        assert "not yet" in at.get("/tier").text
        body = b'{"topic": "orders"}'
        assert at.get("/api/tier.verify?topic=orders").status == 405, "a link of another site must not start it"
        found = at.ask("POST", "/api/tier.verify", body, Content_Type="application/json", Authorization=ANYBODY).json
        assert (found["clean"], found["counts"]["records"], found["isKept"]) == (True, ORDERS, False)
        assert ">clean<" in at.get("/tier").text
        assert not list((tmp_path / "tier").glob("verification*"))


def waits_for(at: Browser, count: int) -> bool:
    return len(at.api("delayed.list")["messages"]) == count


def test_what_waits_is_listed_with_the_next_first_wherever_it_waits(tmp_path: Path) -> None:
    with (
        orders_broker(tmp_path, message_delay_level="1s 2h", timer_flush_interval_ms=50) as broker,
        LocalBroker(tmp_path / "other") as other,
    ):
        now_ms = broker.clock.now_ms()
        for name, count in {"in30": 30, "in1": 1, "in10": 10}.items():
            due = {"TIMER_DELIVER_MS": str(now_ms + count * 86_400_000), "UNIQ_KEY": name}
            broker.send("orders", b"later", properties=due)
        broker.send("orders", b"soon", properties={"DELAY": "2", "UNIQ_KEY": "in2hours"})
        tiered = broker.broker.delivery.tiered_timers
        assert tiered is not None
        until(lambda: tiered.timers.kept_count == 2)
        wheel = broker.broker.delivery.timers
        assert wheel is not None
        until(lambda: wheel.waiting_count == 1)
        everywhere = ["in2hours", "in1", "in10", "in30"]
        elsewhere = SourcePlace(Access(other.name_server), f"file://{tmp_path}/tier")
        for place, wanted, where in (
            (place_of(tmp_path, broker), everywhere, ["broker"] * 4),
            (place_of(tmp_path), everywhere, ["store", "store", "tier", "tier"]),
            (place_of(tmp_path, store=False), everywhere[2:], ["tier", "tier"]),
            (elsewhere, everywhere[2:], ["tier", "tier"]),
        ):
            with console(place) as at:
                until(partial(waits_for, at, len(wanted)))
                found = at.api("delayed.list")
                shown = [(row["uniqueKey"], row["waitsIn"]) for row in found["messages"]]
                assert shown == list(zip(wanted, where, strict=True))
                assert found["isPartial"] is (place.access is None and not place.stores)
                assert ("Timers of the tier only" in at.get("/waiting").text) is found["isPartial"]
                first = at.api("delayed.list", limit=1)
                assert ([row["uniqueKey"] for row in first["messages"]], first["isCut"]) == (wanted[:1], True)


def test_a_page_of_what_waits_reads_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.console.operations.waiting.TIMERS_READ", 3)
    with orders_broker(tmp_path, message_delay_level="1s 2h", timer_stop_enqueue=True) as broker:
        now_ms = broker.clock.now_ms()
        for number in range(5):
            due = {"TIMER_DELIVER_MS": str(now_ms + (number + 1) * 3_600_000), "UNIQ_KEY": f"timer-{number}"}
            broker.send("orders", b"later", properties=due)
        for number in range(4):
            broker.send("orders", b"soon", properties={"DELAY": "2", "UNIQ_KEY": f"level-{number}"})
        place = place_of(tmp_path, broker, store=False, tier=False)
        with console(place) as at:
            found = at.api("delayed.list", limit=10)
            timers = [row["uniqueKey"] for row in found["messages"] if not row["level"]]
            assert (timers, len(found["messages"])) == (["timer-2", "timer-3", "timer-4"], 7)
            [note] = found["notes"]
            assert note.startswith("the newest 3 of 5 records of timers at broker-a were read")
            assert "newest 3 of 5" in at.get("/waiting").text
            assert at.api("delayed.list", limit=2)["isCut"]
        with console_of(Sources(place, limits=QueryLimits(count=0))) as at:
            assert at.get("/api/delayed.list").status == 429, "it is one of the queries that may run"


def test_the_page_of_the_api_names_the_method_that_is_answered(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        listed = re.findall(r"<code>(GET|POST) /api/([a-zA-Z.]+)</code>", at.get("/api").text)
        shown = {name: method for method, name in listed}
        assert shown.keys() == operations().keys()
        for name, method in shown.items():
            other = "POST" if method == "GET" else "GET"
            headers = {"Content_Type": "application/json", "Authorization": ANYBODY}
            assert at.ask(other, f"/api/{name}", b"{}" if other == "POST" else None, None, **headers).status == 405


def test_the_names_to_choose_from_cost_no_figures_of_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise AssertionError("figures of topics were asked for")

    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker, store=False, tier=False)) as at:
        monkeypatch.setattr("tiermq.console.operations.topics.queue_bounds", refused)
        assert '<option value="orders">' in at.get("/messages").text
        assert "FROM &#34;orders&#34;" in at.get("/sql").text


def test_an_estimate_names_what_is_read_at_most(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker:
        query = "SELECT tags FROM orders"
        with console(place_of(tmp_path, store=False)) as at:
            estimate = at.api("sql.estimate", query=query)
            read = at.api("sql.run", query=query)
            assert estimate["rows"] == read["messagesRead"] == ORDERS
            shown = at.get("/sql?" + urlencode({"query": query, "only": "estimate"})).text
            assert "It would read at most" in shown
            assert f"by <b>{estimate['requests']}</b> requests to the tier" in shown
        with open_history(HistoryPlace(f"file://{tmp_path}/tier")) as history:
            request = ScanRequest(topics=frozenset({"orders"}))
            catalog = read_catalog(history, request)
            plan = plan_scan(catalog, request)
            before = history.tier.requests
            for task in plan.tasks:
                for _ in read_task(history, task, ScanCounters()):
                    pass
            made = history.tier.requests - before
            assert 0 < made <= sum(map(reads_of, plan.tasks)) <= 2 * made
            assert estimate["requests"] >= made
        with console(place_of(tmp_path, broker, store=False, tier=False)) as at:
            assert at.api("sql.estimate", query=query)["requests"] is None

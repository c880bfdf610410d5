"""The console's pages and API over a real broker, its tier and its files."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from console.console_world import ORDERS, Browser, console, orders_broker, place_of
from tiermq.console.catalogue import operations
from tiermq.console.web.pages import PAGES

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
    if source == "tier":  # Delayed messages wait at a broker; its tables reach the tier a little later.
        paths = tuple(path for path in paths if not path.startswith(("/waiting", "/groups/")))
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


def test_a_verification_stays_on_the_page_of_the_tier(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        assert "not yet" in at.get("/tier").text
        body = b'{"topic": "orders"}'
        assert at.get("/api/tier.verify?topic=orders").status == 405, "a link of another site must not start it"
        found = at.ask("POST", "/api/tier.verify", body, Content_Type="application/json", Authorization=ANYBODY).json
        assert (found["clean"], found["counts"]["records"]) == (True, ORDERS)
        assert ">clean<" in at.get("/tier").text

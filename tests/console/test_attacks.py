"""Attacks on the console over HTTP: forged requests, other names, files by SQL, paths, sizes, markup in messages."""

from __future__ import annotations

import base64
import http.client
import json
import re
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from console.console_world import ORDERS, Browser, console, orders_broker, place_of
from tiermq.console.sources import SourcePlace
from tiermq.errors import BadRequest

EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
SECRET = "the secret of this machine"
FORM = "application/x-www-form-urlencoded"
ANYBODY = "Basic eDp4"


def test_a_page_of_another_site_can_start_nothing(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        token = at.token()  # The victim's browser has a session; SameSite=Strict sends no cookie from elsewhere.
        cookie, at.cookie = at.cookie, ""
        form = urlencode({"topic": "orders", "token": token}).encode()
        assert at.ask("POST", "/do/topic.delete", form, Content_Type=FORM).status == 403
        at.cookie = cookie
        for kind in (FORM, "text/plain", "multipart/form-data; boundary=x"):
            forged = urlencode({"topic": "orders"}).encode()
            assert at.ask("POST", "/do/topic.delete", forged, Content_Type=kind).status in (403, 415), kind
        body = b'{"topic": "orders"}'
        for headers in ({"Content_Type": "text/plain"}, {"Content_Type": "application/json"}):
            assert at.ask("POST", "/api/topic.delete", body, **headers).status in (403, 415)
        assert at.get("/do/topic.delete?topic=orders").status == 405
        assert at.get("/api/topic.delete?topic=orders").status == 405
        # With everything right but by a browser that says where it comes from.
        elsewhere = {"Sec_Fetch_Site": "cross-site"}
        good = urlencode({"topic": "orders", "token": at.token()}).encode()
        for path in ("/do/topic.delete", "/api/topic.delete", "/sql"):
            sent = good if path != "/api/topic.delete" else body
            kind = FORM if path != "/api/topic.delete" else "application/json"
            answer = at.ask("POST", path, sent, Content_Type=kind, Authorization=ANYBODY, **elsewhere)
            assert answer.status in (403, 400), path
        assert at.get("/api/topic.list", **elsewhere).status == 403
        assert at.get("/events/page?path=/", **elsewhere).status == 403
        query = "/sql?" + urlencode({"query": "SELECT count(*) AS x4711 FROM orders"})
        assert "x4711<" in at.get(query).text
        assert "x4711" not in at.get(query, **elsewhere).text, "a link from elsewhere runs no query"
        assert [row["topic"] for row in at.api("topic.list")["topics"]] == ["orders"]
    headers = at_headers(tmp_path)
    assert "access-control-allow-origin" not in headers
    for name, value in (
        ("x-frame-options", "DENY"), ("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"),
    ):  # fmt: skip
        assert headers[name].lower() == value.lower(), name
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert all(part in policy for part in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"))


def at_headers(directory: Path) -> dict[str, str]:
    with console(place_of(directory)) as at:
        return dict(at.get("/topics").headers)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "169.254.169.254", ""]
)
def test_another_name_for_this_address_gets_no_page_and_no_data(tmp_path: Path, host: str) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        for path in ("/", "/api/topic.list", "/events/tail?topic=orders", "/static/console.js", "/api/openapi.json"):
            connection = http.client.HTTPConnection("127.0.0.1", at.port)
            connection.putrequest("GET", path, skip_host=True)
            connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            assert answer.status in (400, 421), (path, answer.status)
            assert b"orders" not in answer.read()
            connection.close()


def test_sql_reads_topics_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    secret = tmp_path / "secret.csv"
    secret.write_text(f"a,b\n1,{SECRET}\n")
    parquet = tmp_path / "out.parquet"
    queries = (
        f"SELECT * FROM orders, read_csv('{secret}')",
        f"SELECT * FROM orders, '{secret}'",
        f"SELECT * FROM orders, read_text('{secret}')",
        f"SELECT * FROM orders, read_blob('{secret}')",
        f"SELECT * FROM orders, read_json_auto('{secret}')",
        f"SELECT * FROM orders, glob('{tmp_path}/*')",
        f"SELECT * FROM orders, parquet_scan('{secret}')",
        f"WITH x AS (SELECT * FROM orders) SELECT * FROM x, read_csv_auto('{secret}')",
        f"FROM orders; COPY (SELECT 1) TO '{parquet}'",
        f"SELECT 1 FROM orders; COPY orders TO '{parquet}'",
        f"SELECT 1 FROM orders; ATTACH '{tmp_path}/x.db' AS x",
        "SELECT 1 FROM orders; INSTALL httpfs",
        "SELECT 1 FROM orders; LOAD httpfs",
        "SELECT 1 FROM orders; SET enable_external_access=true; SELECT * FROM read_text('/etc/passwd')",
        "SELECT 1 FROM orders; CALL pragma_version()",
        "SELECT getenv('HOME') FROM orders",
        f"SELECT 1 FROM orders; EXPORT DATABASE '{tmp_path}/db'",
        f"SELECT query_table('{secret}') FROM orders",
        f"SELECT * FROM orders, query('SELECT * FROM read_text(''{secret}'')')",
        "SELECT * FROM orders, duckdb_secrets(), read_text('http://127.0.0.1:1/')",
        "COPY orders TO '/tmp/x'", "PRAGMA database_list", "ATTACH 'x.db'", "INSTALL httpfs", "",
    )  # fmt: skip
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        for query in queries:
            answer = at.get("/api/sql.run?" + urlencode({"query": query}))
            assert SECRET not in answer.text, query
            assert answer.status == 400, (query, answer.text[:300])
            page = at.get("/sql?" + urlencode({"query": query}))
            assert (page.status, SECRET in page.text) == (200, False)
        assert not parquet.exists()
        assert not (tmp_path / "x.db").exists()
        endless = "SELECT count(*) FROM orders a, orders b, range(3) WHERE a.queueId >= 0"
        assert at.get("/api/sql.run?" + urlencode({"query": endless})).json["rows"] == [[(ORDERS + 1) ** 2 * 3]]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM text.`/etc/passwd`, orders",
        "SELECT * FROM orders WHERE body IN (SELECT value FROM text.`/etc/passwd`)",
        "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM orders",
        "SELECT java_method('java.lang.Runtime', 'getRuntime') FROM orders",
        "SELECT TRANSFORM(tags) USING 'cat /etc/passwd' FROM orders",
        'SELECT TRANSFORM(tags) USING/* */"id" FROM orders',
        "FROM orders MAP tags USING 'id'",
        "SELECT 1 FROM orders; DROP TABLE orders",
        "SELECT * FROM orders, read_files('/etc')",
        "SET spark.x=1 FROM orders",
    ],
)
def test_sql_on_spark_takes_topics_and_functions_without_effects(tmp_path: Path, query: str) -> None:
    from tiermq.console.operations.sql import _require_only_topics

    with pytest.raises(BadRequest):
        _require_only_topics(query, {"orders"})
    place = place_of(tmp_path)
    with orders_broker(tmp_path), console(SourcePlace(None, place.tier, place.stores, (), "local[1]")) as at:
        body = json.dumps({"query": query}).encode()
        answer = at.ask("POST", "/api/sql.spark", body, Content_Type="application/json", Authorization=ANYBODY)
        assert answer.status == 400, answer.text


def test_no_path_leads_out_of_the_static_files(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        for path in (
            "/static/../site.py", "/static/%2e%2e/site.py", "/static/..%2fsite.py", "/static/....//site.py",
            "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/..\\site.py", "/static/%00", "/static/",
        ):  # fmt: skip
            answer = at.get(path)
            assert answer.status in (400, 404, 405), (path, answer.status)
            assert "import" not in answer.text
            assert "root:" not in answer.text
        for topic in ("../../etc", "..", "a/../../b", "%2e%2e%2f", "\x00", "x" * 300):
            for path in (f"/topics/{quote(topic, safe='')}", f"/tier/segments?topic={quote(topic)}"):
                assert at.get(path).status in (200, 400, 404), path


def test_huge_and_odd_parameters_are_refused_in_words(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path), allow_changes=True) as at:
        for path in (
            f"/api/topic.list?rows={10**9}", "/api/topic.list?rows=-1", f"/api/topic.list?page={10**30}",
            "/api/message.find?topic=orders&limit=100000", f"/api/message.find?topic=orders&begin={'9' * 400}",
            "/api/topic.list?rows=NaN", "/api/tier.bill?gbMonth=nan", "/api/tier.bill?gbMonth=inf",
            "/api/tier.bill?gbMonth=-5", "/api/tier.bill?segmentMiB=1e400", f"/api/history.show?at={'9' * 25}",
            "/api/history.show?at=99999999d", "/api/topic.show?topic=" + "x" * 5000,
            "/api/message.show?topic=orders&queue=0&offset=1.5",
            "/api/message.show?topic=orders&queue=99999999999999999999&offset=0", "/api/overview?x=1",
        ):  # fmt: skip
            answer = at.get(path)
            assert (answer.status, "error" in answer.json) == (400, True), (path, answer.status, answer.text[:200])
        assert at.get("/history?at=" + "9" * 25).status in (200, 400)
        assert at.get("/topics?search=" + "y" * 60_000).status in (200, 400, 414, 431)
        token = at.token()
        assert at.ask("POST", "/do/topic.create", b"a=" + b"x" * (2 << 20), Content_Type=FORM).status == 413
        many = "&".join(f"a{number}=1" for number in range(5_000)).encode()
        assert at.ask("POST", "/do/topic.create", many, Content_Type=FORM).status == 400
        deep = b"[" * 100_000
        answer = at.ask("POST", "/api/topic.create", deep, Content_Type="application/json", X_TierMQ_Token=token)
        assert answer.status == 400
        for body in (b'{"topic": {"a": 1}}', b"[]", b'"x"', b"\xff", b'{"topic": ["a"]}', b'{"queues": 1e999}'):
            answer = at.ask("POST", "/api/topic.create", body, Content_Type="application/json", X_TierMQ_Token=token)
            assert answer.status == 400, body
        assert at.get("/api/topic.list", Authorization="Basic %%%").status == 400


def test_markup_in_names_keys_and_bodies_stays_text(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker:
        properties = {"note": EVIL, EVIL.replace(" ", "_")[:60]: "x"}
        sent = broker.send("orders", EVIL.encode(), queue_id=0, keys=["<b>key"], tags="<i>tag", properties=properties)
        broker.broker.parts.offsets.commit("<u>group", "orders", 0, 1)
        broker.broker.parts.offsets.flush()
        with console(place_of(tmp_path, broker)) as at:
            paths = [
                "/", "/topics", "/topics/orders", "/groups", "/groups/" + quote("<u>group", safe=""),
                f"/message?topic=orders&queue=0&offset={sent.queue_offset}", "/messages?topic=orders", "/history",
                f"/topics/orders/queues/0?offset={sent.queue_offset}", "/tier",
                "/sql?" + urlencode({"query": "SELECT decode(body) AS \"<b>\" FROM orders ORDER BY queueOffset DESC"}),
                *(f"/{page}?{name}={quote(EVIL)}" for page, name in (
                    ("topics", "search"), ("groups", "search"), ("messages", "topic"), ("messages", "key"),
                    ("sql", "query"), ("waiting", "group"), ("settings", "search"), ("history", "topic"),
                    ("login", "then"), ("tier", "gbMonth"), ("tier/segments", "topic"), ("history", "at"),
                )), f"/topics/{quote(EVIL, safe='')}", f"/groups/{quote(EVIL, safe='')}", f"/{quote(EVIL, safe='')}",
            ]  # fmt: skip
            for path in paths:
                text = at.get(path).text
                found = re.search(r"<(img|script>|b>key|i>tag|u>group)[^>]*>?", text)
                assert found is None, (path, text[max(0, found.start() - 200) : found.end() + 100])
            stream = http.client.HTTPConnection("127.0.0.1", at.port)
            stream.request("GET", "/events/tail?topic=orders", headers={"Host": "localhost"})
            answer = stream.getresponse()
            seen = b""
            while b"onerror" not in seen:
                seen += answer.readline()
            assert b"<img" not in seen
            stream.close()


def test_wrong_secrets_of_an_account_are_slowed_down(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text('[[accounts]]\naccessKey = "boss"\nsecretKey = "a very long secret"\nadmin = true\n')
    from tiermq.remoting.permissions import AccessFile

    with orders_broker(tmp_path), console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:
        codes = set()
        for number in range(30):
            key = base64.b64encode(f"boss:guess{number}".encode()).decode()
            codes.add(at.get("/api/topic.list", Authorization=f"Basic {key}").status)
        assert codes == {403, 429}
        stranger = Browser(at.port)
        assert stranger.get("/api/topic.list").status == 401
        for path in ("/static/console.css", "/login"):
            assert stranger.get(path).status == 200
        for path in ("/", "/topics", "/api", "/tier", "/sql", "/history", "/events/page?path=/"):
            answer = stranger.get(path)
            assert answer.status in (303, 401) or b"problem" in answer.text.encode(), path
            assert "orders" not in answer.text

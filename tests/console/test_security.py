"""Who may see and change what by the console: hosts, tokens, accounts, read-only, audit lines."""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from cli.wire_commands import process
from console.console_world import Browser, console, orders_broker, place_of, send_order
from tiermq.client.cluster_client import Access
from tiermq.console.sources import SourcePlace, Sources
from tiermq.console.web.security import FAILURES_MAX
from tiermq.console.web.server import CONNECTIONS_MAX, ConsoleServer
from tiermq.console.web.site import STREAMS_MAX
from tiermq.errors import BadConfig
from tiermq.remoting.permissions import AccessFile
from tiermq.testing import LocalBroker

ACCOUNTS = """
[[accounts]]
accessKey = "boss"
secretKey = "a very long secret"
admin = true
[[accounts]]
accessKey = "reader"
secretKey = "another long secret"
defaultTopicPerm = "SUB"
defaultGroupPerm = "SUB"
topicPerms = ["secret=DENY"]
"""


def test_a_host_that_is_not_the_console_s_is_refused(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path), hosts=("console.example",)) as at:
        for host, status in (
            ("127.0.0.1", 200), ("localhost:8080", 200), ("[::1]:8080", 200), ("console.example", 200),
            ("evil.example", 421), ("evil.example:8080", 421), ("127.0.0.1.evil.example", 421),
        ):  # fmt: skip
            assert at.ask("GET", "/api/topic.list", host=host).status == status, host


def test_a_console_that_only_reads_refuses_changes(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        refused = at.submit("/do/topic.delete", token=at.token(), topic="orders")
        assert (refused.status, "--allow-changes" in refused.text) == (403, True)
        assert "Delete the topic" not in at.get("/topics/orders").text
        assert [row["topic"] for row in at.api("topic.list")["topics"]] == ["orders"]


def test_changes_need_the_token_of_a_form_and_leave_an_audit_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        for token in ("", "0" * 64):
            assert at.submit("/do/topic.create", token=token, topic="forged").status == 403
        stranger = Browser(at.port)
        assert stranger.submit("/do/topic.create", token=at.token(), topic="forged").status == 403
        api = b'{"topic": "forged"}'
        assert at.ask("POST", "/api/topic.create", api, Content_Type="application/json").status == 403
        assert at.ask("POST", "/api/topic.create", api, Content_Type="text/plain").status == 415
        with caplog.at_level(logging.WARNING, "tiermq.console.audit"):
            done = at.submit("/do/topic.create", token=at.token(), topic="payments", queues="3")
        assert done.status == 200, done.text
        assert [record.getMessage() for record in caplog.records if record.name == "tiermq.console.audit"] == [
            '127.0.0.1 runs topic.create {"topic": "payments", "queues": 3, "perm": "rw", "order": false}'
        ]
        assert [row["topic"] for row in at.api("topic.list")["topics"]] == ["orders", "payments"]


def test_offsets_are_reset_as_the_preview_said(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        ends = {row["queueId"]: row["end"] for row in at.api("group.show", group="audit")["queues"]}
        assert ends == {0: 21, 1: 20}
        for goal, rows in (("first", [(0, 0, 5), (0, 0, 0)]), ("last", [(21, 16, 0), (20, 20, 0)])):
            preview = at.api("group.preview", group="audit", topic="orders", to=goal)
            assert [(row["goal"], row["skipped"], row["repeated"]) for row in preview["queues"]] == rows
        at.submit("/do/group.create", token=at.token(), group="audit")
        done = at.submit("/do/group.reset", token=at.token(), group="audit", topic="orders", to="last")
        assert done.status == 200, done.text
        assert at.api("group.show", group="audit")["behind"] == 0


def test_a_message_is_sent_again_as_a_new_one(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        done = at.submit("/do/message.resend", token=at.token(), topic="orders", queue="1", offset="3")
        assert done.status == 200, done.text
        last = at.api("message.find", topic="orders", key="order-7")["messages"]
        assert sorted(each["queueOffset"] for each in last) == [3, 20]
        assert len({each["properties"].get("UNIQ_KEY") for each in last}) == 2


def test_accounts_of_the_brokers_decide_who_sees_and_changes_what(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path) as broker:
        place = place_of(tmp_path, broker)
        with console(place, accounts=AccessFile(accounts), allow_changes=True) as at:
            assert at.get("/topics").headers["location"] == "/login?then=%2Ftopics"
            assert at.get("/api/topic.list").status == 401
            wrong = at.submit("/login", token=at.token(), accessKey="boss", secretKey="no", then="/")
            assert (wrong.status, "others" in wrong.text) == (403, True)
            before = at.cookie
            done = at.submit(
                "/login", token=at.token(), accessKey="reader", secretKey="another long secret", then="/topics"
            )
            assert (done.status, done.headers["location"], at.cookie != before) == (303, "/topics", True)
            assert "httponly" in done.headers["set-cookie"].lower()
            assert "samesite=strict" in done.headers["set-cookie"].lower()
            assert at.get("/api/tier.show").status == 400, "files are for administrators"
            assert at.submit("/logout", token=at.token()).status == 303
            assert at.get("/api/topic.list").status == 401
            key = base64.b64encode(b"boss:a very long secret").decode()
            assert at.get("/api/tier.show", Authorization=f"Basic {key}").status == 200
            for _ in range(12):
                last = at.get("/api/topic.list", Authorization=f"Basic {base64.b64encode(b'boss:x').decode()}")
            assert last.status == 429
            other = base64.b64encode(b"reader:another long secret").decode()
            assert at.get("/api/topic.list", Authorization=f"Basic {other}").status == 200, "guesses lock out no other"


def test_a_log_in_is_checked_by_the_brokers_for_each_secret(tmp_path: Path) -> None:
    """A console without an accounts file: what was right before must not let a wrong secret in, nor the reverse."""
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    words = ("serve", str(tmp_path / "store"), "--port", "0", "--namesrv-port", "0", "--acl", str(accounts))
    with process(*words) as ready, console(SourcePlace(Access(ready["nameServer"]))) as at:

        def status(account: str, path: str = "/api/topic.list") -> int:
            key = base64.b64encode(account.encode()).decode()
            return at.get(path, Authorization=f"Basic {key}").status

        assert at.get("/api/topic.list").status == 401
        for _ in range(2):
            assert status("boss:wrong") == 403
            assert status("boss:a very long secret") == 200
        assert status("boss:a very long secret", "/api/settings.show") == 200
        assert status("reader:another long secret") == 200
        assert status("reader:another long secret", "/api/settings.show") == 403
        assert status("stranger:x") == 403
        access = Access(ready["nameServer"], "boss", "a very long secret")
        access.run(lambda cluster: cluster.create_topic("orders", 2))
        access.run(lambda cluster: cluster.create_topic("secret", 2))
        key = base64.b64encode(b"reader:another long secret").decode()
        rows = at.get("/api/topic.list", Authorization=f"Basic {key}").json["topics"]
        assert {row["topic"]: row["messages"] for row in rows} == {"orders": 0, "secret": None}


def test_a_log_in_never_leads_to_another_site(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path), console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:
        for then in ("https://evil.example", "//evil.example", "/\\evil.example"):
            done = at.submit("/login", token=at.token(), accessKey="boss", secretKey="a very long secret", then=then)
            assert done.headers["location"] == "/"


def test_idle_peers_do_not_shut_out_a_browser(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at, contextlib.ExitStack() as peers:
        for number in range(CONNECTIONS_MAX + 100):
            peer = peers.enter_context(socket.create_connection(("127.0.0.1", at.port)))
            if number % 2:
                peer.sendall(b"GET /topics HTTP/1.1\r\nHost:")  # Never the rest.
        assert at.get("/api/topic.list").status == 200


def test_a_live_page_outlives_the_time_of_idle_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.broker.http_endpoint.IDLE_S", 0.05)
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        with socket.create_connection(("127.0.0.1", at.port)) as idle:
            assert idle.recv(1) == b"", "an idle peer is closed"
        with socket.create_connection(("127.0.0.1", at.port)) as live:
            live.sendall(b"GET /events/page?path=/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            said = b""
            while said.count(b": still here") + said.count(b"event: part") < 2:
                piece = live.recv(65536)
                assert piece, said[-500:]
                said += piece


def test_json_of_any_depth_is_answered_as_a_bad_request(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        deep = at.ask(
            "POST", "/api/topic.create", b"[" * 200_000, Content_Type="application/json", Authorization="Basic eDp4"
        )
        assert deep.status == 400


def test_an_address_that_others_reach_needs_accounts(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store"):
        server = ConsoleServer(Sources(place_of(tmp_path, tier=False)), host="0.0.0.0", port=0)
        with pytest.raises(BadConfig, match="expected accounts"):
            server.start()
        server.stop()


def test_brokers_that_cannot_be_reached_are_an_answer_not_a_failure(tmp_path: Path) -> None:
    with console(SourcePlace(Access("127.0.0.1:1"))) as at:
        answer = at.get("/api/topic.list")
        assert (answer.status, "no name server can be reached" in answer.json["error"]) == (502, True)
        assert at.get("/").status == 502


def basic(account: str) -> str:
    return f"Basic {base64.b64encode(account.encode()).decode()}"


def test_guesses_at_the_same_time_are_counted_each(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path), console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:

        def guess(number: int) -> int:
            return Browser(at.port).get("/api/topic.list", Authorization=basic(f"boss:guess{number}")).status

        with ThreadPoolExecutor(30) as threads:
            found = Counter(threads.map(guess, range(120)))
        assert found == {403: FAILURES_MAX, 429: 120 - FAILURES_MAX}
        with ThreadPoolExecutor(30) as threads:
            right = basic("reader:another long secret")
            answers = threads.map(lambda _: Browser(at.port).get("/api", Authorization=right).status, range(60))
            assert set(answers) == {200}, "who knows the secret may ask at once as often as wanted"


def logged_in(at: Browser, account: str = "boss", secret: str = "a very long secret") -> Browser:
    browser = Browser(at.port)
    done = browser.submit("/login", token=browser.token(), accessKey=account, secretKey=secret, then="/")
    assert done.status == 303, done.text
    return browser


def test_strangers_end_no_session_however_many_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.console.web.security.SESSIONS_MAX", 20)
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path), console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:
        boss = logged_in(at)
        for _ in range(30):
            assert Browser(at.port).get("/login").status == 200
        assert boss.get("/api/tier.show").status == 200


def test_a_cookie_that_the_console_did_not_give_is_replaced(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path), console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:
        planted = at.cookie = f"tiermq_console={'a' * 32}.{'b' * 64}"
        token = at.token()
        assert at.cookie != planted
        fixed, at.cookie = at.cookie, planted
        assert at.submit("/login", token=token, accessKey="boss", secretKey="a very long secret").status == 403
        at.cookie = fixed  # One that an attacker got for himself, and planted.
        done = at.submit("/login", token=token, accessKey="boss", secretKey="a very long secret", then="/")
        assert (done.status, at.cookie != fixed) == (303, True)
        attacker = Browser(at.port)
        attacker.cookie = fixed
        assert attacker.get("/api/topic.list").status == 401


def test_a_session_is_what_its_account_is_now(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path), console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:
        boss = logged_in(at)
        assert boss.get("/api/tier.show").status == 200
        accounts.write_text(ACCOUNTS.replace("admin = true\n", ""))
        assert boss.get("/api/tier.show").status == 400, "files are for administrators"
        accounts.write_text(ACCOUNTS.replace("a very long secret", "a very new secret"))
        assert boss.get("/api/tier.show").status == 401


def test_following_a_topic_ends_with_the_log_in(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path), accounts=AccessFile(accounts)) as at:
        boss = logged_in(at)
        stream = http.client.HTTPConnection("127.0.0.1", at.port)
        stream.request("GET", "/events/tail?topic=orders", headers={"Host": "localhost", "Cookie": boss.cookie})
        answer = stream.getresponse()
        while b"event: row" not in answer.readline():
            pass
        assert boss.submit("/logout", token=boss.token("/topics")).status == 303
        send_order(broker, 4711)
        rest = answer.read()  # It ends.
        assert b"event: problem" in rest
        assert b"4711" not in rest
        stream.close()


def test_files_stay_closed_until_a_broker_has_answered_and_whatever_it_wants_then_holds(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with orders_broker(tmp_path):
        pass  # Its files stay.
    with process("namesrv", "--port", "0") as ready:
        server = f"127.0.0.1:{ready['port']}"
        with console(replace(place_of(tmp_path), access=Access(server))) as at:
            assert at.get("/api/tier.show").status == 401, "no broker has said that there are no accounts"
            words = ("serve", str(tmp_path / "other"), "--port", "0", "--namesrv", server, "--acl", str(accounts))
            with process(*words):
                assert at.get("/api/tier.show").status == 401
                assert at.get("/api/tier.show", Authorization=basic("boss:a very long secret")).status == 200


def test_a_page_of_another_port_or_in_a_frame_starts_nothing(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        query = "/sql?" + urlencode({"query": "SELECT count(*) AS x4711 FROM orders"})
        for site in ("cross-site", "same-site"):
            link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
            assert "x4711" not in at.get(query, **link).text
            assert "order-7" in at.get("/messages?topic=orders&key=order-7", **link).text, "a link to a message works"
            searched = at.get("/messages?topic=orders&text=no-such-text", **link)
            assert "no-such-text" not in searched.text, "a search reads the whole topic"
            for path in ("/topics", "/messages?topic=orders", "/static/console.js", query):
                image = at.get(path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image")
                assert image.status == 403, path
            token = at.token()
            form = urlencode({"topic": "orders", "token": token}).encode()
            kind = "application/x-www-form-urlencoded"
            assert at.ask("POST", "/do/topic.delete", form, Content_Type=kind, **link).status == 403


def test_more_live_pages_than_there_may_be_are_refused_and_leave_room_for_pages(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at, contextlib.ExitStack() as peers:
        streams = []
        for number in range(STREAMS_MAX * 2):
            stream = http.client.HTTPConnection("127.0.0.1", at.port)
            peers.callback(stream.close)
            path = "/events/page?path=/groups&rows=1000" if number % 2 else "/events/tail?topic=orders"
            stream.request("GET", path, headers={"Host": "localhost"})
            streams.append(stream)
        lines = []
        for stream in streams:
            answer = stream.getresponse()
            lines.append(answer.readline() if answer.status == 200 else b"refused")
        assert sum(line not in (b"refused", b"event: problem\n") for line in lines) == STREAMS_MAX
        assert at.get("/topics").status == 200

"""Who may see and change what by the console: hosts, tokens, accounts, read-only, audit lines."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
from pathlib import Path

import pytest

from cli.wire_commands import process
from console.console_world import Browser, console, orders_broker, place_of
from tiermq.client.cluster_client import Access
from tiermq.console.sources import SourcePlace, Sources
from tiermq.console.web.server import CONNECTIONS_MAX, ConsoleServer
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

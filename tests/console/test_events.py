"""Live pages: new messages of a topic arrive as events, and a console with open streams ends."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from console.console_world import console, orders_broker, place_of, send_order
from tiermq.console.operations.messages import Following
from tiermq.console.sources import Sources, Visit


def test_new_messages_of_a_topic_arrive_as_events(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        connection = http.client.HTTPConnection("127.0.0.1", at.port)
        connection.request("GET", "/events/tail?topic=orders&text=77", headers={"Host": "localhost"})
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        assert answer.readline() == b": begun\n"
        for number in (76, 77):
            send_order(broker, number)
        line = b""
        while not line.startswith(b"data: "):
            line = answer.readline()
        assert b"order&#34;: 77" in line, line
        # The console ends with this stream open.
    assert answer.read() == b"\n" or answer.isclosed()
    connection.close()


def rows_of(port: int, query: str, last: str, sent: Callable[[], None]) -> list[str]:
    """The rows that a stream sends until one contains `last`; `sent` runs once the stream has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/events/tail?{query}", headers={"Host": "localhost"})
    answer = connection.getresponse()
    assert answer.readline() == b": begun\n"
    rows: list[str] = []
    has_sent = False
    while not rows or last not in rows[-1]:
        line = answer.readline().decode()
        assert line
        if line.startswith("data: "):
            rows.append(line)
            if not has_sent:
                sent()
                has_sent = True
    connection.close()
    return rows


def test_no_message_is_missed_among_hundreds_that_come_at_once(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:

        def four_hundred() -> None:
            for number in range(400):
                broker.send("orders", b"needle" if number in (100, 399) else b"straw", queue_id=0)

        rows = rows_of(at.port, "topic=orders&text=e", "0:420", four_hundred)
        assert len([row for row in rows if "needle" in row]) == 2
        assert not [row for row in rows if "straw" in row]


def test_messages_that_come_too_fast_to_be_followed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.console.operations.messages.FOLLOW_READ", 20)
    monkeypatch.setattr("tiermq.console.operations.messages.FOLLOW_BEHIND_MAX", 50)
    with orders_broker(tmp_path) as broker, closing(Sources(place_of(tmp_path, broker, store=False))) as sources:
        following, visit = Following("orders"), Visit(sources)
        following.step(visit)
        for number in range(400):
            broker.send("orders", str(number).encode(), queue_id=0)
        found = [each["body"] for each in following.step(visit)]
        assert found == [str(number) for number in range(380, 400)]
        [note] = following.notes
        assert note.startswith("380 messages of queue 0 of ")
        assert not following.is_behind


def test_events_of_a_page_without_live_figures_are_refused(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        assert at.get("/events/page?path=/sql").status == 404

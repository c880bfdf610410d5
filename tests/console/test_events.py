"""Live pages: new messages of a topic arrive as events, and a console with open streams ends."""

from __future__ import annotations

import http.client
from pathlib import Path

from console.console_world import console, orders_broker, place_of, send_order


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


def test_events_of_a_page_without_live_figures_are_refused(tmp_path: Path) -> None:
    with orders_broker(tmp_path), console(place_of(tmp_path)) as at:
        assert at.get("/events/page?path=/sql").status == 404

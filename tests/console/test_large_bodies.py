"""Bodies that are much larger than they look, and lists of large ones: a page takes a bounded amount of memory."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import urlencode

import pytest

from console.console_world import console, orders_broker, place_of
from tiermq.console.message_reading import BODY_BYTES_MAX, LIST_BYTES_MAX
from tiermq.console.operations.sql import RESULT_BYTES_MAX
from tiermq.console.web.pages import TEXT_BYTES_MAX
from tiermq.kernel import Message
from tiermq.message.compression import compress
from tiermq.message.system_flag import COMPRESSED, COMPRESSION_TYPE_SHIFT, CompressionType
from tiermq.testing import LocalBroker

FLAGS = COMPRESSED | CompressionType.ZSTD << COMPRESSION_TYPE_SHIFT


def put(broker: LocalBroker, body: bytes, sys_flag: int = 0) -> int:
    """The offset in queue 0 of orders."""
    local = broker.broker.parts.local
    found = local.put(Message("orders", body, 0, sys_flag=sys_flag, keys="large"))
    assert found.ok, found
    local.dispatch_now()
    return found.queue_offset


def test_a_body_that_claims_to_be_far_larger_is_shown_as_it_is_stored(tmp_path: Path) -> None:
    bomb = compress(bytes(BODY_BYTES_MAX + 1), CompressionType.ZSTD)
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        offset = put(broker, bomb, FLAGS)
        shown = at.api("message.show", topic="orders", queue=0, offset=offset)
        assert base64.b64decode(shown["bodyBase64"]) == bomb
        [found] = at.api("message.find", topic="orders", key="large")["messages"]
        assert base64.b64decode(found["body"]) == bomb
        for path in (f"/message?topic=orders&queue=0&offset={offset}", f"/topics/orders/queues/0?offset={offset}"):
            answer = at.get(path)
            assert (answer.status, len(answer.text) < 100_000) == (200, True), path


def test_a_list_has_bodies_as_long_as_there_is_room_for_them(tmp_path: Path) -> None:
    large = compress(b"x" * (BODY_BYTES_MAX - 1), CompressionType.ZSTD)
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        for _ in range(4):
            put(broker, large, FLAGS)
        answer = at.get("/api/message.find?" + urlencode({"topic": "orders", "key": "large"}))
        sizes = [len(each["body"]) for each in answer.json["messages"]]
        assert sizes[:2] == [BODY_BYTES_MAX - 1] * 2
        assert max(sizes[2:]) < 10_000
        assert len(answer.text) < LIST_BYTES_MAX + 100_000


def test_a_page_shows_the_begin_of_a_large_body(tmp_path: Path) -> None:
    body = b'{"a": "' + b"y" * (TEXT_BYTES_MAX * 4) + b'"}'
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        offset = put(broker, body)
        page = at.get(f"/message?topic=orders&queue=0&offset={offset}")
        assert f"{len(body) - TEXT_BYTES_MAX:,} more bytes are not shown" in page.text
        assert len(page.text) < 3 * TEXT_BYTES_MAX
        assert base64.b64decode(at.api("message.show", topic="orders", queue=0, offset=offset)["bodyBase64"]) == body


def test_the_rows_of_a_query_end_where_they_become_too_large(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker)) as at:
        query = f"SELECT repeat('x', {RESULT_BYTES_MAX // 4}) AS text FROM orders"
        found = at.api("sql.run", query=query, limit=10_000)
        assert (len(found["rows"]), found["isCut"]) == (4, True)

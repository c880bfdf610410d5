"""What watchers ask over HTTP, and what garbage gets."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker.brokers import Producer, broker_config, running
from tiermq.broker.broker import Broker
from tiermq.broker.http_endpoint import (
    CONNECTIONS_MAX,
    METRICS_TYPE,
    REQUEST_BYTES_MAX,
    UNREAD_BYTES_MAX,
    Answer,
    HttpEndpoint,
    Page,
    status_answer,
)
from waiting import until


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("watched"), config=broker_config(metrics_port=0)) as broker:
        yield broker


@contextlib.contextmanager
def serving(pages: Mapping[str, Page]) -> Iterator[HttpEndpoint]:
    endpoint = HttpEndpoint("127.0.0.1", 0, pages)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


def address(broker: Broker) -> tuple[str, int]:
    host, _, port = (broker.metrics_address or "").rpartition(":")
    return host, int(port)


def get(broker: Broker, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address(broker), timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_metrics_have_rocketmq_s_names_and_every_line_is_prometheus_text(watched: Broker) -> None:
    with Producer(watched) as producer:
        producer.send()
    status, text = get(watched, "/metrics")
    assert status == 200
    assert 'rocketmq_messages_in_total{cluster="DefaultCluster",node_type="broker",node_id="b1",topic="T"' in text
    assert "rocketmq_storage_size " in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) is not None


def test_a_broker_that_serves_is_healthy_and_ready(watched: Broker) -> None:
    for path in ("/health", "/ready"):
        status, text = get(watched, path)
        assert (status, json.loads(text)) == (200, {"status": "up", "problems": {}})


def test_a_store_that_takes_no_messages_is_healthy_but_not_ready(tmp_path: Path) -> None:
    with running(tmp_path, config=broker_config(metrics_port=0)) as broker:
        broker.parts.local._parts.log.set_writeable(False)
        assert get(broker, "/health")[0] == 200
        status, text = get(broker, "/ready")
        assert (status, list(json.loads(text)["problems"])) == (503, ["store"])


def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    with socket.socket() as absent:
        absent.bind(("127.0.0.1", 0))
        config = broker_config(metrics_port=0, namesrv_addr=f"127.0.0.1:{absent.getsockname()[1]}")
        with running(tmp_path, config=config) as broker:
            status, text = get(broker, "/ready")
            assert (status, list(json.loads(text)["problems"])) == (503, ["name servers"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/../secret", 404),
        ("GET", "/metrics?x=1", 200),
        ("POST", "/metrics", 405),
        ("HEAD", "/metrics", 200),
    ],
)
def test_other_pages_and_methods_are_status_answer_apart(watched: Broker, method: str, path: str, status: int) -> None:
    found, text = get(watched, path, method)
    assert found == status
    assert bool(text) == (method != "HEAD")


def test_a_connection_takes_one_request_after_the_other_also_when_they_come_at_once(watched: Broker) -> None:
    with socket.create_connection(address(watched), timeout=30) as peer:
        peer.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"GET /ready HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: peer.recv(65536), b""))
    assert said.count(b"HTTP/1.1 200 OK") == 4
    assert said.count(b'"status": "up"') == 4


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01garbage\r\n\r\n", b"GET /health\r\n\r\n", b"x" * 9_000])
def test_garbage_is_answered_400_and_the_connection_ends(watched: Broker, garbage: bytes) -> None:
    assert len(garbage) > REQUEST_BYTES_MAX or garbage.endswith(b"\r\n\r\n")
    with socket.create_connection(address(watched), timeout=30) as peer:
        peer.sendall(garbage)
        said = b"".join(iter(lambda: peer.recv(65536), b""))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert get(watched, "/health")[0] == 200


@pytest.mark.parametrize("head", [b"X: %b\r\n" % (b"x" * 20_000), b"X: y\r\n" * 90 + b"Z: %b\r\n" % (b"z" * 8_000)])
@pytest.mark.parametrize("path", [b"/health", b"/none"])
def test_a_request_head_that_is_too_long_is_refused_though_it_comes_at_once(
    watched: Broker, head: bytes, path: bytes
) -> None:
    with socket.create_connection(address(watched), timeout=30) as peer:
        peer.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path, head))
        said = b"".join(iter(lambda: peer.recv(65536), b""))
    assert said.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))  # 400 where it came in two reads.
    assert b"at most 8192 bytes" in said or said.startswith(b"HTTP/1.1 400 ")
    assert get(watched, "/health")[0] == 200


def buffered(endpoint: HttpEndpoint) -> int:
    """Bytes of answers that wait for peers to read them."""
    return sum(each.transport.get_write_buffer_size() for each in endpoint.connections)


def send_until_full(peer: socket.socket, request: bytes) -> int:
    """Send requests and read nothing, until the server reads no more; how many bytes went."""
    peer.setblocking(False)
    sent = 0
    full = 0
    while full < 50 and sent < 64 << 20:
        try:
            sent += peer.send(request)
            full = 0
        except BlockingIOError:
            full += 1
            select.select([], [peer], [], 0.02)
    return sent


def test_a_peer_that_reads_nothing_makes_the_server_keep_one_answer_and_not_thousands() -> None:
    page = Answer(200, METRICS_TYPE, b"x" * 200_000)
    with (
        serving({"/metrics": lambda _accept: page}) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port)) as peer,
    ):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = send_until_full(peer, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        assert sent < 16 << 20
        assert 0 < buffered(endpoint) < 2 * len(page.body)


def test_of_large_answers_that_nobody_takes_the_oldest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.broker.http_endpoint.IDLE_S", 3600)
    page = Answer(200, METRICS_TYPE, bytes(UNREAD_BYTES_MAX // 3))
    with serving({"/metrics": lambda _accept: page}) as endpoint, contextlib.ExitStack() as peers:
        waiting = [peers.enter_context(socket.create_connection(("127.0.0.1", endpoint.port))) for _ in range(5)]
        for peer in waiting:
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert peer.recv(12) == b"HTTP/1.1 200"  # It is being answered.
        assert max(len(read_all(peer)) for peer in waiting[:2]) < len(page.body)
        until(lambda: len(endpoint.connections) == 3)


def test_thousands_of_requests_at_once_are_answered_in_their_order() -> None:
    count = 0

    def number(_accept: str) -> Answer:
        nonlocal count
        count += 1
        return Answer(200, "text/plain", b"[%d]" % count)

    with serving({"/n": number}) as endpoint, socket.create_connection(("127.0.0.1", endpoint.port)) as peer:
        requests = (
            b"GET /n HTTP/1.1\r\nHost: x\r\n\r\n" * 4_999 + b"GET /n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        sender = threading.Thread(target=peer.sendall, args=(requests,))
        sender.start()
        said = b"".join(iter(lambda: peer.recv(1 << 20), b""))
        sender.join()
    assert [int(each) for each in re.findall(rb"\[(\d+)\]", said)] == list(range(1, 5_001))


@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
def test_a_body_is_never_taken_for_the_next_request(watched: Broker, method: str) -> None:
    inner = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    plain, chunked = b"Content-Length: %d\r\n\r\n" % len(inner), b"Transfer-Encoding: chunked\r\n\r\n"
    for length, status in ((plain, 200 if method == "GET" else 405), (chunked, 400)):
        with socket.create_connection(address(watched)) as peer:
            peer.sendall(f"{method} /ready HTTP/1.1\r\nHost: x\r\n".encode() + length + inner)
            said = read_all(peer)
        assert said.count(b"HTTP/1.1 ") == 1
        assert said.startswith(b"HTTP/1.1 %d " % status)


def read_all(peer: socket.socket) -> bytes:
    """Until the peer ends, be it by a reset: it may not have read all that was sent."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := peer.recv(65536):
            said += piece
    return said


def test_idle_peers_do_not_block_a_new_one() -> None:
    with serving({"/health": lambda _accept: status_answer({})}) as endpoint, contextlib.ExitStack() as peers:
        for number in range(CONNECTIONS_MAX * 3):
            peer = peers.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
            if number % 2:
                peer.sendall(b"GET /health HTTP/1.1\r\nHost:")  # Never the rest.
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        assert len(endpoint.connections) <= CONNECTIONS_MAX
        connection.close()


@pytest.mark.parametrize("said", [b"", b"GET /he", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_peer_that_reports_no_more_is_closed(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr("tiermq.broker.http_endpoint.IDLE_S", 0.05)
    with (
        serving({"/health": lambda _accept: status_answer({})}) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port)) as peer,
    ):
        peer.sendall(said)
        read_all(peer)


def test_no_thread_and_no_signal_handler_is_left() -> None:
    before, handlers = set(threading.enumerate()), [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with serving({"/health": lambda _accept: status_answer({})}) as endpoint:
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
        peer = socket.create_connection(("127.0.0.1", endpoint.port))
    assert set(threading.enumerate()) == before
    with peer:
        assert read_all(peer) == b""
    endpoint.stop()


def test_an_address_that_is_taken_is_an_error_at_once_and_leaves_nothing() -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = HttpEndpoint("127.0.0.1", taken.getsockname()[1], {})
        with pytest.raises(OSError, match="in use"):
            endpoint.start()
    assert set(threading.enumerate()) == before


def test_a_page_that_fails_is_answered_503_and_others_go_on() -> None:
    with serving({"/ready": lambda _accept: 1 // 0, "/health": lambda _accept: status_answer({})}) as endpoint:  # type: ignore[dict-item,return-value]
        for path, status in (("/ready", 503), ("/health", 200), ("/ready", 503)):
            connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
            connection.request("GET", path)
            assert connection.getresponse().status == status
            connection.close()


def test_help_needs_neither_uvicorn_nor_starlette() -> None:
    slow = "{'uvicorn', 'starlette', 'cryptography'}"
    code = f"import sys, tiermq.cli.serve, tiermq.cli.main; print({slow} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_problems_are_status_answer_as_unavailable() -> None:
    assert status_answer({}).status == 200
    answer = status_answer({"store": "closed"})
    assert (answer.status, json.loads(answer.body)["problems"]) == (503, {"store": "closed"})

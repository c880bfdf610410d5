"""What watchers ask over HTTP, and what garbage gets."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.brokers import Producer, broker_config, running
from broker.consuming import until
from tiermq.broker.broker import Broker
from tiermq.broker.http_endpoint import CONNECTIONS_MAX, REQUEST_BYTES_MAX, told


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("watched"), config=broker_config(metrics_port=0)) as broker:
        yield broker


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
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        config = broker_config(metrics_port=0, namesrv_addr=f"127.0.0.1:{nobody.getsockname()[1]}")
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
def test_other_pages_and_methods_are_told_apart(watched: Broker, method: str, path: str, status: int) -> None:
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


def is_answered(peer: socket.socket) -> bool:
    try:
        peer.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        return bool(peer.recv(65536))
    except OSError:
        return False


def test_there_is_room_for_some_connections_only(watched: Broker) -> None:
    endpoint = watched._endpoint
    assert endpoint is not None
    until(watched, lambda: not endpoint._connections)  # Those of other tests were closed, and may not be gone yet.
    peers = [socket.create_connection(address(watched), timeout=30) for _ in range(CONNECTIONS_MAX + 1)]
    try:
        assert sum(map(is_answered, peers)) == CONNECTIONS_MAX
    finally:
        for peer in peers:
            peer.close()


def test_problems_are_told_as_unavailable() -> None:
    assert told({}).status == 200
    answer = told({"store": "closed"})
    assert (answer.status, json.loads(answer.body)["problems"]) == (503, {"store": "closed"})

"""Metrics by OpenTelemetry: a broker sends them to a collector, which decodes OTLP's protobuf; nothing is simulated."""

from __future__ import annotations

import gzip
import http.server
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.wire_commands import process
from tiermq.cli.main import cli
from tiermq.client.cluster_client import Access

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Collector(http.server.ThreadingHTTPServer):
    """A receiver of OTLP/HTTP that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        request = ExportMetricsServiceRequest()
        request.ParseFromString(data)
        self.server.received.put((self.headers["Content-Type"], request))
        body = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: Any) -> None:
        return


@contextmanager
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_collector_gets_sums_gauges_and_histograms_of_a_broker(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("otlpInterval=100\n")
    with collector() as at:
        words = ("serve", str(tmp_path / "store"), "--port", "0", "--namesrv-port", "0", "-c", str(settings))
        with process(*words, "--otlp", at.url) as ready:
            assert at.received.get(timeout=60)[0] == "application/x-protobuf"
            Access(ready["nameServer"]).run(lambda cluster: cluster.create_topic("orders", 2))
        # The end of the broker sends the last figures.
        last = None
        while not at.received.empty():
            last = at.received.get()[1]
    assert last is not None
    [resource] = last.resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("tiermq", ready["name"])
    metrics = {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
    puts = metrics["tiermq_store_puts_total"].sum
    assert (puts.is_monotonic, puts.aggregation_temporality) == (True, 2)
    assert metrics["rocketmq_topic_number"].gauge.data_points[0].as_int >= 1
    latency = metrics["rocketmq_rpc_latency"].histogram.data_points
    created = [
        point
        for point in latency
        if {each.key: each.value.string_value for each in point.attributes}["request_code"] == "update_and_create_topic"
    ]
    [point] = created
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.sum > 0


def test_an_endpoint_that_is_no_url_stops_the_start(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["serve", str(tmp_path), "--port", "0", "--namesrv-port", "0", "--otlp", "here"])
    assert (done.exit_code, "expected a URL" in done.output) == (2, True), done.output

"""OtlpExport: sends a broker's metrics to a collector of OpenTelemetry, by OTLP over HTTP.

    registries ─► MetricsData, as OpenTelemetry's SDK has it ─► its exporter ─► http://host:4318/v1/metrics

Names, labels and buckets are those of /metrics. Sums are cumulative since the start of the broker, and monotonic.
Headers, certificates, compression and the time limit of a request come from OpenTelemetry's own variables
(`OTEL_EXPORTER_OTLP_HEADERS` …), resource attributes from `OTEL_RESOURCE_ATTRIBUTES`.

One thread of its own: a collector that does not answer delays no request. What it did not take is dropped: the next
sums contain it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tiermq import __version__
from tiermq.broker.broker_config import BrokerConfig
from tiermq.clock import LINE_INTERVAL_S
from tiermq.errors import BadConfig, install_hint
from tiermq.metrics import HistogramChild, Metric, Registry
from tiermq.service import SHORT_TURNS, Service

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

_log = logging.getLogger(__name__)


class OtlpExport(Service):
    """See the module."""

    def __init__(self, config: BrokerConfig, registries: Callable[[], Sequence[Registry]]) -> None:
        """Raises BadConfig without OpenTelemetry's libraries, or for an endpoint that is no URL."""
        super().__init__("otlp-export")
        if not config.otlp_endpoint.startswith(("http://", "https://")):
            raise BadConfig(
                f"otlpEndpoint: expected a URL such as http://127.0.0.1:4318/v1/metrics, found {config.otlp_endpoint!r}"
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
        except ModuleNotFoundError as error:
            raise BadConfig(
                f"otlpEndpoint needs {error.name}, which is not installed here: {install_hint('otel')}"
            ) from error
        self._exporter = OTLPMetricExporter(endpoint=config.otlp_endpoint)
        self._resource = Resource.create(
            {
                "service.name": "tiermq",
                "service.version": __version__,
                "service.instance.id": config.broker_name,
                "tiermq.cluster": config.broker_cluster_name,
            }
        )
        self._registries = registries
        self._interval_s = config.otlp_interval / 1000
        self._began_ns = time.time_ns()
        self._next_line = 0.0

    def run_once(self) -> float:
        self.send()
        return self._interval_s

    def finish(self) -> None:
        """The last figures of a broker that ends."""
        self.send()
        self._exporter.shutdown()

    def send(self) -> bool:
        """Send everything once; whether the collector took it."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        now_ns = time.time_ns()
        with SHORT_TURNS:
            metrics = [metric for each in self._registries() for metric in each.collected()]
            data = metrics_data(metrics, self._resource, self._began_ns, now_ns)
            done = self._exporter.export(data)  # Which encodes them here.
        if done is MetricExportResult.SUCCESS:
            return True
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            _log.warning("the collector of metrics did not take them: expected SUCCESS, found %s", done.name)
        return False


def metrics_data(metrics: Sequence[Metric[Any]], resource: Any, began_ns: int, now_ns: int) -> MetricsData:
    """Metrics as the SDK has them."""
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    cumulative = otel.AggregationTemporality.CUMULATIVE
    made = []
    for metric in metrics:
        points: list[Any] = []
        for values, child in metric.children():
            attributes = dict(zip(metric.label_names, values, strict=True))
            if isinstance(child, HistogramChild):
                counts = child.counts
                points.append(
                    otel.HistogramDataPoint(
                        attributes, began_ns, now_ns, sum(counts), child.sum, counts, child.bounds, 0.0, 0.0
                    )
                )
            else:
                points.append(otel.NumberDataPoint(attributes, began_ns, now_ns, child.value))
        data: Any
        if metric.kind == "histogram":
            data = otel.Histogram(points, cumulative)
        elif metric.kind == "counter":
            data = otel.Sum(points, cumulative, is_monotonic=True)
        else:
            data = otel.Gauge(points)
        made.append(otel.Metric(metric.name, metric.text, "", data))
    scope = otel.ScopeMetrics(InstrumentationScope("tiermq", __version__), made, "")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scope], "")])

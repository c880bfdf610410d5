"""The topics of a history as names of tables, and values of rows as JSON can hold them. No Spark."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

from tiermq.client.wire_history import catalog_of, open_place
from tiermq.pipeline.scan.scan_request import base_request, check_topics, require_queues, require_tier
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.pipeline.sql.topic_views import TopicViews

ROWS_SHOWN = 1000
"""Of a query's result, unless more are asked for."""


def history_views(spec: ScanSpec) -> TopicViews:
    """The views by name: the requested topics, or all of the history. Raises BadHistory."""
    request = base_request(spec, ())
    with open_place(spec.place) as history:
        catalog = catalog_of(history, request)
        require_tier(catalog, spec)
        check_topics(catalog, request)
        require_queues(catalog, spec)
        clusters: dict[str, list[str]] = {}
        for cluster, topic in sorted({(queue.key.cluster, queue.key.topic) for queue in catalog.queues()}):
            clusters.setdefault(cluster, []).append(topic)
        return TopicViews(catalog.topics(), clusters)


def plain(value: Any) -> Any:
    """A value of a row as JSON can hold it: bytes as text where they are text, times in ISO form."""
    if isinstance(value, bytes | bytearray):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return f"0x{data.hex()}"
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value

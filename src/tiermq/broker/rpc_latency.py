"""RpcLatency: how long requests take, under RocketMQ's metric name."""

from __future__ import annotations

from collections.abc import Callable

from tiermq.metrics import HistogramChild, Registry
from tiermq.remoting.codes import RequestCode, ResponseCode

NODE = ("cluster", "node_type", "node_id")
RPC_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 200.0, 400.0, 600.0, 800.0, 1_000.0, 1_500.0, 3_000.0)
"""The buckets of `rocketmq_rpc_latency`, as near to RocketMQ's as milliseconds of a loop need."""


class RpcLatency:
    """`rocketmq_rpc_latency`: from a request to its answer, by their codes. A child is looked up once for each pair.

    Pulls and pops that are held count until their answer, under a label of their own. Sends of the fast path are not in
    it: `tiermq_put_latency_seconds` times these.
    Changed by the broker's loop.
    """

    def __init__(self, registry: Registry, node: tuple[str, str, str], codes: Callable[[], frozenset[int]]) -> None:
        self._metric = registry.histogram(
            "rocketmq_rpc_latency",
            "ms from a request to its answer",
            (*NODE, "protocol_type", "request_code", "response_code", "is_long_polling", "result"),
            RPC_MS,
        )
        self._node, self._codes = node, codes
        self._children: dict[tuple[int, int, bool], HistogramChild] = {}

    def note(self, code: int, answer: int, seconds: float, was_held: bool) -> None:
        child = self._children.get((code, answer, was_held))
        if child is None:
            # What any peer may send must not make a metric grow.
            is_known = code in self._codes() and any(code == each for each in RequestCode)
            name = RequestCode(code).name.lower() if is_known else "unknown"
            result = "success" if answer == ResponseCode.SUCCESS else "biz_error"
            held = "true" if was_held else "false"
            child = self._metric.labels(*self._node, "remoting", name, str(int(answer)), held, result)
            if name != "unknown":
                self._children[code, answer, was_held] = child
        child.observe(seconds * 1000)

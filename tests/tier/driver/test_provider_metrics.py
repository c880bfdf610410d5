"""ProviderMetrics: RocketMQ's metrics of the back end, as `RetryingDriver` fills them."""

from __future__ import annotations

import itertools

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from simulation.manual_clock import ManualClock
from tier.driver.conformance import DriverConformance, Place, fresh_queue
from tiermq.errors import SegmentConflict, TierUnavailable
from tiermq.metrics import Registry
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.provider_metrics import ProviderMetrics
from tiermq.tier.driver.retry import RetryingDriver, RetryPolicy
from tiermq.tier.names import QueueKey, SegmentType

_numbers = itertools.count()
KEY = QueueKey("c", "broker-a", "orders", 3).segment(SegmentType.CONSUME_QUEUE, 0)
BASE = ("tiered", "blob")
QUEUE = ("broker-a/orders/3", "consume_queue")


class TestMeteringDriver(DriverConformance):
    @pytest.fixture
    def place(self) -> Place:
        name, metrics = f"metered-{next(_numbers)}", ProviderMetrics(Registry())
        return Place(lambda: RetryingDriver(MemoryDriver(name), metrics=metrics))


def test_acknowledged_bytes_are_counted_and_others_are_not(manual_clock: ManualClock) -> None:
    metrics = ProviderMetrics(Registry())
    faulty = FaultyDriver(
        MemoryDriver(),
        ScriptedFaults("write", [Fault.DELAY]),
        delay_s=0.25,
        sleep=lambda s: manual_clock.advance_ms(int(s * 1000)),
    )
    driver = RetryingDriver(faulty, RetryPolicy(tries_max=1), metrics=metrics, clock=manual_clock)
    driver.write(KEY, 0, [b"x" * 1500, memoryview(b"y" * 500)])
    with pytest.raises(SegmentConflict):
        driver.write(KEY, 0, [b"z"])
    faulty.plan = ScriptedFaults("write", [Fault.AFTER])
    with pytest.raises(TierUnavailable):
        driver.write(KEY, 2000, [b"z"])
    driver.read(KEY, 10, 700)
    upload = metrics.upload.labels(*BASE, "write", *QUEUE)
    assert (upload.count, upload.sum) == (1, 2000)
    download = metrics.download.labels(*BASE, "read", *QUEUE)
    assert (download.count, download.sum) == (1, 700)
    succeeded = metrics.latency.labels(*BASE, "write", "true", *QUEUE)
    assert succeeded.count == 1
    assert succeeded.sum == pytest.approx(250)
    assert metrics.latency.labels(*BASE, "write", "false", *QUEUE).count == 2
    assert metrics.failures.labels(*BASE, "write", "SegmentConflict", *QUEUE).value == 1
    assert metrics.failures.labels(*BASE, "write", "TierUnavailable", *QUEUE).value == 1


def test_every_try_counts_and_bytes_only_once() -> None:
    metrics = ProviderMetrics(Registry())
    faulty = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [Fault.AFTER, Fault.AFTER]))
    driver = RetryingDriver(faulty, metrics=metrics, wait=lambda _: None)
    driver.write(KEY, 0, [b"x" * 2000])
    assert metrics.latency.labels(*BASE, "write", "false", *QUEUE).count == 2
    assert metrics.failures.labels(*BASE, "write", "TierUnavailable", *QUEUE).value == 2
    assert metrics.latency.labels(*BASE, "write", "true", *QUEUE).count == 1
    upload = metrics.upload.labels(*BASE, "write", *QUEUE)
    assert (upload.count, upload.sum) == (1, 2000)


def test_they_are_shown_under_rocketmq_s_names_and_bounds() -> None:
    registry = Registry()
    driver = RetryingDriver(MemoryDriver(), metrics=ProviderMetrics(registry, storage_medium="disk"))
    driver.write(KEY, 0, [b"x" * 2000])
    driver.read(KEY, 0, 1)
    driver.put_object(fresh_queue().object_name("manifest"), b"{}")
    text = registry.render_prometheus()
    labels = 'storage_type="tiered",storage_medium="disk",operation="write",path="broker-a/orders/3"'
    labels += ',file_type="consume_queue"'
    assert f'rocketmq_tiered_store_provider_upload_bytes_bucket{{{labels},le="1024"}} 0\n' in text
    assert f'rocketmq_tiered_store_provider_upload_bytes_bucket{{{labels},le="10240"}} 1\n' in text
    assert "rocketmq_tiered_store_provider_download_bytes_count{" in text
    assert "rocketmq_tiered_store_provider_rpc_latency_bucket{" in text
    assert 'le="3000"}' in text
    assert 'operation="put_object",success="true",path="",file_type="object"' in text

"""A broker's own tables over the wire, into a bucket, and back into a new directory."""

from __future__ import annotations

import json
from pathlib import Path

from cli.wire_commands import shell
from simulation.manual_clock import ManualClock
from tiermq.client.broker_state import read_broker_state
from tiermq.client.cluster_client import Access
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.broker_state import GROUPS, OFFSETS, SETTINGS, TOPICS, write_broker_state

HOME = ("DefaultCluster", "broker-a")


def test_tables_that_were_read_over_the_wire_are_restored(tmp_path: Path, manual_clock: ManualClock) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--queues", "3", "--attribute", "message.type=FIFO")
        at.run("group", "create", "audit", "--retries", "5")
        at.run("produce", "orders", "x", "--queue", "1")
        at.run("consume", "orders", "--group", "audit", "--queue", "1", "--follow", "--max", "1", "--quiet")
        address = at.broker.address
        state = Access(at.broker.name_server).run(lambda cluster: read_broker_state(cluster, address))
    assert b'"orders@audit":{1:1}' in state[OFFSETS.name]
    tier = (tmp_path / "tier").as_uri()
    driver = open_driver(tier)
    lease = BrokerLease(driver, *HOME, "a test", clock=manual_clock)
    lease.acquire()
    written = write_broker_state(driver, lease, *HOME, state, "a test")
    assert {TOPICS.name, GROUPS.name, OFFSETS.name, SETTINGS.name} <= set(written)
    lease.release()
    driver.close()
    at.run("tier", "restore", tier, "--store", str(tmp_path / "new"))
    config = tmp_path / "new/config"
    topic = json.loads((config / TOPICS.file).read_bytes())[TOPICS.table]["orders"]
    assert (topic["readQueueNums"], topic["attributes"]) == (3, {"message.type": "FIFO"})
    assert json.loads((config / GROUPS.file).read_bytes())[GROUPS.table]["audit"]["retryMaxTimes"] == 5
    assert json.loads((config / OFFSETS.file).read_bytes())[OFFSETS.table]["orders@audit"]["1"] == 0  # No message yet.
    assert "brokerName=" in (config / "restored-broker.conf").read_text()

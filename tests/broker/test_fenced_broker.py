"""A broker whose lease another process took: what clients, operators and the log are told."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.brokers import Producer, broker_config, running
from simulation.manual_clock import ManualClock
from tiermq.cli.main import cli
from tiermq.errors import StoreLocked
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.contract import ANY
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, Lease, encode_lease, lease_name
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from waiting import until

OTHER = "host-2:/data/copy"


def test_a_fenced_broker_names_the_holder_to_clients_and_operators_and_changes_no_topic(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        config = broker_config(metrics_port=0, namesrv_addr=f"127.0.0.1:{names.port}")
        with (
            running(tmp_path, config=config, tier=tier, tier_lease_term=3_000) as broker,
            Producer(broker) as producer,
        ):
            assert producer.send().code == ResponseCode.SUCCESS
            assert broker.parts.tiered is not None
            assert broker.parts.tiered.flush_to_tier(60)
            BrokerLease(open_driver(tier), "DefaultCluster", "b1", OTHER, term_ms=3_600_000).acquire(force=True)
            until(lambda: broker.parts.local.is_fenced)
            answer = producer.send()
            assert (answer.code, answer.remark is None) == (ResponseCode.SERVICE_NOT_AVAILABLE, False)
            assert "another process has its broker" in str(answer.remark)
            assert OTHER in str(answer.remark)
            assert "disk" not in str(answer.remark)
            with pytest.raises(urllib.error.HTTPError) as found:
                urllib.request.urlopen(f"http://{broker.metrics_address}/ready")
            assert found.value.code == 503
            said = json.load(found.value)["problems"]["store"]
            assert OTHER in said
            assert "FENCED" not in said
            made = CliRunner().invoke(cli, ["topic", "create", "new", "--namesrv", f"127.0.0.1:{names.port}"])
            assert made.exit_code != 0
            assert "no topic is changed here" in made.output
            assert OTHER in made.output
            ended = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
            assert producer.client.request(ended).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert broker.parts.topics.get("new") is None
            assert broker.parts.topics.get("T") is not None


def test_a_lease_that_another_process_holds_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, manual_clock: ManualClock
) -> None:
    driver = MemoryDriver()
    BrokerLease(driver, "c", "b", OTHER, term_ms=3_600_000, clock=manual_clock).acquire()
    lease = BrokerLease(driver, "c", "b", "me", clock=manual_clock)
    with MetadataStore(IN_MEMORY) as metadata, caplog.at_level(logging.WARNING):
        manifests = ManifestStore(driver, "me", lease=lease, clock=manual_clock)
        writer = QueueWriter(metadata, manifests, lease=lease, clock=manual_clock, renew_ms=1_000)
        for _ in range(121):
            writer.claim()
            manual_clock.advance_ms(1_000)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3  # At 0, 60 and 120 seconds.
    assert all(OTHER in line for line in lines)


def test_a_forged_lease_is_reported_ended_by_command_and_uploads_go_on(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    name, driver = lease_name("DefaultCluster", "b1"), open_driver(tier)
    with running(tmp_path, config=broker_config(), tier=tier) as broker, Producer(broker) as producer:
        assert producer.send().code == ResponseCode.SUCCESS
        assert broker.parts.tiered is not None
        assert broker.parts.tiered.flush_to_tier(60)
    driver.put_object(name, encode_lease(Lease((1 << 62) - 1, OTHER, 1 << 62)), expected=ANY)
    with pytest.raises(StoreLocked, match=f"{OTHER} holds it with epoch {(1 << 62) - 1} .*`tiermq tier takeover"):
        running(tmp_path, config=broker_config(), tier=tier).__enter__()
    found = CliRunner().invoke(cli, ["tier", "verify", tier])
    assert found.exit_code != 0
    assert f"{name}: expected a lease that TierMQ wrote, found epoch {(1 << 62) - 1}" in found.output
    ended = CliRunner().invoke(cli, ["tier", "takeover", tier, "--broker", "b1", "--yes"])
    assert ended.exit_code == 0, ended.output
    driver.put_object(name, encode_lease(Lease((1 << 62) - 1)), expected=ANY)  # Again, and free this time.
    config = broker_config()
    with running(tmp_path, config=config, tier=tier, tier_lease_term=3_000) as broker, Producer(broker) as producer:
        assert producer.send().code == ResponseCode.SUCCESS
        assert broker.parts.tiered is not None
        assert broker.parts.tiered.flush_to_tier(60)
        driver.put_object(name, encode_lease(Lease((1 << 62) - 1)), expected=ANY)  # And beside a running broker.
        assert producer.send().code == ResponseCode.SUCCESS
        until(lambda: ((broker.parts.tiered and broker.parts.tiered.tier.lease.read()) or Lease(1 << 62)).is_believed)
        assert broker.parts.tiered.flush_to_tier(60)
        assert broker.problems() == {}
    assert CliRunner().invoke(cli, ["tier", "verify", tier]).exit_code == 0


def test_epochs_without_a_successor_take_the_broker_out_of_service_in_words(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with running(tmp_path, config=broker_config(), tier=tier, tier_lease_term=3_000) as broker:
        assert broker.parts.tiered is not None
        writer = broker.parts.tiered.tier.writer
        writer._epoch_min = 1 << 62  # As of metadata that were restored from forged manifests.
        driver = open_driver(tier)
        driver.put_object(lease_name("DefaultCluster", "b1"), encode_lease(Lease(3)), expected=ANY)
        until(lambda: "tier" in broker.problems())
        assert "expected an epoch below" in broker.problems()["tier"]
        assert "tiermq tier verify" in str(broker.parts.tiered.status())

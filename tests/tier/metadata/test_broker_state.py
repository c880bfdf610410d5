"""A broker's own tables in the tier: written when they changed, under the lease, never over a newer epoch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from tier.metadata.lease_samples import DISPATCHER, JOB, lease_of
from tiermq.errors import FutureManifest, StaleWriter
from tiermq.files.os_file_access import OsFileAccess
from tiermq.store.table_journal import TableJournal
from tiermq.tier.driver.contract import ForwardingDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import BrokerLease, highest_epoch, lease_name
from tiermq.tier.metadata.broker_state import (
    KINDS,
    OFFSETS,
    REFRESH_MS,
    SETTINGS,
    TOPICS,
    BrokerStateWriter,
    decode_table,
    encode_settings,
    load_broker_state,
    read_config_files,
    state_kind_at,
    write_broker_state,
)
from tiermq.tier.metadata.document import CorruptManifest, seal_document
from tiermq.tier.metadata.manifest_store import EpochBehind
from tiermq.tier.metadata.offset_history import points_of_day
from tiermq.tier.names import SegmentKey, broker_of_state, state_object
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.retention.orphans import find_orphans

HOME = ("DefaultCluster", "broker-a")
MINUTE_MS = 60_000


def offsets(at: int) -> dict[str, bytes]:
    return {OFFSETS.name: b'{"offsetTable":{"orders@audit":{0:%d}}}' % at}


class CountingDriver(ForwardingDriver):
    """Counts requests by operation."""

    def __init__(self) -> None:
        super().__init__(MemoryDriver())
        self.counts: Counter[str] = Counter()

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Any]) -> Any:
        self.counts[operation] += 1
        return super().forward(operation, key, call)


def writer_of(driver: Any, lease: BrokerLease, clock: ManualClock) -> BrokerStateWriter:
    return BrokerStateWriter(driver, *HOME, lease, lease.owner, interval_ms=MINUTE_MS, clock=clock)


def held(driver: Any, owner: str, clock: ManualClock) -> BrokerLease:
    lease = lease_of(driver, owner, clock)
    lease.acquire(force=True)
    return lease


def offset_in(driver: Any) -> int:
    found, problems = load_broker_state(driver, *HOME)
    assert problems == {}
    offset = found[OFFSETS.name].document["offsetTable"]["orders@audit"]["0"]
    assert isinstance(offset, int)
    return offset


def test_a_day_of_one_broker_costs_a_bounded_number_of_requests(manual_clock: ManualClock) -> None:
    driver = CountingDriver()
    lease = held(driver, DISPATCHER, manual_clock)
    writer = writer_of(driver, lease, manual_clock)
    driver.counts.clear()
    steady = {TOPICS.name: b'{"topicConfigTable":{}}'}
    for look in range(24 * 3600 // 5):  # A look every five seconds, and a group that commits all the time.
        writer.write({**steady, **offsets(look)})
        manual_clock.advance_ms(5_000)
    assert driver.counts == {"put_object": 24 * 60 + 24 + 24 * 6 + 1, "get_object": 24 * 60 + 2 + 2}


def test_nothing_is_asked_while_nothing_changes_until_the_refresh(manual_clock: ManualClock) -> None:
    driver = CountingDriver()
    writer = writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock)
    assert writer.write(offsets(3)) == [OFFSETS.name]
    driver.counts.clear()
    manual_clock.advance_ms(REFRESH_MS - 1)
    assert writer.write(offsets(3), is_last=True) == []
    assert not driver.counts
    manual_clock.advance_ms(1)
    assert writer.write(offsets(3)) == [OFFSETS.name]
    assert load_broker_state(driver, *HOME)[0][OFFSETS.name].taken_ms == manual_clock.now_ms()


def test_a_change_waits_for_the_interval_unless_it_is_the_last(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    writer = writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock)
    writer.write(offsets(1))
    assert writer.write(offsets(2)) == []
    assert writer.write(offsets(3), is_last=True) == [OFFSETS.name]
    assert offset_in(driver) == 3


def test_the_end_of_a_broker_is_a_point_of_its_offsets_whenever_the_one_before_was(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    writer = writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock)
    for look in (1, 7):  # The second is written with the tables, too early for a point.
        writer.write(offsets(look))
        manual_clock.advance_ms(MINUTE_MS)
    ended_ms = manual_clock.now_ms()
    for _ in range(2):
        writer.write(offsets(7), is_last=True)
    points = points_of_day(driver, *HOME, ended_ms)
    assert [each.offsets["orders@audit"]["0"] for each in points] == [1, 7]
    assert points[-1].taken_ms == ended_ms


def test_an_older_writer_overwrites_nothing_of_a_newer_one(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    old = writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock)
    old.write(offsets(1))
    newer = held(driver, JOB, manual_clock)
    writer_of(driver, newer, manual_clock).write(offsets(7))
    with pytest.raises(StaleWriter):
        old.write(offsets(2), is_last=True)
    assert offset_in(driver) == 7


def test_a_writer_that_lost_the_lease_after_it_asked_finds_the_newer_epoch(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()

    class LateCheck(BrokerLease):
        """Asks in time, and is overtaken before it writes."""

        def check(self) -> None:
            super().check()
            other = BrokerLease(driver, *HOME, JOB, clock=manual_clock)
            other.acquire(force=True)
            writer_of(driver, other, manual_clock).write(offsets(7))

    late = LateCheck(driver, *HOME, DISPATCHER, clock=manual_clock)
    late.acquire()
    with pytest.raises(EpochBehind):
        writer_of(driver, late, manual_clock).write(offsets(2))
    assert offset_in(driver) == 7


def test_a_lost_lease_is_followed_by_a_higher_epoch_than_the_tables_have(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    lease.acquire(epoch_min=41)
    writer_of(driver, lease, manual_clock).write(offsets(1))
    driver.delete_object(lease_name(*HOME))
    assert highest_epoch(driver, *HOME) == 41


def test_damage_is_found_and_replaced_and_a_newer_version_is_left_alone(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = held(driver, DISPATCHER, manual_clock)
    name = state_object(*HOME, OFFSETS.name)
    driver.put_object(name, b'{"torn')
    found, problems = load_broker_state(driver, *HOME)
    assert (found, list(problems)) == ({}, [name])
    assert isinstance(problems[name], CorruptManifest)
    assert write_broker_state(driver, lease, *HOME, offsets(4), lease.owner) == [OFFSETS.name]
    assert offset_in(driver) == 4
    driver.put_object(name, newer := seal_document({"epoch": 1}, 99))
    assert isinstance(load_broker_state(driver, *HOME)[1][name], FutureManifest)
    with pytest.raises(FutureManifest):
        write_broker_state(driver, lease, *HOME, offsets(5), lease.owner)
    stored = driver.get_object(name)
    assert stored is not None
    assert stored.data == newer


def test_a_table_of_another_kind_is_damage(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock).write(offsets(1))
    stored = driver.get_object(state_object(*HOME, OFFSETS.name))
    assert stored is not None
    with pytest.raises(CorruptManifest, match="not the table topics"):
        decode_table(stored.data, "x", TOPICS)


def test_text_that_is_no_table_is_reported_once_and_not_written(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    driver = MemoryDriver()
    writer = writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock)
    for text in (b"[]", b"{torn", b"{torn"):
        assert writer.write({OFFSETS.name: text}) == []
    assert len(caplog.records) == 2
    assert writer.write(offsets(1)) == [OFFSETS.name]


def test_settings_have_no_accounts_and_no_secrets() -> None:
    reported = {
        "brokerName": "b1",
        "fileReservedTime": "72",
        "accessKey": "AK",
        "tieredStoreSecretKey": "x",
        "initAuthenticationUser": '{"username":"admin","password":"12345678"}',
        "innerClientAuthenticationCredentials": "x",
        "tlsServerKeyPassword": "x",
        "tierUrl": "s3://user:pass@host/bucket",
        "authConfigNote": "secretKey=abc",
    }
    kept = json.loads(encode_settings(reported))[SETTINGS.table]
    assert kept == {"brokerName": "b1", "fileReservedTime": "72"}


def test_tables_of_a_directory_have_the_changes_of_its_journal_and_no_damaged_file(tmp_path: Path) -> None:
    access, config = OsFileAccess(), tmp_path / "config"
    assert read_config_files(access, str(tmp_path)) == {}
    version = {"timestamp": 1, "counter": 1, "stateVersion": 0}
    table = {"old": {"topicName": "old"}, "kept": {"topicName": "kept"}}
    access.make_directories(str(config))
    topics = str(config / TOPICS.file)
    access.write_config(topics, json.dumps({"dataVersion": version, "topicConfigTable": table}).encode())
    access.write_config(str(config / OFFSETS.file), b'{"offsetTable":{"orders@audit":{0:3}}}')
    TableJournal(topics, access).append((1, 1, 0), (2, 2, 0), {"new": {"topicName": "new"}}, ["old"])
    found = read_config_files(access, str(tmp_path))
    document = json.loads(found[TOPICS.name])
    assert sorted(document["topicConfigTable"]) == ["kept", "new"]
    assert document["dataVersion"]["counter"] == 2
    assert found[OFFSETS.name] == b'{"offsetTable":{"orders@audit":{0:3}}}'


def test_tables_are_no_orphans_and_names_lead_back_to_their_broker(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    writer_of(driver, held(driver, DISPATCHER, manual_clock), manual_clock).write(offsets(1))
    manual_clock.advance_ms(10 * 24 * 3_600_000)
    assert find_orphans(driver, None, TierScope(*HOME), clock=manual_clock).is_clean
    for kind in KINDS:
        name = state_object(*HOME, kind.name)
        assert (broker_of_state(name), state_kind_at(name)) == (HOME, kind)
    for other in (lease_name(*HOME), f"wrong_DefaultCluster/broker-a/state-{OFFSETS.name}.tiermq.json"):
        assert broker_of_state(other) is None

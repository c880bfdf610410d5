"""A lost disk: topics, groups and offsets come back from the bucket, and consumers continue. By commands alone."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.brokers import SMALL, broker_config, send_command
from cli.test_serve_command import FREE, at
from servers.preloaded import Preloaded
from tiermq.broker.broker import Broker
from tiermq.cli.main import cli
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Credentials
from tiermq.remoting.tls import trusting_client_context
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.broker_state import (
    GROUPS,
    OFFSETS,
    REQUEST_MODES,
    TOPICS,
    StoredTable,
    load_broker_state,
    write_broker_state,
)
from tiermq.tier.names import state_object
from tiermq.tier.restore.restore import read_manifests
from waiting import until

HOME = ("DefaultCluster", "b1")
SETTINGS = {
    **SMALL,
    "tier_dispatch_interval": 100,
    "tier_manifest_interval": 1,
    "tiered_store_delete_file_interval": 100,
    "tiered_store_group_commit_timeout": 100,
}
"""The tables are looked at every 100 ms, and written whenever they changed."""


class World:
    """A directory with a store and a tier, and `tiermq` for it."""

    def __init__(self, path: Path) -> None:
        self.store = path / "store"
        self.tier = (path / "tier").as_uri()
        self.config = path / "serve.toml"
        values = "\n".join(f"{name} = {value}" for name, value in SETTINGS.items())
        self.config.write_text(
            f'{values}\n[broker]\nbind_address = "127.0.0.1"\nbroker_name = "b1"\nflush_consumer_offset_interval = 50\n'
        )
        self.name_server = self.address = ""
        self.ports: tuple[str, ...] = FREE

    @contextmanager
    def serving(self, *words: str, end: signal.Signals = signal.SIGTERM, tier: bool = True) -> Iterator[None]:
        given = ["--tier", self.tier] if tier else []
        command = ["serve", str(self.store), "-c", str(self.config), *given, *self.ports, *words, "--json"]
        process = Preloaded(command)
        try:
            ready = json.loads(process.stdout.readline())
            self.name_server, self.address = ready["nameServer"], ready["address"]
            yield
            process.send_signal(end)
            process.communicate()
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, *words: str | Path, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(map(str, words)), env={"NAMESRV_ADDR": self.name_server})
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    def json(self, *words: str | Path) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def bodies(self, count: int, *words: str) -> list[str]:
        """So many messages, waiting for them."""
        return sorted(self.run("consume", *words, "--bodies", "--follow", "--max", str(count)).stdout.split())

    def clean_unused_topics(self) -> None:
        """As `mqadmin cleanUnusedTopic`."""
        host, _, port = self.address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60) as client:
            answer = client.request(RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    @contextmanager
    def driver(self) -> Iterator[TierDriver]:
        driver = open_driver(self.tier)
        try:
            yield driver
        finally:
            driver.close()

    def tables(self) -> dict[str, StoredTable]:
        with self.driver() as driver:
            return load_broker_state(driver, *HOME)[0]

    def wait_for(self, offsets: dict[str, int], messages: int) -> None:
        """Until the bucket has the group's offsets and manifests of so many messages."""

        def are_there() -> bool:
            table = self.tables().get(OFFSETS.name)
            found = {} if table is None else table.document[OFFSETS.table].get("orders@audit", {})
            with self.driver() as driver:
                manifests = read_manifests(driver, driver.list_objects()).manifests.values()
            copied = sum(each.max_offset for each in manifests if each.topic_id >= 0)
            return bool(found == offsets and copied == messages)

        until(are_there)

    def fill(self) -> None:
        """A topic with three queues, of which two have messages, and a group that consumed one queue."""
        self.run("topic", "create", "orders", "--queues", "3", "--attribute", "message.type=NORMAL")
        self.run("topic", "create", "payments", "--queues", "2")
        self.run("group", "create", "audit", "--retries", "3")
        for number in range(4):
            self.run("produce", "orders", f"zero-{number}", "--queue", "0")
            self.run("produce", "orders", f"one-{number}", "--queue", "1")
        self.run("produce", "payments", "paid", "--queue", "1")
        taken = self.bodies(3, "orders", "--group", "audit", "--queue", "0")
        assert taken == ["zero-0", "zero-1", "zero-2"]

    def lose_disk(self) -> None:
        shutil.rmtree(self.store)

    def restore(self, *words: str, code: int = 0) -> Result:
        return self.run("tier", "restore", self.tier, "--store", self.store, *words, code=code)

    def queue_counts(self) -> dict[str, int]:
        table = json.loads((self.store / "config/topics.json").read_bytes())[TOPICS.table]
        return {name: entry["readQueueNums"] for name, entry in table.items()}

    def require_continued(self) -> None:
        """A consumer goes on at its offset, the third queue is there, and settings of the group are."""
        assert [each["queueId"] for each in self.json("topic", "show", "orders")["queues"]] == [0, 1, 2]
        assert '"message.type":"NORMAL"' in (self.store / "config/topics.json").read_text()
        self.run("produce", "orders", "two-0", "--queue", "2")
        assert self.bodies(1, "orders", "--group", "audit", "--queue", "0") == ["zero-3"]
        assert self.bodies(1, "orders", "--group", "audit", "--queue", "2") == ["two-0"]
        assert '"retryMaxTimes":3' in (self.store / "config/subscriptionGroup.json").read_text()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_consumers_continue_after_the_disk_of_a_broker_was_lost(world: World, end: signal.Signals) -> None:
    with world.serving(end=end):
        world.fill()
        if end is signal.SIGKILL:
            world.wait_for({"0": 3}, 9)
    world.lose_disk()
    shown = world.restore().stdout
    assert "group offsets (1) as of " in shown
    assert " the last message" in shown
    assert world.queue_counts()["orders"] == 3
    assert "tierManifestInterval=1\n" in (world.store / "config/restored-broker.conf").read_text()
    with world.serving():
        world.require_continued()


def test_a_protected_broker_is_not_restored_as_an_open_one(world: World, tmp_path: Path) -> None:
    accounts = tmp_path / "acl.toml"
    accounts.write_text('[[accounts]]\naccessKey = "ak"\nsecretKey = "a long secret"\nadmin = true\n')
    protected = ("--acl", str(accounts), "--tls", "enforcing")
    signed = {"credentials": Credentials("ak", "a long secret"), "tls": trusting_client_context()}
    with world.serving(*protected), at(world.address, **signed) as client:
        assert client.request(send_command()).code == ResponseCode.SUCCESS
        # What a job keeps that copies tables over the wire.
        reported = bytes(client.request(RemotingCommand(RequestCode.GET_BROKER_CONFIG)).body).decode().splitlines()
        assert {"aclEnable=true", "tls.server.mode=enforcing"} <= set(reported)
        assert not [line for line in reported if line.startswith("namesrvAddr=")], "it is part of the broker"
    lost = world.name_server
    world.lose_disk()
    world.restore()
    restored = world.store / "config/restored-broker.conf"
    assert {"aclEnable=true", "tls.server.mode=enforcing"} <= set(restored.read_text().splitlines())
    assert "a long secret" not in restored.read_text()
    assert "namesrvAddr" not in restored.read_text(), "it was part of the broker"
    words = ("serve", world.store, "-c", restored, "--tier", world.tier, *FREE)
    asked = world.run(*words, code=2).stderr
    assert "aclEnable=true: requests would not be checked" in asked
    assert "tls.server.mode=enforcing: plain peers would be served" in asked
    world.config = restored
    with world.serving(*protected), at(world.name_server, **signed) as client:
        assert world.name_server != lost
        route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"})
        assert world.address.encode() in bytes(client.request(route).body)


def test_the_name_server_that_a_lost_broker_shared_with_others_is_restored(world: World) -> None:
    with NameServer(NameServerConfig(listen_port=0, kv_config_path="")) as names:
        world.ports = ("--port", "0", "--namesrv", f"127.0.0.1:{names.port}")
        with world.serving():
            world.run("produce", "orders", "one")
        world.lose_disk()
        world.restore()
        restored = world.store / "config/restored-broker.conf"
        assert f"namesrvAddr=127.0.0.1\\:{names.port}\n" in restored.read_text()
        refused = world.run("serve", world.store, "-c", restored, *FREE, code=2).stderr
        assert f"--namesrv-port 0: expected no other name server beside it, found namesrvAddr of {restored}" in refused


def test_a_job_copies_the_tables_of_a_store_directory_too(world: World) -> None:
    with world.serving(tier=False):
        world.fill()
    store = f"{world.store}={'/'.join(HOME)}"
    done = world.run("pipeline", "offload", "--store", store, "--tier", world.tier, "--master", "here")
    assert done.exit_code == 0
    world.lose_disk()
    world.restore()
    with world.serving():
        world.require_continued()


def test_a_job_copies_the_tables_of_a_running_broker_over_the_wire_too(world: World) -> None:
    world.config.write_text(f"flush_commit_log_thorough_interval = 100\n{world.config.read_text()}")
    with world.serving(tier=False):
        world.fill()
        words = ("--namesrv", world.name_server, "--tier", world.tier, "--master", "here")
        assert world.json("pipeline", "offload", *words)["done"]["messages"] == 9
    world.lose_disk()
    world.restore()
    with world.serving():
        world.require_continued()


def test_a_damaged_table_is_reported_and_the_others_are_restored(world: World) -> None:
    with world.serving():
        world.fill()
    world.lose_disk()
    name = state_object(*HOME, OFFSETS.name)
    listed = {each["kind"] for each in world.json("tier", "ls", world.tier)["tables"]}
    assert {"topics", "subscriptionGroup", "consumerOffset", "settings"} <= listed
    assert "tables     of b1: topics 2" in world.run("tier", "ls", world.tier).stdout
    with world.driver() as driver:
        stored = driver.get_object(name)
        assert stored is not None
        driver.put_object(name, stored.data.replace(b'"0":3', b'"0":4'))
    assert name in world.run("tier", "verify", world.tier, code=1).stdout
    assert name in world.run("tier", "ls", world.tier).stdout
    world.run("tier", "orphans", world.tier, "--clean", "--grace", "0")
    shown = world.restore(code=1).stdout
    assert f"{name}: a damaged table of the broker, which was not restored" in shown
    assert "not in the tier, so not restored: group offsets;" in shown
    assert not (world.store / "config/consumerOffset.json").exists()
    assert world.queue_counts()["orders"] == 3
    with world.serving():
        assert world.bodies(1, "orders", "--group", "audit", "--queue", "0", "--from", "first") == ["zero-0"]


def test_some_topics_are_restored_and_numbering_of_the_others_continues(world: World) -> None:
    with world.serving():
        world.fill()
        world.bodies(1, "payments", "--group", "audit")
    world.lose_disk()
    assert "expected history of nothing, found none" in world.restore("--topic", "nothing", code=2).output
    assert not world.store.exists()
    found = json.loads(world.restore("--topic", "orders", "--json").stdout)
    assert (found["topics"], found["queues"], found["messages"]) == (1, 2, 8)
    assert world.queue_counts() == {"orders": 3}
    offsets = json.loads((world.store / "config/consumerOffset.json").read_bytes())[OFFSETS.table]
    assert offsets == {"orders@audit": {"0": 3}}
    with world.serving():
        world.require_continued()
        assert "payments" not in world.run("topic", "list").stdout
        with pytest.raises(AssertionError, match="restored with some"):
            world.clean_unused_topics()
        world.run("topic", "create", "payments", "--queues", "2")
        world.run("produce", "payments", "again", "--queue", "1")
        assert world.bodies(2, "payments") == ["again", "paid"]
    # The bucket still has what was left out: a whole restore brings it back.
    world.lose_disk()
    world.restore()
    offsets = json.loads((world.store / "config/consumerOffset.json").read_bytes())[OFFSETS.table]
    assert offsets["payments@audit"]["1"] == 1


def test_a_deleted_topic_leaves_the_bucket_s_tables(world: World) -> None:
    with world.serving():
        world.fill()
        world.wait_for({"0": 3}, 9)
        world.run("topic", "delete", "orders", "--yes")
    assert "orders" not in world.tables()[TOPICS.name].document[TOPICS.table]
    assert "orders@audit" not in world.tables()[OFFSETS.name].document[OFFSETS.table]


def test_files_that_are_there_are_kept_and_offsets_beyond_the_end_are_cut(world: World) -> None:
    with world.serving():
        world.fill()
    world.lose_disk()
    with world.driver() as driver:  # As if the last uploads had not been made.
        lease = BrokerLease(driver, *HOME, "a test")
        lease.acquire()
        later = b'{"offsetTable":{"orders@audit":{0:9,2:1},"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:5}}}'
        assert write_broker_state(driver, lease, *HOME, {OFFSETS.name: later}, "a test") == [OFFSETS.name]
        lease.release()
    config = world.store / "config"
    config.mkdir(parents=True)
    (config / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{}}')
    found = json.loads(world.restore("--json").stdout)
    assert (config / "subscriptionGroup.json").read_text() == '{"subscriptionGroupTable":{}}'
    assert {each["kind"]: each["kept"] for each in found["tables"]}["subscriptionGroup"]
    remarks = {(each["kind"], each["where"], each["text"]) for each in found["remarks"]}
    assert ("file_kept", "config/subscriptionGroup.json", "") in remarks
    assert ("offset_cut", "group audit, topic orders, queue 0", "9 to 4") in remarks
    assert ("offset_cut", "group audit, topic orders, queue 2", "1 to 0") in remarks
    offsets = json.loads((config / "consumerOffset.json").read_bytes())[OFFSETS.table]
    assert offsets == {"orders@audit": {"0": 4, "2": 0}}


def test_entries_that_no_broker_has_are_left_out_and_the_broker_starts(world: World) -> None:
    """As a job copies them from a broker that answers anything."""
    with world.serving():
        world.fill()
    world.lose_disk()
    with world.driver() as driver:
        lease = BrokerLease(driver, *HOME, "a test")
        lease.acquire()
        good = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "attributes": {"+reserve.time": "abc"}}
        topics = {
            "orders": {**good, "attributes": {"reserve.time": "abc", "reserve.bytes": "9" * 30}},
            "../../etc": good, "row": 7, "many": {**good, "readQueueNums": 2**31 - 1}, "named": {"topicName": "else"},
            "odd": {**good, "attributes": {"a": [1]}}, "perm": {**good, "perm": "x"},
            "flag": {**good, "topicSysFlag": 2**40}, "filter": {**good, "topicFilterType": 7},
        }  # fmt: skip
        groups = {
            "audit": {"groupName": "audit", "retryMaxTimes": "3"}, "../x": {}, "g": [1],
            "times": {"retryMaxTimes": "x"}, "policy": {"groupRetryPolicy": 7}, "words": {"attributes": {"a": [1]}},
            "title": {"groupName": 7},
        }  # fmt: skip
        modes = {"orders": {"audit": {"popShareQueueNum": "x"}}, "row": {"audit": 7}}
        offsets = {"orders@audit": {"0": 3, "9" * 5_000: 1, "1": -7}, "orders@list": [1]}
        state = {
            TOPICS.name: {TOPICS.table: topics, "dataVersion": "x"},
            GROUPS.name: {GROUPS.table: groups, "forbiddenTable": {"audit": {"orders": "x"}}},
            REQUEST_MODES.name: {REQUEST_MODES.table: modes},
            OFFSETS.name: {OFFSETS.table: offsets, "popOpen": [1]},
        }
        encoded = {name: json.dumps(document).encode() for name, document in state.items()}
        assert len(write_broker_state(driver, lease, *HOME, encoded, "a test")) == 4
        lease.release()
    found = json.loads(world.restore("--json", code=1).stdout)
    odd = {each["where"] for each in found["remarks"] if each["kind"] == "odd_entry"}
    assert odd == {
        "topics, '../../etc'", "topics, 'row'", "topics, 'many'", "topics, 'named'", "topics, 'odd'",
        "topics, 'perm'", "topics, 'flag'", "topics, 'filter'", "groups, '../x'", "groups, 'g'", "groups, 'times'",
        "groups, 'policy'", "groups, 'words'", "groups, 'title'", "groups, forbiddenTable", "request modes, 'orders'",
        "request modes, 'row'", "group offsets, 'orders@list'",
    }  # fmt: skip
    with world.serving():
        assert [each["queueId"] for each in world.json("topic", "show", "orders")["queues"]] == [0, 1, 2]
        assert world.bodies(1, "orders", "--group", "audit", "--queue", "0") == ["zero-3"]
        assert world.bodies(4, "orders", "--group", "audit", "--queue", "1") == [f"one-{each}" for each in range(4)]


def test_a_broker_that_is_opened_with_restore_has_its_tables(world: World) -> None:
    with world.serving():
        world.run("topic", "create", "batches", "--queues", "2", "--attribute", "queue.type=BatchCQ")
        world.fill()
    world.lose_disk()
    settings = {**SMALL, "restore": True}
    with Broker.open(world.store, tier=world.tier, config=broker_config(), **settings) as broker:
        assert broker.parts.topics.queue_count("orders") == 3
        assert broker.parts.offsets.query("audit", "orders", 0) == 3
        group = broker.parts.groups.get("audit")
        assert group is not None
        assert group.retry_max_times == 3
        assert broker.parts.local._parts.attributes.is_batch_queue("batches")

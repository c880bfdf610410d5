"""`tiermq follow` beside real RocketMQ masters: the same bytes, everything in the tier, and no acknowledgement."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from interop.official import Official
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Cluster, Distribution, Unavailable, fetch
from interop.rocketmq import fetch_servers as servers_of
from interop.test_offload_with_accounts import OLD, fetched
from interop.test_replication import QUEUES, Client, ask, send_many
from interop.two_brokers import await_registered
from servers.loopback import with_own_network
from servers.serving import Following
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_object
from tiermq.replication.ha_observer import NOTHING
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_state import OFFSETS, TOPICS, load_broker_state
from tiermq.tier.tier_view import view_tier
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]
TOPIC: dict[str, Any] = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


def in_its_world(version: str, home: Path, work: Callable[[Distribution, Distribution], None]) -> None:
    """Run it with the servers of that version, and clients that can be used with them."""
    client = fetched()
    if version != OLD:
        try:
            work(fetch(version), client)
        except Unavailable as reason:
            pytest.skip(f"no real RocketMQ here: {reason}")
        return
    if os.geteuid():
        pytest.skip("RocketMQ 4.9 listens on every address, and a network of its own for it needs root")
    try:
        old = servers_of(OLD)
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ 4.9 here: {reason}")
    (home / "conf").mkdir(parents=True)
    for name in ("namesrv", "broker"):  # It does not start without.
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    with_own_network(lambda: work(old, client))


def copied_to(shadow: Following, end: int) -> None:
    shadow.progress(lambda reported: reported["copiedTo"] == end)


def master_end(client: Client) -> int:
    """A RocketMQ broker that has just started may refuse it for a while."""
    until(lambda: ask(client, RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.SUCCESS)
    return int(decode_object(ask(client, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]["commitLogMaxOffset"])


def ends(client: Client, topic: str, queues: int) -> int:
    return sum(
        int(ask(client, RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue).ext["offset"])
        for queue in range(queues)
    )


def in_tier(tier: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue in view_tier(open_driver(tier)).queues:
        found[queue.key.topic] = found.get(queue.key.topic, 0) + queue.message_count
    return found


def same_files(copy: Path, of: Path, end: int) -> None:
    """Every file of the copy's log is the master's, up to its end."""
    files = sorted((copy / "commitlog").glob("0*"))
    assert files
    for file in files:
        length = min(end - int(file.name), file.stat().st_size)
        assert file.read_bytes()[:length] == (of / "commitlog" / file.name).read_bytes()[:length], file.name


@pytest.mark.parametrize("version", [OLD, "5.3.3", "5.5.0"])
def test_a_shadow_copies_a_running_master_and_refuses_one_that_lost_its_tail(version: str, tmp_path: Path) -> None:
    tier, store, home = (tmp_path / "tier").as_uri(), tmp_path / "theirs", tmp_path / "home"

    def work(servers: Distribution, client_of: Distribution) -> None:
        with Cluster(servers, store, home, client=client_of) as cluster:
            await_registered("127.0.0.1", cluster._name_server_port)
            words = ("--namesrv", cluster.name_server, "--broker", BROKER_NAME, "--tier", tier)
            with Client(cluster.broker_address) as client, Following(tmp_path / "shadow", *words) as shadow:
                assert ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC).code == ResponseCode.SUCCESS
                send_many(client, 1_500)
                group = json.dumps({"groupName": "CG"}).encode()
                assert ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group).code == 0
                offset: dict[str, Any] = {"consumerGroup": "CG", "topic": "T", "queueId": 2, "commitOffset": 17}
                assert ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, **offset).code == 0
                shadow.kill()
                with Official(client_of, cluster.name_server, tmp_path) as official:
                    shadow.start()
                    official.run("Producer", "-t", "orders", "-w", 2, "-s", 100, messages=1_000)
                cluster.kill_broker()
                cluster.start_broker()
                send_many(client, 300, first=1_500)
                end = master_end(client)
                shadow.progress(lambda reported: reported["copiedTo"] == end and reported["notUploaded"] == 0)
                messages = {"T": ends(client, "T", QUEUES), "orders": ends(client, "orders", 8)}
                assert messages["T"] == 1_800
                if version != OLD:
                    # It reports every five seconds.
                    until(lambda: ha_status(client)["haConnectionInfo"][0]["slaveAckOffset"] == NOTHING)
                    status = ha_status(client)
                    [shown] = status["haConnectionInfo"]
                    assert (shown["inSync"], status["inSyncSlaveNums"]) == (False, 0), "it is no replica"
                shadow.terminate()
                same_files(shadow.store, store, end)
                assert in_tier(tier) == messages
                tables, problems = load_broker_state(open_driver(tier), CLUSTER_NAME, BROKER_NAME)
                assert not problems
                assert "T" in tables[TOPICS.name].document["topicConfigTable"]
                assert tables[OFFSETS.name].document["offsetTable"]["T@CG"]["2"] == 17
                lose_tail(cluster, client, shadow, store)

    in_its_world(version, home, work)


def ha_status(client: Client) -> dict[str, Any]:
    return decode_object(ask(client, RequestCode.GET_BROKER_HA_STATUS).body)


def lose_tail(cluster: Cluster, client: Client, shadow: Following, store: Path) -> None:
    """The master comes back with an older copy of its disk, and goes on."""
    assert cluster._broker is not None
    cluster._broker.stop()
    shutil.copytree(store, store.with_name("older"))
    cluster.start_broker()
    shadow.start()
    send_many(client, 100, first=5_000)
    end = master_end(client)
    shadow.progress(lambda reported: reported["copiedTo"] == end)
    cluster._broker.stop()
    lost = store.rename(store.with_name("lost"))
    shutil.copytree(store.with_name("older"), store)
    cluster.start_broker()
    reported = shadow.progress(
        lambda reported: reported["problem"] and "is not the one that was copied" in reported["problem"]
    )
    assert reported["copiedTo"] == end
    send_many(client, 200, first=6_000)
    assert master_end(client) > end, "it has grown beyond the copy"
    shadow.kill()
    shadow.start()
    reported = shadow.progress(
        lambda reported: reported["problem"] and "expected the same bytes" in reported["problem"]
    )
    assert reported["copiedTo"] == end, "nothing is mixed"
    shadow.terminate()
    same_files(shadow.store, lost, end)


@pytest.mark.parametrize("version", [OLD, "5.3.3", "5.5.0"])
def test_a_sync_master_acknowledges_nothing_because_of_a_shadow(version: str, tmp_path: Path) -> None:
    tier, home = (tmp_path / "tier").as_uri(), tmp_path / "home"
    settings = {**SMALL_FILES, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 300}

    def work(servers: Distribution, client_of: Distribution) -> None:
        with Cluster(servers, tmp_path / "theirs", home, settings, client=client_of) as cluster:
            await_registered("127.0.0.1", cluster._name_server_port)
            host, _, port = cluster.broker_address.rpartition(":")
            words = ("--master", f"{host}:{int(port) + 1}", "--tier", tier)
            with Client(cluster.broker_address) as client:
                assert ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC).code == ResponseCode.SUCCESS
                # RocketMQ 4 sees that there is no connection, and does not wait. RocketMQ 5 waits for two replicas.
                alone = ResponseCode.SLAVE_NOT_AVAILABLE if version == OLD else ResponseCode.FLUSH_SLAVE_TIMEOUT
                assert {client.request(send_command("T", b"alone")).code for _ in range(3)} == {alone}
            with Client(cluster.broker_address) as client, Following(tmp_path / "shadow", *words) as shadow:
                for times in range(3):  # With a new copy, then twice with one that connects again.
                    shadow.progress(lambda reported: reported["connected"])
                    codes = {client.request(send_command("T", b"%d" % number)).code for number in range(10)}
                    assert codes == {ResponseCode.FLUSH_SLAVE_TIMEOUT}, times
                    end = master_end(client)
                    copied_to(shadow, end)
                    shadow.kill()
                    shadow.start()

    in_its_world(version, home, work)

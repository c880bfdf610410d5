"""Offloads of RocketMQ brokers that let in known accounts only, by ACL 1.0 and 2.0, and that speak TLS only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from interop.mqadmin import Mqadmin
from interop.official import Official, with_programs
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Cluster, Distribution, Unavailable, fetch
from interop.rocketmq import fetch_servers as servers_of
from interop.two_brokers import await_registered
from pipeline.offload.offload_world import TIER
from servers.loopback import with_own_network
from tiermq.errors import RemotingError, RequestRefused
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.remoting.tls import ClientTls, make_self_signed
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_state import TOPICS, load_broker_state
from tiermq.tier.verify.verify import verify_tier

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

OLD = "4.9.7"
SECRETS = {"operator": "operator-secret", "offload": "offload-secret", "stranger": "stranger-secret"}
"""ACL 1.0 wants more than six characters."""
PLAIN_ACL = f"""
accounts:
- accessKey: operator
  secretKey: {SECRETS["operator"]}
  admin: true
- accessKey: offload
  secretKey: {SECRETS["offload"]}
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: DENY
  groupPerms:
  - TOOLS_CONSUMER=SUB
- accessKey: stranger
  secretKey: {SECRETS["stranger"]}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
"""
AUTH = "org.apache.rocketmq.auth"
USER = {"username": "operator", "password": SECRETS["operator"]}
KEYS = {"accessKey": "operator", "secretKey": SECRETS["operator"]}
ACL_2: Mapping[str, object] = {
    "authenticationEnabled": True,
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps(USER),
    "innerClientAuthenticationCredentials": json.dumps(KEYS),
    "authorizationEnabled": True,
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
GRANTS = {"Topic:*": "Sub,Get", "Group:TOOLS_CONSUMER": "Sub", "Cluster:*": "Get"}
"""As docs/offload.md names them."""
MESSAGES = 300


def fetched(version: str | None = None) -> Distribution:
    try:
        return with_programs(fetch() if version is None else fetch(version))
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ {version or ''} here: {reason}")


def await_known(cluster: Cluster) -> None:
    host, _, port = cluster.name_server.partition(":")
    await_registered(host, int(port))


def copy(cluster: Cluster, tier: str, scope: FleetScope | None = None) -> JobReport:
    return offload([], tier, fleet=scope or FleetScope(cluster.name_server, CLUSTER_NAME, settle_s=1.0), config=TIER)


def queues_in(tier: str) -> dict[int, int]:
    """Messages of the topic in the tier by queue, none with a gap."""
    assert verify_tier(open_driver(tier)).problems == []
    with open_history(HistoryPlace(tier)) as history:
        queues = read_catalog(history).queues()
        assert all(queue.cold_min == 0 and not queue.gaps for queue in queues)
        return {queue.key.queue_id: queue.cold_max for queue in queues if queue.key.topic == "orders"}


def counted(tier: str) -> int:
    return sum(queues_in(tier).values())


def send(cluster: Cluster, client: Distribution, scratch: Path, *, signed: bool = False) -> range:
    """By RocketMQ's own Producer; how many may be stored: on a slow machine it gives up some that are, or are not."""
    scratch.mkdir(exist_ok=True)
    keys = ("-a", "true", "-ak", "operator", "-sk", SECRETS["operator"]) if signed else ()
    with Official(client, cluster.name_server, scratch) as official:
        reported = official.run("Producer", "-t", "orders", "-w", 2, "-s", 100, "-k", "true", *keys, messages=MESSAGES)
    assert reported.messages > MESSAGES // 2
    return range(reported.messages, MESSAGES + 1)


def as_account(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", name)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", SECRETS[name])


def check_accounts(cluster: Cluster, tier: str, sent: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger copies nothing; a reader all messages and the tables; an administrator finds nothing to add."""
    as_account(monkeypatch, "stranger")
    with pytest.raises(RequestRefused):
        copy(cluster, tier)
    assert not list(open_driver(tier).list_segments())
    as_account(monkeypatch, "offload")
    first = copy(cluster, tier)
    assert first.problems == []
    assert counted(tier) in sent
    tables, _ = load_broker_state(open_driver(tier), CLUSTER_NAME, BROKER_NAME)
    assert "orders" in tables[TOPICS.name].document["topicConfigTable"]
    as_account(monkeypatch, "operator")
    second = copy(cluster, tier)
    assert (second.problems, second.done["messages"]) == ([], 0)


def needs_root() -> None:
    if os.geteuid():
        pytest.skip("RocketMQ 4.9 listens on every address, and a network of its own for it needs root")


def servers_of_4_9(home: Path) -> Distribution:
    needs_root()
    try:
        old = servers_of(OLD)
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ 4.9 here: {reason}")
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    for name in ("namesrv", "broker"):  # It does not start without.
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    return old


@pytest.mark.parametrize("with_acl", [False, True], ids=["open", "ACL 1.0"])
def test_a_broker_of_4_9_is_copied_with_and_without_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_acl: bool
) -> None:
    client, old = fetched(), servers_of_4_9(tmp_path / "home")
    tier, settings = (tmp_path / "t").as_uri(), {**SMALL_FILES, "aclEnable": with_acl}

    def work() -> None:
        with Cluster(old, tmp_path / "store", tmp_path / "home", settings, client=client) as cluster:
            await_known(cluster)
            sent = send(cluster, client, tmp_path / "client", signed=with_acl)
            if with_acl:
                check_accounts(cluster, tier, sent, monkeypatch)
            else:
                assert copy(cluster, tier).problems == []
                assert counted(tier) in sent
                assert copy(cluster, tier).done["messages"] == 0

    with_own_network(work)


def test_no_queue_of_a_4_9_broker_is_left_out_where_readers_and_writers_have_different_numbers(tmp_path: Path) -> None:
    """Its answer to request 202 has the queues of writers only, and it lets readers pull from those of readers only."""
    client, old = fetched(), servers_of_4_9(tmp_path / "home")
    (tmp_path / "admin" / "conf").mkdir(parents=True)
    tier = (tmp_path / "t").as_uri()

    def work() -> None:
        with (
            Cluster(old, tmp_path / "store", tmp_path / "home", SMALL_FILES, client=client) as cluster,
            Mqadmin(client, tmp_path / "admin", cluster.name_server) as mqadmin,
        ):
            await_known(cluster)

            def set_queues(readers: int, writers: int) -> None:
                at = ("-b", cluster.broker_address, "-t", "orders")
                assert "success" in mqadmin.run("updateTopic", *at, "-r", str(readers), "-w", str(writers))

            set_queues(2, 2)
            sent = send(cluster, client, tmp_path / "client")
            set_queues(2, 1)  # How a topic is made smaller: producers stop first.
            assert copy(cluster, tier).problems == []
            assert counted(tier) in sent
            assert set(queues_in(tier)) == {0, 1}
            set_queues(1, 2)
            more = send(cluster, client, tmp_path / "client")
            (problem,) = copy(cluster, tier).problems
            assert "orders-1: the broker has" in problem
            assert "updateTopic -r 2" in problem
            set_queues(2, 2)
            assert copy(cluster, tier).problems == []
            assert counted(tier) in range(sent.start + more.start, sent.stop + more.stop - 1)
            set_queues(1, 1)
            assert copy(cluster, tier).problems == []  # All that the queue still has is in the tier.

    with_own_network(work)


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_acl_2_needs_the_grants_that_the_page_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    distribution = fetched(version)
    (tmp_path / "admin" / "conf").mkdir(parents=True)
    tools = "".join(f"{name}: {value}\n" for name, value in KEYS.items())
    (tmp_path / "admin" / "conf" / "tools.yml").write_text(tools)
    settings = {**SMALL_FILES, **ACL_2, "authConfigPath": tmp_path / "auth"}
    with (
        Cluster(distribution, tmp_path / "store", tmp_path / "home", settings) as cluster,
        Mqadmin(distribution, tmp_path / "admin", cluster.name_server) as mqadmin,
    ):
        await_known(cluster)
        at = ("-b", cluster.broker_address)
        for name in ("offload", "stranger"):
            assert "success" in mqadmin.run("createUser", *at, "-u", name, "-p", SECRETS[name], "-t", "Normal")
        for resource, actions in GRANTS.items():
            words = ("-s", "User:offload", "-r", resource, "-a", actions, "-d", "Allow")
            assert "success" in mqadmin.run("createAcl", *at, *words)
        sent = send(cluster, distribution, tmp_path / "client", signed=True)
        check_accounts(cluster, (tmp_path / "t").as_uri(), sent, monkeypatch)


def test_a_broker_that_speaks_tls_only_is_copied_and_another_certificate_is_refused(tmp_path: Path) -> None:
    paths = {}
    for name in ("server", "other"):
        made = make_self_signed(name)
        paths[name] = tmp_path / f"{name}.crt"
        paths[name].write_text(made.certificate)
        (tmp_path / f"{name}.key").write_text(made.key)
    reported = {
        "tls.server.mode": "enforcing",
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.server.certPath": paths["server"],
        "tls.server.keyPath": tmp_path / "server.key",
        "tls.client.trustCertPath": paths["server"],
        "tls.client.authServer": "false",
    }
    distribution = replace(fetched(), options=tuple(f"-D{name}={value}" for name, value in reported.items()))
    tier = (tmp_path / "t").as_uri()
    with Cluster(distribution, tmp_path / "store", tmp_path / "home", SMALL_FILES) as cluster:
        trusting = ClientTls(trusted_path=str(paths["server"]))
        cluster.await_registered(trusting.context())  # Without a route each send fails at once.
        sent = send(cluster, distribution, tmp_path / "client")
        plain = FleetScope(cluster.name_server, CLUSTER_NAME, settle_s=1.0)
        secret = replace(plain, tls=True, certificates=trusting)
        for scope in (plain, replace(secret, certificates=ClientTls(trusted_path=str(paths["other"])))):
            with pytest.raises(RemotingError):
                copy(cluster, tier, scope)
        assert copy(cluster, tier, secret).problems == []
        assert counted(tier) in sent

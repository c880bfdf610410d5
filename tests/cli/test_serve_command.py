"""`tiermq serve` as its user runs it: a process, its lines, its signals, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import waiting
from broker.brokers import SMALL, running, send_command
from servers.loopback import free_ports
from servers.preloaded import Preloaded
from tiermq import Message
from tiermq.broker.settings_file import settings_in_properties
from tiermq.cli.main import cli
from tiermq.cli.serve import _broker_config, _ready_line
from tiermq.clock import SystemClock
from tiermq.config import SETTINGS
from tiermq.errors import RemotingError
from tiermq.namesrv.kv_config import KvConfig
from tiermq.namesrv.name_processor import NameProcessor
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.route_table import RouteTable
from tiermq.remoting.access import ADMINISTRATOR
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.permissions import AccessFile, Credentials
from tiermq.remoting.server import RemotingServer
from tiermq.remoting.tls import make_self_signed, trusting_client_context
from tiermq.spark import explain_scan
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.tiered_store import TieredStore

SMALL_PROPERTIES = "".join(f"{SETTINGS[name].property_name}={value}\n" for name, value in SMALL.items())
SMALL_FILE = "\n".join(f"{name} = {value}" for name, value in SMALL.items())
FREE = ("--port", "0", "--namesrv-port", "0")


@contextmanager
def serving(*words: str | Path) -> Iterator[tuple[Preloaded, dict[str, Any]]]:
    """The command in a process of its own, and what its ready line says. It is ended by SIGTERM and must end well."""
    process = Preloaded(["serve", *map(str, words), "--json"], stderr=subprocess.PIPE)
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        yield process, json.loads(line)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate()
        assert process.returncode == 0, errors
        assert [json.loads(each)["event"] for each in rest.splitlines()] == ["ending", "ended"]
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def at(address: str, **options: Any) -> BlockingClient:
    host, _, port = address.rpartition(":")
    return BlockingClient(host, int(port), timeout_s=30.0, **options)


def test_a_broker_and_its_name_server_serve_until_sigterm_and_the_store_is_closed_cleanly(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(SMALL_FILE + '\n[broker]\nbind_address = "127.0.0.1"\nbroker_name = "b1"\n')
    store = tmp_path / "store"
    with serving(store, "-c", config, *FREE, "--metrics-port", "0") as (_, ready):
        assert (ready["event"], ready["name"], ready["store"], ready["tier"]) == ("ready", "b1", str(store), None)
        with at(ready["nameServer"]) as client:
            route = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"}))
        assert ready["address"].encode() in bytes(route.body)
        with at(ready["address"]) as client:
            assert client.request(send_command()).code == ResponseCode.SUCCESS
        with urllib.request.urlopen(f"http://{ready['metrics']}/ready") as page:
            assert page.status == 200
    assert not (store / "abort").exists()
    with LocalStore.open(store, **SMALL) as after:
        assert [message.body for message in after.get("T", 0, 0).messages] == [b"hello"]


def test_settings_in_yaml_are_read_flat_and_nested_ones_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "broker.yml"
    small = "".join(f"{SETTINGS[name].property_name}: {value}\n" for name, value in SMALL.items())
    config.write_text(f'---\nbrokerName: "broker-q"  # Ours.\nautoCreateTopicEnable: false\nlistenPort: 0\n{small}')
    with serving(tmp_path / "store", "-c", config, "--namesrv-port", "0") as (_, ready):
        assert (ready["name"], ready["ignored"], ready["unknown"]) == ("broker-q", [], [])
        with at(ready["address"]) as client:
            assert client.request(send_command()).code == ResponseCode.TOPIC_NOT_EXIST
    for text, words in (
        ("broker:\n  brokerName: a\n", "broker: expected one value, found several below it"),
        ("listenPort: [1, 2]\n", "listenPort: expected one value"),
        ("- a\n", "expected names and values, found a list"),
        ("a: b: c\n", "expected YAML, found an error in line 1"),
        ("listenPort: 1\nlistenPort: 2\n", "expected each key once"),
    ):
        config.write_text(text)
        assert words in refused(tmp_path / "store", "-c", config, *FREE)


@pytest.mark.parametrize("place", ["/proc/nope/tier", "{path}/file/tier"])
def test_a_tier_whose_directory_cannot_be_made_is_not_ready_with_tier_later(tmp_path: Path, place: str) -> None:
    config = tmp_path / "small.toml"
    config.write_text(SMALL_FILE)
    (tmp_path / "file").write_text("no directory")
    url = f"file://{place.format(path=tmp_path)}"
    words = ("-c", config, *FREE, "--tier", url, "--tier-later", "--metrics-port", "0")
    with serving(tmp_path / "store", *words) as (_, ready):
        page: dict[str, Any] = {}

        def is_refused() -> bool:
            try:
                urllib.request.urlopen(f"http://{ready['metrics']}/ready")
            except urllib.error.HTTPError as error:
                page.update(json.load(error))
                return error.code == 503
            return False

        waiting.until(is_refused)  # Until a part of the broker has asked the tier.
        assert "expected a directory that can be created" in page["problems"]["tier"]
        assert "tier" not in page.get("warnings", {})


def test_what_can_never_work_is_refused_at_the_start_and_says_why(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for more in ((), ("--tier", (tmp_path / "tier").as_uri())):
        assert "found 'a b/c'" in refused(store, *FREE, "--name", "a b/c", *more)
    assert "expected a directory that can be created" in refused(store, *FREE, "--tier", "file:///proc/nope")
    config = tmp_path / "latin.conf"
    config.write_bytes(b"listenPort=0\n# \xfcber\n")
    assert f"{config}: expected text in UTF-8, found byte 0xfc in line 2" in refused(store, "-c", config, *FREE)


def test_a_broker_conf_of_rocketmq_works_and_what_means_nothing_is_one_warning(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        f"brokerName=broker-a\nbindAddress=127.0.0.1\nlistenPort=0\nstorePathRootDir={tmp_path}/store\n"
        f"tieredStoreFilepath={tmp_path}/tier\nsendMessageThreadPoolNums=2\nlistenPrt=1\nx=1\n"
        "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=64\nmaxIndexNum=2000\n"
    )
    with serving("-c", config, "--namesrv-port", "0") as (process, ready):
        assert (ready["name"], ready["store"]) == ("broker-a", str(tmp_path / "store"))
        assert ready["tier"] == (tmp_path / "tier").as_uri()
        assert ready["ignored"] == ["sendMessageThreadPoolNums"]
        assert ready["unknown"] == ["listenPrt (did you mean listenPort?)", "x"]
        assert process.stderr is not None
        assert "without effect here: sendMessageThreadPoolNums" in process.stderr.readline()
        assert "unknown settings: listenPrt (did you mean listenPort?), x" in process.stderr.readline()


@pytest.mark.parametrize("written", ["tierDispatchEnabled", "tierdispatchenable", "tierDispatchEnable "])
def test_a_misspelled_setting_of_tiermq_s_own_is_no_silent_start(tmp_path: Path, written: str) -> None:
    config, store = tmp_path / "broker.conf", tmp_path / "store"
    config.write_text(f"{written}=false\n")
    if written.endswith(" "):
        with serving(store, "-c", config, *FREE) as (_, ready):
            assert (ready["unknown"], ready["weaker"]) == ([], [])
        return
    said = f"{written}=false: there is no such setting; did you mean tierDispatchEnable?"
    assert said in refusal(store, "-c", config, *FREE)
    with serving(store, "-c", config, "--accept-weaker", *FREE) as (_, ready):
        assert ready["weaker"] == [said]


def test_a_setting_that_was_changed_over_the_wire_is_the_next_start_s_too(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(SMALL_FILE + '\n[broker]\nbind_address = "127.0.0.1"  # here only\n')
    words = (tmp_path / "store", "-c", config, *FREE)
    with serving(*words) as (_, ready), at(ready["address"]) as client:
        change = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=7\nbrokerPermission=4\n")
        assert client.request(change).code == ResponseCode.SUCCESS
    with serving(*words) as (_, ready), at(ready["address"]) as client:
        reported = bytes(client.request(RemotingCommand(RequestCode.GET_BROKER_CONFIG)).body).decode().splitlines()
    assert {"fileReservedTime=7", "brokerPermission=4"} <= set(reported)
    assert "# here only" in config.read_text()


def test_a_broker_can_register_elsewhere_and_tls_and_accounts_are_enforced(tmp_path: Path) -> None:
    accounts = tmp_path / "acl.toml"
    accounts.write_text('[[accounts]]\naccessKey = "ak"\nsecretKey = "a long secret"\nadmin = true\n')
    config = tmp_path / "small.toml"
    config.write_text(SMALL_FILE)
    with (
        serving(tmp_path / "a", "-c", config, "--host", "127.0.0.1", *FREE, "--tls", "enforcing") as (_, first),
        at(first["nameServer"], tls=trusting_client_context()) as client,
    ):
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"})
        assert client.request(request).code == ResponseCode.SUCCESS
    with serving(tmp_path / "n", "-c", config, "--host", "127.0.0.1", *FREE) as (_, first):
        words = (tmp_path / "b", "-c", config, "--host", "127.0.0.1", "--port", "0", "--name", "b2", "--acl", accounts)
        with serving(*words, "--namesrv", first["nameServer"]) as (_, second):
            assert second["nameServer"] == first["nameServer"]
            with at(second["address"]) as client:
                assert client.request(send_command()).code == ResponseCode.NO_PERMISSION
            with at(second["address"], credentials=Credentials("ak", "a long secret")) as client:
                assert client.request(send_command()).code == ResponseCode.SUCCESS
            with at(first["nameServer"]) as client:
                info = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
                assert b'"b2"' in bytes(info.body)


ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "a long secret"
admin = true
[[accounts]]
accessKey = "user"
secretKey = "another secret"
defaultTopicPerm = "PUB|SUB"
defaultGroupPerm = "SUB"
[[accounts]]
accessKey = "nobody"
secretKey = "a third secret"
topicPerms = ["orders=DENY"]
"""
ABSENT = Credentials("nobody", "a third secret")
ROOT, USER = Credentials("root", "a long secret"), Credentials("user", "another secret")
NAMED = {
    **dict.fromkeys(("topic", "namespace", "key", "value", "cluster", "clusterName"), "TBW102"),
    "brokerName": "b1",
    "brokerAddr": "10.9.9.9:1",
    "brokerId": "0",
}


def test_accounts_protect_the_name_server_beside_the_broker_too(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text(ACCOUNTS)
    (tmp_path / "small.toml").write_text(SMALL_FILE)
    words = (tmp_path / "s", "-c", tmp_path / "small.toml", "--host", "127.0.0.1", *FREE, "--name", "b1")
    names = RemotingServer()
    NameProcessor(NameServerConfig(kv_config_path=""), RouteTable(SystemClock()), KvConfig()).serve_at(names)
    with serving(*words, "--acl", tmp_path / "acl.toml") as (_, ready), at(ready["nameServer"]) as stranger:
        for code, (access, _) in names.declared.items():
            request = RemotingCommand(code, ext=NAMED, body=b"{}")
            assert stranger.request(request).code == ResponseCode.NO_PERMISSION
            with at(ready["nameServer"], credentials=ABSENT) as absent:
                answer = absent.request(RemotingCommand(code, ext=NAMED, body=b"{}"))
                assert (answer.code, bytes(answer.body)) == (ResponseCode.NO_PERMISSION, b"")
            if access is ADMINISTRATOR:
                with at(ready["nameServer"], credentials=USER) as user:
                    assert user.request(RemotingCommand(code, ext=NAMED, body=b"{}")).code == ResponseCode.NO_PERMISSION
        route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"})
        with at(ready["nameServer"], credentials=USER) as user:
            assert ready["address"].encode() in bytes(user.request(route).body)
        with at(ready["nameServer"], credentials=ROOT) as root:
            wipe = RemotingCommand(RequestCode.WIPE_WRITE_PERM_OF_BROKER, ext={"brokerName": "b1"})
            assert root.request(wipe).code == ResponseCode.SUCCESS


def test_a_broker_signs_what_it_sends_name_servers_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text(ACCOUNTS)
    (tmp_path / "small.toml").write_text(SMALL_FILE)
    accounts = AccessFile(tmp_path / "acl.toml")
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")
    with NameServer(config, acl=accounts) as server:
        where = f"127.0.0.1:{server.port}"
        words = (tmp_path / "s", "-c", tmp_path / "small.toml", "--host", "127.0.0.1", "--port", "0", "--name", "b7")
        with (
            serving(*words, "--namesrv", where, "--acl", tmp_path / "acl.toml"),
            at(where, credentials=USER) as client,
        ):
            info = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            assert b'"b7"' in bytes(info.body)


def refused(*words: str | Path) -> str:
    """The one line with which it gives up."""
    (line,) = refusal(*words).splitlines()
    return line


def refusal(*words: str | Path) -> str:
    process = Preloaded(["serve", *map(str, words)], stderr=subprocess.PIPE)
    found, errors = process.communicate()
    assert (process.returncode, found) == (2, "")
    return errors


def test_what_keeps_it_from_starting_is_reported_in_one_line_with_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken, LocalStore.open(tmp_path / "locked", **SMALL):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = refused(tmp_path / "s", "--port", port, "--namesrv-port", "0")
        assert f"broker, 127.0.0.1:{port}: cannot listen there: Address already in use" in line
        line = refused(tmp_path / "s", "--port", "0", "--namesrv-port", port)
        assert f"name server, 127.0.0.1:{port}: cannot listen there" in line
        assert str(tmp_path / "locked") in refused(tmp_path / "locked", *FREE)
    wrong = tmp_path / "broker.conf"
    wrong.write_text("listenPort=many\n")
    line = refused("-c", wrong)
    assert str(wrong) in line
    assert "listenPort is" in line
    assert "host:port" in refused(tmp_path / "s", "--port", "0", "--namesrv", "nonsense")
    assert "gopher" in refused(tmp_path / "s", *FREE, "--tier", "gopher://x")


@pytest.mark.parametrize(
    ("words", "line", "named"),
    [
        (("--metrics-port", "{port}"), "", "metricsPort or --metrics-port of the broker"),
        (("--grpc-port", "{port}"), "", "grpcServerPort or --grpc-port of the broker"),
        ((), "haListenPort={port}", "haListenPort of the broker"),
        (("--standby", "--lease", "{lease}", "--namesrv", "127.0.0.1:1"), "haListenPort={port}", "haListenPort of"),
        (("--console", "--console-port", "{port}"), "", "--console-port of the console"),
    ],
    ids=["metrics", "grpc", "ha", "standby", "console"],
)
def test_a_taken_port_is_named_with_its_setting(words: tuple[str, ...], line: str, named: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        values = {"port": str(taken.getsockname()[1]), "lease": (tmp_path / "lease").as_uri()}
        (tmp_path / "broker.conf").write_text(f"{SMALL_PROPERTIES}{line.format(**values)}\n")
        own = () if "--namesrv" in words else ("--namesrv-port", "0")
        places = (tmp_path / "s", "-c", tmp_path / "broker.conf", "--host", "127.0.0.1", "--port", "0", *own)
        found = refused(*places, *(word.format(**values) for word in words))
        assert named in found
        assert f"127.0.0.1:{values['port']}: cannot listen there: Address already in use" in found


def test_an_account_file_that_could_open_more_than_was_meant_starts_nothing(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("globalWhiteRemoteAddresses: 10.0.0.*\naccounts: []\n")
    line = refused(tmp_path / "s", *FREE, "--acl", accounts)
    assert f"{accounts}: globalWhiteRemoteAddresses: expected a list" in line
    assert not (tmp_path / "s").exists()


SECURED = """
brokerName=broker-a
aclEnable=true
authenticationEnabled=true
asyncLearner=true
totalReplicas=2
storeType=defaultRocksDB
messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore
tls.server.mode=enforcing
mappedFileSizeCommitLog=1048576
"""


def test_a_file_that_asks_for_what_is_not_provided_starts_only_if_less_is_accepted(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(SECURED + SMALL_PROPERTIES)
    line = refusal(tmp_path / "store", "-c", config, *FREE)
    assert str(config) in line
    assert "--accept-weaker" in line
    assert len(line.splitlines()) == 1 + 7 + 1, "each has a line of its own"
    names = "aclEnable=true authenticationEnabled=true asyncLearner=true totalReplicas=2"
    for name in [
        *names.split(),
        "storeType=defaultRocksDB",
        "messageStorePlugIn=org.apache",
        "tls.server.mode=enforcing",
    ]:
        assert name in line
    assert not (tmp_path / "store").exists()
    accounts = tmp_path / "acl.toml"
    accounts.write_text('[[accounts]]\naccessKey = "ak"\nsecretKey = "a long secret"\nadmin = true\n')
    kept = ("--acl", accounts, "--tier", (tmp_path / "tier").as_uri(), "--tls", "enforcing")
    line = refusal(tmp_path / "store", "-c", config, *FREE, *kept)
    assert [
        name for name in ("aclEnable", "messageStore", "tls.", "asyncLearner", "totalRepl", "storeType") if name in line
    ] == [
        "asyncLearner",
        "totalRepl",
        "storeType",
    ]
    with serving(tmp_path / "store", "-c", config, *FREE, "--accept-weaker") as (process, ready):
        assert len(ready["weaker"]) == 7
        assert process.stderr is not None
        for each in ready["weaker"]:
            assert process.stderr.readline() == f"tiermq serve: accepted although not provided: {each}\n"
        with at(ready["address"]) as client:
            assert client.request(send_command()).code == ResponseCode.SUCCESS


def test_misspelled_settings_of_security_start_no_open_broker(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("aclEnabled=true\nACLENABLE=true\nauthenticationEnable=true\nflushDisktype=SYNC_FLUSH\n")
    line = refusal(tmp_path / "store", "-c", config, *FREE)
    assert [each.partition(":")[0].strip() for each in line.splitlines()[1:-1]] == [
        "aclEnabled", "ACLENABLE", "authenticationEnable", "flushDisktype",
    ]  # fmt: skip
    assert not (tmp_path / "store").exists()
    config.write_text(f"aclEnabled=true\n{SMALL_PROPERTIES}")
    with serving(tmp_path / "store", "-c", config, *FREE, "--accept-weaker") as (process, ready):
        assert ["did you mean aclEnable?" in each for each in ready["weaker"]] == [True]
        assert process.stderr is not None
        assert "accepted although not provided: aclEnabled" in process.stderr.readline()


def test_a_file_of_which_it_is_unclear_what_it_protects_starts_no_open_broker(tmp_path: Path) -> None:
    store = tmp_path / "store"
    proxy = tmp_path / "rmq-proxy.json"
    proxy.write_text('{\n  "rocketMQClusterName": "DefaultCluster",\n  "authenticationEnabled": true\n}\n')
    assert f"{proxy}: expected lines of the form name=value, found JSON" in refused(store, "-c", proxy, *FREE)
    config = tmp_path / "broker.conf"
    for line, said in (
        ("authenticationEnabled=yes", "authenticationEnabled is true or false, found 'yes'"),
        ("tls.server.mode=enforced", "tls.server.mode is disabled, permissive or enforcing, found 'enforced'"),
    ):
        config.write_text(f"{line}\n{SMALL_PROPERTIES}")
        assert f"{config}: {said}" in refused(store, "-c", config, *FREE)
    secured = tmp_path / "broker.yml"
    secured.write_text(proxy.read_text())  # JSON is YAML.
    assert "authenticationEnabled=true: requests would not be checked" in refusal(store, "-c", secured, *FREE)
    assert not store.exists()


def test_prometheus_settings_of_rocketmq_serve_metrics(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"metricsExporterType=PROM\nmetricsPromExporterPort=0\n{SMALL_PROPERTIES}")
    with (
        serving(tmp_path / "store", "-c", config, *FREE) as (_, ready),
        urllib.request.urlopen(f"http://{ready['metrics']}/metrics") as page,
    ):
        assert b"rocketmq_storage_size" in page.read()
        assert not ready["ignored"]


def test_a_file_that_names_no_address_lets_only_this_machine_in(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"brokerName=b\n{SMALL_PROPERTIES}")
    with serving(tmp_path / "store", "-c", config, *FREE) as (process, ready):
        assert _listening_addresses(process.pid) == {"0100007F"}
        assert not ready["open"]


@pytest.mark.parametrize(
    ("text", "host", "listening"),
    [
        ("brokerName=b", None, "127.0.0.1"),
        ("brokerIP1=127.0.0.1", None, "127.0.0.1"),
        ("brokerIP1=10.0.0.5", None, "0.0.0.0"),
        ("bindAddress=10.0.0.5", None, "10.0.0.5"),
        ("brokerIP1=10.0.0.5", "127.0.0.1", "127.0.0.1"),
        ("bindAddress=0.0.0.0", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_where_it_listens_is_what_the_option_or_the_file_says(text: str, host: str | None, listening: str) -> None:
    options = dict.fromkeys(("port", "name", "namesrv", "metrics_port", "otlp", "grpc_port")) | {"host": host}
    assert _broker_config(options, settings_in_properties(text), "nowhere").bind_address == listening


def test_the_ready_line_says_that_a_broker_is_open_and_what_tls_it_has() -> None:
    ready: dict[str, Any] = {"name": "b", "address": "a:1", "nameServer": "n:2", "store": "/s", "tier": None}
    ready |= {"metrics": None, "tls": "TLS permissive", "open": False, "whyNoVip": None}
    ready |= {"role": "ASYNC_MASTER", "haAddress": None, "grpc": None}
    usual = "broker b ready at a:1, name server n:2, store /s, tier none"
    assert _ready_line(ready) == usual
    ready |= {"tls": "TLS off", "open": True, "whyNoVip": "taken"}
    assert (
        _ready_line(ready) == f"{usual}, no VIP port (taken), TLS off, open to every machine that reaches it (no --acl)"
    )
    ready |= {"tls": "TLS permissive", "open": False, "whyNoVip": None}
    assert _ready_line(ready | {"haAddress": "a:2"}) == f"{usual}, slaves copy it at a:2"
    assert _ready_line(ready | {"role": "SLAVE"}) == f"{usual}, a slave"


def test_clients_need_a_certificate_where_trusted_ones_are_named(tmp_path: Path) -> None:
    for name in ("broker", "client"):
        made = make_self_signed(name)
        (tmp_path / f"{name}.crt").write_text(made.certificate)
        (tmp_path / f"{name}.key").write_text(made.key)
    files = ("--tls-cert", tmp_path / "broker.crt", "--tls-key", tmp_path / "broker.key")
    trusted = ("--tls-trusted", tmp_path / "client.crt")
    assert "--tls enforcing" in refused(tmp_path / "store", *FREE, *files, *trusted)
    with serving(tmp_path / "store", *FREE, *files, *trusted, "--tls", "enforcing") as (_, ready):
        assert ready["tls"] == "TLS enforcing, clients need a certificate"
        known = trusting_client_context()
        known.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"})
        with at(ready["nameServer"], tls=known) as client:  # The broker itself had to show a certificate there.
            assert ready["address"].encode() in bytes(client.request(request).body)
        for tls in (None, trusting_client_context()):
            with pytest.raises(RemotingError), at(ready["address"], tls=tls) as client:
                client.request(send_command())


def test_commands_and_scans_show_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    paths = {}
    for name in ("server", "client"):
        made = make_self_signed(name)
        paths[name] = str(tmp_path / f"{name}.pem")
        Path(paths[name]).write_text(made.certificate + made.key)
    secured = ("--tls", "enforcing", "--tls-cert", paths["server"], "--tls-trusted", paths["client"])
    with serving(tmp_path / "s", *FREE, *secured) as (_, ready):
        place = ["-n", ready["nameServer"]]
        shown = ["--tls-cert", paths["client"], "--tls-ca", paths["server"]]
        for words in (["topic", "create", "orders", "--queues", "1"], ["produce", "orders", "hello"]):
            found = CliRunner().invoke(cli, [*words, *place, *shown])
            assert found.exit_code == 0, found.output
        assert "hello" in CliRunner().invoke(cli, ["consume", "orders", *place, *shown, "--bodies"]).output
        options = {"tlsCert": paths["client"], "tlsCa": paths["server"]}
        scan = explain_scan(show=False, namesrv=ready["nameServer"], topic="orders", **options)
        assert scan.counters.queues == 1
        refused = CliRunner().invoke(cli, ["consume", "orders", *place, "--tls"])
        assert (refused.exit_code, "--tls-cert" in refused.output) == (1, True)


def test_a_topic_is_shown_to_an_account_that_may_not_see_settings(tmp_path: Path) -> None:
    accounts = tmp_path / "acl.toml"
    account = '[[accounts]]\naccessKey = "{0}"\nsecretKey = "secret of {0}"\nadmin = {1}\ndefaultTopicPerm = "SUB"\n'
    accounts.write_text(account.format("root", "true") + account.format("reader", "false"))
    with serving(tmp_path / "s", *FREE, "--acl", accounts, "--tier", (tmp_path / "tier").as_uri()) as (_, ready):

        def run(key: str, *words: str) -> str:
            signed = {"ROCKETMQ_ACCESS_KEY": key, "ROCKETMQ_SECRET_KEY": f"secret of {key}"}
            found = CliRunner().invoke(cli, [*words, "-n", ready["nameServer"]], env=signed)
            assert found.exit_code == 0, found.output
            return found.output

        run("root", "topic", "create", "orders", "--queues", "1")
        assert "for ever" in run("root", "topic", "show", "orders")
        shown = run("reader", "topic", "show", "orders")
        assert f"kept in the tier of {ready['name']}: not known, only an administrator may ask for it" in shown


def test_a_hangup_reads_accounts_and_certificates_again_and_the_broker_goes_on(tmp_path: Path) -> None:
    accounts, certificate = tmp_path / "acl.toml", tmp_path / "broker.pem"
    account = '[[accounts]]\naccessKey = "ak"\nsecretKey = "{}"\nadmin = true\n'

    def write(secret: str) -> str:
        accounts.write_text(account.format(secret))
        made = make_self_signed("broker")
        certificate.write_text(made.certificate + made.key)
        return made.certificate

    write("the first secret")
    with serving(tmp_path / "s", *FREE, "--acl", accounts, "--tls-cert", certificate) as (process, ready):
        second = write("the second secret")
        process.send_signal(signal.SIGHUP)
        assert json.loads(process.stdout.readline()) == {"event": "reloaded"}
        host, _, port = ready["address"].rpartition(":")
        assert ssl.get_server_certificate((host, int(port))) == second
        with at(ready["address"], credentials=Credentials("ak", "the second secret")) as client:
            assert client.request(send_command()).code == ResponseCode.SUCCESS
        with at(ready["address"], credentials=Credentials("ak", "the first secret")) as client:
            assert client.request(send_command()).code == ResponseCode.NO_PERMISSION


def test_without_a_file_only_this_machine_can_connect(tmp_path: Path) -> None:
    with serving(tmp_path / "store", *FREE) as (process, ready):
        assert ready["address"].startswith("127.0.0.1:")
        listening = _listening_addresses(process.pid)
        assert listening == {"0100007F"}


def _listening_addresses(pid: int) -> set[str]:
    """Local addresses that a process listens at, as the kernel writes them."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.parametrize("word", ["Examples:", "--tier", "--json", "exit code: 0 after a clean end"])
def test_help_teaches(word: str) -> None:
    assert word.lower() in CliRunner().invoke(cli, ["serve", "--help"]).output.lower()


def test_the_vip_port_serves_with_the_same_tls_and_accounts(tmp_path: Path) -> None:
    [port] = free_ports(1)
    accounts = tmp_path / "accounts.toml"
    accounts.write_text('[[accounts]]\naccessKey = "producer"\nsecretKey = "a long secret"\ndefaultTopicPerm = "PUB"\n')
    names = ("--port", str(port), "--namesrv-port", "0")
    with serving(tmp_path / "store", *names, "--acl", accounts, "--tls", "enforcing") as (_, ready):
        assert (ready["vipAddress"], ready["whyNoVip"]) == (f"127.0.0.1:{port - 2}", None)
        tls = trusting_client_context()
        with at(ready["vipAddress"], tls=tls, credentials=Credentials("producer", "a long secret")) as client:
            assert client.request(send_command()).code == ResponseCode.SUCCESS
        with at(ready["vipAddress"], tls=tls) as client:
            assert client.request(send_command()).code == ResponseCode.NO_PERMISSION
        with pytest.raises(RemotingError), at(ready["vipAddress"]) as client:
            client.request(send_command())


def test_a_vip_port_that_is_taken_is_said_in_the_ready_line(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port - 2))
        taken.listen()
        with serving(tmp_path / "store", "--port", str(port), "--namesrv-port", "0") as (_, ready):
            assert ready["vipAddress"] is None
            assert ready["whyNoVip"] == f"cannot listen at {port - 2}: Address already in use"
        (tmp_path / "on.toml").write_text('[broker]\nfast_listen_port = "ON"\nbind_address = "127.0.0.1"\n')
        words = ["serve", str(tmp_path / "two"), "-c", str(tmp_path / "on.toml"), "--port", str(port)]
        done = CliRunner().invoke(cli, [*words, "--namesrv-port", "0"])
        assert done.exit_code == 2
        assert "Address already in use" in done.output


def test_the_ready_line_says_how_long_history_is_kept(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("tieredStoreFileReservedTime=72\nbindAddress=127.0.0.1\n")
    with serving(tmp_path / "store", *FREE, "-c", config, "--tier", (tmp_path / "tier").as_uri()) as (_, ready):
        assert ready["retention"] == {"hours": 72, "maxBytes": None, "words": "3 d"}
    assert f"tier {(tmp_path / 'tier').as_uri()}, history kept 3 d, " in _ready_line(ready)


def test_a_restored_directory_is_not_served_without_its_tier_nor_on_another_one(tmp_path: Path) -> None:
    tier, config = (tmp_path / "tier").as_uri(), tmp_path / "small.toml"
    config.write_text(SMALL_FILE)
    with TieredStore.open(tmp_path / "lost", tier=tier, broker_name="fb", **SMALL) as store:
        assert store.put(Message("orders", b"the first")).queue_offset == 0
        assert store.flush_to_tier(60)
    given = tmp_path / "given"
    assert CliRunner().invoke(cli, ["tier", "restore", tier, "--store", str(given)]).exit_code == 0
    words = (given, "-c", config, "--name", "fb", *FREE)
    with pytest.raises(AssertionError, match=r"orders-0 \(tier 1, local 0\).*tiermq serve --tier URL"), serving(*words):
        pass
    empty = tmp_path / "empty"
    with (
        pytest.raises(AssertionError, match="expected the history that .* found 0; nothing was written"),
        serving(*words, "--tier", empty.as_uri()),
    ):
        pass
    assert [path for path in empty.rglob("*") if path.is_file() and path.name != ".tiermq.lock"] == []
    with serving(*words, "--tier", tier) as (_, ready):
        assert ready["tier"] == tier
    assert CliRunner().invoke(cli, ["store", "stat", str(given)]).exit_code == 0


@pytest.mark.parametrize(
    ("url", "word"),
    [("s4://history", "begins with file://"), ("s3://history", "found none"), ("s3://u:p@history", "without a user")],
)
def test_a_tier_that_no_later_moment_makes_right_is_refused_without_another_way(
    tmp_path: Path, url: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with pytest.raises(AssertionError) as refused, serving(tmp_path / "store", "--tier", url, *FREE):
        pass
    assert word in str(refused.value)
    assert "--tier-later" not in str(refused.value)
    assert not (tmp_path / "store").exists()


def test_a_master_and_a_slave_are_made_by_their_files_and_the_slave_is_killed_and_goes_on(tmp_path: Path) -> None:
    files = {
        "master": "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=600000\nhaListenPort=0\nbrokerName=a\n",
        "slave": "brokerRole=SLAVE\nbrokerId=1\nbrokerName=a\nmasterSyncInterval=100\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.conf").write_text(text + SMALL_PROPERTIES)
    with serving(tmp_path / "master", "-c", tmp_path / "master.conf", *FREE) as (_, ready):
        assert (ready["role"], ready["weaker"], bool(ready["haAddress"])) == ("SYNC_MASTER", [], True)
        slave = (tmp_path / "slave", "-c", tmp_path / "slave.conf", "--port", "0", "--namesrv", ready["nameServer"])
        with at(ready["address"]) as client:
            first, copy = started(*slave)
            try:
                assert copy["role"] == "SLAVE"
                confirmed(client)
            finally:
                first.kill()
                first.communicate()
            with serving(*slave):
                confirmed(client)
                asked = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)

                def behind() -> list[int]:  # Records of tables may follow the message.
                    connections = decode_object(client.request(asked).body)["haConnectionInfo"]
                    return [each["diff"] for each in connections]

                waiting.until(lambda: behind() == [0])
    logs = [b"".join(each.read_bytes() for each in sorted(tmp_path.glob(f"{name}/commitlog/0*"))) for name in files]
    copied = logs[1].rstrip(b"\0")  # The master may have written a record of tables behind the slave's end.
    assert copied.count(b"hello") > 1
    assert logs[0].startswith(copied)


def started(*words: str | Path) -> tuple[Preloaded, dict[str, Any]]:
    """The command in a process that the caller ends."""
    process = Preloaded(["serve", *map(str, words), "--json"], stderr=subprocess.PIPE)
    return process, json.loads(process.stdout.readline())


def confirmed(client: BlockingClient) -> None:
    """Send until a slave has confirmed a message."""
    while client.request(send_command()).code != ResponseCode.SUCCESS:
        pass


def test_a_served_broker_whose_lease_another_process_took_is_not_ready_and_names_it(tmp_path: Path) -> None:
    tier, holder = (tmp_path / "tier").as_uri(), "host-2:/data/copy"
    config = tmp_path / "fenced.toml"
    config.write_text(f"{SMALL_FILE}\n[tier]\ntier_lease_term = 3000\n")
    with serving(tmp_path / "s", *FREE, "-c", config, "--tier", tier, "--metrics-port", "0") as (process, ready):

        def page(path: str) -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(f"http://{ready['metrics']}{path}") as found:
                    return found.status, json.load(found)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        assert page("/ready")[0] == 200
        BrokerLease(open_driver(tier), "DefaultCluster", ready["name"], holder, term_ms=3_600_000).acquire(force=True)
        waiting.until(lambda: page("/ready")[0] == 503)
        assert holder in page("/ready")[1]["problems"]["store"]
        assert page("/health")[0] == 200
        with at(ready["address"]) as client:
            answer = client.request(send_command())
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert holder in str(answer.remark)
        assert process.poll() is None


def test_a_second_broker_on_a_directory_reports_the_directory_and_not_its_port(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        words = ["--port", str(first.port), "--namesrv-port", str(first.port)]
        assert "lock held by another process" in refusal(tmp_path / "store", *words)

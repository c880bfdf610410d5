"""One file for the broker, its store, its tier and its name server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.rocketmq_settings import ALIASES, GUARANTEES, NAMES, PROMISES
from tiermq.broker.settings_file import read_settings_file, settings_in_properties, settings_in_toml
from tiermq.cli.main import cli
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.settings import is_false, is_true, settings_of
from tiermq.tier.tier_config import TierConfig

BROKER_CONF = """
# From RocketMQ's documentation.
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
listenPrt=1
slaveTimeout=5
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=SYNC_FLUSH
messageDelayLevel=1s 5s
tieredStoreFilePath=/tier
haListenPort=10912
listenPort=20911
autoCreateTopicEnable=false
rocketmqHome=/opt
"""


def test_a_broker_conf_speaks_to_everyone_and_what_means_nothing_is_reported() -> None:
    found = settings_in_properties(BROKER_CONF)
    assert found.broker == {
        "broker_cluster_name": "DefaultCluster",
        "broker_name": "broker-a",
        "broker_id": "0",
        "message_delay_level": "1s 5s",
        "ha_listen_port": "10912",
        "listen_port": "20911",
        "auto_create_topic_enable": "false",
    }
    assert found.store == {
        "slave_timeout": "5",
        "delete_when": "04",
        "file_reserved_time": "48",
        "broker_role": "ASYNC_MASTER",
        "flush_disk_type": "SYNC_FLUSH",
        "message_delay_level": "1s 5s",
    }
    assert found.tier == {
        "broker_cluster_name": "DefaultCluster",
        "broker_name": "broker-a",
        "tiered_store_file_path": "/tier",
    }
    assert (found.namesrv, found.ignored) == ({}, ("rocketmqHome",))
    assert found.unknown == ("listenPrt (did you mean listenPort?)",)
    assert found.unkept() == []


def test_toml_has_a_table_for_each_and_either_spelling() -> None:
    found = settings_in_toml(
        """
        broker_name = "b"
        flushDiskType = "SYNC_FLUSH"
        [broker]
        listen_port = 0
        [store]
        file_reserved_time = 1
        [tier]
        tier_url = "memory://t"
        [namesrv]
        listenPort = 1
        [controller]
        listenPort = 2
        """
    )
    assert found.broker == {"broker_name": "b", "listen_port": 0}
    assert found.store == {"flush_disk_type": "SYNC_FLUSH", "file_reserved_time": 1}
    assert found.tier == {"broker_name": "b", "tier_url": "memory://t"}
    assert (found.namesrv, found.ignored) == ({"listen_port": 1}, ())


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("x.toml", "listen_prot = 1", "did you mean listen_port"),
        ("x.toml", "[store]\nlisten_port = 1", "store.listen_port"),
        ("x.toml", "= 1", "TOML"),
        ("x.toml", "[broker]\nlisten_port = 'many'", "listen_port"),
        ("x.toml", "[broker]\nlistenPort = 'many'", "listenPort is a whole number, found 'many'"),
        ("x.toml", "[auth]\nauthenticationEnabled = true", "no table [auth]: expected one of broker, controller"),
        ("x.toml", "[teir]\ntiered_store_file_path = 'x'", "no table [teir]: did you mean tier"),
        ("x.toml", "[broker]\nfar = 1", "no setting named broker.far: settings are listed in docs/broker.md"),
        ("x.toml", "[tier]\nfar = 1", "no setting named tier.far: settings are listed in docs/tier.md"),
        ("broker.conf", "listenPort=many", "listenPort is a whole number, found 'many'"),
        ("broker.conf", "listenPort=listen_port", "listenPort is a whole number, found 'listen_port'"),
        ("broker.conf", "flushDiskType=SOMETIMES", "flushDiskType is one of"),
        ("broker.conf", "namesrvAddr=nowhere", "namesrvAddr: expected name servers as host:port;host:port"),
        ("broker.conf", "deleteWhen=25", "deleteWhen is a list"),
        ("broker.conf", "maxHashSlotNum=500000000\n", "maxHashSlotNum=500000000 and maxIndexNum=20000000 make"),
        ("broker.conf", "tieredStorageLevel=SOMEWHERE", "tieredStorageLevel is one of"),
        ("broker.yml", "fileReservedTime: abc", "fileReservedTime is a whole number, found 'abc'"),
        ("x.toml", "[namesrv]\nlisten_port = -1", "listen_port"),
    ],
)
def test_a_mistake_is_reported_with_the_file_and_the_key(tmp_path: Path, name: str, text: str, word: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadConfig) as refused:
        read_settings_file(path)
    assert str(path) in str(refused.value)
    assert word in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "b.conf",
            "listenPort=many\nflushDiskType=SOME\nmaxMessageSize=big\ntotalReplicas=3x\naclEnable=yes\nnamesrvAddr=x\n",
            (
                "listenPort is",
                "flushDiskType is",
                "maxMessageSize is",
                "totalReplicas is",
                "aclEnable is",
                "namesrvAddr",
            ),
        ),
        (
            "b.toml",
            "listen_prot = 1\nlisten_port = 'many'\n[store]\nfile_reserved_tim = 1\nfile_reserved_time = 'long'",
            ("listen_prot", "listen_port is", "store.file_reserved_tim", "file_reserved_time is"),
        ),
    ],
)
def test_all_mistakes_of_a_file_are_listed_each_in_a_line(
    tmp_path: Path, name: str, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    checked = CliRunner().invoke(cli, ["config", "check", str(tmp_path / name)])
    lines = checked.output.splitlines()
    assert (checked.exit_code, len(lines)) == (1, len(words))
    for word in words:
        assert [line for line in lines if f"{tmp_path / name}: " in line and word in line], word


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfig, match=r"broker\.conf"):
        read_settings_file(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.toml", f"listen_port = {'1' * 5000}"),
        ("b.toml", "listen_port = " + "[" * 5000),
        ("b.conf", f"listenPort={'1' * 5000}"),
    ],
)
def test_a_number_of_thousands_of_digits_is_a_bad_setting(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadConfig, match=name):
        read_settings_file(tmp_path / name)


@pytest.mark.parametrize("text", ["broker_name = 0b" + "1" * 20_000, "[store]\nx = [1, {y = 0x" + "f" * 5_000 + "}]"])
def test_a_number_that_nobody_could_print_is_a_bad_setting(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match="expected numbers of at most 64 bits, found one of 20000"):
        read_settings_file(path)


def test_other_spellings_mean_the_same() -> None:
    found = settings_in_properties(
        "tieredStoreFilepath=/tier\nmapedFileSizeCommitLog=4096\nmetricsExporterType=PROM\nmetricsPromExporterHost=::1\n"
    )
    assert found.tier == {"tiered_store_file_path": "/tier"}
    assert found.store == {"mapped_file_size_commit_log": "4096"}
    assert found.broker == {"metrics_port": 5557, "metrics_host": "::1"}
    assert (found.ignored, found.unknown) == ((), ())
    assert settings_in_toml('tieredStoreFilepath = "/tier"').tier == {"tiered_store_file_path": "/tier"}
    both = settings_in_properties("metricsExporterType=2\nmetricsPromExporterPort=1\nmetricsPort=2\n")
    assert both.broker == {"metrics_port": "2"}
    assert settings_in_properties("metricsPromExporterPort=1\n").broker == {}
    with pytest.raises(BadConfig, match="metricsExporterType is one of"):
        settings_in_properties("metricsExporterType=SOME\n")


ASKING = {
    "aclEnable": "true",
    "authenticationEnabled": "true",
    "authorizationEnabled": "TRUE",
    "totalReplicas": "3",
    "haFlowControlEnable": "true",
    "allAckInSyncStateSet": "true",
    "enableDLegerCommitLog": "true",
    "fetchControllerAddrByDnsLookup": "true",
    "asyncLearner": "true",
    "duplicationEnable": "true",
    "storeType": "defaultRocksDB",
    "configManagerVersion": "v2",
    "popConsumerKVServiceEnable": "true",
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "objectStoreBucket": "history",
    "objectStoreEndpoint": "http://127.0.0.1:1",
    "configBlackList": "configBlackList;fileReservedTime",
    "litePullMessageEnable": "false",
    "startAcceptSendRequestTimeStamp": "1700000000000",
    "fetchNameSrvAddrByDnsLookup": "true",
    "metricsExporterType": "OTLP_GRPC",
    "useTLS": "true",
    "tls.server.authClient": "true",
}
HARMLESS = {
    "aclEnable": "false",
    "brokerRole": "SLAVE",
    "brokerId": "1",
    "inSyncReplicas": "2",
    "storeType": "default",
    "configManagerVersion": "V1",
    "messageStorePlugIn": "",
    "configBlackList": "configBlackList;brokerConfigPath",
    "litePullMessageEnable": "true",
    "slaveReadEnable": "true",
    "metricsExporterType": "DISABLE",
    "tls.server.mode": "permissive",
}


@pytest.mark.parametrize(("name", "value"), ASKING.items())
def test_what_asks_for_safety_that_is_not_provided_is_found_in_either_kind_of_file(name: str, value: str) -> None:
    (found,) = settings_in_properties(f"{name}={value}\n").unkept()
    assert found.startswith(f"{name}={value}: ")
    (found,) = settings_in_toml(f'"{name}" = {value if value in ("true", "false") else json.dumps(value)}\n').unkept()
    assert found.startswith(f"{name}=")


BOOLEAN_PROMISES = [name for name, promise in PROMISES.items() if promise.asks in (is_true, is_false)]


@pytest.mark.parametrize("name", BOOLEAN_PROMISES)
@pytest.mark.parametrize("value", ["yes", "1", "on", "enabled", ""])
def test_no_value_of_a_refused_switch_is_taken_for_off_but_false(tmp_path: Path, name: str, value: str) -> None:
    for suffix, text in ((".conf", f"{name}={value}\n"), (".yml", f"{name}: '{value}'\n")):
        path = tmp_path / f"broker{suffix}"
        path.write_text(text)
        with pytest.raises(BadConfig, match=f"{name} is true or false, found {value!r}"):
            read_settings_file(path)


def test_upper_case_and_blanks_do_not_switch_protection_off(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    for written in ("aclEnable=TRUE ", "\ufeffaclEnable=true", "tls.server.mode=ENFORCING", "totalReplicas=+3"):
        path.write_text(f"{written}\n")
        assert len(read_settings_file(path).unkept()) == 1, written


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("tls.server.mode=enforced", "tls.server.mode is disabled, permissive or enforcing, found 'enforced'"),
        ("tls.server.need.client.auth=true", "tls.server.need.client.auth is none, optional or require, found 'true'"),
        ("totalReplicas=three", "totalReplicas is a whole number, found 'three'"),
    ],
)
def test_a_mode_that_does_not_exist_is_refused_and_not_taken_for_none(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"{text}\n")
    with pytest.raises(BadConfig, match=word):
        read_settings_file(path)


def test_ordinary_values_of_the_same_settings_ask_for_nothing() -> None:
    assert settings_in_properties("".join(f"{name}={value}\n" for name, value in HARMLESS.items())).unkept() == []
    assert settings_in_toml('broker_role = "SYNC_MASTER"').unkept() == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("aclEnabled=true", "aclEnable"),
        ("ACLENABLE=true", "aclEnable"),
        ("acl_enable=yes", "aclEnable"),
        ("enableAcl=true", "aclEnable"),
        ("authenticationEnable=true", "authenticationEnabled"),
        ("authorisationEnabled=true", "authorizationEnabled"),
        ("useTls=true", "useTLS"),
        ("tls.server.mod=enforcing", "tls.server.mode"),
        ("enableDLedgerCommitlog=true", "enableDLegerCommitLog"),
        ("storetype=defaultRocksDB", "storeType"),
        ("messageStorePlugin=org.x.Y", "messageStorePlugIn"),
        ("brokerrole=SYNC_MASTER", "brokerRole"),
        ("flushDisktype=SYNC_FLUSH", "flushDiskType"),
        ("inSyncReplica=2", "inSyncReplicas"),
        ("litePullMessageEnabled=false", "litePullMessageEnable"),
        ("aclFile=conf/plain_acl.yml", ""),
        ("sslKeyPassword=secret of the key", ""),
    ],
)
def test_what_may_be_a_misspelled_promise_is_refused_as_the_right_spelling_is(text: str, meant: str) -> None:
    (found,) = settings_in_properties(f"{text}\n").unkept()
    key, _, value = text.partition("=")
    assert found.startswith(f"{key}: there is no such setting")
    assert f"did you mean {meant}?" in found if meant else "looks like one of security" in found
    assert value not in found or value in ("true", "yes", "false")
    assert settings_in_properties(f"{text}\n").unknown == ()
    if not key.startswith("tls."):
        with pytest.raises(BadConfig, match=key):
            settings_in_toml(f'"{key}" = "{value}"')


@pytest.mark.parametrize("text", ["aclEnabled=false", "sslEnabled=false", "listenPrt=1", "authorName=x", "custom=true"])
def test_what_asks_for_nothing_is_only_unknown(text: str) -> None:
    found = settings_in_properties(f"{text}\n")
    assert (found.unkept(), len(found.unknown)) == ([], 1)


def test_no_setting_of_any_server_looks_misspelled() -> None:
    for kind in (BrokerConfig, StoreConfig, TierConfig):
        for setting in settings_of(kind).values():
            line = f"{setting.property_name}={setting.render(setting.default)}\n"
            assert settings_in_properties(line).misspelled == (), line
    for name in NAMES - PROMISES.keys() - {"metricsExporterType"}:
        assert settings_in_properties(f"{name}=1\n").misspelled == (), name


def test_every_setting_of_rocketmq_has_one_meaning() -> None:
    ours = {
        setting.property_name
        for kind in (BrokerConfig, StoreConfig, TierConfig)
        for setting in settings_of(kind).values()
    }
    assert not ours & NAMES
    assert set(ALIASES.values()) <= ours | NAMES
    assert set(GUARANTEES) <= ours
    foreign = {name for name in PROMISES if not name.startswith("tls.")}
    assert foreign <= ours | NAMES
    assert len(NAMES | ours) > 530  # RocketMQ 5.5.0 has so many.

"""Settings of the tier: RocketMQ's names and defaults, our additions, and what has no effect."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path

import pytest

from tiermq.errors import BadConfig
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tier_config import SETTINGS, WITHOUT_EFFECT, StorageLevel, TierConfig

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tiermq"
# The table of RocketMQ's settings: name, and default as a broker.conf would spell it.
ORIGINAL = {
    "brokerClusterName": "DefaultCluster",
    "tieredStorageLevel": "NOT_IN_DISK",
    "messageIndexEnable": "true",
    "recordGetMessageResult": "false",
    "tieredStoreCommitLogMaxSize": "1073741824",
    "tieredStoreConsumeQueueMaxSize": "104857600",
    "tieredStoreIndexFileMaxHashSlotNum": "5000000",
    "tieredStoreIndexFileMaxIndexNum": "20000000",
    "tieredMetadataServiceProvider": "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore",
    "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.MemoryFileSegment",
    "tieredStoreDeleteFileEnable": "true",
    "tieredStoreFileReservedTime": "72",
    "tieredStoreDeleteFileInterval": "3600000",
    "commitLogRollingInterval": "24",
    "commitLogRollingMinimumSize": "16777216",
    "tieredStoreGroupCommit": "true",
    "tieredStoreGroupCommitTimeout": "30000",
    "tieredStoreGroupCommitCount": "4096",
    "tieredStoreGroupCommitSize": "4194304",
    "tieredStoreMaxGroupCommitCount": "10000",
    "readAheadCacheEnable": "true",
    "readAheadMessageCountThreshold": "4096",
    "readAheadMessageSizeThreshold": "16777216",
    "readAheadCacheExpireDuration": "15000",
    "readAheadCacheSizeThresholdRate": "0.3",
    "tieredStoreMaxPendingLimit": "10000",
    "tieredStoreCrcCheckEnable": "false",
    "tieredStoreFilePath": "",
    "objectStoreEndpoint": "",
    "objectStoreBucket": "",
    "objectStoreAccessKey": "",
    "objectStoreSecretKey": "",
    "messageStorePlugIn": "",
    "storePathRootDir": "~/store",
}


def test_names_and_defaults_are_those_of_the_original() -> None:
    config = TierConfig()
    ours = {s.property_name: s.render(getattr(config, s.name)) for s in SETTINGS.values()}
    # The original deletes history after 72 hours; here it stays unless a setting says that it may go.
    assert {name: ours.get(name) for name in ORIGINAL} == {**ORIGINAL, "tieredStoreFileReservedTime": "-1"}


def test_a_broker_conf_gives_the_tier_its_settings_and_names_the_rest() -> None:
    config, ignored = TierConfig.from_properties(
        "brokerName = broker-a\nfileReservedTime = 48\ntieredStorageLevel=2\ntieredStoreFileReservedTime=100\n"
        "tieredStoreFilePath=/var/tier\n"
    )
    assert (config.broker_name, config.tiered_storage_level) == ("broker-a", StorageLevel.NOT_IN_MEM)
    assert config.tiered_store_file_reserved_time == 100
    assert ignored == ["fileReservedTime"]


def test_the_tiers_settings_have_a_table_of_their_own_in_toml() -> None:
    config = TierConfig.from_toml(
        'flush_disk_type = "SYNC_FLUSH"\n[tier]\ntier_url = "s3://history/a"\ntieredStorageLevel = "FORCE"\n'
    )
    assert (config.url, config.tiered_storage_level) == ("s3://history/a", StorageLevel.FORCE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tiered_storage_level": "SOMETIMES"}, "tiered_storage_level is one of DISABLE"),
        ({"tiered_storage_level": 4}, "FORCE"),
        ({"tiered_store_file_reserved_time": 0}, "or -1 for ever, found 0"),
        ({"read_ahead_cache_size_threshold_rate": 0.0}, "fraction"),
        ({"tiered_store_index_file_max_index_num": 80_000_000}, "2147483647"),
        ({"tier_max_bytes_per_topic": 0}, "no limit"),
        ({"tier_max_bytes_per_topic": -2}, "must be within -1"),
        ({"tiered_store_file_reserve_time": 3}, "did you mean tiered_store_file_reserved_time"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name_of_its_setting(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        TierConfig().with_settings(**settings)


def test_a_consume_queue_segment_holds_whole_units() -> None:
    assert TierConfig(tiered_store_consume_queue_max_size=119).tiered_store_consume_queue_max_size == 100


def test_a_broker_without_a_name_has_that_of_its_machine() -> None:
    assert TierConfig().broker_name == socket.gethostname()


def test_the_path_of_rocketmqs_tier_is_a_url_that_opens(tmp_path: Path) -> None:
    directory = tmp_path / "a tier #1"
    config = TierConfig(tiered_store_file_path=str(directory))
    assert open_driver(config.url).url == directory.as_uri()
    assert TierConfig(tiered_store_file_path=str(directory), tier_url="memory://x").url == "memory://x"
    assert TierConfig().url == ""


def test_no_credential_is_kept_or_shown() -> None:
    config, _ = TierConfig.from_properties("objectStoreSecretKey=hunter2\nobjectStoreAccessKey=hunter3\n")
    assert "hunter" not in repr(config) + config.to_properties() + config.object_store_secret_key


def test_a_configuration_of_the_tier_written_as_properties_reads_back_equal() -> None:
    config = TierConfig(tier_url="s3://b/p", broker_name="b", tiered_storage_level=StorageLevel.FORCE)
    assert TierConfig.from_properties(config.to_properties()) == (config, [])


def test_metadata_lies_in_the_store_directory() -> None:
    path = TierConfig(store_path_root_dir="/var/store").metadata_path
    assert path.as_posix() == "/var/store/config/tieredStoreMetadata.db"


def test_what_has_no_effect_reports_why() -> None:
    assert set(WITHOUT_EFFECT) <= set(SETTINGS)
    assert all(len(reason.split()) > 3 for reason in WITHOUT_EFFECT.values())


def test_every_setting_of_the_tier_is_read_or_reported_to_have_no_effect() -> None:
    others = "\n".join(p.read_text(encoding="utf-8") for p in SOURCE.rglob("*.py") if p.name != "tier_config.py")

    def is_used(name: str) -> bool:
        return re.search(rf"\.{name}\b", others) is not None

    derived: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((SOURCE / "tier" / "tier_config.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "self":
                    derived.setdefault(inner.attr, set()).add(node.name)
    unread = {name for name in SETTINGS if not is_used(name) and not any(map(is_used, derived.get(name, ())))}
    assert unread == set(WITHOUT_EFFECT)

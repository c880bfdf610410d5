"""Settings of the tier, by RocketMQ's names and with RocketMQ's defaults; those that RocketMQ does not have come last.

One default differs: `tieredStoreFileReservedTime` is 72 hours in RocketMQ and unlimited here. History is deleted only
where a setting asks for it.

`tieredStoreGroupCommitTimeout` of a `broker.conf` is `tiered_store_group_commit_timeout` here and in the `[tier]` table
of a TOML file. Do not confuse `fileReservedTime` (local store) and `tieredStoreFileReservedTime` (tier).

Invariants: those of `tiermq.settings`; besides, a consume-queue segment holds whole units, a broker has a name, and no
credential is stored: credentials come from the environment, in each cloud's standard variables.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from tiermq.errors import BadConfig
from tiermq.message.layout import RECORD_BYTES_MIN, UNIT_BYTES
from tiermq.settings import INT_MAX, LONG_MAX, Configuration, settings_of, whole
from tiermq.store.tier_continuation import METADATA_DATABASE
from tiermq.tier.metadata.metadata_values import LEASE_TERM_MS
from tiermq.tier.retention.retention_plan import KEPT_FOR_EVER, Kept

CHECKSUM, READBACK = "checksum", "readback"
PROOF_MODES = (CHECKSUM, READBACK)


class StorageLevel(enum.IntEnum):
    """Which store answers a get: RocketMQ's `tieredStorageLevel`, with its numbers.

        DISABLE      0   the local store, always
        NOT_IN_DISK  1   the tier, when the local store does not have the message (any more)
        NOT_IN_MEM   2   as 1, or when the message is no longer in memory there
        FORCE        3   the tier, always

    The level is about gets: minimum offset, earliest time, offset by time and key query cover both stores at every
    level. RocketMQ takes an unknown number for DISABLE; here it is an error, so that a typing mistake hides no history.
    """

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3

    @classmethod
    def parse(cls, value: str | int) -> StorageLevel:
        """From a name or a number, as `tieredStorageLevel` is written. Raises BadConfig."""
        text = str(value).strip().upper()
        if text.isdecimal() and int(text) in cls._value2member_map_:
            return cls(int(text))
        if text in cls.__members__:
            return cls[text]
        raise BadConfig(f"tieredStorageLevel is one of {', '.join(cls.__members__)} or 0 to 3, found {value!r}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig(Configuration):
    """Settings of a tier. Sizes are bytes, intervals are milliseconds unless named otherwise."""

    TABLE: ClassVar[str] = "tier"
    DOCUMENT: ClassVar[str] = "docs/tier.md"

    # Locations. An empty broker name means the name of this machine.
    broker_name: str = ""
    broker_cluster_name: str = "DefaultCluster"
    store_path_root_dir: str = "~/store"
    tiered_store_file_path: str = ""

    # Reading.
    tiered_storage_level: StorageLevel = StorageLevel.NOT_IN_DISK
    record_get_message_result: bool = False
    read_ahead_cache_enable: bool = True
    read_ahead_message_count_threshold: int = whole(4_096, low=1)
    read_ahead_message_size_threshold: int = whole(16_777_216, low=1)
    read_ahead_cache_expire_duration: int = whole(15_000, low=1)
    read_ahead_cache_size_threshold_rate: float = 0.3

    # Segments.
    tiered_store_commit_log_max_size: int = whole(1_073_741_824, low=RECORD_BYTES_MIN, high=LONG_MAX)
    tiered_store_consume_queue_max_size: int = whole(104_857_600, low=UNIT_BYTES)
    commit_log_rolling_interval: int = whole(24, low=1)  # Hours.
    commit_log_rolling_minimum_size: int = whole(16_777_216)

    # Key index.
    message_index_enable: bool = True
    tiered_store_index_file_max_hash_slot_num: int = whole(5_000_000, low=1)
    tiered_store_index_file_max_index_num: int = whole(20_000_000, low=2)

    # Uploading.
    tiered_store_group_commit: bool = True
    tiered_store_group_commit_timeout: int = whole(30_000)
    tiered_store_group_commit_count: int = whole(4_096, low=1)
    tiered_store_group_commit_size: int = whole(4_194_304, low=1)
    tiered_store_max_group_commit_count: int = whole(10_000, low=1)
    tiered_store_max_pending_limit: int = whole(10_000, low=4)

    # Retention.
    tiered_store_delete_file_enable: bool = True
    tiered_store_file_reserved_time: int = whole(-1, low=-1)  # Hours; -1: unlimited. RocketMQ's default is 72.
    tiered_store_delete_file_interval: int = whole(3_600_000, low=1)

    # RocketMQ's class names, and its settings of a back end that it does not include.
    message_store_plug_in: str = ""
    tiered_metadata_service_provider: str = "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore"
    tiered_backend_service_provider: str = "org.apache.rocketmq.tieredstore.provider.MemoryFileSegment"
    tiered_store_crc_check_enable: bool = False
    object_store_endpoint: str = ""
    object_store_bucket: str = ""
    object_store_access_key: str = dataclasses.field(default="", repr=False)
    object_store_secret_key: str = dataclasses.field(default="", repr=False)

    # TierMQ's own. A tier's URL is file:///dir, s3://bucket/prefix, gs://…, az://… or memory://name.
    tier_url: str = ""
    tier_max_bytes_per_topic: int = whole(-1, low=-1, high=LONG_MAX)  # -1: unlimited.
    tier_cache_bytes: int = whole(268_435_456, high=LONG_MAX)
    tier_upload_threads: int = whole(8, low=1, high=1_024)
    tier_fetch_threads: int = whole(8, low=1, high=1_024)
    tier_pending_bytes_max: int = whole(268_435_456, low=1, high=LONG_MAX)
    tier_dispatch_enable: bool = True  # False: a job copies (`tiermq pipeline offload`), and this store follows it.
    tier_dispatch_interval: int = whole(20_000, low=1)
    tier_manifest_interval: int = whole(60_000)
    tier_follow_interval: int = whole(10_000, low=1)  # Of a reader: between two listings of what is uploaded.
    tier_bundle_interval: int = whole(0)  # Milliseconds; 0: no bundles.
    tier_pace_put_rate: int = whole(200_000)  # Puts per second above which uploads are throttled; 0: never.
    tier_pace_cpu_percent: int = whole(50, low=1, high=100)  # Of one processor, for throttled uploads.
    tier_pace_batch_factor: int = whole(4, low=1, high=64)
    tier_pace_sample_interval: int = whole(20, low=1)
    tier_lease_term: int = whole(LEASE_TERM_MS, low=3_000)
    tier_close_timeout: int = whole(20_000)  # Less than the 30 s that Kubernetes waits before it kills.
    tier_start_timeout: int = whole(30_000, low=1)
    tier_evict_on_proof: bool = True  # Delete local files only once the tier has all of them.
    tier_proof_mode: str = CHECKSUM  # Or readback: checksums of the back end are not trusted.
    tier_transactions_enable: bool = False  # Half messages and op messages enter the tier, too.

    def __post_init__(self) -> None:
        self.check_settings()
        units = self.tiered_store_consume_queue_max_size // UNIT_BYTES
        object.__setattr__(self, "tiered_store_consume_queue_max_size", units * UNIT_BYTES)
        # Their values would end up in a log or a support ticket. They are not used.
        object.__setattr__(self, "object_store_access_key", "")
        object.__setattr__(self, "object_store_secret_key", "")
        if self.tier_proof_mode not in PROOF_MODES:
            raise BadConfig(f"tier_proof_mode is one of {', '.join(PROOF_MODES)}, found {self.tier_proof_mode!r}")
        if not self.broker_name:
            object.__setattr__(self, "broker_name", socket.gethostname() or "DEFAULT_BROKER")
        if self.compacted_index_bytes > INT_MAX:
            raise BadConfig(
                f"tiered_store_index_file_max_hash_slot_num={self.tiered_store_index_file_max_hash_slot_num} and "
                f"tiered_store_index_file_max_index_num={self.tiered_store_index_file_max_index_num} make uploaded "
                f"index files of {self.compacted_index_bytes} bytes; positions in one end at {INT_MAX}: lower one"
            )
        if not 0.0 < self.read_ahead_cache_size_threshold_rate <= 1.0:
            raise BadConfig(
                "read_ahead_cache_size_threshold_rate is a fraction in (0, 1], "
                f"found {self.read_ahead_cache_size_threshold_rate}"
            )
        if self.tiered_store_file_reserved_time == 0:
            raise BadConfig("tiered_store_file_reserved_time is a number of hours, or -1 for ever, found 0")
        if self.tier_max_bytes_per_topic == 0:
            raise BadConfig("tier_max_bytes_per_topic is a number of bytes, or -1 for no limit, found 0")

    @property
    def url(self) -> str:
        """The tier's URL: `tier_url` if set, else that of `tiered_store_file_path`; empty when there is no tier."""
        if self.tier_url or not self.tiered_store_file_path:
            return self.tier_url
        return "file://" + quote(os.path.abspath(os.path.expanduser(self.tiered_store_file_path)))

    @property
    def kept(self) -> Kept:
        """Retention of topics that have no time and limit of their own."""
        if not self.tiered_store_delete_file_enable:
            return KEPT_FOR_EVER
        return Kept.by(-1, -1, self.tiered_store_file_reserved_time, self.tier_max_bytes_per_topic)

    @property
    def root_path(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def metadata_path(self) -> Path:
        """Path of a broker's metadata of its tier."""
        return self.root_path / "config" / METADATA_DATABASE

    @property
    def compacted_index_bytes(self) -> int:
        """The largest index file that is ever uploaded."""
        slots, items = self.tiered_store_index_file_max_hash_slot_num, self.tiered_store_index_file_max_index_num
        return 28 + 8 * slots + 28 * items


SETTINGS = settings_of(TierConfig)


def kept_by_settings(properties: Mapping[str, str]) -> Kept:
    """Retention of topics without their own, by a broker's settings as the tier has them (`broker_state`).

    A TierMQ broker stores those that are not the defaults, a job all of them. RocketMQ's do not count: it deletes after
    72 hours by default, and its tier is another one. They always name its home, which TierMQ has not.
    """
    if "rocketmqHome" in properties or properties.get("tieredStoreDeleteFileEnable") == "false":
        return KEPT_FOR_EVER
    names = ("tiered_store_file_reserved_time", "tier_max_bytes_per_topic")
    texts = [properties.get(SETTINGS[name].property_name, "") for name in names]
    hours, max_bytes = (int(text) if text.isdigit() else -1 for text in texts)
    return Kept.by(-1, -1, hours, max_bytes)


# Settings that are read and checked, so that a `broker.conf` works, but that change nothing. A test keeps this true.
WITHOUT_EFFECT = {
    "message_store_plug_in": "a store that is given a tier is tiered; without one, `tiermq serve` refuses the setting",
    "tiered_metadata_service_provider": "metadata is a small database, and the tier is self-describing",
    "tiered_backend_service_provider": "the tier's URL selects the back end",
    "record_get_message_result": "results are counted in metrics, not logged one by one",
    "tiered_store_crc_check_enable": "checksums are always checked",
    "tiered_store_max_group_commit_count": "what waits is bounded in bytes, not in buffers",
    "tiered_store_max_pending_limit": "what waits is bounded in bytes, not in queues",
    "read_ahead_cache_size_threshold_rate": "there is no heap to take a share of; tierCacheBytes sets it in bytes",
    "object_store_endpoint": "the endpoint comes from the environment, for instance AWS_ENDPOINT_URL",
    "object_store_bucket": "the bucket is part of the tier's URL",
    "object_store_access_key": "credentials come from the environment",
    "object_store_secret_key": "credentials come from the environment",
}

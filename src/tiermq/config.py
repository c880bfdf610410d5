"""Settings of the local store, by RocketMQ's names and with RocketMQ's defaults.

One name in three spellings: `mapped_file_size_commit_log` in Python and TOML, `mappedFileSizeCommitLog` in a
`broker.conf` (a Java properties file), and either of them in TOML. A value may always be given as text.

Invariants: a `StoreConfig` that exists is valid (everything is checked when it is made, nothing afterwards);
it never changes; rounding rules have already been applied to its values.
One default differs from the original on purpose: see `message_index_safe`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from tiermq.clock import AGE_UNITS_MS
from tiermq.errors import BadConfig
from tiermq.settings import (
    INT_MAX,
    Configuration,
    Promise,
    is_true,
    read_properties,
    settings_of,
    unkept_promises,
    whole,
)

__all__ = ["SETTINGS", "WITHOUT_EFFECT", "BrokerRole", "FlushDiskType", "StoreConfig", "read_properties"]

CONSUME_QUEUE_UNIT_BYTES = 20
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAPPED_FILE_BYTES_MIN = 64  # Smaller than any record: only tests of file rolling come near it.


class FlushDiskType(enum.Enum):
    """When a put is answered: once it is in the page cache (ASYNC_FLUSH) or once it is on the disk (SYNC_FLUSH)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """Who writes the log: clients (a master) or a master's replication stream (SLAVE)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _file_bytes(default: int) -> int:
    return whole(default, low=MAPPED_FILE_BYTES_MIN)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(Configuration):
    """Settings of a local store. Sizes are bytes, intervals are milliseconds unless named otherwise."""

    TABLE: ClassVar[str] = "store"
    AT_TOP: ClassVar[bool] = True
    ACRONYMS: ClassVar[Mapping[str, str]] = {"Crc": "CRC"}  # enabledAppendPropCRC, checkCRCOnRecover.

    # Directories. An empty commit-log path means <root>/commitlog; several are separated by commas.
    store_path_root_dir: str = "~/store"
    store_path_commit_log: str = ""
    read_only_commit_log_store_paths: str = ""

    # File sizes. A size is part of the format: a directory must be opened with the sizes that it was written with.
    mapped_file_size_commit_log: int = _file_bytes(1_073_741_824)
    mapped_file_size_consume_queue: int = _file_bytes(6_000_000)
    mapped_file_size_consume_queue_ext: int = _file_bytes(50_331_648)
    mapper_file_size_batch_consume_queue: int = _file_bytes(13_800_000)
    max_hash_slot_num: int = whole(5_000_000, low=1)
    max_index_num: int = whole(20_000_000, low=2)

    # Durability of the commit log.
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    flush_interval_commit_log: int = whole(500, low=1)
    flush_commit_log_timed: bool = True
    flush_commit_log_least_pages: int = whole(4)
    flush_commit_log_thorough_interval: int = whole(10_000)
    sync_flush_timeout: int = whole(5_000, low=1)
    slave_timeout: int = whole(3_000, low=1)
    wake_flush_when_put_message: bool = False
    enable_running_flags_in_flush: bool = False

    # The transient pool: puts go to memory first and are committed to the file by a thread.
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = whole(5, low=1)
    fast_fail_if_no_buffer_in_store_pool: bool = False
    commit_interval_commit_log: int = whole(200, low=1)
    commit_commit_log_least_pages: int = whole(4)
    commit_commit_log_thorough_interval: int = whole(200)
    wake_commit_when_put_message: bool = True

    # New files.
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = whole(4_096, low=1)

    # Memory. The original has no such setting: its maps stay resident until the kernel takes them.
    resident_log_bytes_max: int = whole(64 << 20)

    # Consume queues.
    flush_interval_consume_queue: int = whole(1_000, low=1)
    flush_consume_queue_least_pages: int = whole(2)
    flush_consume_queue_thorough_interval: int = whole(60_000)
    enable_consume_queue_ext: bool = False
    bit_map_length_consume_queue_ext: int = whole(64)
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False

    # Records.
    max_message_size: int = whole(4_194_304, low=10)
    auto_message_version_on_topic_len: bool = True
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False
    check_crc_on_recover: bool = True
    message_delay_level: str = DELAY_LEVELS
    os_page_cache_busy_time_out_mills: int = whole(1_000, low=1)

    # Reads.
    max_transfer_bytes_on_message_in_memory: int = whole(262_144, low=1)
    max_transfer_count_on_message_in_memory: int = whole(32, low=1)
    max_transfer_bytes_on_message_in_disk: int = whole(65_536, low=1)
    max_transfer_count_on_message_in_disk: int = whole(8, low=1)
    access_message_in_memory_max_ratio: int = whole(40, high=100)
    max_filter_message_size: int = whole(16_000)
    travel_cq_file_num_when_get_message: int = whole(1, low=1)
    max_consume_queue_scan: int = whole(20_000, low=1)
    sample_count_threshold: int = whole(5_000)
    offset_check_in_slave: bool = False

    # Key index.
    message_index_enable: bool = True
    # The original's default is False: after a crash it deletes the index file that was being written and never
    # rebuilds its entries, so that stored messages can no longer be found by key. The safe setting costs a longer
    # recovery scan, and nothing at run time.
    message_index_safe: bool = True
    max_msgs_num_batch: int = whole(64, low=1)
    default_query_max_num: int = whole(32, low=1)

    # Dispatch and start-up.
    read_un_committed: bool = False
    recheck_reput_offset_from_cq: bool = False
    duplication_enable: bool = False

    # Cleaning.
    delete_when: str = "04"  # Hours of the day, local time, separated by semicolons.
    file_reserved_time: int = whole(72)  # Hours.
    disk_max_used_space_ratio: int = whole(75, high=100)
    disk_space_clean_forcibly_ratio: int = whole(85, high=100)
    disk_space_warning_level_ratio: int = whole(90, high=100)
    clean_file_forcibly_enable: bool = True
    delete_file_batch_max: int = whole(10, low=1)
    clean_resource_interval: int = whole(10_000, low=1)
    delete_commit_log_files_interval: int = whole(100)
    delete_consume_queue_files_interval: int = whole(100)
    destroy_maped_file_interval_forcibly: int = whole(120_000)
    redelete_hanged_file_interval: int = whole(120_000)
    replicas_per_disk_partition: int = whole(1, low=1)
    logical_disk_space_clean_forcibly_threshold: float = 0.8
    correct_logic_min_offset_force_interval: int = whole(300_000)

    def __post_init__(self) -> None:
        self.check_settings()
        units = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_BYTES)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * CONSUME_QUEUE_UNIT_BYTES)
        if self.index_file_bytes > INT_MAX:
            raise BadConfig(
                f"max_hash_slot_num={self.max_hash_slot_num} and max_index_num={self.max_index_num} make index files "
                f"of {self.index_file_bytes} bytes; a mapped file holds at most {INT_MAX}: lower max_index_num"
            )
        if not 0.0 < self.logical_disk_space_clean_forcibly_threshold <= 1.0:
            raise BadConfig(
                "logical_disk_space_clean_forcibly_threshold is a fraction in (0, 1], "
                f"found {self.logical_disk_space_clean_forcibly_threshold}"
            )
        _ = self.delete_hours, self.delay_levels_ms  # Both are parsed here so that errors are reported at start.

    def unkept(self, *, with_replication: bool = False) -> list[str]:
        """What these settings require that a local store does not provide, as texts; `with_replication`: its owner
        copies the log to slaves, or from a master.
        """
        names = UNKEPT.keys() - ({"broker_role"} if with_replication else set())
        entries = {SETTINGS[name].property_name: SETTINGS[name].render(getattr(self, name)) for name in sorted(names)}
        return unkept_promises(entries, PROMISES)

    @property
    def root_path(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def commit_log_paths(self) -> tuple[Path, ...]:
        """Directories for new commit-log files; never empty."""
        return _paths(self.store_path_commit_log) or (self.root_path / "commitlog",)

    @property
    def read_only_commit_log_paths(self) -> tuple[Path, ...]:
        return _paths(self.read_only_commit_log_store_paths)

    @property
    def index_file_bytes(self) -> int:
        return 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day, local time, in which expired files are deleted."""
        pieces = [piece.strip() for piece in self.delete_when.split(";") if piece.strip()]
        if not all(piece.isascii() and piece.isdigit() and int(piece) < 24 for piece in pieces):
            raise BadConfig(f"delete_when is a list of hours 00 to 23 separated by ';', found {self.delete_when!r}")
        return frozenset(int(piece) for piece in pieces)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level; level n of a message is element n - 1."""
        return _delays_ms(self.message_delay_level)

    @property
    def disk_max_used_fraction(self) -> float:
        """Above this share of the disk, expired files are deleted at any hour."""
        return min(max(self.disk_max_used_space_ratio, 10), 95) / 100

    @property
    def disk_clean_forcibly_fraction(self) -> float:
        """Above this share of the disk, files are deleted before they expire."""
        return min(max(self.disk_space_clean_forcibly_ratio / 100, 0.30), 0.85)

    @property
    def disk_warning_fraction(self) -> float:
        """Above this share of the disk, puts are refused as well."""
        return min(max(self.disk_space_warning_level_ratio / 100, 0.35), 0.90)


@lru_cache(maxsize=16)  # Records of the schedule topic that recovery dispatches ask for it one by one.
def _delays_ms(levels: str) -> tuple[int, ...]:
    delays_ms = []
    for piece in levels.split():
        if not re.fullmatch(r"[0-9]+[smhd]", piece):
            raise BadConfig(f"message_delay_level is a list such as '1s 5m 2h 1d', found {piece!r} in it")
        delays_ms.append(int(piece[:-1]) * AGE_UNITS_MS[piece[-1]])
    return tuple(delays_ms)


SETTINGS = settings_of(StoreConfig)
UNKEPT = {
    "broker_role": Promise(
        lambda value: value.strip() != BrokerRole.ASYNC_MASTER.name,
        "a store alone has no replication, so no replica confirms a message and none is received from a master",
        "leave it out or write ASYNC_MASTER, or let a broker open the store",
    ),
    "duplication_enable": Promise(
        is_true,
        "messages that are put do not keep the offsets and store times that they bring along",
        "leave it out",
    ),
}
"""Settings that require safety which a local store does not provide. A store with one of them does not open."""
PROMISES = {SETTINGS[name].property_name: promise for name, promise in UNKEPT.items()}
# Settings that are read and checked, so that a `broker.conf` works and later parts find them, but that change nothing
# in the local store. A test keeps this list true.
WITHOUT_EFFECT = {
    "enable_running_flags_in_flush": "an I/O error while flushing always stops puts",
    "bit_map_length_consume_queue_ext": "bit maps are made by a broker's filters",
    "travel_cq_file_num_when_get_message": "a get ends with its queue file",
    "max_consume_queue_scan": "nothing asks for estimates",
    "sample_count_threshold": "nothing asks for estimates",
    "default_query_max_num": "a broker applies it",
    "recheck_reput_offset_from_cq": "recovery always dispatches from where queues and index end",
    "delete_consume_queue_files_interval": "queue files go without a pause",
    "correct_logic_min_offset_force_interval": "first offsets are corrected at each cleaning",
}


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(piece.strip()).expanduser() for piece in text.split(",") if piece.strip())

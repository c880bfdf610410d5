"""docs/capacity.md: bytes that a message takes, counted on disk and in the tier; and what the counted requests cost."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from broker.brokers import send_command
from test_deploy import container
from tier.test_request_costs import published
from tiermq.config import StoreConfig
from tiermq.console.bill import SHEETS
from tiermq.remoting.client import BlockingClient
from tiermq.testing import LocalBroker
from tiermq.tier.tier_config import TierConfig

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "capacity.md").read_text(encoding="utf-8")
COUNT = 400
QUEUES = 4
PROPERTIES = "UNIQ_KEY\x01{:032X}\x02KEYS\x01order-{:06d}\x02WAIT\x01true\x02TAGS\x01paid\x02"
ADDED = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
S3 = SHEETS["s3-standard"]
HOURS = 24 * 30


def number(pattern: str) -> float:
    found = re.search(pattern, PAGE)
    assert found is not None, pattern
    return float(found[1].replace(",", ""))


def usd(counted: dict[str, int], times: int = 1) -> float:
    writes = counted.get("put", 0) + counted.get("list", 0)
    reads = counted.get("get", 0) + counted.get("head", 0)
    return times * (writes * S3.writes_1000 + reads * S3.reads_1000) / 1_000


def test_a_message_takes_the_bytes_that_the_page_counts(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", tier=(tmp_path / "tier").as_uri()) as broker:
        broker.create_topic("orders", queues=QUEUES)
        local, tiered = broker.broker.parts.local, broker.broker.parts.tiered
        assert tiered is not None
        before = local.max_physical_offset
        host, _, port = broker.address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60) as client:
            for each in range(COUNT):
                sent = PROPERTIES.format(each, each)
                assert (
                    client.request(send_command("orders", b"x" * 200, properties=sent, queue=each % QUEUES)).code == 0
                )
        log = (local.max_physical_offset - before) / COUNT
        assert tiered.flush_to_tier()
    (index,) = (tmp_path / "store" / "index").iterdir()
    (entries,) = struct.unpack_from(">i", index.read_bytes()[:40], 36)  # The header counts one more.
    assert (entries - 1) * 20 / COUNT == number(r"(\d+) in the index; in the tier")
    properties = len(PROPERTIES.format(0, 0)) + len(ADDED)
    assert log == 91 + len("orders") + 200 + properties == number(r"client: \*\*(\d+)\*\* bytes in the log")
    assert len("UNIQ_KEY") + 32 + 2 + len("WAIT") + len("true") + 2 == number(r"unique id and `WAIT` are (\d+)")
    assert len(ADDED) == number(r"what the broker adds is (\d+)")
    segments = [path for path in (tmp_path / "tier").glob("*/*/orders/*/*/*") if path.is_file()]
    kinds = {kind: sum(path.stat().st_size for path in segments if path.parent.name == kind) for kind in
             ("COMMIT_LOG", "CONSUME_QUEUE")}  # fmt: skip
    assert kinds == {"COMMIT_LOG": COUNT * log, "CONSUME_QUEUE": COUNT * 20}
    assert sum(kinds.values()) / COUNT == number(r"in the tier \*\*(\d+)\*\*")


def test_sizes_of_files_and_buffers_are_the_defaults() -> None:
    store, tier = StoreConfig(), TierConfig()
    index = store.max_hash_slot_num * 4 + store.max_index_num * 20
    assert round(index / 1e6) == number(r"\+ (\d+) MB +the index file that is written")
    slots, items = tier.tiered_store_index_file_max_hash_slot_num, tier.tiered_store_index_file_max_index_num
    assert round((8 * slots + 32 * items) / 1e6) == number(r"with a tier: (\d+) MB")
    assert round((8 * slots + 28 * items) / 1e6) == number(r"slots: (\d+) MB for a full file")
    assert tier.tier_pending_bytes_max == tier.tier_cache_bytes == 256 << 20
    assert store.resident_log_bytes_max == 64 << 20
    day_s, log = 86_400, number(r"client: \*\*(\d+)\*\* bytes")
    assert round(1_000 * (log + 20 + 40) * 3 * day_s / 1e9) == number(r"for 72 hours are (\d+) GB")
    # Without the peak of a full index file, which takes twenty million keys: then 2 GiB hold it, too.
    peak = tier.tier_pending_bytes_max + tier.tier_cache_bytes + 8 * slots + 28 * items + store.resident_log_bytes_max
    assert peak + (200 << 20) < 2 << 30
    assert container()["resources"]["limits"]["memory"] == "2Gi"


@pytest.mark.parametrize(
    ("row", "cost"),
    [
        ("to upload", usd(published("1,000,000 messages of 200 bytes into 10 queues"))),
        ("to keep for a month", 1e6 * (459 + 2 * 28) / 1e9 * S3.gb_month),
        ("to read once, by one consumer from the beginning", usd({"get": 860})),
        ("a broker: its lease", usd({"put": 4_320}, 30)),
        ("a standby pair: the lease of the master", usd({"put": 864_000, "get": 2_628_000})),
        ("1,000 queues with a message an hour", usd(published("1,000 queues with a message an hour, a day"), 30)),
        (r"the same in \[bundles\]\(tier.md#bundles\)",
         usd(published("1,000 queues with a message an hour in bundles, an hour"), HOURS)),
    ],
)  # fmt: skip
def test_costs_are_the_counted_requests_times_the_prices(row: str, cost: float) -> None:
    shown = re.search(rf"^\| {row} \| ([\d.]+) \|", PAGE, re.MULTILINE)
    assert shown is not None, row
    digits = len(shown[1].partition(".")[2])
    assert float(shown[1]) == pytest.approx(cost, abs=0.6 * 10**-digits), f"{cost}"

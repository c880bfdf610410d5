"""The bill: what the topics of a tier cost by a price sheet, as they are and as they would be. Pure.

    storage    bytes that are kept, by the month
    writes     PUTs: for each commit of a queue one of records and one of units, for each manifest one, and one for each
               file whose parts were merged, after every 32nd commit
    upkeep     GETs and LISTs of those merges
    leases     of each broker, not of a topic: renewed three times a minute
    reads      what consumers and jobs fetch; not known from the bucket, so it is a number of the user's

A price sheet is a table of four prices in dollars. The built-in ones are list prices of storage classes at the time of
writing, as a start: prices change, so every figure shows which sheet it was made with, and each price can be given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tiermq.errors import BadRequest

MERGE_COMMITS = 32
FILES = 2
"""Of a commit: records and units."""
MERGE_GETS = 44
MERGE_LISTS = 0.5
"""Of each file, as tests/console/test_bill.py counts them."""
LEASE_PUTS_A_DAY, LEASE_GETS_A_DAY = 4_320, 24
"""Of each broker, as tests/tier/test_request_costs.py counts them."""
GB = 1_000_000_000
DAYS_A_MONTH = 30.4
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class PriceSheet:
    """Dollars: for a GB and month, for 1,000 writes, for 1,000 reads, for a GB that leaves the provider's network."""

    name: str
    gb_month: float
    writes_1000: float
    reads_1000: float
    gb_out: float


SHEETS = {
    sheet.name: sheet
    for sheet in (
        PriceSheet("s3-standard", 0.023, 0.005, 0.0004, 0.09),
        PriceSheet("s3-infrequent", 0.0125, 0.01, 0.001, 0.09),
        PriceSheet("gcs-standard", 0.020, 0.005, 0.0004, 0.12),
        PriceSheet("azure-hot", 0.018, 0.0065, 0.0005, 0.087),
        PriceSheet("own-disk", 0.0, 0.0, 0.0, 0.0),
    )
}


@dataclass(frozen=True, slots=True)
class TopicUse:
    """What a topic has in the tier, and how fast it grows."""

    topic: str
    queues: int
    objects: int
    size_bytes: int
    begin_ms: int | None
    end_ms: int | None
    log_bytes: int = 0
    """Of `size_bytes`, those of records."""
    commits: float = 0.0
    """Uploads of a queue that wrote what is kept; 0 where no manifest can be read, and the objects count."""
    manifests: float = 0.0

    @property
    def commits_a_day(self) -> float:
        return (self.commits or self.objects / FILES) / self.days if self.days else 0.0

    @property
    def merges_a_day(self) -> float:
        return FILES * self.commits_a_day / MERGE_COMMITS if self.commits else 0.0

    @property
    def puts_a_day(self) -> float:
        manifests = self.manifests / self.days if self.days else 0.0
        return FILES * self.commits_a_day + manifests + self.merges_a_day

    @property
    def days(self) -> float:
        """The time that its messages cover; never below an hour, so that a rate is not a guess from a second."""
        if self.begin_ms is None or self.end_ms is None:
            return 0.0
        return max(self.end_ms - self.begin_ms, DAY_MS // 24) / DAY_MS

    @property
    def bytes_a_day(self) -> float:
        return self.size_bytes / self.days if self.days else 0.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Settings to calculate with; None keeps what is."""

    retention_days: float | None = None
    segment_bytes: int | None = None
    reads_a_day: float = 0.0


def sheet_of(name: str, **prices: float | None) -> PriceSheet:
    """A sheet with prices of the user's own. Raises BadRequest for an unknown name."""
    if name not in SHEETS:
        raise BadRequest(f"sheet: expected one of {', '.join(SHEETS)}, found {name[:40]!r}")
    own = {key: value for key, value in prices.items() if value is not None}
    return replace(SHEETS[name], **own) if own else SHEETS[name]  # type: ignore[arg-type] # `name` is never among them.


def cost_of(use: TopicUse, sheet: PriceSheet, what_if: WhatIf | None = None) -> dict[str, Any]:
    """One line of the bill, in dollars a month."""
    wanted = what_if or WhatIf()
    size: float = use.size_bytes
    if wanted.retention_days is not None and use.days:
        size = use.bytes_a_day * wanted.retention_days
    share = 1.0
    if wanted.segment_bytes and use.commits_a_day:
        # A commit for each full size, and at least one for each queue and day.
        full = (use.log_bytes or use.size_bytes) / use.days / wanted.segment_bytes
        share = max(full, float(use.queues)) / use.commits_a_day
    writes_a_day = use.puts_a_day * share
    gets_a_day, lists_a_day = use.merges_a_day * MERGE_GETS * share, use.merges_a_day * MERGE_LISTS * share
    storage = size / GB * sheet.gb_month
    # A LIST has the price of a PUT.
    writes = (writes_a_day + lists_a_day) * DAYS_A_MONTH / 1000 * sheet.writes_1000
    reads = (wanted.reads_a_day + gets_a_day) * DAYS_A_MONTH / 1000 * sheet.reads_1000
    return {
        "topic": use.topic,
        "queues": use.queues,
        "objects": use.objects,
        "bytes": use.size_bytes,
        "bytesThen": round(size),
        "bytesADay": round(use.bytes_a_day),
        "days": round(use.days, 2),
        "writesADay": round(writes_a_day, 1),
        "getsADay": round(gets_a_day, 1),
        "listsADay": round(lists_a_day, 1),
        "storage": round(storage, 6),
        "writes": round(writes, 6),
        "reads": round(reads, 6),
        "total": round(storage + writes + reads, 6),
    }


def cost_of_leases(brokers: int, sheet: PriceSheet) -> dict[str, Any]:
    """What brokers pay a month for being there."""
    puts, gets = brokers * LEASE_PUTS_A_DAY, brokers * LEASE_GETS_A_DAY
    total = DAYS_A_MONTH / 1000 * (puts * sheet.writes_1000 + gets * sheet.reads_1000)
    return {"brokers": brokers, "writesADay": puts, "getsADay": gets, "total": round(total, 6)}


@dataclass(frozen=True, slots=True)
class DatedBytes:
    """A segment of the log with the times of its messages, and the objects that it was written as."""

    begin_ms: int
    end_ms: int
    size: int
    objects: int
    messages: int


def cost_of_days(parts: Iterable[DatedBytes], sheet: PriceSheet) -> list[dict[str, Any]]:
    """A row for each day (UTC) that has messages, oldest first. A segment of several days is spread evenly over them.

    `storage` is what the bytes of the day cost for a month, `writes` what their upload has cost, once.
    """
    found: dict[int, list[float]] = {}
    for part in parts:
        first, last = part.begin_ms // DAY_MS, max(part.begin_ms, part.end_ms) // DAY_MS
        span = max(1, part.end_ms - part.begin_ms)
        for day in range(first, last + 1):
            begin, end = max(part.begin_ms, day * DAY_MS), min(part.end_ms, (day + 1) * DAY_MS)
            share = 1.0 if first == last else max(0, end - begin) / span
            row = found.setdefault(day, [0.0, 0.0, 0.0])
            for index, amount in enumerate((part.messages, part.size, part.objects)):
                row[index] += amount * share
    return [
        {
            "day": datetime.fromtimestamp(day * DAY_MS / 1000, tz=UTC).strftime("%Y-%m-%d"),
            "messages": round(messages),
            "bytes": round(size),
            "objects": round(objects, 1),
            "storage": round(size / GB * sheet.gb_month, 6),
            "writes": round(objects / 1000 * sheet.writes_1000, 6),
            "total": round(size / GB * sheet.gb_month + objects / 1000 * sheet.writes_1000, 6),
        }
        for day, (messages, size, objects) in sorted(found.items())
    ]

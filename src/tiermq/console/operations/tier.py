"""The tier: what the bucket holds, its bill, orphans, and a verification that reads every byte."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tiermq.clock import HOUR_MS
from tiermq.console.bill import (
    GB,
    SHEETS,
    DatedBytes,
    PriceSheet,
    TopicUse,
    WhatIf,
    cost_of,
    cost_of_days,
    cost_of_leases,
    sheet_of,
)
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.copied_commands import verify_command
from tiermq.console.json_case import camel
from tiermq.console.operations.overview import lease_row
from tiermq.console.operations.topics import PAGE, ROWS, SEARCH, TOPIC, page_of
from tiermq.console.sources import Visit
from tiermq.console.verifications import verifications
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers, verify_timers
from tiermq.errors import BadRequest, TierError
from tiermq.history.cold_queues import read_manifest
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.metadata_values import NEVER_MS, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentType
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.retention.orphans import GRACE_MS, find_orphans
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.verify.verification_record import keep_run, run_of
from tiermq.tier.verify.verify import verify_tier

COMMIT_MESSAGES = TierConfig().tiered_store_group_commit_count
_KIND_NAMES = {SegmentType.COMMIT_LOG: "log", SegmentType.CONSUME_QUEUE: "units", SegmentType.INDEX: "index"}


@operation(
    "tier.show",
    "The bucket: objects, parts, seals, leases and epochs, by topic.",
    SEARCH,
    PAGE,
    ROWS,
)
def show_tier(visit: Visit, *, search: str | None, page: int, rows: int) -> Result:
    visit.require_tier()
    listing = visit.sources.listing()
    by_topic: dict[str, list[SegmentInfo]] = defaultdict(list)
    for info in listing.segments:
        by_topic[info.key.topic].append(info)
    names, about = page_of(sorted(by_topic), search, page, rows)
    with visit.sources.files() as history:
        leases = [lease_row(history.tier, *home, visit.sources.clock.now_ms()) for home in listing.brokers]
        runs = verifications(visit, history.tier)
    sizes: dict[str, int] = defaultdict(int)
    for info in listing.segments:
        sizes[_KIND_NAMES.get(info.key.type, info.key.type.name.lower())] += info.size
    return {
        "url": visit.sources.place.tier,
        "bytes": sum(sizes.values()),
        "bytesByKind": dict(sizes),
        "segments": len(listing.segments),
        "sealed": sum(info.sealed for info in listing.segments),
        "parts": sum(info.part_count for info in listing.segments),
        "smallObjects": len(listing.objects),
        "damaged": [{"path": i.key.path, "why": i.damage} for i in listing.segments if i.damage is not None][:100],
        "leases": leases,
        "topics": [_topic_row(name, by_topic[name]) for name in names],
        "verification": next(iter(runs), None),
        "verifications": runs,
        "verifyCommand": verify_command(visit),
        **about,
    }


def _topic_row(name: str, infos: list[SegmentInfo]) -> Result:
    return {
        "topic": name,
        "isIndex": name == INDEX_TOPIC,
        "queues": len({(info.key.broker, info.key.queue_id) for info in infos}),
        "segments": len(infos),
        "sealed": sum(info.sealed for info in infos),
        "parts": sum(info.part_count for info in infos),
        "bytes": sum(info.size for info in infos),
        "logBytes": sum(info.size for info in infos if info.key.type is SegmentType.COMMIT_LOG),
        "modifiedMs": max((info.modified_ms for info in infos), default=None),
    }


@operation("tier.segments", "The segments of one topic, as its manifests and the listing have them.", TOPIC)
def show_segments(visit: Visit, *, topic: str) -> Result:
    visit.require_tier()
    infos = [info for info in visit.sources.listing().segments if info.key.topic == topic]
    queues: dict[QueueKey, list[SegmentInfo]] = defaultdict(list)
    for info in infos:
        queues[info.key.queue].append(info)
    found = []
    with visit.sources.files() as history:
        for key, listed in sorted(queues.items()):
            manifest, remarks = read_manifest(history.tier, key)
            known = {row.key: row for row in (manifest.segments if manifest is not None else ())}
            found.append(
                {
                    "broker": key.broker,
                    "queueId": key.queue_id,
                    "manifest": None
                    if manifest is None
                    else {"epoch": manifest.epoch, "sequence": manifest.sequence, "writer": manifest.writer,
                          "writtenMs": manifest.written_ms, "gaps": len(manifest.gaps)},
                    "remarks": [str(each) for each in remarks],
                    "segments": [_segment_row(info, known.get(info.key)) for info in listed],
                }
            )  # fmt: skip
    return {"topic": topic, "queues": found}


def _segment_row(info: SegmentInfo, row: Any) -> Result:
    values: Result = {
        "path": info.key.path,
        "kind": _KIND_NAMES.get(info.key.type, info.key.type.name.lower()),
        "base": info.key.base,
        "bytes": info.size,
        "sealed": info.sealed,
        "parts": info.part_count,
        "modifiedMs": info.modified_ms,
        "damage": info.damage,
        "inManifest": row is not None,
    }
    if row is not None:
        values |= {
            "status": SegmentStatus(row.status).name.lower(),
            "crc32": row.crc32,
            "fromOffset": row.begin_offset if row.begin_offset >= 0 else None,
            "toOffset": row.end_offset if row.end_offset >= 0 else None,
            "beginMs": None if row.begin_ms == NEVER_MS else row.begin_ms,
            "endMs": None if row.end_ms == NEVER_MS else row.end_ms,
            "sealedMs": row.sealed_ms or None,
        }
    return values


@operation(
    "tier.orphans",
    "Objects that nothing refers to, and segments that are recorded and missing. Changes nothing.",
    Parameter("hours", "The least age of an orphan.", Kind.WHOLE, default=GRACE_MS // HOUR_MS),
)
def orphans(visit: Visit, *, hours: int) -> Result:
    visit.require_tier()
    # By files of its own: it reads every manifest, and pages wait for those that are shared.
    with visit.sources.queries.run(None), visit.sources.own_files() as history:
        report = find_orphans(history.tier, grace_ms=hours * HOUR_MS, clock=visit.sources.clock)
    return {
        "orphans": [
            {"kind": each.kind.name.lower(), "why": each.kind.value, "path": each.path, "bytes": each.size,
             "modifiedMs": each.modified_ms}
            for each in report.orphans
        ],
        "missing": [camel(dataclasses.asdict(each)) for each in report.missing],
        "unread": report.unread,
        "bytes": report.size_bytes,
    }  # fmt: skip


@operation(
    "tier.verify",
    "Read and check every byte of the tier, or of one topic. Where changes are allowed the tier keeps the result.",
    Parameter("topic", "Only this topic."),
    starts=True,
)
def verify(visit: Visit, *, topic: str | None) -> Result:
    visit.require_tier()
    clock, scope = visit.sources.clock, TierScope(topic=topic)
    began_ms = clock.now_ms()
    with visit.sources.verifying.run(None) as running, visit.sources.own_files() as history:
        report = verify_tier(history.tier, scope, threads=2, progress=lambda _done, _total: running.check())
        for listing in discover_timers(history.tier, scope):
            running.check()
            verify_timers(history.tier, listing, report)
        run = run_of(report, scope, "the console", began_ms, clock.now_ms())
    visit.sources.verification = run
    problem = _kept(visit, run) if visit.may_change else None
    return {
        **camel(report.to_dict()),
        "topic": topic,
        "atMs": began_ms,
        "tookMs": run["tookMs"],
        "isKept": visit.may_change and problem is None,
        "problem": problem,
    }


def _kept(visit: Visit, run: Result) -> str | None:
    """Keep a verification in the tier; why that was not possible."""
    assert visit.sources.place.tier is not None
    try:
        driver = open_driver(visit.sources.place.tier, clock=visit.sources.clock)  # Those of a history only read.
        try:
            keep_run(driver, run)
        finally:
            driver.close()
    except TierError as error:
        return str(error)
    return None


# The bill


@operation(
    "tier.bill",
    "What topics of the tier cost a month against a price sheet, as they are and with other settings; a page of them.",
    Parameter("sheet", "The price sheet.", default="s3-standard", choices=tuple(SHEETS)),
    Parameter("gbMonth", "Price of a GB and month, instead of the sheet's.", Kind.DECIMAL),
    Parameter("writes1000", "Price of 1,000 writes, instead of the sheet's.", Kind.DECIMAL),
    Parameter("reads1000", "Price of 1,000 reads, instead of the sheet's.", Kind.DECIMAL),
    Parameter("retentionDays", "What if: keep messages for so many days.", Kind.DECIMAL),
    Parameter("segmentMiB", "What if: objects of that size.", Kind.DECIMAL),
    Parameter("readsADay", "Requests that readers make to each topic in a day.", Kind.DECIMAL, default=0.0),
    SEARCH,
    PAGE,
    ROWS,
)
def bill(
    visit: Visit,
    *,
    sheet: str,
    gbMonth: float | None,  # noqa: N803 - the names of the parameters
    writes1000: float | None,
    reads1000: float | None,
    retentionDays: float | None,  # noqa: N803
    segmentMiB: float | None,  # noqa: N803
    readsADay: float,  # noqa: N803
    search: str | None,
    page: int,
    rows: int,
) -> Result:
    visit.require_tier()
    uses = _uses(visit)
    names, about = page_of(sorted(uses), search, page, rows)
    prices = sheet_of(sheet, gb_month=gbMonth, writes_1000=writes1000, reads_1000=reads1000)
    if_so = WhatIf(retentionDays, None if segmentMiB is None else int(segmentMiB * (1 << 20)), readsADay)
    for name in names:
        uses[name] = _with_times(visit, uses[name])
    lines = []
    for name in names:
        line = cost_of(uses[name], prices, WhatIf(reads_a_day=readsADay))
        then = cost_of(uses[name], prices, if_so)
        lines.append(
            {**line, "then": then["total"], "bytesThen": then["bytesThen"], "writesADayThen": then["writesADay"]}
        )
    return {
        "sheet": camel(dataclasses.asdict(prices)),
        "currency": "USD",
        "topics": lines,
        "isAll": len(names) == len(uses),
        "all": _of_all(uses, prices),
        "leases": cost_of_leases(len(visit.sources.listing().brokers), prices),
        "cost": round(sum(line["total"] for line in lines), 6),
        "costThen": round(sum(line["then"] for line in lines), 6),
        "bytes": sum(line["bytes"] for line in lines),
        **about,
    }


def _of_all(uses: Mapping[str, TopicUse], prices: PriceSheet) -> Result:
    """What the listing knows of every topic. Writes a day need the manifests of each, so they are of a page only."""
    size = sum(use.size_bytes for use in uses.values())
    objects = sum(use.objects for use in uses.values())
    return {"topics": len(uses), "bytes": size, "objects": objects, "storage": round(size / GB * prices.gb_month, 6)}


@operation(
    "tier.days",
    "What each day of one topic costs: messages, bytes and objects of the day against a price sheet.",
    TOPIC,
    Parameter("sheet", "The price sheet.", default="s3-standard", choices=tuple(SHEETS)),
    Parameter("gbMonth", "Price of a GB and month, instead of the sheet's.", Kind.DECIMAL),
    Parameter("writes1000", "Price of 1,000 writes, instead of the sheet's.", Kind.DECIMAL),
    Parameter("days", "The newest days.", Kind.WHOLE, default=30, low=1, high=3_660),
)
def bill_days(
    visit: Visit,
    *,
    topic: str,
    sheet: str,
    gbMonth: float | None,  # noqa: N803 - the names of the parameters
    writes1000: float | None,
    days: int,
) -> Result:
    visit.require_tier()
    prices = sheet_of(sheet, gb_month=gbMonth, writes_1000=writes1000)
    listed = {info.key: info for info in visit.sources.listing().segments if info.key.topic == topic}
    if not listed:
        raise BadRequest(f"expected the topic {topic[:200]} in the tier, found nothing of it there")
    parts, undated = [], 0
    with visit.sources.files() as history:
        for queue in sorted({key.queue for key in listed}):
            try:
                manifest, _ = read_manifest(history.tier, queue)
            except TierError:
                manifest = None
            for row in manifest.segments if manifest is not None else ():
                info = listed.pop(row.key, None)
                if info is not None and row.key.type is SegmentType.COMMIT_LOG and row.begin_ms != NEVER_MS:
                    messages = max(0, row.end_offset - row.begin_offset) if row.begin_offset >= 0 else 0
                    parts.append(DatedBytes(row.begin_ms, row.end_ms, info.size, max(1, info.part_count), messages))
                elif info is not None:
                    undated += info.size
    undated += sum(info.size for info in listed.values())
    rows = cost_of_days(parts, prices)
    return {
        "topic": topic,
        "sheet": camel(dataclasses.asdict(prices)),
        "currency": "USD",
        "days": rows[-days:],
        "daysInAll": len(rows),
        "undatedBytes": undated,
    }


def _uses(visit: Visit) -> dict[str, TopicUse]:
    """The topics by the listing alone; an object is one for each part, and one for each segment that has none."""
    queues: dict[str, set[tuple[str, int]]] = defaultdict(set)
    objects: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    logs: dict[str, int] = defaultdict(int)
    for info in visit.sources.listing().segments:
        count = max(1, info.part_count)
        queues[info.key.topic].add((info.key.broker, info.key.queue_id))
        objects[info.key.topic] += count
        sizes[info.key.topic] += info.size
        if info.key.type is SegmentType.COMMIT_LOG:
            logs[info.key.topic] += info.size
    return {
        name: TopicUse(name, len(queues[name]), objects[name], sizes[name], None, None, logs[name]) for name in queues
    }


def _with_times(visit: Visit, use: TopicUse) -> TopicUse:
    """With the times of its oldest and newest message and the number of uploads, from the manifests of its queues."""
    parts: dict[QueueKey, int] = defaultdict(int)
    for info in visit.sources.listing().segments:
        if info.key.topic == use.topic:
            parts[info.key.queue] += info.part_count if info.key.type is SegmentType.COMMIT_LOG else 0
    begins, ends = [], []
    commits = manifests = 0.0
    with visit.sources.files() as history:
        for key in sorted(parts):
            try:
                manifest, _ = read_manifest(history.tier, key)
            except TierError:
                continue  # Its bytes count, and its times are not known.
            if manifest is None:
                continue
            logs = [row for row in manifest.segments if row.key.type is SegmentType.COMMIT_LOG]
            begins += [row.begin_ms for row in logs if row.begin_ms != NEVER_MS]
            ends += [row.end_ms for row in logs if row.begin_ms != NEVER_MS]
            # Of what was written for messages that have expired, retention has removed the bytes, too.
            known = [(row.begin_offset, row.end_offset) for row in logs if row.begin_offset >= 0]
            low, high = min((low for low, _ in known), default=0), max((high for _, high in known), default=0)
            share = (high - low) / high if high else 0.0
            manifests += manifest.sequence * share
            # A busy queue commits more often than it writes its manifest, in batches.
            batches = (high - low) / COMMIT_MESSAGES
            commits += max(manifest.sequence * share, float(parts[key]), batches)
    return dataclasses.replace(
        use, begin_ms=min(begins, default=None), end_ms=max(ends, default=None), commits=commits, manifests=manifests
    )

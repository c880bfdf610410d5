"""An account and a timeline of a demo that never ran, for tests of its pictures."""

from __future__ import annotations

from tiermq.cli.demo.account import Account, Check, Sample, Spread, Step, Timeline
from tiermq.cli.demo.engine import SqlRow

MIB = 1 << 20


def timeline_of() -> Timeline:
    timeline = Timeline(lambda: 0, lambda: 0)
    timeline.samples = [
        Sample(0.0, {}, 0, 0),
        Sample(1.0, {"put": 1_000}, 100 * MIB, 0),
        Sample(3.0, {"put": 1_000}, 100 * MIB, 90 * MIB),
        Sample(4.0, {"put": 1_000}, 10 * MIB, 90 * MIB),
        Sample(6.0, {"put": 1_000, "read": 1_000}, 10 * MIB, 90 * MIB),
    ]
    timeline.spreads = [Spread("sql", 1_000, 4.0, 5.0), Spread("export", 1_000, 5.0, 6.0)]
    timeline.steps = [
        Step("put", "Send, and kill", 0.0, 1.0, ["killed <here>"], {"messages_per_s": 500.0}),
        Step("recover", "Recover", 1.0, 1.2, ["all there"], {"recovery_s": 0.2, "messages_per_s": 600.0}),
        Step("copy", "Copy", 1.2, 3.0, [], {"copied": 900, "bytes": 90 * MIB, "copy_s": 1.8}),
        Step("evict", "Evict", 3.0, 3.9, [], {"log_files": 6}),
        Step("read", "Read", 3.9, 4.0, [], {"read": 1_000, "reads_per_s": 1_000.0}),
        Step("sql", "SQL", 4.0, 5.0, [], {"rows": 1_000, "query_s": 1.0}),
        Step("export", "Export", 5.0, 6.0, [], {"rows": 1_000, "export_s": 0.5}),
        Step("rest", "Rest", 6.0, 6.0, [], {"copied": 100, "bytes": 10 * MIB}),
        Step("restore", "Restore", 6.0, 6.1, [], {"restore_s": 0.1, "read": 1_000, "reads_per_s": 9_000.0}),
    ]
    return timeline


def account_of(timeline: Timeline, *, without_spark: str | None = None) -> Account:
    away = ("sql", "export") if without_spark else ()
    timeline.steps = [step for step in timeline.steps if step.name not in away]
    timeline.spreads = [spread for spread in timeline.spreads if spread.series not in away]
    return Account(
        directory="demo",
        tier="s3://bucket/a&b",
        engine="nothing" if without_spark else "Spark",
        kernel="pure",
        without_spark=without_spark,
        acknowledged=480,
        recovered=500,
        messages=1_000,
        checksum=0xABC,
        record_bytes=700.0,
        local_bytes_before=100 * MIB,
        local_bytes_after=10 * MIB,
        log_files_evicted=6,
        tier_bytes=100 * MIB,
        table_files=0 if without_spark else 1,
        table_bytes=0 if without_spark else MIB,
        took_s=6.1,
        sql=[] if without_spark else [SqlRow("paid", "cold", 900, 5_000, 1), SqlRow("<open>", "hot", 100, 70, 2)],
        checks=[Check("by offset", 1_000, 0xABC, True), Check("by chance", 999, 0xABD, False)],
        steps=timeline.steps,
    )

"""The steps of the demo, one method each, in the order in which they are told.

    put       several producers at once, killed with SIGKILL in the middle
    recover   what was acknowledged is there; the producers go on
    spark     a session starts (left out without Spark)
    copy      the history goes to the tier
    evict     local files go, because the tier has proof of its copy; before, none went
    read      some more is put, then everything is read by offset, time and key, wherever it lies
    sql       the same by SQL, hot and cold as one table; one key, and what it cost
    export    a Parquet table, counted by another reader
    restore   the rest is copied, the broker's directory deleted, and everything read from the tier alone

Each reading is counted and compared with what was put: count, and the sum of all bodies' CRC-32. Raises DemoFailed when
a promise is broken.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tiermq.cli.demo_account import Account, rate, seconds, size
from tiermq.cli.demo_engine import BROKER, EmbeddedEngine, Engine, Place, SparkEngine, tally_of, tier_settings
from tiermq.cli.demo_orders import PRODUCERS, QUEUES, TOPIC, Tally, body_of, even, expected, key_of, number_of
from tiermq.cli.demo_producers import DemoFailed, fill_up, killed_producers, store_settings
from tiermq.cli.demo_reading import look_up_keys, look_up_times, read_back, require_acknowledged
from tiermq.cli.demo_timeline import Step, Timeline

LOG = "spark.log"
HOT_SHARE = 20  # One message in so many is put after the copy, and is only in the local store.
EVICTION_SETTINGS: dict[str, Any] = {"file_reserved_time": 0, "delete_file_batch_max": 1_000}

Say = Callable[[str], None]


class Demo:
    """One run. Everything happens on the thread that calls `run`, apart from producers and the timeline's sampler."""

    def __init__(self, place: Place, messages: int, without_spark: str | None, master: str, say: Say) -> None:
        from tiermq.kernel import KERNEL

        self.account = Account(str(place.store.parent), place.tier, EmbeddedEngine.name, KERNEL, without_spark)
        self._place = place
        self._wanted = even(messages)
        self._settings = store_settings(sum(self._wanted)) | tier_settings(sum(self._wanted))
        self._master = master
        self._say = say
        self._engine: Engine = EmbeddedEngine()
        self._held: list[int] = [0] * QUEUES
        self._put = Tally()  # Everything that was put, as it has to be.

    def run(self, timeline: Timeline) -> Account:
        """All steps. `timeline` has been entered already."""
        account = self.account
        account.steps = timeline.steps
        try:
            acknowledged = self._put_and_kill(timeline)
            with ExitStack() as stack:
                store = self._recover(timeline, acknowledged, stack)
                self._start_engine(timeline)
                self._copy(timeline, store)
                self._evict(timeline, store)
                self._read(timeline, store)
                if account.without_spark is None:
                    self._ask(timeline)
                    self._export(timeline)
                self._copy_rest(timeline, store)
            self._restore(timeline)
            account.took_s = timeline.now_s
        finally:
            self._engine.close()
        return account

    def _tell(self, timeline: Timeline, step: Step, line: str) -> None:
        """A sentence about a step, now."""
        number = f"{timeline.steps.index(step) + 1:>2}" if not step.lines else "  "
        step.lines.append(line)
        self._say(f"{number}  {line}")

    def _put_and_kill(self, timeline: Timeline) -> list[int]:
        with timeline.step("put", "Put, and kill") as step:
            self._tell(
                timeline, step, f"{PRODUCERS} producers put lists of orders into {QUEUES} queues, each synced to disk."
            )
            acknowledged, put_rate = killed_producers(self._place.store, sum(self._wanted), timeline.counter("put"))
            self.account.acknowledged = sum(acknowledged)
            step.facts |= {"acknowledged": sum(acknowledged), "messages_per_s": put_rate}
            self._tell(
                timeline,
                step,
                f"Killed with SIGKILL after {sum(acknowledged):,} acknowledged messages, {rate(put_rate, 1)}.",
            )
        return acknowledged

    def _recover(self, timeline: Timeline, acknowledged: Sequence[int], stack: ExitStack) -> Any:
        """Open what the killed process left, read it, and let the producers go on in this process."""
        from tiermq import TieredStore

        with timeline.step("recover", "Recover, and go on") as step:
            embedded = self.account.without_spark is not None
            settings = self._settings | EVICTION_SETTINGS
            store = stack.enter_context(
                TieredStore.open(
                    self._place.store,
                    tier=self._place.tier,
                    broker_name=BROKER,
                    tier_dispatch_enable=embedded,
                    **settings,
                )
            )
            step.facts["recovery_s"] = timeline.now_s - step.begin_s
            if embedded:
                store.pause_tiering()
            self._held, tally = read_back(store, timeline.counter("read"))
            require_acknowledged(self._held, acknowledged)
            self._put = expected(self._held)
            self._require("what the killed process left", tally, self._put)
            self.account.recovered = tally.count
            self._tell(
                timeline,
                step,
                f"Opened what was left in {seconds(step.facts['recovery_s'])}: all {sum(acknowledged):,} acknowledged "
                f"messages are there, and {tally.count - sum(acknowledged):,} that had no answer yet.",
            )
            self._go_on(timeline, step, store, self._wanted)
        return store

    def _go_on(self, timeline: Timeline, step: Step, store: Any, wanted: Sequence[int]) -> None:
        """Let all producers put until the queues hold `wanted`."""
        before, began_s = self._held, timeline.now_s
        fill_up(store, self._held, wanted, timeline.counter("put"))
        took_s = timeline.now_s - began_s
        store.local.dispatch_now()
        self._held = [store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)]
        more = expected(self._held, since=before)
        put, self._put = more.count, self._put.plus(more)
        step.facts |= {"put": put, "put_s": took_s, "messages_per_s": put / max(took_s, 1e-9)}
        account = self.account
        account.messages, account.checksum, account.by_tag = self._put.count, self._put.checksum, self._put.by_tag
        account.record_bytes = store.local.max_physical_offset / max(1, self._put.count)
        if put:
            line = f"{PRODUCERS} producers put {put:,} more, {rate(put, took_s)}: {self._put.count:,} now."
            self._tell(timeline, step, line)

    def _start_engine(self, timeline: Timeline) -> None:
        if self.account.without_spark is not None:
            self._say(f"    No Spark: {self.account.without_spark}.")
            self._say("    The store's own dispatcher copies instead; SQL and the table are left out.")
            return
        with timeline.step("spark", "Start Spark") as step:
            self._engine = SparkEngine(self._master, sum(self._wanted), self._place.store.parent / LOG)
            self.account.engine = self._engine.name
            self._tell(
                timeline,
                step,
                f"{self._engine.name}: started with its workers in {seconds(timeline.now_s - step.begin_s)}.",
            )

    def _copy(self, timeline: Timeline, store: Any) -> None:
        with timeline.step("copy", "Copy to the tier") as step:
            cleaned = store.clean_now()
            if cleaned.log_files:
                raise DemoFailed(f"{cleaned.log_files} local files were deleted that the tier has no copy of")
            step.facts["held_back"] = int(cleaned.vetoed)
            self._copy_now(timeline, step, store)
            self._tell(timeline, step, f"{self._copied(step)} to {self._place.tier} by {self._engine.name}.")

    def _copy_now(self, timeline: Timeline, step: Step, store: Any) -> None:
        before, began_s = timeline.sample(with_tier=True).tier_bytes, timeline.now_s
        copied = self._engine.copy(store, self._place, lambda _done, _all: None)
        took_s = timeline.now_s - began_s
        after = timeline.sample(with_tier=True).tier_bytes
        self.account.tier_bytes = after
        step.facts |= {"copied": copied, "bytes": after - before, "copy_s": took_s, "messages_per_s": copied / took_s}

    def _copied(self, step: Step) -> str:
        facts = step.facts
        return (
            f"Copied {facts['copied']:,} messages ({size(facts['bytes'])}) in {seconds(facts['copy_s'])}, "
            f"{size(facts['bytes'] / facts['copy_s'])}/s,"
        )

    def _evict(self, timeline: Timeline, store: Any) -> None:
        account = self.account
        with timeline.step("evict", "Evict on proof") as step:
            before = timeline.sample().local_bytes
            cleaned = store.clean_now()
            after = timeline.sample().local_bytes
            account.local_bytes_before, account.local_bytes_after = before, after
            account.log_files_evicted = cleaned.log_files
            step.facts |= {"log_files": cleaned.log_files, "bytes_before": before, "bytes_after": after}
            refused = "; before the copy the store had refused to" if account.fact("copy", "held_back") else ""
            self._tell(
                timeline,
                step,
                f"Deleted {cleaned.log_files} local log files{refused}. On disk: {size(before)}, now {size(after)}.",
            )

    def _read(self, timeline: Timeline, store: Any) -> None:
        with timeline.step("read", "Read hot and cold") as step:
            hot = max(1, sum(self._held) // HOT_SHARE // QUEUES)
            self._go_on(timeline, step, store, [held + hot for held in self._held])
            self._read_all(timeline, step, store, "by offset, hot and cold")
            began_s = timeline.now_s
            times = look_up_times(store, self._held)
            step.facts |= {"times": times, "time_ms": 1_000 * (timeline.now_s - began_s) / times}
            self._tell(
                timeline,
                step,
                f"Found {times} places by time, {step.facts['time_ms']:.2f} ms each, and {step.facts['keys']:.0f} "
                f"messages by key, {step.facts['key_ms']:.2f} ms each.",
            )

    def _read_all(self, timeline: Timeline, step: Step, store: Any, how: str) -> None:
        """Read everything by offset, and some by key; compare."""
        began_s = timeline.now_s
        held, tally = read_back(store, timeline.counter("read"))
        took_s = timeline.now_s - began_s
        require_acknowledged(held, self._held)
        self._require(how, tally, self._put)
        step.facts |= {"read": tally.count, "read_s": took_s, "reads_per_s": tally.count / took_s}
        self._tell(timeline, step, f"Read {tally.count:,} messages {how}, {rate(tally.count, took_s)}.")
        began_s = timeline.now_s
        keys = look_up_keys(store, self._held)
        step.facts |= {"keys": keys, "key_ms": 1_000 * (timeline.now_s - began_s) / keys}

    def _ask(self, timeline: Timeline) -> None:
        account = self.account
        with timeline.step("sql", "Ask by SQL") as step:
            self._ask_for_a_key(timeline, step)
            began_s = timeline.now_s
            rows = self._engine.query(self._place) or []
            took_s = timeline.now_s - began_s
            account.sql = rows
            tally = tally_of(dataclasses.asdict(row) for row in rows)
            timeline.spread("sql", tally.count, began_s)
            self._require("by SQL, hot and cold", tally, self._put)
            if tally.by_tag != self._put.by_tag:
                raise DemoFailed(f"SQL adds up to {tally.by_tag} by tag, and {self._put.by_tag} was put")
            step.facts |= {"rows": tally.count, "query_s": took_s}
            parts = {tier: sum(row.messages for row in rows if row.tier == tier) for tier in ("hot", "cold")}
            self._tell(
                timeline,
                step,
                f"SQL over {parts['cold']:,} cold and {parts['hot']:,} hot messages as one table: {seconds(took_s)}, "
                f"{rate(tally.count, took_s)}.",
            )

    def _ask_for_a_key(self, timeline: Timeline, step: Step) -> None:
        number = number_of(QUEUES // 2, self._held[QUEUES // 2] // 3)
        began_s = timeline.now_s
        found = self._engine.find(self._place, key_of(number))
        bodies, read_bytes = found or ([], 0)
        if bodies != [body_of(number)]:
            raise DemoFailed(f"key {key_of(number)} was put once, and Spark found {len(bodies)} messages with it")
        step.facts |= {"key_bytes_read": read_bytes, "key_s": timeline.now_s - began_s}
        self._tell(timeline, step, f"One key by Spark: read {size(read_bytes)} of {size(self.account.tier_bytes)}.")

    def _export(self, timeline: Timeline) -> None:
        account = self.account
        with timeline.step("export", "Export a table") as step:
            table = self._engine.export(self._place)
            assert table is not None
            timeline.spread("export", table.tally.count, step.begin_s)
            self._require("by Spark in the exported table", table.tally, self._put)
            took_s = timeline.now_s - step.begin_s
            account.table_files, account.table_bytes = table.files, table.bytes
            step.facts |= {
                "rows": table.tally.count,
                "files": table.files,
                "bytes": table.bytes,
                "export_s": table.took_s,
            }
            self._tell(
                timeline,
                step,
                f"Exported {table.tally.count:,} rows to {table.files} Parquet files of {size(table.bytes)} in "
                f"{seconds(table.took_s)}; read and counted there: {seconds(took_s)} in all.",
            )

    def _copy_rest(self, timeline: Timeline, store: Any) -> None:
        with timeline.step("rest", "Copy what is new") as step:
            self._copy_now(timeline, step, store)
            self._tell(timeline, step, f"{self._copied(step)} only what was new.")

    def _restore(self, timeline: Timeline) -> None:
        from tiermq import TieredStore

        with timeline.step("restore", "Lose the disk, restore") as step:
            shutil.rmtree(self._place.store)
            timeline.sample()
            self._tell(timeline, step, "Deleted the broker's whole directory.")
            began_s = timeline.now_s
            with TieredStore.open(
                self._place.store, tier=self._place.tier, broker_name=BROKER, restore=True, **self._settings
            ) as store:
                step.facts["restore_s"] = timeline.now_s - began_s
                self._tell(
                    timeline, step, f"Opened it again from the tier alone in {seconds(step.facts['restore_s'])}."
                )
                self._read_all(timeline, step, store, "by offset, from the tier alone")
                self._tell(
                    timeline,
                    step,
                    f"Found {step.facts['keys']:.0f} messages by key, {step.facts['key_ms']:.2f} ms each.",
                )

    def _require(self, by: str, found: Tally, put: Tally) -> None:
        if not self.account.check(by, found, put):
            raise DemoFailed(f"{by}: expected {put}, which was put, found {found}")

"""The steps of the demo, one method each, in order.

    put       a broker is started; several producers send at once; it is killed with SIGKILL meanwhile
    recover   it is started again: acknowledged messages are there; the producers continue
    spark     a session starts (left out without Spark)
    copy      the history is copied to the tier, while the broker serves
    evict     local files are evicted, because their copy in the tier is verified; before, none was
    read      some more is sent, then a lagging consumer reads everything, by offset, time and key
    sql       the same by SQL over the files, hot and cold as one table; one key, and what it cost; one tag by brokers
    export    a Parquet table, counted by another reader
    restore   the rest is copied, the broker's directory deleted, and everything read through a new one from the tier

The broker is `tiermq serve` in a process of its own, and all sends, reads and evictions go over
the wire. Each read is counted and compared with what was sent: count, and the sum of all bodies' CRC-32. Raises
DemoFailed when a check fails.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tiermq.cli.demo.account import Account, Step, Timeline, rate, seconds, size
from tiermq.cli.demo.broker import BROKER, DEMO_CLUSTER, BrokerProcess, Place, settings_text, store_settings
from tiermq.cli.demo.engine import Engine, PlainEngine, SparkEngine, tally_of
from tiermq.cli.demo.orders import (
    ORDER_TAGS,
    PRODUCERS,
    QUEUES,
    DemoFailed,
    Tally,
    body_of,
    even,
    expected,
    key_of,
    look_up_keys,
    look_up_times,
    number_of,
    read_back,
    require_acknowledged,
)
from tiermq.cli.demo.wire import OrdersClient, fill_up, over_the_wire, send_until_killed, until
from tiermq.errors import RemotingError

LOG = "spark.log"
BROKER_LOG = "broker.log"
HOT_SHARE = 20  # One message in HOT_SHARE is sent after the copy, and is only in the local store.
ASKED_TAG = ORDER_TAGS[-1]  # The rarest: the brokers filter out most messages.

Say = Callable[[str], None]
T = TypeVar("T")


class Demo:
    """One demo. Everything runs on the thread that calls `run`, except the timeline's sampler."""

    def __init__(self, place: Place, messages: int, without_spark: str | None, master: str, say: Say) -> None:
        from tiermq.kernel import KERNEL

        self._place = place
        self._wanted = even(messages)
        self._log_file_bytes: int = store_settings(sum(self._wanted))["mapped_file_size_commit_log"]
        self._master = master
        self._say = say
        self._engine: Engine = PlainEngine(sum(self._wanted))
        self._broker = BrokerProcess(place.settings, place.settings.with_name(BROKER_LOG))
        self._held: list[int] = [0] * QUEUES
        self._put = Tally()  # The expected totals of what was sent and stored.
        self.account = Account(str(place.store.parent), place.tier, self._engine.name, KERNEL, without_spark)

    def run(self, timeline: Timeline) -> Account:
        """All steps. `timeline` has been entered already."""
        account = self.account
        account.steps = timeline.steps
        self._place.settings.write_text(settings_text(self._place, sum(self._wanted)), encoding="utf-8")
        try:
            with self._broker:
                self._recover(timeline, self._put_and_kill(timeline))
                self._start_engine(timeline)
                self._copy(timeline)
                self._evict(timeline)
                self._read(timeline)
                if account.without_spark is None:
                    self._ask(timeline)
                    self._export(timeline)
                self._copy_rest(timeline)
                self._restore(timeline)
            account.took_s = timeline.now_s
        except RemotingError as error:
            raise DemoFailed(f"{error}. {self._broker.complaint}".rstrip()) from error
        finally:
            self._engine.close()
        return account

    def _tell(self, timeline: Timeline, step: Step, line: str) -> None:
        """A sentence about a step, now."""
        number = f"{timeline.steps.index(step) + 1:>2}" if not step.lines else "  "
        step.lines.append(line)
        self._say(f"{number}  {line}")

    def _wire(self, work: Callable[[OrdersClient], Awaitable[T]]) -> T:
        return over_the_wire(self._broker.name_server, self._broker.address, work)

    def _put_and_kill(self, timeline: Timeline) -> list[int]:
        with timeline.step("put", "Send, and kill") as step:
            self._broker.start()
            self._wire(lambda orders: orders.create_topic())
            step.facts["start_s"] = timeline.now_s - step.begin_s
            self._tell(timeline, step, f"Started a broker (tiermq serve) in {seconds(step.facts['start_s'])}.")
            half, progress = sum(self._wanted) // 2, timeline.counter("put")
            acknowledged, put_rate = send_until_killed(self._broker.name_server, half, self._broker.kill, progress)
            self._broker.forget_killed()
            self.account.acknowledged = sum(acknowledged)
            step.facts |= {"acknowledged": sum(acknowledged), "messages_per_s": put_rate}
            self._tell(
                timeline,
                step,
                f"{PRODUCERS} producers sent lists of orders to {QUEUES} queues, each answered once it was on disk. "
                f"Killed it with SIGKILL under them after {sum(acknowledged):,} acknowledged messages, "
                f"{rate(put_rate, 1)}.",
            )
        return acknowledged

    def _recover(self, timeline: Timeline, acknowledged: Sequence[int]) -> None:
        """Start a broker on the killed broker's store, read it, and let the producers continue."""
        with timeline.step("recover", "Recover, and go on") as step:
            self._broker.start()
            step.facts["recovery_s"] = timeline.now_s - step.begin_s
            self._held, tally = self._wire(lambda orders: read_back(orders, timeline.counter("read")))
            require_acknowledged(self._held, acknowledged)
            self._put = expected(self._held)
            self._require("over the wire, what the killed broker left", tally, self._put)
            self.account.recovered = tally.count
            self._tell(
                timeline,
                step,
                f"Started it again in {seconds(step.facts['recovery_s'])}: all {sum(acknowledged):,} acknowledged "
                f"messages are there, and {tally.count - sum(acknowledged):,} that had no answer yet.",
            )
            self._go_on(timeline, step, self._wanted)

    def _go_on(self, timeline: Timeline, step: Step, wanted: Sequence[int]) -> None:
        """Let all producers send until the queues hold `wanted`."""
        before, began_s = self._held, timeline.now_s
        sent = fill_up(self._broker.name_server, self._held, wanted, timeline.counter("put"))
        took_s = timeline.now_s - began_s

        async def settled(orders: OrdersClient) -> tuple[list[int], int]:
            async def has_all() -> bool:
                return all(end >= count for end, count in zip(await orders.ends(), sent, strict=True))

            await until(has_all, "what was acknowledged in its queues")
            _, log_end = await orders.log_range()
            return await orders.ends(), log_end

        self._held, log_bytes = self._wire(settled)
        more = expected(self._held, since=before)
        put, self._put = more.count, self._put.plus(more)
        step.facts |= {"put": put, "put_s": took_s, "messages_per_s": put / max(took_s, 1e-9)}
        account = self.account
        account.messages, account.checksum, account.by_tag = self._put.count, self._put.checksum, self._put.by_tag
        account.record_bytes = log_bytes / max(1, self._put.count)
        if put:
            line = f"{PRODUCERS} producers sent {put:,} more, {rate(put, took_s)}: {self._put.count:,} now."
            self._tell(timeline, step, line)

    def _start_engine(self, timeline: Timeline) -> None:
        if self.account.without_spark is not None:
            self._say(f"    No Spark: {self.account.without_spark}.")
            self._say("    The same job copies in this process instead; SQL and the table are left out.")
            return
        with timeline.step("spark", "Start Spark") as step:
            self._engine = SparkEngine(self._master, sum(self._wanted), self._place.store.parent / LOG)
            self.account.engine = self._engine.name
            self._tell(
                timeline,
                step,
                f"{self._engine.name}: started with its workers in {seconds(timeline.now_s - step.begin_s)}.",
            )

    def _copy(self, timeline: Timeline) -> None:
        with timeline.step("copy", "Copy to the tier") as step:
            first, end = self._wire(cleaned)
            if first:
                raise DemoFailed(f"{size(first)} of the local log were deleted that the tier has no copy of")
            step.facts["held_back"] = int(end > self._log_file_bytes)
            self._copy_now(timeline, step)
            self._tell(timeline, step, f"{self._copied(step)} to {self._place.tier} by {self._engine.name}.")

    def _copy_now(self, timeline: Timeline, step: Step) -> None:
        before, began_s = timeline.sample(with_tier=True).tier_bytes, timeline.now_s
        copied = self._engine.copy(self._place)
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

    def _evict(self, timeline: Timeline) -> None:
        account = self.account
        with timeline.step("evict", "Evict on proof") as step:
            before = timeline.sample().local_bytes
            files = self._wire(self._evicted)
            after = timeline.sample().local_bytes
            account.local_bytes_before, account.local_bytes_after = before, after
            account.log_files_evicted = files
            step.facts |= {"log_files": files, "bytes_before": before, "bytes_after": after}
            refused = "; before the copy it had refused to" if account.fact("copy", "held_back") else ""
            self._tell(
                timeline,
                step,
                f"The broker deleted {files} local log files{refused}. On disk: {size(before)}, now {size(after)}.",
            )

    async def _evicted(self, orders: OrdersClient) -> int:
        """Request evictions until all full files are deleted, after the broker has verified their copy."""

        async def only_the_last() -> bool:
            first, end = await cleaned(orders)
            return first // self._log_file_bytes >= (end - 1) // self._log_file_bytes

        await until(only_the_last, "full local files deleted once the tier has their copy")
        first, _ = await orders.log_range()
        return first // self._log_file_bytes

    def _read(self, timeline: Timeline) -> None:
        with timeline.step("read", "Read hot and cold") as step:
            hot = max(1, sum(self._held) // HOT_SHARE // QUEUES)
            self._go_on(timeline, step, [held + hot for held in self._held])
            self._read_all(timeline, step, "over the wire, hot and cold")
            began_s = timeline.now_s
            times = self._wire(lambda orders: look_up_times(orders, self._held))
            step.facts |= {"times": times, "time_ms": 1_000 * (timeline.now_s - began_s) / times}
            self._tell(
                timeline,
                step,
                f"Found {times} places by time, {step.facts['time_ms']:.1f} ms each, and {step.facts['keys']:.0f} "
                f"messages by key, {step.facts['key_ms']:.1f} ms each.",
            )

    def _read_all(self, timeline: Timeline, step: Step, how: str) -> None:
        """A consumer from offset 0: everything by offset, and some by key; compared."""
        began_s = timeline.now_s
        held, tally = self._wire(lambda orders: read_back(orders, timeline.counter("read")))
        took_s = timeline.now_s - began_s
        require_acknowledged(held, self._held)
        self._require(how, tally, self._put)
        step.facts |= {"read": tally.count, "read_s": took_s, "reads_per_s": tally.count / took_s}
        self._tell(timeline, step, f"A consumer read {tally.count:,} messages {how}, {rate(tally.count, took_s)}.")
        began_s = timeline.now_s
        keys = self._wire(lambda orders: look_up_keys(orders, self._held))
        step.facts |= {"keys": keys, "key_ms": 1_000 * (timeline.now_s - began_s) / keys}

    def _ask(self, timeline: Timeline) -> None:
        account = self.account
        with timeline.step("sql", "Ask by SQL") as step:
            self._ask_for_a_key(timeline, step)
            self._ask_brokers(timeline, step)
            began_s = timeline.now_s
            rows = self._engine.query(self._place) or []
            took_s = timeline.now_s - began_s
            account.sql = rows
            tally = tally_of(dataclasses.asdict(row) for row in rows)
            timeline.spread("sql", tally.count, began_s)
            self._require("by SQL, hot and cold", tally, self._put)
            if tally.by_tag != self._put.by_tag:
                raise DemoFailed(f"SQL adds up to {tally.by_tag} by tag, and {self._put.by_tag} was sent")
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
            raise DemoFailed(f"key {key_of(number)} was sent once, and Spark found {len(bodies)} messages with it")
        step.facts |= {"key_bytes_read": read_bytes, "key_s": timeline.now_s - began_s}
        self._tell(timeline, step, f"One key by Spark: read {size(read_bytes)} of {size(self.account.tier_bytes)}.")

    def _ask_brokers(self, timeline: Timeline, step: Step) -> None:
        """The same source, reading from a name server's brokers instead of files."""
        began_s = timeline.now_s
        found = (self._engine.ask_brokers(self._broker.name_server, ASKED_TAG) or Tally()).by_tag
        wanted = {tag: counts for tag, counts in self._put.by_tag.items() if tag == ASKED_TAG}
        if found != wanted:
            raise DemoFailed(f"Spark at the brokers: expected {wanted} with the tag {ASKED_TAG}, found {found}")
        count, took_s = found.get(ASKED_TAG, (0, 0))[0], timeline.now_s - began_s
        timeline.spread("read", count, began_s)
        step.facts |= {"broker_rows": count, "broker_s": took_s}
        self._tell(timeline, step, f"{count:,} messages with one tag by Spark over the wire: {seconds(took_s)}.")

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

    def _copy_rest(self, timeline: Timeline) -> None:
        with timeline.step("rest", "Copy what is new") as step:
            self._copy_now(timeline, step)
            self._tell(timeline, step, f"{self._copied(step)} only what was new.")

    def _restore(self, timeline: Timeline) -> None:
        from tiermq.cli.tier.options import new_metadata, opened
        from tiermq.tier.restore.restore import restore

        with timeline.step("restore", "Lose the disk, restore") as step:
            self._broker.end()
            shutil.rmtree(self._place.store)
            timeline.sample()
            self._tell(timeline, step, "Ended the broker, and deleted its whole directory.")
            began_s = timeline.now_s
            with opened(self._place.tier) as driver, new_metadata(self._place.store) as metadata:
                restore(driver, metadata, cluster=DEMO_CLUSTER, broker=BROKER)
            self._broker.start()
            step.facts["restore_s"] = timeline.now_s - began_s
            self._tell(
                timeline,
                step,
                f"A new one serves from the tier alone after {seconds(step.facts['restore_s'])}.",
            )
            self._read_all(timeline, step, "over the wire, from the tier alone")
            self._tell(
                timeline,
                step,
                f"Found {step.facts['keys']:.0f} messages by key, {step.facts['key_ms']:.1f} ms each.",
            )
            self._broker.end()

    def _require(self, by: str, found: Tally, put: Tally) -> None:
        if not self.account.check(by, found, put):
            raise DemoFailed(f"{by}: expected {put}, which was sent, found {found}")


async def cleaned(orders: OrdersClient) -> tuple[int, int]:
    """Ask the broker to delete expired files; returns the bytes of its log that remain, [first, end)."""
    await orders.clean()
    return await orders.log_range()

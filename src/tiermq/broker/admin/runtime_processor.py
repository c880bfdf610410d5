"""RuntimeProcessor: runtime statistics (GET_BROKER_RUNTIME_INFO, 28), and requested housekeeping.

    28   a table of texts by RocketMQ's names, of what is measured here; rates over 10, 60 and 600 seconds
         with a tier also ours: tierBehindBytes, and where this broker uploads tierBehindMessages, tierBehindMs,
         and tierProblem while uploads fail
    315  how much a topic was sent (TOPIC_PUT_NUMS) or a group given of a topic (GROUP_GET_NUMS): minute, hour and day
    306, 329   delete now what is past its time; queues follow the log

There are no thread pools by request type, so their queue sizes are 0; what waits for the single pool is
reported as the query queue. Totals of days count from the start of the process.
"""

from __future__ import annotations

import datetime as dt
import shutil

from tiermq.broker.admin.rates import NOTE_PERIOD_S, Rates, Window
from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.errors import RequestRefused, TierMQError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.topic_name import SCHEDULE_TOPIC
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.codes import VERSION, RequestCode
from tiermq.remoting.command import RemotingCommand, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body
from tiermq.store.delay_offsets import FILE, decode_delay_offsets
from tiermq.store.statistics import RATE_WINDOWS_SECONDS

VERSION_NAME = "V5_3_3"
MIDNIGHT_LOOK_S = 10.0
_RATES = {
    "putTps": "put_tps",
    "getFoundTps": "get_found_tps",
    "getMissTps": "get_missed_tps",
    "getTransferredTps": "get_transferred_tps",
}
PUT_NUMS, GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
STATS_KEY_SEPARATOR = "@"
_STATS_WINDOWS = {"statsMinute": Window.MINUTE, "statsHour": Window.HOUR, "statsDay": Window.DAY}
_LINES = ("send", "pull", "litePull", "ack")
TIMER_FIGURES = ("timerCongestNum", "timerDequeueTps", "timerEnqueueTps", "timerOffsetBehind", "timerReadBehind")
_UNITS = "KMGTPE"


class RuntimeProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._access = OsFileAccess()
        self._started_ms = parts.clock.now_ms()
        self._today = self._date()
        self._this_morning = (0, 0)
        self._yesterday_morning = (0, 0)
        self._timer_rates: Rates[str] = Rates(parts.clock)
        parts.metrics.gauge(
            "rocketmq_storage_message_reserve_time", "ms since the oldest message of the local log was stored", (),
            self._reserve_ms,
        )  # fmt: skip
        parts.hooks.every(MIDNIGHT_LOOK_S, self.look_at_the_date)
        parts.hooks.every(NOTE_PERIOD_S, self._note_timers)

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO, access=ADMINISTRATOR, in_pool=True)
    def runtime_info(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        table = {**self._of_broker(), **self._of_store(), **self._of_days(), **self._of_delays(), **self._of_timers()}
        table |= self._of_tier()
        return command.respond(body=encode_body({"table": table}))

    @serves(
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG, access=ADMINISTRATOR, in_pool=True
    )
    def clean(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._parts.local.clean_now()  # Files whose copy is not verified yet are deleted later.
        return command.respond()

    @serves(RequestCode.VIEW_BROKER_STATS_DATA, access=ADMINISTRATOR)
    def stats_data(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name, key = text_field(command, "statsName"), text_field(command, "statsKey")
        topic, _, group = key.partition(STATS_KEY_SEPARATOR)
        if self._parts.topics.get(topic) is None or name not in (PUT_NUMS, GET_NUMS):
            raise RequestRefused(f"The stats <{name}> <{key}> not exist")
        body = {}
        for member, window in _STATS_WINDOWS.items():
            put = self._parts.put_rates.grown(topic, window)
            grown = put if name == PUT_NUMS else self._parts.given_rates.grown((group, topic), window)
            body[member] = {"sum": grown.total, "tps": grown.per_second}
        return command.respond(body=encode_body(body))

    # The parts of the table.

    def _of_broker(self) -> dict[str, str]:
        now_ms, server = self._parts.clock.now_ms(), self._parts.server
        table = {
            "bootTimestamp": str(self._started_ms),
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "runtime": _duration(now_ms - self._started_ms),
            "startAcceptSendRequestTimeStamp": "0",
            "queryThreadPoolQueueSize": str(server.waiting_blocking),
            "queryThreadPoolQueueCapacity": str(server.limits.blocking_line_max),
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "sendThreadPoolQueueCapacity": str(self._parts.config.send_thread_pool_queue_capacity),
            "pullThreadPoolQueueCapacity": str(self._parts.config.pull_held_max),
        }
        for line in _LINES:
            table[f"{line}ThreadPoolQueueSize"] = "0"
            table[f"{line}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return table

    def _of_store(self) -> dict[str, str]:
        local = self._parts.local
        figures, status = local.statistics(), local.status()
        paths = [str(path) for path in local.config.commit_log_paths]
        ratios = [self._access.disk_usage_ratio(path) for path in paths]
        distribution = figures["put_latency_distribution"]
        assert isinstance(distribution, dict)
        table = {
            "commitLogMinOffset": str(local.min_physical_offset),
            "commitLogMaxOffset": str(local.max_physical_offset),
            "commitLogDiskRatio": f"{max(ratios):.2f}",
            "consumeQueueDiskRatio": f"{self._access.disk_usage_ratio(str(local.config.root_path)):.2f}",
            "commitLogDirCapacity": _capacity(paths[0]),
            "dispatchBehindBytes": str(status["dispatch_behind_bytes"]),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "pageCacheLockTimeMills": "0",
            "putLatency99": f"{figures['put_latency_ms_p99']:.2f}",
            "putLatency999": f"{figures['put_latency_ms_p999']:.2f}",
            "putMessageAverageSize": str(figures["put_bytes_average"]),
            "putMessageDistributeTime": " ".join(f"[{name}]:{count}" for name, count in distribution.items()),
            "putMessageEntireTimeMax": f"{figures['put_latency_ms_max']:.0f}",
            "putMessageFailedTimes": str(figures["put_failures"]),
            "putMessageSizeTotal": str(figures["put_bytes"]),
            "putMessageTimesTotal": str(local.put_count),
            "remainHowManyDataToFlush": _bytes_text(local.max_physical_offset - local.flushed_where),
        }
        for path, ratio in zip(paths, ratios, strict=True):
            table[f"commitLogDiskRatio_{path}"] = f"{ratio:.2f}"
        totals = dict.fromkeys(RATE_WINDOWS_SECONDS, 0.0)
        for name, field in _RATES.items():
            rates = figures[field]
            assert isinstance(rates, dict)
            table[name] = " ".join(str(rates[f"{window}s"]) for window in RATE_WINDOWS_SECONDS)
            if name in ("getFoundTps", "getMissTps"):
                totals = {window: total + rates[f"{window}s"] for window, total in totals.items()}
        table["getTotalTps"] = " ".join(map(str, totals.values()))
        return table

    def _of_tier(self) -> dict[str, str]:
        """What is not in the tier yet. Where a job uploads, this broker knows the bytes only."""
        tiered = self._parts.tiered
        if tiered is None or tiered.only_reads:
            return {}
        engine = tiered.tier.engine
        table = {"tierBehindBytes": f"{engine.lag_bytes():.0f}"}
        if failing := engine.failing():
            table["tierProblem"] = failing
        if tiered.tier.follower is None:
            messages, age_s = engine.backlog()
            table |= {"tierBehindMessages": f"{messages:.0f}", "tierBehindMs": f"{age_s * 1000:.0f}"}
        return table

    def _earliest_ms(self) -> int:
        """When the oldest message of the log was stored; -1 when the log is empty, or the message is being deleted."""
        local = self._parts.local
        try:
            oldest = local.message_at(local.min_physical_offset)
        except TierMQError:
            return -1
        return -1 if oldest is None else oldest.store_timestamp_ms

    def _reserve_ms(self) -> int:
        oldest_ms = self._earliest_ms()
        return max(0, self._parts.clock.now_ms() - oldest_ms) if oldest_ms > 0 else 0

    def _of_delays(self) -> dict[str, str]:
        """Level → (delivered, stored), as far as it was written down."""
        local = self._parts.local
        path = f"{config_directory(local.config.root_path)}/{FILE}"
        offsets, _ = self._access.read_config(path, decode_delay_offsets) or ({}, 0)
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{local.max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in sorted(offsets.items())
        }

    def _of_timers(self) -> dict[str, str]:
        timers = self._parts.timers
        if timers is None:
            return dict.fromkeys(TIMER_FIGURES, "0")
        behind_ms = max(0, self._parts.clock.now_ms() - timers.read_ms - timers.settings.precision_ms)
        taken_in, delivered = self._timer_rates.per_second("enqueued"), self._timer_rates.per_second("delivered")
        figures = (timers.waiting_count, delivered, taken_in, timers.behind_count, behind_ms // 1000)
        return {name: str(value) for name, value in zip(TIMER_FIGURES, figures, strict=True)}

    def _note_timers(self) -> None:
        if (timers := self._parts.timers) is not None:
            self._timer_rates.note({"enqueued": timers.counts.enqueued, "delivered": timers.counts.delivered})

    # Days.

    def _of_days(self) -> dict[str, str]:
        self.look_at_the_date()
        table = {}
        for when, (puts, gets) in (
            ("YesterdayMorning", self._yesterday_morning),
            ("TodayMorning", self._this_morning),
            ("TodayNow", self._totals()),
        ):
            table[f"msgPutTotal{when}"], table[f"msgGetTotal{when}"] = str(puts), str(gets)
        return table

    def look_at_the_date(self) -> None:
        """On a new day, note the totals with which it began."""
        today = self._date()
        if today != self._today:
            self._today = today
            self._yesterday_morning, self._this_morning = self._this_morning, self._totals()

    def _totals(self) -> tuple[int, int]:
        gets = sum(self._parts.hooks.given().values())
        return self._parts.local.put_count, gets

    def _date(self) -> dt.date:
        return dt.datetime.fromtimestamp(self._parts.clock.now_ms() / 1000).astimezone().date()


def _capacity(path: str) -> str:
    disk = shutil.disk_usage(path)
    return f"Total : {_bytes_text(disk.total)}, Free : {_bytes_text(disk.free)}."


def _duration(span_ms: int) -> str:
    minutes, seconds = divmod(max(0, span_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes_text(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    power = min(len(_UNITS), (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}iB"

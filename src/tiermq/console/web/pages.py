"""The pages: which template each has, and what it shows, which is what operations return."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiermq.console.bill import SHEETS
from tiermq.console.catalogue import run
from tiermq.console.copied_commands import replay_command
from tiermq.console.hot_cold_map import WORDS
from tiermq.console.operations.overview import LAGS_S
from tiermq.console.operations.topics import topic_names
from tiermq.console.sources import Visit
from tiermq.console.web import figures
from tiermq.errors import RequestRefused, TierMQError
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, is_dead_letter_topic, is_retry_topic
from tiermq.remoting.codes import ResponseCode

HEX_BYTES_MAX = 4096
TEXT_BYTES_MAX = 256 << 10
CHOICES_MAX = 200
EXAMPLE = 'SELECT tags, tier, count(*) AS messages FROM "{}" GROUP BY ALL'
Context = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for a page: who asks, and the parameters of its path and query."""

    visit: Visit
    values: Mapping[str, str]

    def of(self, *names: str) -> dict[str, str]:
        """The parameters that an operation gets."""
        return {name: self.values[name] for name in names if self.values.get(name)}


@dataclass(frozen=True, slots=True)
class Page:
    """`fragment` is the template of its live part, if it has one."""

    path: str
    template: str
    context: Callable[[Ask], Context]
    fragment: str = ""


def _overview(ask: Ask) -> Context:
    return {"found": run("overview", ask.visit)}


def _topics(ask: Ask) -> Context:
    found = run("topic.list", ask.visit, ask.of("search", "all", "page", "rows"))
    return {"found": found, "search": ask.values.get("search", ""), "now_ms": ask.visit.sources.clock.now_ms()}


def _topic(ask: Ask) -> Context:
    name = ask.values["topic"]
    found = run("topic.show", ask.visit, {"topic": name})
    context: Context = {"found": found, "topic": name, "legend": WORDS, "chart": None, "map": None, "map_problem": None}
    if ask.visit.has_files:
        try:
            shown = run("topic.map", ask.visit, {"topic": name})
            by_time = ask.values.get("by") != "offset"
            context |= {"map": shown, "chart": figures.strip_map(name, shown["queues"], by_time=by_time)}
            context["places"] = sorted({span["where"] for each in shown["queues"] for span in each["spans"]})
        except TierMQError as error:
            context["map_problem"] = str(error)
    return context


def _queue(ask: Ask) -> Context:
    topic, queue = ask.values["topic"], ask.values["queue"]
    offset = ask.values.get("offset", "0")
    found = run(
        "message.find",
        ask.visit,
        {"topic": topic, "queue": queue, "offset": offset, "limit": "50", **ask.of("broker", "tag", "text")},
    )
    segments = []
    if ask.visit.has_files:
        shown = run("topic.map", ask.visit, {"topic": topic})
        broker = ask.values.get("broker")
        segments = [
            segment
            for each in shown["queues"]
            if str(each["queueId"]) == queue and broker in (None, "", each["broker"])
            for segment in each["segments"]
        ]
    last = found["messages"][-1]["queueOffset"] + 1 if found["messages"] else None
    return {"found": found, "topic": topic, "queue": queue, "offset": offset, "segments": segments, "next": last,
            "broker": ask.values.get("broker", "")}  # fmt: skip


def _groups(ask: Ask) -> Context:
    wanted = ask.of("search", "all", "page", "rows")
    # A live page asks again every two seconds, and fifty groups are hundreds of requests: one answer for all visitors.
    key = ("groups", ask.visit.credentials, ask.visit.reads_files, *sorted(wanted.items()))
    found = ask.visit.sources.kept(key, LAGS_S, lambda: run("group.list", ask.visit, wanted))
    context: Context = {"found": found, "search": ask.values.get("search", ""), "producers": None}
    if ask.visit.has_wire:
        try:
            context["producers"] = run("producer.list", ask.visit)["producers"]
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
    return context


def _history(ask: Ask) -> Context:
    """A slider from the first known time to now, and how things were at the chosen one."""
    now_ms = ask.visit.sources.clock.now_ms()
    topic = ask.values.get("topic", "")
    context: Context = {"topic": topic, "search": ask.values.get("search", ""), "now_ms": now_ms, "problem": None}
    try:
        # Looked at now first, for the begin of the slider.
        values = {"at": str(now_ms - 1), **ask.of("at", "topic", "search", "page", "rows")}
        context["found"] = run("history.show", ask.visit, values)
    except TierMQError as error:
        context |= {"found": None, "problem": str(error)}
        return context
    found = context["found"]
    low = min(found["beginMs"] or now_ms, found["atMs"], now_ms - 60_000)
    context |= {"low_ms": low, "step_ms": max(1, (now_ms - low) // 1_000), "at_ms": found["atMs"]}
    context["command"] = replay_command(ask.visit, topic, found["atMs"])
    return context


def _group(ask: Ask) -> Context:
    name = ask.values["group"]
    found = run("group.show", ask.visit, {"group": name})
    context: Context = {"found": found, "group": name, "preview": None, "problem": None, "values": ask.values}
    context["topics"] = sorted({each["topic"] for each in found["queues"] if not is_retry_topic(each["topic"])})
    if ask.values.get("to") and ask.values.get("topic"):
        try:
            context["preview"] = run("group.preview", ask.visit, {"group": name, **ask.of("topic", "to")})
        except TierMQError as error:
            context["problem"] = str(error)
    return context


def _messages(ask: Ask) -> Context:
    context: Context = {"found": None, "values": ask.values, "problem": None, "topic": ask.values.get("topic", "")}
    if ask.values.get("topic"):
        names = ("topic", "key", "id", "queue", "broker", "offset", "begin", "end", "tag", "text", "limit")
        try:
            context["found"] = run("message.find", ask.visit, ask.of(*names))
        except TierMQError as error:
            context["problem"] = str(error)
    context["names"] = topic_names(ask.visit, everything=False)[:CHOICES_MAX]
    return context


def _message(ask: Ask) -> Context:
    found = run("message.show", ask.visit, ask.of("topic", "queue", "offset", "broker"))
    body = base64.b64decode(found["bodyBase64"])
    return {"found": found, "dump": _hex_lines(body[:HEX_BYTES_MAX]), "is_cut": len(body) > HEX_BYTES_MAX,
            "text": body[:TEXT_BYTES_MAX].decode(errors="backslashreplace"),
            "text_left": max(0, len(body) - TEXT_BYTES_MAX)}  # fmt: skip


def _hex_lines(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {row.hex(' '):47}  {shown}")
    return "\n".join(lines)


def _tier(ask: Ask) -> Context:
    values = {**ask.of("search", "rows"), "page": ask.values.get("topicsPage", "")}
    found = run("tier.show", ask.visit, values)
    names = (
        "sheet",
        "gbMonth",
        "writes1000",
        "reads1000",
        "retentionDays",
        "segmentMiB",
        "readsADay",
        "search",
        "page",
        "rows",
    )
    bill = run("tier.bill", ask.visit, ask.of(*names))
    top = sorted(bill["topics"], key=lambda line: -line["total"])[:8]
    if bill["cost"]:
        rows = [(line["topic"], line["total"], f"{figures.money(line['total'])} a month") for line in top]
    else:
        top = sorted(bill["topics"], key=lambda line: -line["bytes"])[:8]
        rows = [(line["topic"], float(line["bytes"]), figures.size(line["bytes"])) for line in top]
    return {"found": found, "bill": bill, "values": ask.values, "sheets": list(SHEETS),
            "chart": figures.bars(rows, "copy") if rows else None}  # fmt: skip


def _segments(ask: Ask) -> Context:
    return {"found": run("tier.segments", ask.visit, ask.of("topic"))}


def _orphans(ask: Ask) -> Context:
    # Looked for when it is asked for: it compares the whole listing with every manifest.
    found = run("tier.orphans", ask.visit, ask.of("hours")) if ask.values.get("hours") else None
    return {"found": found, "values": ask.values}


def _days(ask: Ask) -> Context:
    found = run("tier.days", ask.visit, ask.of("topic", "sheet", "gbMonth", "writes1000", "days"))
    rows = [(row["day"], float(row["bytes"]), f"{figures.size(row['bytes'])}, {figures.money(row['total'])}")
            for row in found["days"][-14:]]  # fmt: skip
    return {"found": found, "values": ask.values, "sheets": list(SHEETS),
            "chart": figures.bars(rows, "copy") if rows else None}  # fmt: skip


def _sql(ask: Ask) -> Context:
    context: Context = {"values": ask.values, "result": None, "estimate": None, "problem": None}
    context |= {"spark_master": ask.visit.sources.place.spark_master, "running": None}
    names = topic_names(ask.visit, everything=False)
    context["example"] = EXAMPLE.format(names[0]) if names else ""
    if ask.values.get("query"):
        try:
            if ask.values.get("only") == "estimate":
                context["estimate"] = run("sql.estimate", ask.visit, ask.of("query", "begin"))
            else:
                context["result"] = run("sql.run", ask.visit, ask.of("query", "begin", "limit"))
        except TierMQError as error:
            context["problem"] = str(error)
    return context


def spark_result(ask: Ask) -> Context:
    """The page of SQL with the result of its query on Spark."""
    context = _sql(Ask(ask.visit, {})) | {"values": ask.values, "on_spark": True}
    try:
        context["result"] = run("sql.spark", ask.visit, ask.of("query", "begin", "limit"))
    except TierMQError as error:
        context["problem"] = str(error)
    return context


def _running(ask: Ask) -> Context:
    return run("sql.running", ask.visit)


def _waiting(ask: Ask) -> Context:
    context: Context = {"problem": None, "values": ask.values, "letters": None, "transaction": None, "problems": {}}
    dead = filter(is_dead_letter_topic, topic_names(ask.visit, everything=True))
    context["groups"] = [name.removeprefix(DEAD_LETTER_PREFIX) for name in dead][:CHOICES_MAX]
    wanted: dict[str, tuple[str, dict[str, str]]] = {
        "delayed": ("delayed.list", {}),
        "transactions": ("transaction.list", {}),
    }
    if ask.values.get("group"):
        wanted["letters"] = ("dlq.list", ask.of("group", "topic", "since", "key"))
    if ask.values.get("id"):
        wanted["transaction"] = ("transaction.show", ask.of("id"))
    for name, (operation, values) in wanted.items():
        try:
            context[name] = run(operation, ask.visit, values)
        except TierMQError as error:
            context[name] = None
            context["problems"][name] = str(error)
    return context


def _settings(ask: Ask) -> Context:
    context: Context = {"found": None, "problem": None, "search": ask.values.get("search", "")}
    try:
        context["found"] = run("settings.show", ask.visit, ask.of("broker", "search"))
    except TierMQError as error:
        context["problem"] = str(error)
    return context


PAGES = (
    Page("/", "overview.html", _overview, "_overview.html"),
    Page("/topics", "topics.html", _topics),
    Page("/topics/{topic}", "topic.html", _topic),
    Page("/topics/{topic}/queues/{queue}", "queue.html", _queue),
    Page("/groups", "groups.html", _groups, "_groups.html"),
    Page("/groups/{group}", "group.html", _group),
    Page("/messages", "messages.html", _messages),
    Page("/message", "message.html", _message),
    Page("/history", "history.html", _history),
    Page("/tier", "tier.html", _tier),
    Page("/tier/days", "days.html", _days),
    Page("/tier/segments", "segments.html", _segments),
    Page("/tier/orphans", "orphans.html", _orphans),
    Page("/sql", "sql.html", _sql),
    Page("/sql/running", "running.html", _running, "_running.html"),
    Page("/waiting", "waiting.html", _waiting),
    Page("/settings", "settings.html", _settings),
)

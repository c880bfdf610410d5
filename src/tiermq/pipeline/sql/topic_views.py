"""The topics of a history as tables of queries: their names, the columns that a text can need, rows as JSON. No Spark.

Every guess is on the safe side: a word that only looks like a column costs a column, never a wrong answer.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiermq.client.wire_history import catalog_of, open_place
from tiermq.errors import BadOption
from tiermq.history.arrow_schema import ALIASES, COLUMNS
from tiermq.pipeline.scan.scan_request import base_request, check_topics, require_queues, require_tier
from tiermq.pipeline.scan.scan_spec import ScanSpec

ALL_TOPICS = "messages"
ROWS_SHOWN = 1000
"""Of a query's result, unless more are asked for."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMES = re.compile(r"`([^`]+)`|([A-Za-z_]\w*)")
_SHOWN_MAX = 21
_COUNT_STAR = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_STAR = re.compile(r"(?:\b(?:select|distinct|all)\b|[,.(])\s*(?:/\*.*?\*/\s*)*\*", re.IGNORECASE | re.DOTALL)
# Statements that take every column of a table without a star.
_WHOLE = re.compile(r"^\s*desc\b|\b(?:table|describe|natural|pivot|unpivot)\b|\|>", re.IGNORECASE)
_FROM_BEHIND_WITH = re.compile(r"^\s*with\b.*\)\s*from\b", re.IGNORECASE | re.DOTALL)
_CHEAPEST = "queueId"


def columns_needed(query: str) -> tuple[str, ...] | None:
    """The columns whose names are in the text, in their order; None when the query may want all of them."""
    text = _COUNT_STAR.sub("count(1)", query)
    if _STAR.search(text) or _WHOLE.search(text):
        return None
    listed = [word.lower() for word in _WORD.findall(text)]
    if listed.count("from") > listed.count("select") or _FROM_BEHIND_WITH.search(text):
        return None  # A `from` without a `select` takes every column.
    words = set(listed)
    needed = tuple(name for name in (*COLUMNS, *ALIASES) if name.lower() in words)
    return needed or (_CHEAPEST,)


class TopicViews(dict[str, str]):
    """The names of topics in queries: the best name that Spark can have for each topic, by name.

    A topic's own name is always that topic. A name derived from it (small letters, `_` for any other character:
    `%RETRY%group` is `_retry_group`) is that topic only while no other topic has the same one. Spark ignores the case
    of names, so topics that differ in nothing else are not in here; `topic_of` still finds them by their own names.
    """

    def __init__(self, topics: Iterable[str], clusters: Mapping[str, Sequence[str]] | None = None) -> None:
        """`clusters` are the topics of each cluster."""
        self.topics = sorted(topics)
        self.clusters = clusters or {}
        self._meant: dict[str, list[str]] = {}
        for topic in self.topics:
            for name in {_derived(topic), topic.lower()}:
                self._meant.setdefault(name, []).append(topic)
        super().__init__({name: topic for topic in self.topics for name in self.plain_names(topic)[:1]})

    @property
    def known(self) -> set[str]:
        """Every name that means a topic or several, in small letters."""
        return {ALL_TOPICS, *self._meant}

    def plain_names(self, topic: str) -> list[str]:
        """The names under which Spark can have this topic: the derived one first, then its own."""
        return [name for name in dict.fromkeys((_derived(topic), topic.lower())) if self._owner(name) == topic]

    def topics_of(self, written: str) -> list[str]:
        """The topics of a name as a query has it; none for another name. Raises BadOption where it means several."""
        if written.lower() == ALL_TOPICS:
            return self.topics
        if written in self.topics:
            return [written]
        found = self._meant.get(written.lower(), [])
        if len(found) > 1:
            raise self.ambiguous(written)
        return found

    def named(self, query: str) -> list[str]:
        """Those names that the text has and Spark can have. Raises BadOption for one that means several topics."""
        found = []
        for quoted, word in _NAMES.findall(query):
            written = quoted or word
            topics, name = self.topics_of(written), written.lower()
            if name != ALL_TOPICS and topics and self._owner(name) != topics[0]:
                raise self.ambiguous(written)
            if topics and name not in found:
                found.append(name)
        return found

    def shown(self) -> str:
        """The names for a message, as they are written in a query."""
        alone = [topic for topic in self.topics if not self.plain_names(topic)]
        names = [ALL_TOPICS, *self, *(topic for topic in alone if topic.lower() != ALL_TOPICS)]
        return ", ".join(map(as_written, names[:_SHOWN_MAX])) + (", …" if len(names) > _SHOWN_MAX else "")

    def ambiguous(self, written: str) -> BadOption:
        topics = self._meant[written.lower()]
        return BadOption(
            f"table {written}: expected the name of one topic, found {len(topics)} that it can mean: "
            f"{', '.join(topics)}. Write {' or '.join(as_written(topic, always=True) for topic in topics)}, with this "
            f"case, in history.sql or `tiermq pipeline sql`; or {ALL_TOPICS} with where topic = '{topics[0]}'"
        )

    def _owner(self, name: str) -> str | None:
        """The topic that has this name of small letters where case is ignored; None when several could."""
        found = self._meant.get(name, [])
        if name == ALL_TOPICS or not found:
            return None
        is_own = name in found and sum(topic.lower() == name for topic in found) == 1
        return name if is_own else found[0] if len(found) == 1 else None


def as_written(name: str, *, always: bool = False) -> str:
    """A name as a query has it: in backticks where it must be, or always."""
    return f"`{name}`" if always or not _WORD.fullmatch(name) else name


def _derived(topic: str) -> str:
    name = re.sub(r"\W+", "_", topic, flags=re.ASCII).lower()
    return f"t_{name}" if name[:1].isdigit() or name.strip("_") == "" else name


def history_views(spec: ScanSpec) -> TopicViews:
    """The views by name: the requested topics, or all of the history. Raises BadHistory."""
    request = base_request(spec, ())
    with open_place(spec.place) as history:
        catalog = catalog_of(history, request)
        require_tier(catalog, spec)
        check_topics(catalog, request)
        require_queues(catalog, spec)
        clusters: dict[str, list[str]] = {}
        for cluster, topic in sorted({(queue.key.cluster, queue.key.topic) for queue in catalog.queues()}):
            clusters.setdefault(cluster, []).append(topic)
        return TopicViews(catalog.topics(), clusters)


def plain(value: Any) -> Any:
    """A value of a row as JSON can hold it: bytes as text where they are text, times in ISO form."""
    if isinstance(value, bytes | bytearray):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return f"0x{data.hex()}"
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value

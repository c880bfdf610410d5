"""The tables that a query reads, each reference separately: its alias, and what it cannot need.

    select o.body from orders o where o.queueId = 1 and o.price > 3
        ─► select o.body from _tiermq_0 o where …         _tiermq_0: topic orders, pruned to queue 1

Spark's own filter pushdown for Python sources mixes up two uses of one table (4.3). Here every reference gets a table
of its own, whose pruning is derived from the text, and Spark still applies every condition. So a derived pruning must
be implied by the query, nothing more; unsupported terms prune nothing:

* conditions are terms of the top-level AND of the WHERE of the very SELECT that has the table in its FROM or JOIN. Such
  a term must be true of each row that goes on, also behind outer joins, since it is not true of null;
* a term compares a column of the table with literals of its own type: =, <=>, IN, BETWEEN, <, <=, >, >=, and
  array_contains(keys, …), in DuckDB's dialect also '…' IN keys, '…' = ANY (keys), keys @> […] and keys && […];
* a column without a qualifier counts only where the SELECT has one table and nothing else that makes columns;
* a table with a sample, a version, a pivot or renamed columns is not pruned, and a query that defines a name like
  that of a table, or is no plain query, is left as it is.

The text is changed where table names are, and nowhere else. No Spark, and nothing is read.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tiermq.clock import time_ms
from tiermq.history.scan_pruning import ScanPruning
from tiermq.settings import LONG_MAX

_TEXT_FIELDS = {"topic": "topics", "brokername": "brokers", "tags": "tags", "uniqkey": "keys"}
_QUEUE_COLUMNS = frozenset({"queueid", "partition"})
_OFFSET_COLUMNS = frozenset({"queueoffset", "offset"})
_TIME_COLUMNS = frozenset({"storetimestamp", "timestamp"})
_MIRRORED: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?(?:Z|[+-]\d{2}:\d{2})?")
_QUOTES = {"spark": "`", "duckdb": '"'}
"""What stands around names that are no plain identifiers."""
_PLAIN = frozenset({"with_", "hint", "kind", "expressions", "from_", "joins", "laterals", "where", "group", "having"})
_PLAIN |= {"qualify", "windows", "distribute", "sort", "cluster", "order", "limit", "offset", "distinct"}
"""Parts of a SELECT that change nothing about which rows its WHERE sees."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """One reference to a table: `name` stands for it in the text, where it was `view`."""

    name: str
    view: str
    pruning: ScanPruning


@dataclass(frozen=True, slots=True)
class QueryTables:
    """The query with a name for each reference, and what these are."""

    text: str
    reads: tuple[TableRead, ...]


def query_tables(
    query: str, known: set[str], prefix: str, zone: dt.tzinfo | None = None, *, dialect: str = "spark"
) -> QueryTables | None:
    """Name each reference to a known table; None for a query whose text is not rewritten.

    `known` has names in small letters. `zone` is that of times without one; without it they prune nothing. `dialect` is
    that of the query: spark or duckdb.
    """
    if "|>" in query or re.match(r"\s*from\b", query, re.IGNORECASE):
        return None
    try:
        (tree,) = sqlglot.parse(query, dialect=dialect)
    except (SqlglotError, ValueError):
        return None
    if not isinstance(tree, exp.Query) or any(cte.alias.lower() in known for cte in tree.find_all(exp.CTE)):
        return None
    found = sorted(
        (table for table in tree.find_all(exp.Table) if table.name.lower() in known and not table.db),
        key=lambda table: int(table.this.meta.get("start", -1)),
    )
    reads, pieces, at = [], [], 0
    for number, table in enumerate(found):
        begin, end = table.this.meta.get("start", -1), table.this.meta.get("end", -2) + 1
        if query[begin:end].strip(_QUOTES[dialect]).lower() != table.name.lower() or begin < at:
            return None
        name = f"{prefix}{number}"
        pieces += [query[at:begin], name if table.alias else f"{name} as {query[begin:end]}"]
        at = end
        reads.append(TableRead(name, table.name, _pruning(table, query, zone)))
        if not table.alias and _is_dressed(table):
            return None  # An alias goes behind a sample or a version, which the text may have anywhere.
    return QueryTables("".join([*pieces, query[at:]]), tuple(reads))


def written_table(query: str) -> str | None:
    """The table that a statement changes; None for one that only reads, or is not understood."""
    try:
        (tree,) = sqlglot.parse(query, dialect="spark")
    except (SqlglotError, ValueError):
        return None
    target = tree.this if isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge) else None
    target = target.this if isinstance(target, exp.Schema) else target
    return target.name if isinstance(target, exp.Table) and not target.db else None


def condition_pruning(condition: str, zone: dt.tzinfo | None) -> ScanPruning:
    """The pruning of a condition on messages, as in a WHERE."""
    query = f"select * from messages where {condition}"  # noqa: S608 - it is parsed, never run
    try:
        (tree,) = sqlglot.parse(query, dialect="spark")
    except (SqlglotError, ValueError):
        return ScanPruning()
    tables = list(tree.find_all(exp.Table)) if isinstance(tree, exp.Select) else []
    return _pruning(tables[0], query, zone) if len(tables) == 1 else ScanPruning()


def _is_dressed(table: exp.Table) -> bool:
    return any(value for name, value in table.args.items() if name not in ("this", "alias"))


def _pruning(table: exp.Table, query: str, zone: dt.tzinfo | None) -> ScanPruning:
    alias = table.args.get("alias")
    if _is_dressed(table) or (alias is not None and alias.args.get("columns")):
        return ScanPruning()
    holder = table.parent
    select = holder.parent if isinstance(holder, exp.From | exp.Join) else None
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    if where is None or select is None or any(value and name not in _PLAIN for name, value in select.args.items()):
        return ScanPruning()
    is_alone = not select.args.get("joins") and not select.args.get("laterals") and isinstance(holder, exp.From)
    reader = _Terms(table.alias_or_name.lower(), is_alone, query, zone)
    pruning = ScanPruning()
    for term in _terms(where.this):
        pruning = pruning.also(reader.pruning(term))
    return pruning


def _terms(condition: exp.Expression) -> Iterator[exp.Expression]:
    if isinstance(condition, exp.Paren):
        yield from _terms(condition.this)
    elif isinstance(condition, exp.And):
        yield from _terms(condition.this)
        yield from _terms(condition.expression)
    else:
        yield condition


class _Terms:
    """Reads single terms as prunings of one table."""

    def __init__(self, alias: str, is_alone: bool, query: str, zone: dt.tzinfo | None) -> None:
        self._alias = alias
        self._is_alone = is_alone
        self._query = query
        self._zone = zone

    def pruning(self, term: exp.Expression) -> ScanPruning:
        """The pruning of a term; none if it is not supported."""
        if keys := self._keys(term):
            return ScanPruning(keys=keys)
        if isinstance(term, exp.EQ | exp.NullSafeEQ):
            for column, value in ((term.this, term.expression), (term.expression, term.this)):
                if name := self._column(column):
                    return self._one_of(name, [value])
        elif isinstance(term, exp.In):
            name, values = self._column(term.this), term.args.get("expressions") or []
            others = any(value for key, value in term.args.items() if key not in ("this", "expressions"))
            if name and values and not others:
                return self._one_of(name, values)
        elif isinstance(term, exp.Between):
            if (name := self._column(term.this)) and not term.args.get("symmetric"):
                low, high = term.args["low"], term.args["high"]
                return self._bound(name, exp.GTE, low).also(self._bound(name, exp.LTE, high))
        elif type(term) in _MIRRORED:
            if name := self._column(term.this):
                return self._bound(name, type(term), term.expression)
            if name := self._column(term.expression):
                return self._bound(name, _MIRRORED[type(term)], term.this)
        return ScanPruning()

    def _keys(self, term: exp.Expression) -> frozenset[str]:
        """Keys of which each row has one, by a term about the list of keys; empty if it is no such term."""
        column, value = term.args.get("this"), term.args.get("expression")
        if isinstance(term, exp.In):
            column, value = term.args.get("field"), term.this
        elif isinstance(term, exp.EQ) and isinstance(value, exp.Any):
            column, value = value.this.unnest(), column
        elif isinstance(term, exp.ArrayContainedBy):
            column, value = value, column
        elif not isinstance(term, exp.ArrayContains | exp.Contains | exp.ArrayContainsAll | exp.ArrayOverlaps):
            return frozenset()
        if not isinstance(column, exp.Expression) or self._column(column) != "keys":
            return frozenset()
        texts = [self._text(each) for each in (value.expressions if isinstance(value, exp.Array) else [value])]
        if not texts or not all(texts):
            return frozenset()
        found = [text for text in texts if text]
        return frozenset(found if isinstance(term, exp.ArrayOverlaps) else found[:1])  # Of keys that all must be: one.

    def _column(self, node: exp.Expression) -> str | None:
        """The name of a column of this table, in lower case; None if the node is no column."""
        if not isinstance(node, exp.Column) or node.args.get("db") or not isinstance(node.this, exp.Identifier):
            return None
        qualifier = node.table.lower()
        return node.name.lower() if qualifier == self._alias or (not qualifier and self._is_alone) else None

    def _one_of(self, name: str, values: list[exp.Expression]) -> ScanPruning:
        if name in _TEXT_FIELDS:
            texts = [self._text(value) for value in values]
            if all(texts):
                return ScanPruning(**{_TEXT_FIELDS[name]: frozenset(text for text in texts if text)})  # type: ignore[arg-type]
        elif name in _QUEUE_COLUMNS or name in _OFFSET_COLUMNS:
            numbers = [number for number in map(self._number, values) if number is not None]
            if len(numbers) == len(values) and name in _QUEUE_COLUMNS:
                return ScanPruning(queue_ids=frozenset(numbers))
            if len(numbers) == len(values):
                return ScanPruning(begin_offset=min(numbers), end_offset=max(numbers) + 1)
        elif name in _TIME_COLUMNS and len(values) == 1:
            return self._bound(name, exp.GTE, values[0]).also(self._bound(name, exp.LTE, values[0]))
        return ScanPruning()

    def _bound(self, name: str, kind: type[exp.Expression], value: exp.Expression) -> ScanPruning:
        is_lower = kind in (exp.GT, exp.GTE)
        if name in _OFFSET_COLUMNS and (number := self._number(value)) is not None:
            if is_lower:
                return ScanPruning(begin_offset=number + (kind is exp.GT))
            return ScanPruning(end_offset=number + (kind is exp.LTE))
        if name in _TIME_COLUMNS and (moment_ms := self._moment_ms(value)) is not None:
            # Columns have whole milliseconds, literals microseconds: one more on either side is always enough.
            return ScanPruning(begin_ms=moment_ms) if is_lower else ScanPruning(end_ms=moment_ms + 1)
        return ScanPruning()

    def _text(self, node: exp.Expression | None) -> str | None:
        """A plain text literal. One with an escape in it may mean something else to Spark."""
        if not isinstance(node, exp.Literal) or not node.is_string:
            return None
        text = str(node.this)
        is_plain = f"'{text}'" in self._query or f'"{text}"' in self._query
        return text if is_plain and "\\" not in text and "'" not in text and '"' not in text else None

    def _number(self, node: exp.Expression) -> int | None:
        if isinstance(node, exp.Cast) and node.to.this is exp.DataType.Type.BIGINT:
            node = node.this  # 100L
        if not isinstance(node, exp.Literal) or node.is_string or not re.fullmatch(r"\d{1,19}", str(node.this)):
            return None
        return min(int(node.this), LONG_MAX - 1)

    def _moment_ms(self, node: exp.Expression) -> int | None:
        """A time as Spark reads it: in the session's zone where it has none."""
        if isinstance(node, exp.Cast):
            kinds = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.DATE)
            if node.to.this not in kinds:
                return None
            node = node.this
        text = self._text(node)
        if text is None or not _TIME.fullmatch(text):
            return None
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            if self._zone is None:
                return None
            moment = moment.replace(tzinfo=self._zone)
            if moment.utcoffset() != moment.replace(fold=1).utcoffset():
                return None  # A local time that is ambiguous, or does not exist.
        return max(0, time_ms(moment.astimezone(dt.UTC)))

"""Message filters by tag, by SQL92, and for retries; the parser of SQL92 expressions.

A message whose properties make an expression fail (a text where a number is needed) does not pass. Expressions are
compiled once and cached, valid and invalid ones.

    price > 9.5 AND region IN ('eu', 'us')   ─►   ID OP FLOAT AND ID IN ( STRING , STRING ) END   ─►   nodes

RocketMQ's grammar, from what binds least to what binds most:

    or         := and (OR and)*
    and        := equality (AND equality)*
    equality   := comparison ( (= | <>) comparison | IS [NOT] NULL )*
    comparison := unary ( (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( text, … )
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text )*
    unary      := (+ | - | NOT) unary | text | number | TRUE | FALSE | NULL | property | ( or )

NOT binds to the next value, as in RocketMQ: `NOT (a = 1)` needs its parentheses. Stricter than RocketMQ in one
point: text after a complete expression is an error, not ignored. Keywords are case-insensitive; names of properties
are not changed. A quote inside a text is doubled. Comments are `-- … end of line` and `/* … */`. Anything else raises
BadExpression with its position.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tiermq.broker.group.subscription import EXPRESSION_CHARACTERS_MAX, ExpressionCache, Subscription
from tiermq.broker.pull import sql_nodes
from tiermq.broker.pull.sql_nodes import Node, NotComparable, whole_constant
from tiermq.errors import BadExpression, CorruptRecord
from tiermq.message.layout import ReadableBuffer
from tiermq.message.message_filter import EVERYTHING, SQL92, TAG_BYTES, MessageFilter, TagCodeFilter
from tiermq.message.properties import RETRY_TOPIC, decode_properties, get_property
from tiermq.message.record_head import HeadKind, read_head

EXPRESSION_TERMS_MAX = 512
"""Values, properties, parentheses, signs, NOTs and tests of one SQL92 expression: each is a step for each message."""

WORDS = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)
SQL_NESTING_MAX = 100
_ORDERS = frozenset({">", ">=", "<", "<="})
_TEXT_WORDS = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


class Kind(enum.Enum):
    WORD = "word"
    NAME = "name"
    TEXT = "text"
    WHOLE = "whole number"
    DECIMAL = "decimal number"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """One word: what it is, its text (of a TEXT: without quotes), and where it begins."""

    kind: Kind
    text: str
    at: int


_SPACE = r"[ \t\n\r\f]+|/\*.*?\*/"
_LINE_COMMENT = r"--[^\n\r]*(?:\r\n|\n|\r)"
_REST = (
    r"(?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<whole>0|[1-9][0-9]*[lL]?)"
    r"|(?P<text>'(?:''|[^'])*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
)
_TOKEN = re.compile(rf"(?P<space>{_SPACE}|{_LINE_COMMENT})|{_REST}", re.DOTALL)
_TOKEN_OF_LAST_LINE = re.compile(rf"(?P<space>{_SPACE})|{_REST}", re.DOTALL)
_KINDS = {"decimal": Kind.DECIMAL, "whole": Kind.WHOLE, "text": Kind.TEXT, "name": Kind.NAME, "sign": Kind.SIGN}


def tokenize(expression: str) -> Iterator[Token]:
    """The words one by one, the last of them END. Raises BadExpression where it comes to what is none."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise BadExpression(
            f"expected an expression of at most {EXPRESSION_CHARACTERS_MAX} characters, found {len(expression)}"
        )
    at = 0
    # Behind the last end of a line `--` begins no comment; looking for one at each would be quadratic.
    last_line_at = max(expression.rfind("\n"), expression.rfind("\r")) + 1
    while at < len(expression):
        found = (_TOKEN if at < last_line_at else _TOKEN_OF_LAST_LINE).match(expression, at)
        if found is None:
            raise BadExpression(
                f"expected a property, a value or an operator at character {at}, found {expression[at : at + 20]!r}"
            )
        group = found.lastgroup or ""
        text = found.group()
        if group == "name" and text.upper() in WORDS:
            yield Token(Kind.WORD, text.upper(), at)
        elif group == "text":
            yield Token(Kind.TEXT, text[1:-1].replace("''", "'"), at)
        elif group != "space":
            yield Token(_KINDS[group], text, at)
        at = found.end()
    yield Token(Kind.END, "", at)


def parse(expression: str) -> Node:
    """The condition that an expression is. Raises BadExpression."""
    return parse_counted(expression)[0]


def parse_counted(expression: str) -> tuple[Node, int]:
    """The condition, and how many terms it is made of: what asking it costs. Raises BadExpression."""
    parser = _Parser(tokenize(expression))
    return parser.whole(), parser.terms


class _Parser:
    """Reads tokens from the front; each method reads what it is named for."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._token = next(tokens)
        self._depth = 0
        self.terms = 0

    def whole(self) -> Node:
        node = self._or()
        self._expect(Kind.END, "")
        return sql_nodes.condition(node)

    def _or(self) -> Node:
        parts = [self._and()]
        while self._accept("OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else sql_nodes.either(*parts)

    def _and(self) -> Node:
        parts = [self._equality()]
        while self._accept("AND"):
            parts.append(self._equality())
        return parts[0] if len(parts) == 1 else sql_nodes.both(*parts)

    def _equality(self) -> Node:
        node = self._comparison()
        for _ in range(SQL_NESTING_MAX):
            if self._accept("="):
                node = sql_nodes.equal(node, self._comparison())
            elif self._accept("<>"):
                node = sql_nodes.opposite(sql_nodes.equal(node, self._comparison()))
            elif self._accept("IS"):
                wanted = not self._accept("NOT")
                self._expect(Kind.WORD, "NULL")
                self._count()
                tested = sql_nodes.is_null(node)
                node = tested if wanted else sql_nodes.opposite(tested)
            else:
                return node
        raise _too_many()

    def _comparison(self) -> Node:
        node = self._unary()
        for _ in range(SQL_NESTING_MAX):
            token = self._token
            if token.kind is Kind.SIGN and token.text in _ORDERS:
                self._next()
                node = sql_nodes.ordered(token.text, node, self._unary())
            elif token.kind is Kind.WORD and token.text in ("NOT", "BETWEEN", "IN", *_TEXT_WORDS):
                node = self._test(node)
            else:
                return node
        raise _too_many()

    def _test(self, value: Node) -> Node:
        self._count()
        wanted = not self._accept("NOT")
        token = self._next()
        if token.text == "BETWEEN" and token.kind is Kind.WORD:
            low = self._unary()
            self._expect(Kind.WORD, "AND")
            make = sql_nodes.between if wanted else sql_nodes.not_between
            return make(value, low, self._unary())
        if token.text == "IN" and token.kind is Kind.WORD:
            return sql_nodes.member(value, self._texts(), wanted=wanted)
        if token.text in _TEXT_WORDS and token.kind is Kind.WORD:
            return sql_nodes.text_test(token.text, value, self._expect(Kind.TEXT).text, wanted=wanted)
        raise _unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH", token)

    def _texts(self) -> list[str]:
        self._expect(Kind.SIGN, "(")
        texts = [self._expect(Kind.TEXT).text]
        while self._accept(","):
            texts.append(self._expect(Kind.TEXT).text)
        self._expect(Kind.SIGN, ")")
        return texts

    def _unary(self) -> Node:
        self._depth += 1
        if self._depth > SQL_NESTING_MAX:
            raise BadExpression(f"expected at most {SQL_NESTING_MAX} levels of nesting, found more")
        self._count()
        try:
            if self._accept("+"):
                return self._unary()
            if self._accept("-"):
                return sql_nodes.minus(self._unary())
            if self._accept("NOT"):
                return sql_nodes.opposite(self._unary())
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        token = self._next()
        if token.kind is Kind.NAME:
            return sql_nodes.named(token.text)
        if token.kind is Kind.TEXT:
            return sql_nodes.constant(token.text)
        if token.kind is Kind.WHOLE:
            try:
                return sql_nodes.constant(whole_constant(token.text))
            except ValueError as error:
                raise BadExpression(f"expected a number at character {token.at}, found {error}") from error
        if token.kind is Kind.DECIMAL:
            number = float(token.text)
            if number == float("inf"):
                raise BadExpression(f"expected a number of double precision, found {token.text[:40]}")
            return sql_nodes.constant(number)
        if token.kind is Kind.WORD and token.text in _CONSTANTS:
            return sql_nodes.constant(_CONSTANTS[token.text])
        if token.kind is Kind.SIGN and token.text == "(":
            node = self._or()
            self._expect(Kind.SIGN, ")")
            return node
        raise _unexpected("a property, a value or (", token)

    def _count(self) -> None:
        self.terms += 1
        if self.terms > EXPRESSION_TERMS_MAX:
            raise BadExpression(
                f"expected at most {EXPRESSION_TERMS_MAX} values, properties, signs and tests, found more; use IN"
            )

    # Tokens.

    def _next(self) -> Token:
        token = self._token
        if token.kind is not Kind.END:
            self._token = next(self._tokens)
        return token

    def _accept(self, text: str) -> bool:
        """Step over a word or sign if it comes next."""
        token = self._token
        if token.kind in (Kind.WORD, Kind.SIGN) and token.text == text:
            self._next()
            return True
        return False

    def _expect(self, kind: Kind, text: str | None = None) -> Token:
        token = self._next()
        if token.kind is not kind or (text is not None and token.text != text):
            raise _unexpected(text or f"a {kind.value}" if kind is not Kind.END else "the end", token)
        return token


def _too_many() -> BadExpression:
    """Each test of a row asks the one before it, so a long row would need a deep stack for every message."""
    return BadExpression(f"expected fewer than {SQL_NESTING_MAX} comparisons in a row, found more; use AND and OR")


def _unexpected(wanted: str, token: Token) -> BadExpression:
    found = "the end of the expression" if token.kind is Kind.END else repr(token.text[:40])
    return BadExpression(f"expected {wanted} at character {token.at}, found {found}")


LOOKUPS_MAX = 64
"""Properties that are looked for one by one: as much work as reading all that a message can have."""
STEP_BYTES = 512
"""Of one part of a compiled expression, in memory."""
CHARACTER_BYTES = 24
"""Of one character of an SQL92 expression: the texts of an IN, each with its entry in a table."""


class SqlFilter:
    """An SQL92 expression over the properties of messages, each of which is looked up only when it is needed."""

    __slots__ = ("_evaluate", "expression", "steps")

    def __init__(self, expression: str) -> None:
        """Raises BadExpression."""
        self.expression = expression
        node, self.steps = parse_counted(expression)
        self._evaluate = node.evaluate

    def matches_unit(self, tags_code: int | None, ext_unit: object | None = None) -> bool:  # noqa: ARG002
        return True

    def matches_record(self, record: ReadableBuffer) -> bool:
        return self.matches_properties(encoded_properties_of(record))

    def matches_properties(self, encoded: bytes) -> bool:
        """Whether a message with these properties passes."""

        known: dict[str, str | None] = {}
        everything: dict[str, str] | None = None

        def look_up(name: str) -> str | None:
            nonlocal everything
            if name in known:
                return known[name]
            if len(known) < LOOKUPS_MAX:
                value = get_property(encoded, name.encode())
                known[name] = None if value is None else value.decode("utf-8", "replace")
                return known[name]
            if everything is None:
                everything = decode_properties(encoded, errors="replace")
            return everything.get(name)

        try:
            return self._evaluate(look_up) is True
        except NotComparable:
            return False

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


class RetryFilter:
    """For a group's retry topic: what the group filters the topic by that a message was first sent to."""

    __slots__ = ("_filter_of",)
    steps = EXPRESSION_TERMS_MAX
    """Of the longest expression that the group may have."""

    def __init__(self, filter_of: Callable[[str], MessageFilter | None]) -> None:
        """`filter_of` gives the filter of a topic, None for all messages."""
        self._filter_of = filter_of

    def matches_unit(self, tags_code: int | None, ext_unit: object | None = None) -> bool:  # noqa: ARG002
        return True

    def matches_record(self, record: ReadableBuffer) -> bool:
        topic = get_property(encoded_properties_of(record), RETRY_TOPIC.encode())
        chosen = None if topic is None else self._filter_of(topic.decode("utf-8", "replace"))
        return chosen is None or chosen.matches_record(record)


def filter_of(subscription: Subscription) -> MessageFilter | None:
    """How a store filters for a subscription; None lets everything pass. Raises BadExpression."""
    if subscription.class_filter_mode:
        return None
    if subscription.is_by_tag:
        text = subscription.expression.strip()
        if not text or text == EVERYTHING:
            return None
        return _tag_filter(text)
    if subscription.expression_type != SQL92:
        raise BadExpression(f"expected an expression of type TAG or {SQL92}, found {subscription.expression_type!r}")
    found = _sql_filter(subscription.expression)
    if isinstance(found, str):
        raise BadExpression(found)
    return found


def bytes_of(message_filter: MessageFilter | None) -> int:
    """What a filter keeps in memory, as an estimate that is never far too low. Of one around another: of `chosen`."""
    message_filter = getattr(message_filter, "chosen", message_filter)
    if isinstance(message_filter, TagCodeFilter):
        return TAG_BYTES * len(message_filter.codes)
    characters = len(message_filter.expression) if isinstance(message_filter, SqlFilter) else 0
    return CHARACTER_BYTES * characters + STEP_BYTES * getattr(message_filter, "steps", 0)


def _sql_or_problem(expression: str) -> SqlFilter | str:
    try:
        return SqlFilter(expression)
    except BadExpression as error:
        return str(error)


_tag_filter = ExpressionCache(TagCodeFilter, bytes_of)
_sql_filter = ExpressionCache(_sql_or_problem, lambda made: len(made) if isinstance(made, str) else bytes_of(made))
"""Pulls that bring the same expression share its filter: thousands of them may be held."""


def encoded_properties_of(record: ReadableBuffer) -> bytes:
    head = read_head(record)
    if head.kind is not HeadKind.OK:
        raise CorruptRecord(f"record at {head.reason or 'byte 0: a blank record'}")
    start = head.properties_position
    return bytes(record[start : start + head.properties_length])

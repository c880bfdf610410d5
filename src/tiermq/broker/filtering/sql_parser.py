"""From the words of a filter expression to its parts. RocketMQ's grammar, from what binds least to what binds most:

    or         := and (OR and)*
    and        := equality (AND equality)*
    equality   := comparison ( (= | <>) comparison | IS [NOT] NULL )*
    comparison := unary ( (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( text, … )
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text )*
    unary      := (+ | - | NOT) unary | text | number | TRUE | FALSE | NULL | property | ( or )

NOT binds to the next value, as in the original: `NOT (a = 1)` needs its parentheses. Stricter than the original in one
place: something behind a complete expression is refused, not ignored.
"""

from __future__ import annotations

from tiermq.broker.filtering import sql_nodes
from tiermq.broker.filtering.sql_nodes import Node
from tiermq.broker.filtering.sql_tokens import Kind, Token, tokenize
from tiermq.broker.filtering.sql_values import whole_constant
from tiermq.errors import BadExpression
from tiermq.remoting.limits import EXPRESSION_TERMS_MAX

NESTING_MAX = 100
_ORDERS = frozenset({">", ">=", "<", "<="})
_TEXT_WORDS = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


def parse(expression: str) -> Node:
    """The condition that an expression is. Raises BadExpression."""
    return parse_counted(expression)[0]


def parse_counted(expression: str) -> tuple[Node, int]:
    """The condition, and how many values and properties it is made of: what asking it costs. Raises BadExpression."""
    parser = _Parser(tokenize(expression))
    return parser.whole(), parser.terms


class _Parser:
    """Reads tokens from the front; each method reads what it is named for."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
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
        for _ in range(NESTING_MAX):
            if self._accept("="):
                node = sql_nodes.equal(node, self._comparison())
            elif self._accept("<>"):
                node = sql_nodes.opposite(sql_nodes.equal(node, self._comparison()))
            elif self._accept("IS"):
                wanted = not self._accept("NOT")
                self._expect(Kind.WORD, "NULL")
                tested = sql_nodes.is_null(node)
                node = tested if wanted else sql_nodes.opposite(tested)
            else:
                return node
        raise _too_many()

    def _comparison(self) -> Node:
        node = self._unary()
        for _ in range(NESTING_MAX):
            token = self._tokens[self._at]
            if token.kind is Kind.SIGN and token.text in _ORDERS:
                self._at += 1
                node = sql_nodes.ordered(token.text, node, self._unary())
            elif token.kind is Kind.WORD and token.text in ("NOT", "BETWEEN", "IN", *_TEXT_WORDS):
                node = self._test(node)
            else:
                return node
        raise _too_many()

    def _test(self, value: Node) -> Node:
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
        if self._depth > NESTING_MAX:
            raise BadExpression(f"expected at most {NESTING_MAX} levels of nesting, found more")
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
        self.terms += 1
        if self.terms > EXPRESSION_TERMS_MAX:
            raise BadExpression(f"expected at most {EXPRESSION_TERMS_MAX} values and properties, found more; use IN")
        if token.kind is Kind.NAME:
            return sql_nodes.named(token.text)
        if token.kind is Kind.TEXT:
            return sql_nodes.constant(token.text)
        if token.kind is Kind.WHOLE:
            try:
                return sql_nodes.constant(whole_constant(token.text))
            except ValueError as error:
                raise BadExpression(f"expected a number of 64 bits at character {token.at}, found {error}") from error
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

    # Tokens.

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind is not Kind.END:
            self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        """Step over a word or sign if it comes next."""
        token = self._tokens[self._at]
        if token.kind in (Kind.WORD, Kind.SIGN) and token.text == text:
            self._at += 1
            return True
        return False

    def _expect(self, kind: Kind, text: str | None = None) -> Token:
        token = self._next()
        if token.kind is not kind or (text is not None and token.text != text):
            raise _unexpected(text or f"a {kind.value}" if kind is not Kind.END else "the end", token)
        return token


def _too_many() -> BadExpression:
    """Each test of a row asks the one before it, so a long row would need a deep stack for every message."""
    return BadExpression(f"expected fewer than {NESTING_MAX} comparisons in a row, found more; use AND and OR")


def _unexpected(wanted: str, token: Token) -> BadExpression:
    found = "the end of the expression" if token.kind is Kind.END else repr(token.text[:40])
    return BadExpression(f"expected {wanted} at character {token.at}, found {found}")
